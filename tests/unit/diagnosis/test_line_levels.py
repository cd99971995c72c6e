"""The level of a line: what ends a program, what the program survives, and what it prints without a mark."""

import pytest

from opsctl.diagnosis.causes import CauseKind, LineLevel, Weight, classify, find_level, is_exception
from tests.support.cases import read_table

FATAL = read_table(__file__, "fatal")
NOTICE = read_table(__file__, "notice")
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
