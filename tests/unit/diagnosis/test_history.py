"""What stands before the last progress is history, and what a program survived explains no end."""

from pathlib import Path

import pytest

from benchmarks.noise import FORMATS, place, read_noise
from opsctl.diagnosis.causes import CauseKind, Confidence
from opsctl.diagnosis.diagnose_attempt import FinishedAttemptLogs, diagnose_attempt, diagnose_logs
from opsctl.diagnosis.root_cause import Diagnosis
from opsctl.diagnosis.scan_logs import scan
from opsctl.state.run_dir import RunDir

ECC = ["RuntimeError: CUDA error: uncorrectable ECC error encountered"]
TYPE = ["Traceback (most recent call last):", '  File "a.py", line 3, in f', "TypeError: f() takes no argument"]
KNOWN = [name for name in FORMATS if "known" not in name]


def diagnose(tmp_path: Path, *lines: str) -> Diagnosis:
    log = tmp_path / "main_log.txt"
    log.write_text("\n".join(lines) + "\n")
    return diagnose_logs([log])


def write_steps(name: str, count: int = 30) -> list[str]:
    return [FORMATS[name].format(n=n) for n in range(10, 10 + count)]


@pytest.mark.parametrize("failure", [ECC, TYPE], ids=["ecc", "type"])
@pytest.mark.parametrize("name", FORMATS)
def test_harmless_line_is_no_cause(tmp_path: Path, name: str, failure: list[str]) -> None:
    steps = write_steps(name)
    expected = diagnose(tmp_path, *steps, *failure)
    for noise in read_noise():
        for position, lines in place(noise, steps, failure):
            if position != "end":
                assert diagnose(tmp_path, *lines).cause == expected.cause, (position, noise)


@pytest.mark.parametrize("name", KNOWN)
def test_failure_before_the_last_progress_is_history(tmp_path: Path, name: str) -> None:
    steps = write_steps(name)
    assert diagnose(tmp_path, *steps, *TYPE, *steps[:0]).kind is CauseKind.CODE
    assert diagnose(tmp_path, *steps[:9], *TYPE, *steps[9:]).kind is CauseKind.UNKNOWN


@pytest.mark.parametrize("name", KNOWN)
def test_failure_before_the_last_step_may_be_the_cause(tmp_path: Path, name: str) -> None:
    """A rank fails while others log their last step."""
    steps = write_steps(name)
    assert diagnose(tmp_path, *steps[:-1], *ECC, steps[-1], steps[-1]).cause == "gpu-ecc"


def test_save_after_a_failure_hides_no_failure(tmp_path: Path) -> None:
    saves = [f"saved checkpoint to /data/ckpt/step_90/rank_{rank}.pt" for rank in range(8)]
    assert diagnose(tmp_path, *write_steps("unknown words"), *ECC, *saves).cause == "gpu-ecc"


def test_summary_of_a_tracker_hides_no_failure(tmp_path: Path) -> None:
    summary = ["wandb: Run summary:", "wandb:   train/epoch 3.2", "wandb:   train/global_step 500"]
    assert diagnose(tmp_path, *write_steps("megatron"), *ECC, *summary).cause == "gpu-ecc"


def test_pattern_of_the_train_shows_progress(tmp_path: Path) -> None:
    log = tmp_path / "main_log.txt"
    log.write_text("\n".join(["round 1 won", *TYPE, "round 2 won", "round 3 won"]) + "\n")
    assert scan(log).events
    assert not scan(log, pattern=r"round (?P<step>\d+) won").events


def test_later_failure_outweighs_one_that_the_program_survived(tmp_path: Path) -> None:
    between = [f"game {number} is over" for number in range(20)]
    assert diagnose(tmp_path, *TYPE, *between, *ECC).cause == "gpu-ecc"
    assert diagnose(tmp_path, *TYPE, *between[:3], "KeyError: 'a'").says.endswith("no argument")
    assert (
        diagnose(tmp_path, *TYPE, *between, "srun: error: n1: task 0: Exited with exit code 1").kind is CauseKind.CODE
    )


