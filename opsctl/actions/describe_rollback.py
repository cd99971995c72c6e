"""A rollback in words: its plan, and what was done. Pure but for the rules of how a task is stopped."""

from collections.abc import Sequence
from pathlib import Path

from opsctl.actions.rollback import RollbackResult
from opsctl.actions.rollback_plan import RollbackPlan
from opsctl.actions.steer_train import describe_stop_of
from opsctl.launch.rollback_state import RollbackRecord
from opsctl.launch.train_arrays import TrainSnapshot
from opsctl.state.run_dir import RunDir

MAX_NAMED = 8


def describe_plan(plan: RollbackPlan, snapshot: TrainSnapshot, *, dry_run: bool) -> list[str]:
    """Return what would be done, or what is done now, one fact a line."""
    record = plan.record
    if plan.is_done:
        return [describe_repeated(record)]
    more = ", and what the running task saves before it stops" if snapshot.active else ""
    lines = [
        f"{'would go' if dry_run else 'goes'} back to step {record.step}",
        f"checkpoint: {plan.chosen.path}: {plan.evidence}",
        f"set aside: {list_names(plan.newer)} in {record.aside}{more}",
    ]
    lines += describe_samples(plan)
    lines += [f"{plan.pointer.path.name} will name {plan.pointer.text}"] if plan.pointer else []
    return [*lines, *describe_queue(plan.run, snapshot)]


def describe_queue(run: RunDir, snapshot: TrainSnapshot) -> list[str]:
    """Return what happens to the running task and to the queued ones."""
    lines = [f"{job.full_id} runs: {describe_stop_of(run)}" for job in snapshot.active]
    arrays = sorted({job.array for job in snapshot.waiting}, key=int)
    queue = f"array {', '.join(arrays)} is held, then released" if arrays else f"{describe_empty_queue(run)} afterwards"
    return [*lines, f"queue: {queue}"]


def describe_samples(plan: RollbackPlan) -> list[str]:
    """Return from which sample on the samples are read again, and which skipped ranges lie before."""
    first = plan.next_sample
    if first is None:
        return []
    lines = [f"samples from {first} on are read again"]
    past = [text for text in plan.record.skip_samples if int(text.partition("-")[2]) < first]
    return [*lines, *(f"skipping {text} has no effect: the checkpoint has read it" for text in past)]


def describe_undo(record: RollbackRecord) -> str:
    return (
        f"the checkpoints in {record.aside} come back, checkpoints saved since go to {record.undone}, and the"
        " settings are those before the rollback"
    )


def describe_result(plan: RollbackPlan, result: RollbackResult) -> list[str]:
    """Return what was done, one fact a line."""
    record = result.record
    if plan.is_done:
        return [describe_repeated(record)]
    return [
        f"rolled back to step {record.step}; set aside: {list_names(result.aside)} in {record.aside}",
        describe_release(plan.run, result),
        f"opsctl rollback {plan.run.name} --undo takes it back",
    ]


def describe_repeated(record: RollbackRecord) -> str:
    return f"was already rolled back to step {record.step}; nothing has changed"


def describe_release(run: RunDir, result: RollbackResult) -> str:
    if result.released:
        return f"released array {', '.join(result.released)}"
    return describe_empty_queue(run)


def describe_empty_queue(run: RunDir) -> str:
    return f"nothing is queued; opsctl launch {run.config} continues the train"


def list_names(paths: Sequence[Path]) -> str:
    names = [path.name for path in paths]
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return (", ".join(names[:MAX_NAMED]) or "nothing") + more
