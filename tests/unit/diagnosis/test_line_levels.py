"""The level of a line: what ends a program, what the program survives, and what it prints without a mark."""

from __future__ import annotations

import pytest

from opsctl.diagnosis.causes import CauseKind, LineLevel, Weight, classify, find_level, is_exception

FATAL = [
    "RuntimeError: The server socket has failed to listen on any local network address.",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "  what():  NCCL error: unhandled system error",
    "UserWarningError: a warning, falling back",
    "/bin/bash: line 1: python3: command not found",
    "[2024-03-01 10:10:01,000] [ERROR] [launch.py:325:sigkill_handler] exits with return code = 1",
    "E0301 10:10:01.000000 1 torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: 1)",
    "node1:1:1 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to node2 failed",
    "srun: error: Unable to create step for job 1: More processors requested than permitted",
    "train.py: error: unrecognized arguments: --local-rank=0",
]
NOTICE = [
    "[W socket.cpp:464] [c10d] The server socket cannot be initialized on [::]:29500 (errno: 97)",
    "/opt/image.py:13: UserWarning: Failed to load image Python extension: 'image.so: undefined symbol: _ZN3c10'",
    "slurmstepd: error: couldn't chdir to `/data/run': No such file or directory: going to /tmp instead",
    "sbatch: error: spank: x11.so: Plugin file not found",
    "df: /data/.triton/autotune: No such file or directory",
    "wandb: Network error (ConnectionError), entering retry loop.",
    "    will not load any checkpoints and will start from random",
    "[NeMo W 2024-03-01 10:00:00 nemo_logging:349] Apex was not found.",
]
PLAIN = [
    "'NoneType' object has no attribute 'cadam32bit_grad_fp32'",
    "Duplicate GPU detected : rank 3 and rank 0 both on CUDA device f000",
]


@pytest.mark.parametrize(
    ("level", "line"),
    [
        *((LineLevel.FATAL, line) for line in FATAL),
        *((LineLevel.NOTICE, line) for line in NOTICE),
        *((LineLevel.PLAIN, line) for line in PLAIN),
    ],
)
def test_mark_of_a_line_gives_its_level(level: LineLevel, line: str) -> None:
    assert find_level(line) is level


def test_word_before_a_colon_is_no_exception() -> None:
    assert not is_exception("Loading the Error of the last step: 3")


def test_network_error_that_is_retried_is_a_note() -> None:
    cause = classify("wandb: Network error (ConnectionError), entering retry loop.")
    assert cause is not None
    assert cause.weight is Weight.NOTE


def test_notice_raised_as_an_exception_is_an_error() -> None:
    text = (
        "Expected to have finished reduction in the prior iteration before starting a new one; find_unused_parameters"
    )
    cause = classify(f"RuntimeError: {text}")
    assert cause is not None
    assert cause.weight >= Weight.ERROR


def test_fault_of_hardware_in_a_warning_is_no_note() -> None:
    cause = classify("WARNING: uncorrectable ECC error encountered")
    assert cause is not None
    assert (cause.kind, cause.weight) == (CauseKind.GPU, Weight.CAUSE)
