"""Dumps of torch's flight recorder: made by torch 2.13 with gloo, four ranks, of which rank 3 skips an all-reduce."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.diagnosis.diagnose_attempt import FinishedAttemptLogs, diagnose_attempt
from opsctl.diagnosis.flight_recorder import FlightDump, explain_dumps, load_plain, parse_dump, read_dump, read_dumps
from opsctl.guard.attempt_record import make_body_env
from opsctl.settings.loader import GuardSettings
from opsctl.state.run_dir import RunDir

CORPUS = Path(__file__).parents[2] / "corpus" / "flight"
MISSING = "group 0 default_pg: rank 3 never came to gloo:all_reduce [[8]] (number 3)"
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=300),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=30,
)


@given(value=values, protocol=st.sampled_from([0, 1, 2, 4, 5]))
def test_plain_pickle_is_read(value: object, protocol: int) -> None:
    assert load_plain(pickle.dumps(value, protocol)) == value


class Attack:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return print, ("unpickled",)


@pytest.mark.parametrize("value", [Attack(), {"entries": [Attack()]}, Path("x"), {1, 2}, b"x"])
def test_pickle_with_a_class_is_refused(value: object, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="instruction"):
        load_plain(pickle.dumps(value))
    assert capsys.readouterr().out == ""


@given(data=st.binary(max_size=200))
def test_any_bytes_are_plain_or_refused(data: bytes) -> None:
    try:
        load_plain(data)
    except ValueError:
        return


def test_rank_that_never_came_is_named() -> None:
    assert explain_dumps(read_dumps(CORPUS)) == [MISSING]


def test_json_dump_is_read_like_a_pickle(tmp_path: Path) -> None:
    shutil.copy(CORPUS / "json-0", tmp_path / "flight-0.json")
    from_json, from_pickle = read_dump(tmp_path / "flight-0.json"), read_dump(CORPUS / "flight-0")
    assert from_json.collectives == from_pickle.collectives


def make_dump(rank: int, *calls: str, is_over: bool = True, ranks: str = "[0, 1, 2]") -> FlightDump:
    entries = [
        {
            "process_group": ["0", "dp"],
            "collective_seq_id": number,
            "profiling_name": f"nccl:{call}",
            "input_sizes": [],
            "state": "completed" if is_over or number < len(calls) else "started",
        }
        for number, call in enumerate(calls, start=1)
    ]
    return parse_dump(rank, {"pg_config": {"0": {"ranks": ranks}}, "entries": entries})


def test_different_collectives_are_named() -> None:
    dumps = [make_dump(rank, "all_reduce", "broadcast" if rank == 1 else "all_gather") for rank in range(3)]
    different = "different collectives at number 2: ranks 0, 2 in nccl:all_gather; rank 1 in nccl:broadcast"
    assert explain_dumps(dumps) == [f"group 0 dp: {different}"]


def test_collective_that_did_not_end_is_named() -> None:
    dumps = [make_dump(rank, "all_reduce", is_over=False) for rank in range(3)]
    ended = "all ranks came to nccl:all_reduce [] (number 1), which did not end on ranks 0, 1, 2"
    assert explain_dumps(dumps) == [f"group 0 dp: {ended}"]


def test_rank_without_a_dump_is_named() -> None:
    dumps = [make_dump(0, "all_reduce", "all_reduce"), make_dump(1, "all_reduce")]
    assert explain_dumps(dumps) == [
        "group 0 dp: rank 1 never came to nccl:all_reduce [] (number 2)",
        "group 0 dp: no dump of rank 2",
    ]


def test_rank_without_a_dump_is_not_counted_as_come() -> None:
    dumps = [make_dump(rank, "all_reduce", is_over=False) for rank in range(2)]
    ended = "the ranks with a dump came to nccl:all_reduce [] (number 1), which did not end on ranks 0, 1"
    assert explain_dumps(dumps) == [f"group 0 dp: {ended}", "group 0 dp: no dump of rank 2"]


def test_finished_collectives_explain_nothing() -> None:
    assert explain_dumps([make_dump(rank, "all_reduce") for rank in range(3)]) == []


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"entries": [1]}', b'{"entries": {}}', pickle.dumps([1])])
def test_file_that_is_no_dump_is_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "flight-7").write_bytes(content)
    (tmp_path / "flight-recorder-notes").write_bytes(content)
    assert explain_dumps(read_dumps(tmp_path)) == []


def test_why_shows_the_rank_that_never_came(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "gpt")
    attempt = run.attempt("12_1.0")
    shutil.copytree(CORPUS, attempt.path)
    assert diagnose_attempt(run, FinishedAttemptLogs(attempt=attempt.name)).also[0] == MISSING


def test_switch_sets_the_variables_of_the_recorder(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "gpt")
    attempt, rules = run.attempt("12_1.0"), GuardSettings(flight_recorder=True)
    own = {"TORCH_FR_BUFFER_SIZE": "9"}
    env = make_body_env(run, attempt, own, minutes_left=9, rules=rules)
    assert env["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == f"{attempt.path}/flight-"
    assert (env["TORCH_NCCL_DUMP_ON_TIMEOUT"], env["TORCH_FR_BUFFER_SIZE"]) == ("1", "9")
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT" not in make_body_env(run, attempt, {}, minutes_left=9, rules=GuardSettings())


def test_corpus_is_real() -> None:
    assert (
        json.loads((CORPUS / "json-0").read_text())["version"]
        == pickle.loads((CORPUS / "flight-0").read_bytes())["version"]
    )
