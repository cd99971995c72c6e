"""The words of reasons, and what a newer version's reason looks like."""

import pytest

from opsctl.state.reasons import CHANGES, NeededChange, Reason, ReasonKind, as_written


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (as_written("{reason.by} {"), "{reason.by} {"),
        (Reason(kind=ReasonKind.SWITCH, switch="kill", by="ana"), "kill switch by ana"),
        (Reason(kind=ReasonKind.SWITCH, switch="kill", by="ana", text="bad loss"), "kill switch by ana: bad loss"),
        (
            Reason(kind=ReasonKind.FAULT_LOOP, text="exit", count=2, cause_kind="code", cause="oom", change="memory"),
            "exit; a code fault ended 2 attempts in a row without progress: oom; before a release, lower the use of "
            "memory in the settings (opsctl edit)",
        ),
        (
            Reason(kind=ReasonKind.STANDSTILL, count=3, step=7, attempts=("1_1.0 crashed", "1_2.0 hung")),
            "3 attempts in a row made no progress beyond step 7: 1_1.0 crashed, 1_2.0 hung",
        ),
        (
            Reason(kind=ReasonKind.DIAGNOSIS, cause_kind="gpu", text="it fell", node="n1", rank=0),
            "gpu: it fell (n1, rank 0)",
        ),
        (Reason(kind="eclipse"), "eclipse, a reason of a newer version of opsctl"),
    ],
)
def test_reason_in_words(reason, text):
    assert str(reason) == text


@pytest.mark.parametrize("kind", list(ReasonKind))
def test_every_reason_has_words_without_its_facts(kind):
    assert isinstance(str(Reason(kind=kind)), str)


def test_every_change_has_words():
    assert set(CHANGES) == set(NeededChange)
