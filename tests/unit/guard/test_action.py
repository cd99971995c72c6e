"""Which histories of attempts hold a train, and which let the train go on."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.diagnosis.causes import CauseKind
from opsctl.guard.action import ACTIONS, BURNING, Advance, decide_action, find_crash_loop, hold_if_stuck, judge_advances
from opsctl.guard.end_record import Action, FinishedAttempt, Outcome
from opsctl.guard.free_space import DISK_FULL
from opsctl.settings.loader import GuardSettings
from tests.support.cases import read_cases

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
    assert bool(find_crash_loop([make_attempt(outcome)] * 5, RULES)) == (outcome in BURNING)


@pytest.mark.parametrize(
    "failure",
    [
        make_attempt(Outcome.NODE_FAILED),
        replace(CRASH, code=137),
        replace(CRASH, code=143),
        replace(CRASH, code=1, cause="killed"),
    ],
)
def test_failures_from_outside_hold_later_than_those_of_the_train(failure: FinishedAttempt) -> None:
    assert find_crash_loop([failure] * 4, RULES) is None
    assert find_crash_loop([failure, CRASH, CRASH, failure], RULES) is None
    assert find_crash_loop([failure, CRASH, CRASH, CRASH], RULES) is not None
    assert find_crash_loop([failure] * 5, RULES) is not None
    oom = replace(failure, outcome=Outcome.CRASHED, kind=CauseKind.MEMORY, cause="host-out-of-memory")
    assert find_crash_loop([oom] * 3, RULES) is not None


def epochs(*places: tuple[float, float]) -> list[FinishedAttempt]:
    return [replace(CRASH, resume_epoch=resume, highest_epoch=highest) for resume, highest in places]


def test_epochs_show_an_advance() -> None:
    tutorial = epochs((0, 136), (135, 138), (137, 158), (157, 160))
    assert judge_advances(tutorial) == [Advance.YES, Advance.YES, Advance.YES, Advance.POSSIBLE]
    assert find_crash_loop(tutorial, RULES) is None
    assert judge_advances(epochs((0.01, 0.5), (0.4, 0.9)))[0] is Advance.YES
    again = epochs((0, 3), (0, 2), (0, 3), (0, 3), (0, 3), (0, 3))
    assert judge_advances(again)[1:] == [Advance.NO] * 4 + [Advance.POSSIBLE]
    held = hold_if_stuck(again[-1], again, RULES)
    assert (held.action, "progress" in held.why) == (Action.HOLD_QUEUED, True)


def test_epochs_show_an_advance_where_steps_count_anew() -> None:
    places = ((0, 3), (2, 5), (4, 6))
    attempts = [replace(attempt, resume_step=0, highest_step=39, counts_anew=True) for attempt in epochs(*places)]
    assert judge_advances(attempts)[:2] == [Advance.YES, Advance.YES]


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
    assert find_crash_loop(attempts, RULES) is None


@pytest.mark.parametrize("excused", [Outcome.SKIPPED, Outcome.PREEMPTED, Outcome.TIMED_OUT, Outcome.CANCELLED])
def test_excused_attempt_neither_makes_nor_breaks_a_crash_loop(excused: Outcome) -> None:
    assert find_crash_loop([CRASH, CRASH, make_attempt(excused)], RULES) is None
    assert find_crash_loop([CRASH, CRASH, make_attempt(excused), CRASH], RULES) is not None


@pytest.mark.parametrize("outcome", [Outcome.TIMED_OUT, Outcome.CRASHED, Outcome.HUNG, Outcome.LOST])
def test_long_attempt_of_a_short_task_ends_a_crash_loop(outcome: Outcome) -> None:
    """Neither steps nor checkpoints are known, and all tasks are under `short_attempt_minutes`."""
    crash = replace(CRASH, limit_minutes=2.0, ended=CRASH.started + timedelta(seconds=20))
    long = replace(make_attempt(outcome, minutes=1.2), limit_minutes=2.0)
    assert find_crash_loop([crash, crash, long, crash], RULES) is None
    assert find_crash_loop([long, crash, crash, crash], RULES) is not None


def test_long_attempt_without_an_advance_ends_no_crash_loop() -> None:
    attempts = [replace(make_attempt(minutes=1.2, steps=(50, 90)), limit_minutes=2.0) for _ in range(4)]
    assert find_crash_loop(attempts, RULES) is not None


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
def test_fault_of_an_unseen_train_is_repeated_by_its_message(words: tuple[str, str], is_held: bool) -> None:
    faults = [replace(make_attempt(kind=CauseKind.CODE), signature=text) for text in words]
    assert (hold_if_stuck(faults[-1], faults, RULES).action is Action.HOLD_QUEUED) is is_held


@pytest.mark.parametrize(*read_cases(__file__, "second_fault_at_the_same_step_holds_whatever_is_saved"))
def test_second_fault_at_the_same_step_holds_whatever_is_saved(last: dict[str, Any], is_held: bool) -> None:
    fault = replace(make_attempt(minutes=60, kind=CauseKind.CODE, steps=(100, 120)), signature="KeyError: 'image'")
    attempts = [make_attempt(minutes=60, steps=(0, 110)), fault, replace(fault, **last)]
    assert (hold_if_stuck(attempts[-1], attempts, RULES).action is Action.HOLD_QUEUED) is is_held


HOUR = make_attempt(minutes=60)
SAVED = make_attempt(minutes=600, new_checkpoint=True)


def find_hold(attempts: list[FinishedAttempt]) -> int | None:
    """Return after which of the attempts the train is held."""
    counts = range(1, len(attempts) + 1)
    held = (count for count in counts if hold_if_stuck(attempts[count - 1], attempts[:count], RULES).action.is_final)
    return next(held, None)


@pytest.mark.parametrize(
    ("before", "standing"),
    [
        ([], None),
        ([replace(SAVED, save_gap_minutes=30.0)], 5),
        ([replace(SAVED, save_gap_minutes=240.0)], 9),
        ([SAVED], 11),
        ([HOUR, HOUR, HOUR, replace(SAVED, save_gap_minutes=30.0)], 8),
    ],
)
def test_train_that_stops_saving_is_held_once_a_save_is_late(
    before: list[FinishedAttempt], standing: int | None
) -> None:
    held = find_hold([*before, *[HOUR] * 15])
    assert held == (standing and len(before) + standing)


def test_held_train_without_a_new_checkpoint_says_so() -> None:
    attempts = [replace(SAVED, save_gap_minutes=30.0), *[HOUR] * 5]
    held = hold_if_stuck(attempts[-1], attempts, RULES)
    assert "5 attempts in a row made no progress and left no new checkpoint: " in held.why


def test_checkpoints_that_show_nothing_hold_nothing() -> None:
    saved, unclear = replace(SAVED, save_gap_minutes=30.0), replace(HOUR, has_unclear_saves=True)
    assert find_hold([saved, *[unclear] * 15]) is None
    assert find_hold([saved, *[HOUR] * 4, unclear, *[HOUR] * 4]) is None
    assert find_hold([unclear, *[HOUR] * 4, saved, *[HOUR] * 10]) is None


@pytest.mark.parametrize(
    ("cause", "fault_attempts", "held"),
    [(DISK_FULL, 2, 3), (DISK_FULL, 1, 1), (DISK_FULL, 3, 4), ("storage-error", 2, 2)],
)
def test_full_disk_is_waited_for_before_it_holds_a_train(cause: str, fault_attempts: int, held: int) -> None:
    crash = replace(make_attempt(minutes=60, kind=CauseKind.STORAGE), cause=cause, signature="OSError")
    rules = GuardSettings(fault_attempts=fault_attempts)
    holds = [hold_if_stuck(crash, [crash] * count, rules).action.is_final for count in range(1, 5)]
    assert holds.index(True) + 1 == held


Fault = tuple[CauseKind, str, tuple[str, ...]]
"""The class, the cause, and the nodes that are excluded for it."""
NO_FAULT: Fault = (CauseKind.UNKNOWN, "", ())
FAULTS: list[Fault] = [
    NO_FAULT,
    (CauseKind.CODE, "assertion", ()),
    (CauseKind.STORAGE, DISK_FULL, ()),
    (CauseKind.GPU, "gpu-xid", ("node001",)),
    (CauseKind.NODE, "node-failure", ("node002",)),
    (CauseKind.NETWORK, "connection-lost", ()),
]
End = tuple[Outcome, float, int, bool, Fault]
"""The outcome, the minutes, the steps, whether the attempt is bad, and its fault."""


@dataclass(frozen=True)
class Trainer:
    """How much a made trainer shows of its progress."""

    logs_steps: bool
    shows_saves: bool


LOGGING, SAVING = Trainer(logs_steps=True, shows_saves=False), Trainer(logs_steps=False, shows_saves=True)
OPEN = Trainer(logs_steps=True, shows_saves=True)
ENDS = st.tuples(
    st.sampled_from([outcome for outcome in Outcome if ACTIONS[outcome] is Action.CONTINUE]),
    st.floats(0.1, 60),
    st.integers(0, 40),
    st.booleans(),
    st.sampled_from(FAULTS),
)


def run_history(ends: list[End], trainer: Trainer, *, saving: int) -> tuple[int | None, list[FinishedAttempt]]:
    """Return after which attempt the train is held. The first `saving` attempts save, except bad ones.

    A saving attempt saves its last step. No two bad attempts follow each other.
    """
    attempts: list[FinishedAttempt] = []
    saved, was_bad = 0, False
    for outcome, minutes, steps, bad, (kind, cause, suspects) in ends:
        has_begun = outcome not in {Outcome.SKIPPED, Outcome.NODE_REFUSED}
        keeps = len(attempts) < saving and has_begun and (was_bad or not bad)
        made = (steps + keeps) * has_begun
        is_new = keeps and trainer.shows_saves
        attempt = replace(
            make_attempt(
                outcome, minutes=minutes, steps=(saved, saved + made) if made and trainer.logs_steps else None
            ),
            new_checkpoint=is_new,
            save_gap_minutes=minutes / 2 if is_new else None,
            kind=kind,
            cause=cause,
            suspects=suspects,
        )
        was_bad = not keeps if has_begun else was_bad
        saved += made if keeps else 0
        decided = decide_action(attempt, [*attempts, attempt], RULES)
        attempts.append(decided)
        if decided.action is Action.HOLD_QUEUED:
            return len(attempts), attempts
    return None, attempts


@given(st.lists(ENDS, min_size=1, max_size=30), st.sampled_from([LOGGING, SAVING, OPEN]))
def test_train_that_advances_is_never_held(ends: list[End], trainer: Trainer) -> None:
    held, attempts = run_history(ends, trainer, saving=len(ends))
    assert held is None, attempts


@given(st.floats(25, 600), st.lists(st.floats(20, 60), min_size=20, max_size=40))
def test_train_with_rare_checkpoints_is_never_held(interval: float, lengths: list[float]) -> None:
    """The trainer goes on from files of its own, and leaves a checkpoint that opsctl knows after each interval."""
    attempts, trained = [], 0.0
    for minutes in lengths:
        due = (trained // interval + 1) * interval
        gap = interval if trained + minutes >= due + interval else due - trained
        trained += minutes
        is_new = trained >= due
        attempt = replace(
            make_attempt(minutes=minutes), new_checkpoint=is_new, save_gap_minutes=gap if is_new else None
        )
        attempts.append(attempt)
    assert find_hold(attempts) is None, attempts


COUNTED = [*BURNING, Outcome.TIMED_OUT, Outcome.DEADLINE]
STANDING = st.tuples(
    st.sampled_from(COUNTED),
    st.floats(0.1, 60),
    st.integers(1, 40),
    st.just(value=False),
    st.sampled_from(FAULTS),
)


@given(st.lists(STANDING, min_size=RULES.stalled_attempts + 1, max_size=20))
def test_train_without_an_advance_is_held_in_time(ends: list[End]) -> None:
    held, _ = run_history(ends, LOGGING, saving=0)
    assert held is not None
    assert held <= RULES.stalled_attempts + 1


@given(
    st.integers(1, 4),
    st.lists(STANDING, min_size=4 + RULES.stalled_attempts, max_size=20),
    st.floats(20, 60),
    st.sampled_from([SAVING, OPEN]),
)
def test_train_that_stops_saving_is_held_in_time(
    saving: int, ends: list[End], minutes: float, trainer: Trainer
) -> None:
    held, attempts = run_history([(end[0], minutes, *end[2:]) for end in ends], trainer, saving=saving)
    assert held is not None, attempts
    assert saving < held <= saving + RULES.stalled_attempts


@given(st.lists(st.sampled_from(sorted(BURNING)), min_size=RULES.stalled_attempts, max_size=9))
def test_short_failures_without_any_sign_are_held_at_once(outcomes: list[Outcome]) -> None:
    own = [number for number, outcome in enumerate(outcomes, 1) if outcome is not Outcome.NODE_FAILED]
    due = min([RULES.stalled_attempts, *own[RULES.short_attempts - 1 : RULES.short_attempts]])
    ends = [(outcome, 1.0, 0, False, NO_FAULT) for outcome in outcomes]
    held, _ = run_history(ends, Trainer(logs_steps=False, shows_saves=False), saving=0)
    assert held == due
