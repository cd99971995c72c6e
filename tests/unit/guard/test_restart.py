"""What becomes of the allocation after an attempt."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from opsctl.diagnosis.causes import CauseKind
from opsctl.guard.action import ACTIONS
from opsctl.guard.end_record import Action, FinishedAttempt, Outcome
from opsctl.guard.restart import START_S, JobNodes, choose_nodes, decide_restart, find_pause_s, restart_rules
from opsctl.settings.loader import GuardSettings
from opsctl.state.reasons import Reason, ReasonKind

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
FOUR = JobNodes(usable=("n1", "n2", "n3", "n4"), used=("n1", "n2", "n3"), needed=3, left_s=None)
RULES = GuardSettings()


def end(outcome: Outcome, **fields: object) -> FinishedAttempt:
    values = {"attempt": "12_1.0", "action": ACTIONS[outcome], "why": "", "new_checkpoint": False, **fields}
    return FinishedAttempt(outcome=outcome, started=NOON, ended=NOON + timedelta(minutes=5), **values)  # type: ignore[arg-type]  # fields of a FinishedAttempt


@pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.HUNG, Outcome.RESTARTED])
def test_failure_without_a_bad_node_restarts_on_the_same_nodes(outcome: Outcome) -> None:
    restart = decide_restart(end(outcome), [], FOUR, RULES)
    assert (restart.nodes, restart.spares) == (("n1", "n2", "n3"), ("n4",))


@pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.HUNG, Outcome.NODE_FAILED, Outcome.NODE_REFUSED])
def test_spare_takes_the_place_of_a_bad_node(outcome: Outcome) -> None:
    ended = end(outcome, suspects=("n2",), action=Action.EXCLUDE_NODES)
    restart = decide_restart(ended, [ended], FOUR, RULES)
    assert (restart.nodes, restart.usable) == (("n1", "n4", "n3"), ("n1", "n3", "n4"))


def test_nodes_go_back_without_a_spare() -> None:
    ended = end(Outcome.NODE_FAILED, suspects=("n2", "n3"))
    restart = decide_restart(ended, [ended], FOUR, RULES)
    assert (restart.nodes, restart.why) == ((), "2 good nodes are left of the 3 that the train needs")


RESTARTING = {Outcome.CRASHED, Outcome.HUNG, Outcome.RESTARTED}


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome not in RESTARTING])
def test_planned_ends_and_ends_by_slurm_give_the_nodes_back(outcome: Outcome) -> None:
    assert not decide_restart(end(outcome), [], FOUR, RULES).nodes


@pytest.mark.parametrize("action", [Action.HOLD_QUEUED, Action.CANCEL_QUEUED])
@pytest.mark.parametrize("outcome", list(Outcome))
def test_train_that_is_over_or_held_keeps_no_nodes(outcome: Outcome, action: Action) -> None:
    assert not decide_restart(end(outcome, action=action, suspects=("n2",)), [], FOUR, RULES).nodes


def test_setting_gives_the_nodes_back() -> None:
    assert not decide_restart(end(Outcome.CRASHED), [], FOUR, GuardSettings(restart_in_place=False)).nodes


@pytest.mark.parametrize(("left_s", "is_kept"), [(60.0, False), (119.0, False), (121.0, True)])
def test_time_for_a_start_is_needed(left_s: float, is_kept: bool) -> None:
    allocation = JobNodes(usable=("n1",), used=("n1",), needed=1, left_s=left_s)
    assert bool(decide_restart(end(Outcome.CRASHED, limit_minutes=1200.0), [], allocation, RULES).nodes) is is_kept


def test_time_for_a_checkpoint_is_needed() -> None:
    allocation = JobNodes(usable=("n1",), used=("n1",), needed=1, left_s=600.0)
    ended = end(Outcome.CRASHED, limit_minutes=1200.0, save_gap_minutes=9.0)
    assert not decide_restart(ended, [], allocation, RULES).nodes


def test_starts_without_a_checkpoint_are_counted_for_an_hour() -> None:
    ended = end(Outcome.CRASHED)
    futile = [ended] * RULES.restarts_per_hour
    assert not decide_restart(ended, futile, FOUR, RULES).nodes
    saving = [end(Outcome.CRASHED, new_checkpoint=True)] * RULES.restarts_per_hour
    assert decide_restart(ended, [*saving, ended], FOUR, RULES).nodes


def test_spare_takes_the_place_of_each_lost_node() -> None:
    """The ranks of all other nodes stay what they were."""
    assert choose_nodes(("n1", "n4", "n5", "n6"), ("n1", "n2", "n3", "n4")) == ("n1", "n5", "n6", "n4")
    assert choose_nodes(("n1", "n4", "n6"), ("n1", "n5", "n4")) == ("n1", "n6", "n4")


FAULT_LOOP = Reason(kind=ReasonKind.FAULT_LOOP, count=2, cause_kind="code", cause="code")


@pytest.mark.parametrize(
    ("reason", "wait_s", "left_s", "repair_s"),
    [
        (FAULT_LOOP, 3600, None, 3600),
        (FAULT_LOOP, 3600, 1000.0, 1000 - START_S),
        (FAULT_LOOP, 3600, START_S - 1, 0),
        (FAULT_LOOP, 0, None, 0),
        (Reason(kind=ReasonKind.STANDSTILL, count=5), 3600, None, 0),
    ],
)
def test_nodes_wait_for_the_repair_of_a_repeated_fault(
    reason: Reason, wait_s: float, left_s: float | None, repair_s: float
) -> None:
    ended = end(Outcome.CRASHED, action=Action.HOLD_QUEUED, reason=reason)
    rules = RULES.model_copy(update={"wait_for_repair": wait_s})
    restart = decide_restart(ended, [ended] * 9, replace(FOUR, left_s=left_s), rules)
    assert (restart.repair_s, bool(restart.nodes)) == (repair_s, repair_s > 0)


@pytest.mark.parametrize(
    ("causes", "pause_s"),
    [("a", 0), ("ba", 0), ("aa", 10), ("aaa", 20), ("baaaa", 40), ("a" * 50, 300), ("aAa", 0)],
)
def test_same_outside_cause_is_waited_for_longer_each_time(causes: str, pause_s: float) -> None:
    """A letter is a cause, a capital letter one after a new checkpoint."""
    starts = [
        end(Outcome.CRASHED, kind=CauseKind.NETWORK, cause=cause.lower(), new_checkpoint=cause.isupper())
        for cause in causes
    ]
    assert find_pause_s(starts) == pause_s
    assert find_pause_s([replace(start, kind=CauseKind.CODE) for start in starts]) == 0


def test_page_shows_the_rules() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "restart-in-place.md").read_text()
    rows = []
    for rule in restart_rules():
        outcomes, actions = (
            ", ".join(f"`{value}`" for value in values) or "any" for values in (rule.outcomes, rule.actions)
        )
        reasons = " after ".join([actions, *(f"`{reason}`" for reason in rule.reasons)])
        nodes = {None: "any", True: "yes", False: "no"}[rule.bad_nodes]
        rows.append(f"| {outcomes} | {nodes} | {reasons} | `{rule.then}`: {rule.why} |")
    assert "\n".join(rows) in page
