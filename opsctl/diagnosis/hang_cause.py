"""Diagnose a hung attempt from the stacks of its ranks: find the ranks that wait elsewhere than most ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from opsctl.diagnosis.causes import CauseKind, Scope, Weight, causes
from opsctl.diagnosis.diagnose_attempt import FinishedAttemptLogs, diagnose_attempt
from opsctl.diagnosis.line_origin import find_homes
from opsctl.diagnosis.request_stacks import collect_answers
from opsctl.diagnosis.root_cause import Diagnosis
from opsctl.diagnosis.stack_dumps import Stack, group_stacks, render_stacks
from opsctl.state.packed import find_original, unpacked
from opsctl.state.run_dir import RunDir

CAUSE = "hang"
MAX_NAMED_GROUPS = 3
"""Groups of odd ranks that the summary names."""
MAX_EVIDENCE_LINES = 12
_EXPLAINS = frozenset({CauseKind.GPU, CauseKind.NODE, CauseKind.NETWORK, CauseKind.STORAGE})
"""Only these causes in a log explain a hang. The cancellation of the hung attempt itself writes other causes."""
_ODD = "Check that node: opsctl health. The other ranks wait for the odd ranks; a node with odd ranks again is suspect."
_NONE = "If all ranks wait in a collective, test the network: opsctl test-nodes; opsctl stacks --from LOG."


def diagnose_hang(run: RunDir, attempt_logs: FinishedAttemptLogs, *, before: Diagnosis | None = None) -> Diagnosis:
    """Return why an attempt hung: a cause in the logs that explains the hang, otherwise where the ranks were.

    Raises OSError, RunDirError.
    """
    if attempt_logs.exit_reason and attempt_logs.exit_reason.is_final:
        return diagnose_attempt(run, attempt_logs, before=before)
    paths = sorted(unpacked(run.attempt(attempt_logs.attempt).path / "evidence").glob("hang-*"))
    hang = judge_hang(
        collect_answers(paths[-1]) if paths else [],
        ranks=attempt_logs.ranks,
        homes=find_homes(run.attempt_logs(attempt_logs.attempt)),
    )
    diagnosis = diagnose_attempt(run, replace(attempt_logs, exit_reason=None), before=before)
    is_cause = any(cause.name == diagnosis.cause and cause.weight is Weight.CAUSE for cause in causes())
    if is_cause and diagnosis.kind in _EXPLAINS:
        return replace(diagnosis, also=(*diagnosis.also, hang.says, *hang.evidence))
    log = find_original(str(paths[-1])) if paths else ""
    return replace(hang, attempt=attempt_logs.attempt, iteration=diagnosis.iteration, log=log, also=diagnosis.also)


def judge_hang(stacks: Sequence[Stack], *, ranks: int | None, homes: Mapping[int, str]) -> Diagnosis:
    """Return where the ranks of a hung attempt were. Pure.

    Odd ranks are elsewhere than most of all `ranks`, or do not answer while most ranks do. `homes` is the node by rank.
    """
    # A trainer's own launcher may start more ranks than the settings name.
    odd = _find_odd_stacks(stacks, max(ranks or 0, len(stacks)), homes)
    nodes, numbers = {stack.node for stack in odd}, {stack.rank for stack in odd}
    node = nodes.pop() if len(nodes) == 1 else ""
    groups = [group.describe(no_stack="not answering") for group in group_stacks(odd)]
    says = f"the attempt hung, odd: {'; '.join(groups[:MAX_NAMED_GROUPS])}" if odd else "the attempt hung"
    if len(groups) > MAX_NAMED_GROUPS:
        says += f"; and {len(groups) - MAX_NAMED_GROUPS} more groups"
    return Diagnosis(
        kind=CauseKind.HANG,
        cause=CAUSE,
        scope=Scope.RANK,
        node=node,
        rank=numbers.pop() if len(numbers) == 1 else None,
        evidence=tuple(render_stacks(stacks, ranks=ranks)[:MAX_EVIDENCE_LINES]),
        says=says,
        advice=_ODD if odd else _NONE,
        link="https://docs.pytorch.org/docs/stable/distributed.html",
    )


def _find_odd_stacks(stacks: Sequence[Stack], ranks: int, homes: Mapping[int, str]) -> list[Stack]:
    """Return the odd ranks' stacks; none unless more than half of all ranks are at one place.

    Pipeline stages may wait at different places.
    """
    known = [group for group in group_stacks(stacks) if group.is_known]
    if not known or 2 * len(known[-1].stacks) <= ranks:
        return []
    elsewhere = list(chain.from_iterable(group.stacks for group in known[:-1]))
    answered = {stack.rank for stack in stacks if stack.frames or stack.refused}
    missing = [] if None in answered else [rank for rank in range(ranks) if rank not in answered]
    silent = {stack.rank: stack for stack in stacks if stack.is_silent}
    return [*elsewhere, *(silent.get(rank) or Stack(node=homes.get(rank, ""), rank=rank) for rank in missing)]
