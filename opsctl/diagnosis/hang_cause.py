"""Why an attempt hung, as far as the stacks tell that were kept of its ranks: who is where the others are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from opsctl.diagnosis.causes import CauseKind, Scope, Weight, causes
from opsctl.diagnosis.diagnose_attempt import FinishedAttemptLogs, diagnose_attempt
from opsctl.diagnosis.request_stacks import collect_answers
from opsctl.diagnosis.root_cause import Diagnosis
from opsctl.diagnosis.speakers import speaker_of_file
from opsctl.diagnosis.stack_dumps import NOWHERE, Stack, group_stacks, render_stacks
from opsctl.state.run_dir import RunDir

CAUSE = "hang"
SHOWN, LINES = 3, 12
"""So many groups are said to be odd, and so many are told of as proof."""
_EXPLAINS = frozenset({CauseKind.GPU, CauseKind.NODE, CauseKind.NETWORK, CauseKind.STORAGE})
"""Other causes in a log come from its being cancelled, or would have ended it anyway."""
_ODD = "Look at that node: opsctl health. Others wait for those ranks; a node that is the odd one again is suspect."
_NONE = "Where all ranks wait in a collective, look at the network: opsctl test-nodes; opsctl nccl LOG."


def diagnose_hang(run: RunDir, lived: FinishedAttemptLogs, *, before: Diagnosis | None = None) -> Diagnosis:
    """Why an attempt hung that was ended for it: what a log says that explains it, else where the ranks were. Raises
    OSError, RunDirError."""
    if lived.said and lived.said.is_final:
        return diagnose_attempt(run, lived, before=before)
    paths = sorted((run.attempt(lived.attempt).path / "evidence").glob("hang-*"))
    hung = judge_hang(
        collect_answers(paths[-1]) if paths else [], ranks=lived.ranks, homes=_homes(run.attempt_logs(lived.attempt))
    )
    diagnosis = diagnose_attempt(run, replace(lived, said=None), before=before)
    is_cause = any(cause.name == diagnosis.cause and cause.weight is Weight.CAUSE for cause in causes())
    if is_cause and diagnosis.kind in _EXPLAINS:
        return replace(diagnosis, also=(*diagnosis.also, hung.says, *hung.evidence))
    log = str(paths[-1]) if paths else ""
    return replace(hung, attempt=lived.attempt, iteration=diagnosis.iteration, log=log, also=diagnosis.also)


def judge_hang(stacks: Sequence[Stack], *, ranks: int | None, homes: Mapping[int, str]) -> Diagnosis:
    """Where the ranks were. Odd are those that are elsewhere than most of all `ranks`, or do not answer while most do;
    `homes` is which node each has. Pure."""
    # A launcher of the trainer's own may start more ranks than the train's config knows of.
    odd = _odd(stacks, max(ranks or 0, len(stacks)), homes)
    nodes, numbers = {stack.node for stack in odd}, {stack.rank for stack in odd}
    node = nodes.pop() if len(nodes) == 1 else ""
    groups = [str(group).replace(NOWHERE, "not answering") for group in group_stacks(odd)]
    says = "; ".join(groups[:SHOWN]) + (f"; and {len(groups) - SHOWN} more groups" if len(groups) > SHOWN else "")
    diagnosis = Diagnosis(
        kind=CauseKind.UNKNOWN,
        cause=CAUSE,
        scope=Scope.RANK,
        node=node,
        rank=numbers.pop() if len(numbers) == 1 else None,
        evidence=tuple(render_stacks(stacks, ranks=ranks)[:LINES]),
        says="it hung",
        advice=_ODD if odd else _NONE,
    )
    return replace(diagnosis, says=f"it hung, the odd ones being {says}") if odd else diagnosis


def _odd(stacks: Sequence[Stack], ranks: int, homes: Mapping[int, str]) -> list[Stack]:
    """None unless more than half of all ranks are at one place: stages of a pipeline may each wait at their own."""
    known = [group for group in group_stacks(stacks) if group.is_known]
    if not known or 2 * len(known[-1].stacks) <= ranks:
        return []
    elsewhere = [stack for group in known[:-1] for stack in group.stacks]
    told_of = {stack.rank for stack in stacks if stack.frames or stack.refused}
    missing = [] if None in told_of else [rank for rank in range(ranks) if rank not in told_of]
    return [*elsewhere, *(Stack(node=homes.get(rank, ""), rank=rank) for rank in missing)]


def _homes(logs: Path) -> dict[int, str]:
    """The node of each rank, as the names of the ranks' logs tell."""
    speakers = [speaker_of_file(path.name) for path in logs.glob("*.log")]
    return {speaker.rank: speaker.node for speaker in speakers if speaker.rank is not None}
