"""The text of alerts, word for word."""

from datetime import timedelta

import pytest

from opsctl.alerts.ledger_state import AlertTransition, Batch
from opsctl.alerts.message import MAX_LISTED_IN_STORM, MAX_SUBJECT_CHARS, render_single, render_storm
from opsctl.base.findings import Severity, Transition
from opsctl.base.statements import quote
from opsctl.settings.alerts import AlertSettings
from tests.support.cases import read_table
from tests.unit.alerts.conftest import Clock, finding

AT = Clock().now() + timedelta(hours=3)
STOPPED = finding(
    Severity.CRITICAL,
    "slurm_status/gpt",
    summary="nothing of it runs or waits",
    node="node003",
    evidence=("squeue: nothing", "sacct: 12_3 COMPLETED 0:0"),
    done=("cancelled nothing",),
    remedy="opsctl launch gpt",
)


def make_transition(reported=STOPPED, before=Severity.OK, was="", serial=1):
    transition = Transition(id=f"0123456789ab.{serial}", finding=reported, before=before, at=AT)
    return AlertTransition(
        transition=transition, opened=AT - timedelta(minutes=90) if serial > 1 else AT, was=quote(was) if was else None
    )


def render_with(change, root="", **rules):
    return render_single(change, AlertSettings.model_validate({"time_zone": "Europe/Paris", **rules}), root=root)


def test_critical_message():
    message = render_with(
        make_transition(was="task 3 runs"), site_name="jz", link_base=("https://hub/{train}?k={key}",)
    )
    assert message.subject == "[jz] CRITICAL: gpt: nothing of it runs or waits"
    assert (message.id, message.root) == ("0123456789ab.1", "0123456789ab.1")
    assert message.body == read_table(__file__, "critical_body")


def test_resolved_message_has_previous_severity_and_time():
    recovery = finding(Severity.OK, "slurm_status/gpt", summary="task 4 runs on node[001-002]")
    change = make_transition(recovery, Severity.CRITICAL, "nothing of it runs or waits", serial=2)
    message = render_with(change, root="0123456789ab.1", time_zone="America/New_York")
    assert message.subject == "[opsctl] RESOLVED: gpt: task 4 runs on node[001-002]"
    assert message.root == "0123456789ab.1"
    assert message.body == read_table(__file__, "resolved_body")


def test_transition_has_its_label():
    critical, warning = Severity.CRITICAL, Severity.WARNING
    steps = [(critical, critical), (warning, critical), (critical, warning)]
    subjects = [render_with(make_transition(finding(after), before)).subject for before, after in steps]
    starts = [subject.split(":")[0] for subject in subjects]
    assert starts == ["[opsctl] STILL CRITICAL", "[opsctl] CRITICAL", "[opsctl] BETTER"]


def test_train_in_the_summary_is_not_repeated():
    named = make_transition(finding(Severity.CRITICAL, summary="gpt is held"))
    assert render_with(named).subject == "[opsctl] CRITICAL: gpt is held"
    other = make_transition(finding(Severity.CRITICAL, summary="gpt-2 is held"))
    assert render_with(other).subject == "[opsctl] CRITICAL: gpt: gpt-2 is held"


def test_message_shows_five_lines_of_evidence():
    body = render_with(make_transition(finding(Severity.CRITICAL, evidence=tuple("abcdefg")))).body
    assert "  e\n  and 2 more lines: opsctl alerts show 'hang/gpt'\n" in body


def test_message_names_the_checkpoint_to_roll_back_to():
    body = render_with(make_transition(finding(Severity.CRITICAL, rollback="roll back to step 900"))).body
    assert "  roll back to step 900\n" in body


def test_link_with_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="are replaced"):
        AlertSettings(link_base=("https://hub/{run}",))


def test_default_remedy_is_status():
    assert "  opsctl status gpt\n" in render_with(make_transition(finding(Severity.CRITICAL))).body
    assert "  opsctl status\n" in render_with(make_transition(finding(Severity.CRITICAL, train=""))).body


def test_subject_is_one_line_of_bounded_length():
    subject = render_with(
        make_transition(finding(Severity.CRITICAL, summary="a\r\nBcc: everybody@example.org " + "x" * 500))
    ).subject
    assert "\n" not in subject
    assert "\r" not in subject
    assert len(subject) == MAX_SUBJECT_CHARS


def test_braces_in_a_finding_are_literal():
    assert "{{ 7 * 7 }}" in render_with(make_transition(finding(Severity.CRITICAL, summary="{{ 7 * 7 }}"))).subject


def test_storm_is_one_message_with_the_worst_first():
    transitions = [make_transition(finding(Severity.WARNING, f"hang/train-{n:02}")) for n in range(60)]
    full = finding(Severity.CRITICAL, "fs_quota/scratch", remedy="opsctl checkpoint prune")
    transitions.append(make_transition(full))
    message = render_storm(Batch(id="b1", number=1, changes=tuple(transitions)), transitions, AlertSettings())
    assert message.subject == "[opsctl] 61 alerts at once: 1 CRITICAL, 60 others; first: it is critical"
    assert message.severity is Severity.CRITICAL
    first = message.body.splitlines()[2]
    assert first == "CRITICAL: fs_quota/scratch: it is critical"
    assert f"\nand {61 - MAX_LISTED_IN_STORM} more\n" in message.body