def test_cause_behind_which_the_program_goes_on_is_only_possible(tmp_path: Path) -> None:
    after = [f"game {number} is over" for number in range(40)]
    assert diagnose(tmp_path, *TYPE).sure is Confidence.LIKELY
    assert diagnose(tmp_path, *TYPE, *after).sure is Confidence.POSSIBLE


def test_exception_outweighs_a_message(tmp_path: Path) -> None:
    message = "/opt/job/slurm_script: line 27: module: command not found"
    assert diagnose(tmp_path, message, *TYPE).kind is CauseKind.CODE
    assert diagnose(tmp_path, message).cause == "command-missing"


def test_message_before_an_exception_of_its_class_is_the_cause(tmp_path: Path) -> None:
    lines = [
        "ERROR Failed to read file 'a': ArrowInvalid, JSON parse error",
        "json.decoder.JSONDecodeError: Extra data: line 2 column 1 (char 1)",
    ]
    assert diagnose(tmp_path, *lines).cause == "dataset-parse"


def test_missing_rank_of_a_barrier_is_named(tmp_path: Path) -> None:
    lines = [f"[node{rank // 4}:{rank}]: loading" for rank in range(8)]
    end = "[node0:0]: RuntimeError: [Rank 0]: Ranks 5, 6 failed to pass monitoredBarrier in 2000000 ms"
    lost = "[node1:5]: torch.distributed.DistBackendError: Connection closed by remote peer node0<4321>"
    diagnosis = diagnose(tmp_path, *lines, end, lost)
    assert (diagnosis.kind, diagnosis.rank, diagnosis.node) == (CauseKind.HANG, 5, "node1")
    assert diagnosis.suspects == ()


def test_named_peer_outweighs_an_exit_code(tmp_path: Path) -> None:
    closed = "node1:10:10 [0] misc/socket.cc:58 NCCL WARN socketProgress: connection closed by remote peer node7<4321>"
    diagnosis = diagnose(tmp_path, closed, "srun: error: node1: task 0: Exited with exit code 1")
    assert (diagnosis.cause, diagnosis.node) == ("connection-lost", "node7")


MISSING = "ERROR: PermissionError: /data/cache/index of 2024-05-01 10:00:00"


def diagnose_second(tmp_path: Path, first: list[str], second: list[str]) -> Diagnosis:
    """Diagnose the second attempt of a train by the log of both."""
    run = RunDir(tmp_path / "train")
    run.logs.mkdir(parents=True)
    texts = ["".join(f"{line}\n" for line in lines) for lines in (first, second)]
    run.main_log.write_text("".join(texts))
    begin = len(texts[0].encode())
    return diagnose_attempt(run, FinishedAttemptLogs(attempt="1_2.0", begin=begin, earlier=((0, begin),)))


@pytest.mark.parametrize("name", KNOWN)
def test_line_of_an_attempt_that_went_well_is_no_cause(tmp_path: Path, name: str) -> None:
    diagnosis = diagnose_second(
        tmp_path,
        [MISSING.replace("05-01", "04-02"), *write_steps(name)],
        ["loading", MISSING, "srun: error: n1: task 3: Killed"],
    )
    assert diagnosis.cause == "rank-killed"


def test_last_line_of_an_earlier_attempt_may_be_the_cause_again(tmp_path: Path) -> None:
    steps = write_steps("megatron")
    assert diagnose_second(tmp_path, [*steps, MISSING], [*steps, MISSING]).cause == "permission-denied"


def test_failure_behind_which_the_ranks_were_started_again_may_be_the_cause(tmp_path: Path) -> None:
    steps = write_steps("megatron")
    restarted = [*steps, MISSING, *steps[5:]]
    assert diagnose_second(tmp_path, restarted, [*steps, MISSING]).cause == "permission-denied"


def test_earlier_attempt_without_progress_shows_nothing(tmp_path: Path) -> None:
    assert diagnose_second(tmp_path, ["loading", MISSING], ["loading", MISSING]).cause == "permission-denied"
