"""Reconcile the trains of a root: finalize ended attempts, apply switches, carry out requests."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from opsctl.base.errors import ConfigError, InputError, OpsctlError, SlurmError, Unreachable
from opsctl.base.model import Job
from opsctl.base.nodesets import fold, nodeset
from opsctl.base.ports import Runner
from opsctl.guard.apply_switches import apply_switches
from opsctl.guard.finalize import finalize_ended
from opsctl.guard.hooks import TrainHooks
from opsctl.guard.node_care import NodeCare
from opsctl.guard.unfinalized import find_vanished, load_past_jobs
from opsctl.host.isolation import Failed, Isolation
from opsctl.launch.rollback_state import check_not_rolling_back
from opsctl.launch.train_arrays import TrainArrays, excluded_until, take_snapshot
from opsctl.settings.loader import GuardSettings, parse, read_toml
from opsctl.slurm.commands import Slurm
from opsctl.state import switches
from opsctl.state.events import RequestDone, RequestRefused, SwitchDisarmed
from opsctl.state.files import is_regular
from opsctl.state.lease import lease
from opsctl.state.requests import BadRequest, Request, read_requests, set_aside
from opsctl.state.run_dir import RunDir
from opsctl.state.switches import Switch

MAX_REASON_CHARS = 300

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconciledTrain:
    train: str
    done: tuple[str, ...] = ()
    error: str = ""


def reconcile_all(
    all_arrays: Sequence[TrainArrays],
    slurm: Slurm,
    jobs: Sequence[Job],
    isolation: Isolation[tuple[str, str], Any],
    *,
    care: NodeCare | None = None,
    runner: Runner | None = None,
) -> tuple[list[ReconciledTrain], list[str]]:
    """Reconcile `all_arrays` with the whole queue in `jobs` and at most one call of accounting for all trains.

    Return what was done, and why trains gave no answer. Each train has its own time limit, as a hook may take minutes:
    a slow or failing train does not delay the others. Trains without an action or error are left out of the result.
    """
    units = {("reconcile", arrays.run.name): arrays for arrays in all_arrays}
    found = isolation.run({unit: partial(_find_vanished, arrays, jobs) for unit, arrays in units.items()})
    vanished = dict.fromkeys(chain.from_iterable(ids for ids in found.values() if not isinstance(ids, Failed)))
    [past] = isolation.run({("accounting", ""): partial(load_past_jobs, slurm, list(vanished))}).values()
    if isinstance(past, Failed):
        return [], [f"reconciling the trains: {past.why}"]
    work = {unit: partial(_reconcile_one, arrays, jobs, past, care, runner) for unit, arrays in units.items()}
    results = isolation.run(work)
    failed = {name: result for (_, name), result in results.items() if isinstance(result, Failed)}
    reconciled = [result for result in results.values() if not isinstance(result, Failed)]
    return (
        [train for train in reconciled if train.done or train.error],
        [f"reconciling {name}: {result.why}" for name, result in failed.items()],
    )


def _find_vanished(arrays: TrainArrays, jobs: Sequence[Job]) -> list[str]:
    try:
        return find_vanished(arrays.run, take_snapshot(arrays.run, arrays.journal, jobs))
    except (OpsctlError, OSError):
        return []  # reconciling the train raises and reports the same error


def _reconcile_one(
    arrays: TrainArrays, jobs: Sequence[Job], past: Sequence[Job], care: NodeCare | None, runner: Runner | None
) -> ReconciledTrain:
    try:
        done = reconcile(arrays, jobs, past, care=care, runner=runner)
        return ReconciledTrain(train=arrays.run.name, done=tuple(done))
    except (OpsctlError, OSError) as error:
        log.warning("%s is not reconciled: %s", arrays.run.name, error)
        return ReconciledTrain(train=arrays.run.name, error=str(error))


def reconcile(
    arrays: TrainArrays,
    jobs: Sequence[Job] | None = None,
    past: Sequence[Job] | None = None,
    *,
    care: NodeCare | None = None,
    runner: Runner | None = None,
) -> list[str]:
    """Journal and apply switches, finalize, carry out requests, readmit nodes; return one sentence per action.

    Only for the train's owner. Without `care`, no node is excluded or drained; without `runner`, no hook is run.
    """
    done = switches.journal_switches(arrays.run, arrays.journal)
    table = read_toml(arrays.run.config).get("slurm")
    table = table if isinstance(table, dict) else {}
    rules = read_rules(arrays.run)
    done += apply_switches(arrays, rules, jobs)
    finalized = finalize_ended(arrays, rules, arrays.check(jobs), past=past, care=care)
    for ended in finalized:
        done.append(f"finalized {ended.attempt}: {ended.outcome.value}, {ended.action.value}: {ended.why}")
    requests, bad = read_requests(arrays.run)
    if bad:
        done.append(refuse(arrays, bad))
    for request in requests:
        done += carry_out(arrays, request, nodes=_nodes(table))
    done += readmit_nodes(arrays, table)
    if runner:
        TrainHooks(run=arrays.run, journal=arrays.journal, runner=runner).after_attempts(finalized)
    return done


def read_rules(run: RunDir) -> GuardSettings:
    """Return the [guard] table of train.toml. Raises ConfigError."""
    return parse(GuardSettings, read_toml(run.config).get("guard", {}), str(run.config))


def readmit_nodes(arrays: TrainArrays, table: dict[str, Any]) -> list[str]:
    """Readmit nodes with an expired exclusion to the queued tasks, except nodes excluded in [slurm] of train.toml."""
    node_set = nodeset(str(table.get("exclude", "")))
    ends, now = excluded_until(arrays.journal.events()), arrays.journal.clock.now()
    over = fold(node for node, end in ends.items() if end <= now and node not in node_set)
    if not over:
        return []
    arrays.readmit(over)
    log.info("%s: %s may be used again: the exclusion is over", arrays.run.name, over)
    return [f"{over} may be used again: the exclusion is over"]


def _nodes(table: dict[str, Any]) -> int:
    nodes = table.get("nodes")
    if not isinstance(nodes, int):
        raise ConfigError("train.toml", ["[slurm] nodes: missing"])
    return nodes


def refuse(arrays: TrainArrays, bad: Sequence[BadRequest]) -> str:
    """Set entries aside that are no requests, and journal them in one event; return the event as a sentence."""
    with lease(arrays.run.path, arrays.journal.clock):
        line = set_aside(arrays.run, bad)
        arrays.journal.append(RequestRefused(verb="", by=bad[0].by, why=line))
    return line


def carry_out(arrays: TrainArrays, request: Request, *, nodes: int) -> list[str]:
    """Carry out or refuse a team member's request, then remove the request file.

    The file is removed last, so that no request is lost. Does nothing if another process was faster. Raises
    Unreachable and leaves the request in place.
    """
    with lease(arrays.run.path, arrays.journal.clock):
        if not is_regular(request.path):
            return []
        try:
            done = _release(arrays, request, nodes)
            arrays.journal.append(RequestDone(verb=request.verb, by=request.by))
        except Unreachable:
            raise
        except (InputError, SlurmError) as error:
            why = shorten(error.message)
            done = f"{request.verb.value} requested by {request.by} refused: {why}"
            arrays.journal.append(RequestRefused(verb=request.verb, by=request.by, why=why))
        request.path.unlink(missing_ok=True)
    log.info("%s: %s", arrays.run.name, done)
    return [done]


def _release(arrays: TrainArrays, request: Request, nodes: int) -> str:
    if armed := switches.read(arrays.run, Switch.KILL):
        raise InputError(f"{armed.by} armed the kill switch")
    check_not_rolling_back(arrays.run, arrays.journal.clock)
    if request.exclude:
        arrays.exclude(request.exclude, needed=nodes)
    # With the pause switch still armed, the next attempt would hold the rest again.
    if switches.read(arrays.run, Switch.PAUSE):
        arrays.journal.append(SwitchDisarmed(switch=Switch.PAUSE, by=request.by))
        switches.disarm(arrays.run, Switch.PAUSE)
    ids = arrays.release()
    excluded = f" without {shorten(request.exclude)}" if request.exclude else ""
    return f"released {', '.join(ids) or 'nothing'}{excluded}, as requested by {request.by}"


def shorten(text: str) -> str:
    """Return the beginning of a text that another user may have made long."""
    return text if len(text) <= MAX_REASON_CHARS else text[: MAX_REASON_CHARS - 1] + "…"
