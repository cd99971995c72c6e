"""Which histories of attempts hold a train, and which let the train go on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.diagnosis.causes import CauseKind
from opsctl.guard.hold_rules import Advance, decide_action, find_crash_loop, hold_if_stuck, judge_advances
from opsctl.guard.outcome import ACTIONS, BURNING, Action, FinishedAttempt, Outcome
from opsctl.settings.loader import GuardSettings

RULES = GuardSettings(short_attempts=3, short_attempt_minutes=20)


def make_attempt(
    outcome: Outcome = Outcome.CRASHED,
    *,
    minutes: float = 1,
    new_checkpoint: bool = False,
    steps: tuple[int, int] | None = None,
    kind: CauseKind = CauseKind.UNKNOWN,
    action: Action | None = None,
) -> FinishedAttempt:
    begin = datetime(2026, 3, 1, tzinfo=UTC)
    return FinishedAttempt(
        attempt="12_1.0",
        outcome=outcome,
        action=action or ACTIONS[outcome],
        why="",
        started=begin,
        ended=begin + timedelta(minutes=minutes),
        new_checkpoint=new_checkpoint,
        resume_step=steps[0] if steps else None,
        highest_step=steps[1] if steps else None,
        kind=kind,
        cause=kind.value if kind is not CauseKind.UNKNOWN else "",
        suspects=("node001",) if action is Action.EXCLUDE_NODES else (),
    )


CRASH = make_attempt()


@pytest.mark.parametrize("outcome", list(Outcome))
def test_only_burning_outcomes_make_a_crash_loop(outcome: Outcome) -> None:
    assert bool(find_crash_loop([make_attempt(outcome)] * 3, RULES)) == (outcome in BURNING)


@pytest.mark.parametrize(
    "attempts",
    [
        [],
        [CRASH, CRASH],
        [CRASH, make_attempt(Outcome.STOPPED), CRASH],
        [CRASH, CRASH, CRASH, make_attempt(minutes=20)],
        [CRASH, make_attempt(new_checkpoint=True), CRASH],
        [CRASH, CRASH, make_attempt(Outcome.TIMED_OUT, new_checkpoint=True), CRASH],
    ],
)
def test_progress_or_few_attempts_are_no_crash_loop(attempts: list[FinishedAttempt]) -> None:
    assert find_crash_loop(attempts, RULES) == ""


@pytest.mark.parametrize("excused", [Outcome.SKIPPED, Outcome.PREEMPTED, Outcome.TIMED_OUT, Outcome.CANCELLED])
def test_excused_attempt_neither_makes_nor_breaks_a_crash_loop(excused: Outcome) -> None:
    assert find_crash_loop([CRASH, CRASH, make_attempt(excused)], RULES) == ""
    assert find_crash_loop([CRASH, CRASH, make_attempt(excused), CRASH], RULES) != ""


def test_crash_loop_names_its_attempts_and_the_change() -> None:
    attempts = [replace(CRASH, attempt=f"12_{n}.0") for n in (1, 2, 3)]
    assert decide_action(attempts[-1], attempts, RULES).why == (
        "; 3 attempts in a row under 20 min without progress: 12_1.0 crashed, 12_2.0 crashed, 12_3.0 crashed;"
        " before a release, find and remove the cause (opsctl why)"
    )


def test_advancing_train_with_faults_goes_on() -> None:
    """A GPU and a node fail and are excluded, a time limit ends an attempt: short tasks, no visible checkpoint."""
    attempts = [
        make_attempt(minutes=1.5, steps=(0, 60), kind=CauseKind.GPU, action=Action.EXCLUDE_NODES),
        make_attempt(Outcome.TIMED_OUT, minutes=2, steps=(50, 130)),
        make_attempt(Outcome.NODE_FAILED, minutes=2, steps=(120, 240), kind=CauseKind.NODE),
    ]
    ended = replace(attempts[-1], suspects=("node002",))
    assert decide_action(ended, [*attempts[:-1], ended], RULES).action is Action.EXCLUDE_NODES


def test_excluded_hardware_fault_counts_once_nodes_run_out() -> None:
    fault = make_attempt(kind=CauseKind.GPU, action=Action.EXCLUDE_NODES)
    assert hold_if_stuck(fault, [CRASH, CRASH, fault], RULES).action is Action.EXCLUDE_NODES
    spared = replace(fault, action=Action.CONTINUE)
    held = hold_if_stuck(spared, [CRASH, CRASH, spared], RULES)
    assert held.action is Action.HOLD_QUEUED
    assert held.why.endswith("before a release, put more nodes in service, or exclude fewer")


def test_time_limits_without_an_advance_hold_in_the_end() -> None:
    attempts = [make_attempt(Outcome.TIMED_OUT, minutes=1200, steps=(500, 990)) for _ in range(6)]
    assert hold_if_stuck(attempts[3], attempts[:4], RULES).action is Action.CONTINUE
    held = hold_if_stuck(attempts[5], attempts, RULES)
    assert (held.action, "made no progress beyond step 990" in held.why) == (Action.HOLD_QUEUED, True)


def test_next_start_shows_whether_steps_were_saved() -> None:
    attempts = [make_attempt(steps=steps) for steps in ((0, 90), (50, 80), (50, 95))]
    assert judge_advances(attempts) == [Advance.YES, Advance.NO, Advance.POSSIBLE]


def test_checkpoint_that_the_next_attempt_names_shows_an_advance() -> None:
    names = ("", "resumed from /a/10.pt", "resumed from /a/20.pt", "resumed from /a/20.pt")
    attempts = [replace(make_attempt(steps=(0, 12)), resumed_from=name) for name in names]
    assert judge_advances(attempts) == [Advance.YES, Advance.YES, Advance.NO, Advance.POSSIBLE]


def test_older_and_older_checkpoints_are_no_advance() -> None:
    names = [f"resumed from /a/checkpoint-{step}" for step in (500, 400, 300, 350, 350)]
    attempts = [replace(make_attempt(steps=(0, 12)), resumed_from=name) for name in names]
    assert judge_advances(attempts)[:4] == [Advance.NO, Advance.NO, Advance.YES, Advance.NO]


@pytest.mark.parametrize(("words", "is_held"), [(("boom at 10", "boom at 20"), False), (("boom", "boom"), True)])
def test_fault_of_an_unseen_train_is_repeated_by_its_words(words: tuple[str, str], is_held: bool) -> None:
    faults = [replace(make_attempt(kind=CauseKind.CODE), says=text) for text in words]
    assert (hold_if_stuck(faults[-1], faults, RULES).action is Action.HOLD_QUEUED) is is_held


@dataclass(frozen=True)
class Trainer:
    """How much a made trainer shows of its progress."""

    logs_steps: bool
    shows_saves: bool


ENDS = st.tuples(
    st.sampled_from([outcome for outcome in Outcome if ACTIONS[outcome] is Action.CONTINUE]),
    st.floats(0.1, 60),
    st.integers(0, 40),
    st.booleans(),
)


def run_history(
    ends: list[tuple[Outcome, float, int, bool]], trainer: Trainer, *, saves: bool
) -> tuple[int | None, list[FinishedAttempt]]:
    """Return after which attempt the train is held. A saving trainer saves its last step, except in a bad attempt.

    No two bad attempts follow each other.
    """
    attempts: list[FinishedAttempt] = []
    saved, was_bad = 0, False
    for outcome, minutes, steps, bad in ends:
        has_begun = outcome not in {Outcome.SKIPPED, Outcome.NODE_REFUSED}
        made = (steps + 1 if saves else steps) * has_begun
        keeps = saves and has_begun and (was_bad or not bad)
        attempt = replace(
            make_attempt(
                outcome, minutes=minutes, steps=(saved, saved + made) if made and trainer.logs_steps else None
            ),
            new_checkpoint=keeps and trainer.shows_saves,
        )
        was_bad = has_begun and not keeps
        saved += made if keeps else 0
        attempts.append(attempt)
        if hold_if_stuck(attempt, attempts, RULES).action is Action.HOLD_QUEUED:
            return len(attempts), attempts
    return None, attempts


@given(
    st.lists(ENDS, min_size=1, max_size=30),
    st.sampled_from([Trainer(logs_steps=True, shows_saves=False), Trainer(logs_steps=False, shows_saves=True)]),
)
def test_train_that_advances_is_never_held(ends: list[tuple[Outcome, float, int, bool]], trainer: Trainer) -> None:
    held, attempts = run_history(ends, trainer, saves=True)
    assert held is None, attempts


COUNTED = [*BURNING, Outcome.TIMED_OUT, Outcome.DEADLINE]


@given(
    st.lists(
        st.tuples(st.sampled_from(COUNTED), st.floats(0.1, 60), st.integers(1, 40), st.just(value=False)),
        min_size=RULES.stalled_attempts + 1,
        max_size=20,
    )
)
def test_train_without_an_advance_is_held_in_time(ends: list[tuple[Outcome, float, int, bool]]) -> None:
    held, _ = run_history(ends, Trainer(logs_steps=True, shows_saves=False), saves=False)
    assert held is not None
    assert held <= RULES.stalled_attempts + 1


@given(st.lists(st.sampled_from(sorted(BURNING)), min_size=3, max_size=9))
def test_short_failures_without_any_sign_are_held_at_once(outcomes: list[Outcome]) -> None:
    held, _ = run_history(
        [(outcome, 1.0, 0, False) for outcome in outcomes], Trainer(logs_steps=False, shows_saves=False), saves=False
    )
    assert held == RULES.short_attempts
