"""NCCL's debug output, from real lines."""

import json
from pathlib import Path

from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from opsctl.base.errors import OpsctlError
from opsctl.cli.stacks import stacks
from opsctl.diagnosis.nccl_debug import read_nccl_debug, render_nccl
from tests.unit.diagnosis.conftest import read_corpus

ODD = read_corpus("nccl-odd.txt")
# The same report says that ranks 1 and 3 were at the place of rank 0: their lines are copies of its lines.
ONE = ODD.splitlines()[0].replace("45006", "45009").replace("[0]", "[1]")
THREE = ODD.splitlines()[0].replace("45006", "45015").replace("[0]", "[3]")
# https://github.com/NVIDIA/nccl-tests/issues/166
REFUSED = (
    "ubuntu:39964:40075 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: "
    "Connect to 10.0.0.2<45763> failed : Software caused connection abort"
)
CLOSED = (
    "ubuntu:39964:40044 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node1<57557>"
)
BOOTSTRAP = "node1:21288:21288 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.2<0>"
INIT = "h03r3n06:{pid}:1 [{gpu}] NCCL INFO comm {comm} rank {rank} nranks 4 cudaDev {gpu} busId 1000 - Init COMPLETE"


def lines(*texts: str) -> list[bytes]:
    return "\n".join(texts).encode().splitlines()


def test_rank_with_another_collective_is_odd() -> None:
    summary = render_nccl(read_nccl_debug(lines(ODD, ONE, THREE)))
    assert summary[0] == "communicator of 4 ranks: 4 of 4 ranks logged collectives: AllReduce 4, AllGather 2"
    assert (
        "  odd: h03r3n06 GPU 2 started AllGather 28c of 59205120, other ranks started AllReduce 28c of 9984512"
        in summary
    )


def test_rank_is_named_if_a_line_names_the_rank() -> None:
    init = INIT.format(pid=45012, gpu=2, comm="0x559c24b55610", rank=6)
    assert any(
        "odd: rank 6 (h03r3n06 GPU 2)" in line for line in render_nccl(read_nccl_debug(lines(init, ODD, ONE, THREE)))
    )


def test_rank_with_an_earlier_collective_is_behind() -> None:
    two = ODD.splitlines()
    ahead = [
        line.replace("45006", str(pid)).replace("[0]", f"[{gpu}]") for line in two[:2] for pid, gpu in ((1, 1), (2, 3))
    ]
    summary = render_nccl(read_nccl_debug(lines(two[0], *ahead)))
    assert summary[1:] == [
        "  behind: h03r3n06 GPU 0 last started AllReduce 28c of 9984512; other ranks are at AllReduce 28d of 8149504"
    ]


def test_failed_connections_have_host_names() -> None:
    assert render_nccl(read_nccl_debug(lines(BOOTSTRAP, REFUSED, REFUSED, CLOSED)))[:2] == [
        "ubuntu -> node1: Software caused connection abort (2 times)",
        "ubuntu -> node1: Connection closed by remote peer (1 times)",
    ]


def test_unreachable_host_is_named() -> None:
    others = [REFUSED.replace("ubuntu", f"n{number}") for number in range(3)]
    assert render_nccl(read_nccl_debug(lines(BOOTSTRAP, *others)))[-1] == "most hosts cannot reach node1 (3 hosts)"


def test_lines_with_a_rank_prefix_are_read() -> None:
    assert read_nccl_debug(lines(f"[node1:3]: {REFUSED}")).failures[0].peer == "10.0.0.2"


def test_warning_names_host_and_rank() -> None:
    init = INIT.format(pid=45012, gpu=2, comm="0x559c24b55610", rank=6)
    warning = "h03r3n06:45012:45100 [2] NCCL WARN Cuda failure 'out of memory'"
    summary = read_nccl_debug(lines(init, warning, warning))
    assert render_nccl(summary) == [
        "warning, 2 times: Cuda failure 'out of memory'",
        "  from: rank 6 (h03r3n06 GPU 2)",
    ]


def test_log_without_problems_gets_a_hint(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(BOOTSTRAP)
    assert "NCCL_DEBUG=INFO" in CliRunner().invoke(stacks, ["--from", str(tmp_path)]).output


def test_log_without_lines_of_nccl_is_not_called_sound(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("step 3\nstep 4\n")
    error = CliRunner().invoke(stacks, ["--from", str(tmp_path)]).exception
    assert isinstance(error, OpsctlError)
    assert "no output of NCCL" in error.message


def test_log_of_nccl_is_read_as_json(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("\n".join([BOOTSTRAP, REFUSED, ODD, ONE, THREE]))
    fields = json.loads(CliRunner().invoke(stacks, ["--from", str(tmp_path), "--json"]).output)["nccl"]
    assert fields["failures"][0]["peer"] == "node1"
    assert list(fields["groups"][0]["odd"]) == ["h03r3n06 GPU 2"]


@given(st.text(max_size=200))
def test_noise_raises_nothing(text: str) -> None:
    render_nccl(read_nccl_debug([f"a:1:2 [0] NCCL {text}".encode(errors="replace"), text.encode(errors="replace")]))
