"""The root cause of an attempt's end, from logs of the BigScience chronicles and other real lines."""

from dataclasses import replace
from pathlib import Path

import pytest

from opsctl.diagnosis.causes import CauseKind
from opsctl.diagnosis.diagnose_attempt import diagnose_logs
from opsctl.diagnosis.exit_reasons import ExitReason
from opsctl.diagnosis.root_cause import Diagnosis, find_root_cause
from opsctl.diagnosis.scan_logs import scan
from tests.unit.diagnosis.conftest import LOST, TIMEOUT, Log, read_corpus

SLURM_TIMEOUT = ExitReason(kind=CauseKind.TIME_LIMIT, says="Slurm ended the job at its time limit", is_final=False)


def diagnose(log: Log, **options: object) -> Diagnosis:
    result = scan(log.write())
    return find_root_cause(result.events, iteration=result.iteration, ranks=log.ranks, **options)


def test_ecc_error_outweighs_511_lost_connections(log: Log) -> None:
    log.add_all("> building train, validation, and test datasets ...").add_steps(43660, 43670)
    log.add(41, read_corpus("tr1-13b-ecc.txt")).add_all(LOST, except_ranks=(41,))
    diagnosis = diagnose(log)
    assert (diagnosis.kind, diagnosis.cause, diagnosis.node, diagnosis.rank) == (
        CauseKind.GPU,
        "gpu-ecc",
        "r10i0n5",
        41,
    )
    assert diagnosis.suspects == ("r10i0n5",)
    assert diagnosis.iteration == 43680
    assert (
        "RuntimeError: transform: failed to synchronize: cudaErrorECCUncorrectable: uncorrectable ECC error encountered"
        in diagnosis.evidence
    )
    assert diagnosis.also == ("ranks lost their connection to another rank (511 ranks)",)


def test_earlier_echo_is_no_cause(log: Log) -> None:
    log.add_steps(10, 20).add_all(LOST, except_ranks=(41,)).add(41, read_corpus("tr1-13b-ecc.txt").partition("\n")[2])
    assert diagnose(log).rank == 41


def test_no_memory_at_the_first_barrier_names_the_gpu(log: Log) -> None:
    log.add(41, read_corpus("tr1-13b-out-of-memory-at-barrier.txt")).add_all(LOST, except_ranks=(41,))
    diagnosis = diagnose(log)
    assert (diagnosis.kind, diagnosis.cause, diagnosis.node, diagnosis.rank) == (
        CauseKind.MEMORY,
        "gpu-memory-taken",
        "r10i0n5",
        41,
    )
    assert diagnosis.evidence[-2:] == (
        "    work = default_pg.barrier(opts=opts)",
        "RuntimeError: CUDA error: out of memory",
    )


def test_previous_attempt_on_the_same_node_is_noted(log: Log) -> None:
    log.add(41, read_corpus("tr1-13b-out-of-memory-at-barrier.txt"))
    before = Diagnosis(
        kind=CauseKind.GPU, cause="gpu-ecc", says="uncorrectable memory error of a GPU", node="r10i0n5", attempt="7_1.0"
    )
    assert diagnose(log, before=before).also == ("the same node ended 7_1.0: uncorrectable memory error of a GPU",)
    assert diagnose(log, before=replace(before, node="r10i0n4")).also == ()


def test_no_memory_after_a_step_blames_the_model(log: Log) -> None:
    log.add_steps(10, 20).add(3, "RuntimeError: CUDA error: out of memory")
    assert (diagnose(log).kind, diagnose(log).suspects) == (CauseKind.MEMORY, ())


def test_bus_error_blames_shared_memory(log: Log) -> None:
    log.add_steps(100, 110).add(17, read_corpus("tr1-13b-bus-error.txt")).add_all(LOST, except_ranks=(17,))
    diagnosis = diagnose(log)
    assert (diagnosis.kind, diagnosis.cause, diagnosis.node, diagnosis.rank) == (
        CauseKind.MEMORY,
        "shared-memory-full",
        "r10i0n2",
        17,
    )


