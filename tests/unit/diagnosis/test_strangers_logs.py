"""Logs of other people's trainings: prefixes, colours, summaries of launchers, ends without a known error."""

from pathlib import Path

import pytest

from opsctl.diagnosis.causes import CauseKind, Confidence
from opsctl.diagnosis.diagnose_attempt import diagnose_logs
from opsctl.diagnosis.excerpt import collect_excerpt, find_time
from opsctl.diagnosis.root_cause import Diagnosis
from opsctl.diagnosis.scan_logs import scan, select_lines
from tests.support.cases import read_cases, read_table

ECHO = "[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, remote process exited"


def diagnose(tmp_path: Path, *lines: str) -> Diagnosis:
    log = tmp_path / "main_log.txt"
    log.write_text("\n".join(lines) + "\n")
    return diagnose_logs([log])


def test_error_behind_the_torch_prefix_outweighs_echoes(tmp_path: Path) -> None:
    diagnosis = diagnose(
        tmp_path,
        "[rank0]: Traceback (most recent call last):",
        '[rank0]:   File "train.py", line 9, in main',
        ECHO,
        "[rank1]: Traceback (most recent call last):",
        '[rank1]:   File "train.py", line 5, in load',
        "[rank1]: our.errors.StrangeError: shard 7 has no samples",
    )
    assert (diagnosis.rank, diagnosis.cause) == (1, "exception")
    assert diagnosis.says == "the program ended by an exception: our.errors.StrangeError: shard 7 has no samples"
    assert diagnosis.evidence[-1] == "our.errors.StrangeError: shard 7 has no samples"


@pytest.mark.parametrize(*read_cases(__file__, "controls_in_a_line_hide_no_error"))
def test_controls_in_a_line_hide_no_error(tmp_path: Path, line: str) -> None:
    assert diagnose(tmp_path, line).cause == "gpu-ecc"


def test_long_progress_bar_hides_no_error(tmp_path: Path) -> None:
    bar = "".join(f" {number}%|###|\r" for number in range(900))
    assert diagnose(tmp_path, bar + "CUDA error: uncorrectable ECC error encountered").cause == "gpu-ecc"


@pytest.mark.parametrize(*read_cases(__file__, "named"))
def test_the_first_failure_names_cause_and_rank(
    tmp_path: Path, lines: list[str], cause: str, node: str, rank: int | None
) -> None:
    diagnosis = diagnose(tmp_path, *lines)
    assert (diagnosis.cause, diagnosis.node, diagnosis.rank) == (cause, node, rank)


SUMMARY = read_table(__file__, "summary")


def test_rank_that_torchrun_names_is_the_first(tmp_path: Path) -> None:
    errors = [f"[rank{rank}]: our.OddError: rank {rank} says so" for rank in (5, 3)]
    assert diagnose(tmp_path, *errors).rank == 5
    assert diagnose(tmp_path, *errors, *SUMMARY).rank == 3


def test_lines_before_an_error_change_its_cause(tmp_path: Path) -> None:
    full = "OSError: [Errno 28] No space left on device"
    assert diagnose(tmp_path, full).cause == "storage-full"
    queue = '  File "/usr/lib/python3.11/multiprocessing/synchronize.py", line 57, in __init__'
    assert diagnose(tmp_path, queue, full).cause == "shared-memory-full"


def test_error_in_a_warning_is_survived(tmp_path: Path) -> None:
    diagnosis = diagnose(tmp_path, "WARNING: PermissionError: /proc/x", "our.StrangeError: the end")
    assert diagnosis.says.endswith("our.StrangeError: the end")


def test_unknown_end_quotes_suspicious_lines(tmp_path: Path) -> None:
    lines = [f"step {number} of the loop" for number in range(50)]
    diagnosis = diagnose(tmp_path, *lines[:20], "widget 7 is broken and gives up", *lines[20:])
    assert (diagnosis.kind, diagnosis.sure) == (CauseKind.UNKNOWN, Confidence.POSSIBLE)
    assert diagnosis.evidence == ("widget 7 is broken and gives up",)


def test_end_of_an_unnamed_reason_quotes_suspicious_lines(tmp_path: Path) -> None:
    diagnosis = diagnose(
        tmp_path,
        "widget 7 is broken and gives up",
        *("step" for _ in range(9)),
        "srun: error: node1: task 0: Exited with exit code 1",
    )
    assert diagnosis.cause == "rank-exited"
    assert "widget 7 is broken and gives up" in diagnosis.evidence


def test_end_of_a_training_is_no_failure(tmp_path: Path) -> None:
    diagnosis = diagnose(tmp_path, "loading", "[after training is done] datetime: 2024-05-01 10:00:00")
    assert (diagnosis.kind, diagnosis.says) == (CauseKind.NONE, "the training is over")


def test_evidence_stays_within_the_attempt(tmp_path: Path) -> None:
    log = tmp_path / "main_log.txt"
    earlier = "2020-01-01 00:00:00 the attempt before\n"
    error = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    log.write_text(f"{earlier}{error}2021-01-01 00:00:00 the attempt after\n")
    event = scan(log, begin=len(earlier), end=len(earlier) + len(error)).events[0]
    assert find_time(event) == ""
    assert collect_excerpt(event) == [error.strip()]


def test_line_of_numbers_does_not_pass_the_gate() -> None:
    line = b"[n1:3]: [2026-03-01 12:00:00,123] [INFO] time (ms) | forward-compute: 3.25 | step 17"
    assert not list(select_lines(line))