def test_srun_names_the_node_of_a_log_without_prefixes(log: Log) -> None:
    log.add_plain(read_corpus("tr1-13b-ecc.txt")).add_plain("srun: error: r10i6n5: task 213: Exited with exit code 1")
    diagnosis = diagnose(log)
    assert (diagnosis.cause, diagnosis.node, diagnosis.rank) == ("gpu-ecc", "r10i6n5", 213)


def test_survived_error_is_no_cause(log: Log) -> None:
    log.add_steps(10).add(0, "OSError: [Errno 28] No space left on device").add_steps(20, 30)
    log.add(5, "KeyError: 'tokens'").add_all(LOST, except_ranks=(5,))
    assert (diagnose(log).kind, diagnose(log).rank) == (CauseKind.CODE, 5)


def test_error_before_the_last_iteration_may_be_the_cause(log: Log) -> None:
    log.add_steps(10, 20).add(41, read_corpus("tr1-13b-ecc.txt").partition("\n")[2]).add_steps(30).add_all(
        LOST, except_ranks=(41,)
    )
    assert diagnose(log).cause == "gpu-ecc"


def test_unknown_error_shows_its_traceback(log: Log) -> None:
    log.add_steps(10, 20)
    log.add(7, 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\nour.Strange: unknown word')
    log.add_all(LOST, except_ranks=(7,))
    diagnosis = diagnose(log)
    assert (diagnosis.kind, diagnosis.cause, diagnosis.rank) == (CauseKind.UNKNOWN, "traceback", 7)
    assert diagnosis.evidence == (
        "Traceback (most recent call last):",
        '  File "a.py", line 3, in f',
        "    g()",
        "our.Strange: unknown word",
    )


TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    all_reduce(x)\n'


def test_silent_ranks_are_named_among_lost_connections(log: Log) -> None:
    log.add_steps(10, 20).add_all(
        TRACEBACK + LOST, except_ranks=tuple(range(8, 16))
    )  # a node without power writes nothing
    diagnosis = diagnose(log)
    assert (diagnosis.kind, diagnosis.cause, diagnosis.rank) == (CauseKind.NETWORK, "connection-lost", None)
    assert diagnosis.also[1] == ("all but 8 ranks complain; silent: 8, 9, 10, 11, 12, 13, 14, 15")


def test_unexplained_traceback_outweighs_lost_connections(log: Log) -> None:
    log.add_steps(10, 20).add_all(TRACEBACK + LOST, except_ranks=(7,)).add(7, TRACEBACK + "our.Strange: unknown word")
    assert (diagnose(log).cause, diagnose(log).rank) == ("traceback", 7)


def test_log_without_errors_is_unknown(log: Log) -> None:
    diagnosis = diagnose(log.add_steps(10, 20))
    assert (diagnosis.kind, diagnosis.cause, diagnosis.says) == (CauseKind.UNKNOWN, "nothing", "no log names a cause")


def test_silent_rank_is_named_among_timeouts(log: Log) -> None:
    diagnosis = diagnose(log.add_steps(10, 20).add_all(TIMEOUT, except_ranks=(300,)))
    assert (diagnosis.kind, diagnosis.cause, diagnosis.suspects) == (CauseKind.HANG, "collective-timeout", ())
    assert diagnosis.also[-1] == "all but 1 rank complain; silent: 300"


def test_most_named_peer_is_blamed(log: Log) -> None:
    line = "x:1:2 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer {peer}<57557>"
    log.add_steps(10, 20)
    for rank in range(20):
        log.add(rank, line.format(peer="r10i6n5" if rank % 4 else "r10i0n0"))
    assert (diagnose(log).kind, diagnose(log).node) == (CauseKind.NETWORK, "r10i6n5")


def test_slurm_outweighs_an_unexplained_death(log: Log) -> None:
    log.add_steps(10, 20).add_plain("srun: error: node1: task 0: Killed")
    assert diagnose(log, end=SLURM_TIMEOUT).kind is CauseKind.TIME_LIMIT
    assert diagnose(log).kind is CauseKind.UNKNOWN


def test_cause_in_the_log_outweighs_slurm(log: Log) -> None:
    log.add_steps(10, 20).add(41, read_corpus("tr1-13b-ecc.txt"))
    assert diagnose(log, end=SLURM_TIMEOUT).cause == "gpu-ecc"


def test_earlier_time_limit_is_the_cause(log: Log) -> None:
    log.add_steps(10, 20)
    log.add_plain("slurmstepd: error: *** JOB 494583 ON n1 CANCELLED AT 2024-04-20T09:09:37 DUE TO TIME LIMIT ***")
    log.add(3, "ValueError: cannot save while shutting down")
    assert (diagnose(log).kind, diagnose(log).at) == (CauseKind.TIME_LIMIT, "2024-04-20 09:09:37")


def test_out_of_memory_takes_node_and_rank_from_srun(log: Log) -> None:
    log.add_steps(10, 20)
    log.add_plain(
        "slurmstepd: error: Detected 1 oom_kill event in StepId=440575.0. Some of the step tasks have been OOM Killed."
    )
    log.add_plain("srun: error: nid001277: tasks 1-3: Out Of Memory")
    diagnosis = diagnose(log)
    assert (diagnosis.kind, diagnosis.node, diagnosis.rank, diagnosis.suspects) == (
        CauseKind.MEMORY,
        "nid001277",
        1,
        (),
    )


@pytest.mark.parametrize("chunk", [512, 1 << 12, 1 << 22])
def test_chunk_size_does_not_matter(log: Log, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr("opsctl.diagnosis.scan_logs.CHUNK_BYTES", chunk)
    log.ranks = 64
    log.add_steps(10, 20).add(41, read_corpus("tr1-13b-ecc.txt")).add_all(LOST, except_ranks=(41,))
    diagnosis = diagnose(log)
    assert (diagnosis.cause, diagnosis.rank, diagnosis.iteration) == ("gpu-ecc", 41, 43680)


# --- one log for each rank


def write_rank_logs(directory: Path, texts: dict[tuple[str, int], str]) -> list[Path]:
    paths = []
    for (node, rank), text in texts.items():
        paths.append(directory / f"{node}-{rank}.log")
        paths[-1].write_text(text)
    return paths


def test_clock_offsets_do_not_change_the_order(tmp_path: Path) -> None:
    """The clock of node b is an hour ahead: the cause there has a later time than its consequences."""
    begin, error = "[2021-08-12 {:02d}:00:00,000] [INFO] > initializing\n", "[2021-08-12 {:02d}:{:02d}:00,000] {}\n"
    texts = {
        ("a", 0): begin.format(7) + error.format(7, 50, "KeyError: 1") + "KeyError: 1\n",
        ("c", 2): begin.format(7),
        ("b", 1): begin.format(8)
        + error.format(8, 40, "x")
        + "RuntimeError: CUDA error: uncorrectable ECC error encountered\n",
    }
    diagnosis = diagnose_logs(write_rank_logs(tmp_path, texts))
    assert (diagnosis.cause, diagnosis.node, diagnosis.rank) == ("gpu-ecc", "b", 1)


def test_log_name_of_a_node_names_the_node(tmp_path: Path) -> None:
    for node in ("r10i6n4", "r10i6n5"):
        text = read_corpus("tr1-13b-ecc.txt") if node == "r10i6n5" else LOST
        (tmp_path / f"tr1-13B-637799-{node}.out").write_text(text)
    diagnosis = diagnose_logs(sorted(tmp_path.iterdir()))
    assert (diagnosis.cause, diagnosis.node, diagnosis.rank) == ("gpu-ecc", "r10i6n5", None)
