"""One round over the trains of a root: settle what nobody settled, and do what was asked for while nothing ran."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opsctl.errors import ConfigError, InputError, OpsctlError, SchedulerError, Unreachable
from opsctl.guard.finalize import remembered, settle_ended, vanished
from opsctl.guard.node_care import NodeCare
from opsctl.launch.train_arrays import Chain, excluded_until, look
from opsctl.model import Job
from opsctl.nodesets import fold, nodeset
from opsctl.ports import Scheduler
from opsctl.settings.loader import Guard, parse, read_toml
from opsctl.state import switches
from opsctl.state.journal import Kind
from opsctl.state.lease import lease
from opsctl.state.run_dir import RunDir, all_trains, may_act
from opsctl.state.switches import Request, Switch


@dataclass(frozen=True, slots=True, kw_only=True)
class Attended:
    """What a round did for one train."""

    train: str
    done: tuple[str, ...] = ()
    error: str = ""


def cycle(root: Path, scheduler: Scheduler, chain_of: Callable[[RunDir], Chain]) -> list[Attended]:
    """Attend to every train below `root` that is ours. Raises Unreachable."""
    trains = [run for run in all_trains(root) if may_act(run)]
    return attend_all([chain_of(run) for run in trains], scheduler, scheduler.jobs() if trains else [])


def attend_all(
    chains: Sequence[Chain], scheduler: Scheduler, jobs: Sequence[Job], care: NodeCare | None = None
) -> list[Attended]:
    """Attend to these trains, with the whole queue given, and at most one question to accounting for all.

    A train that fails stops no other; one of which there is nothing to tell is left out.
    """
    gone = [array for chain in chains for array in _vanished(chain, jobs)]
    past = remembered(scheduler, list(dict.fromkeys(gone)))
    attended = [_attended(chain, jobs, past, care) for chain in chains]
    return [each for each in attended if each.done or each.error]


def _vanished(chain: Chain, jobs: Sequence[Job]) -> list[str]:
    try:
        return vanished(chain.run, look(chain.run, chain.journal, jobs))
    except (OpsctlError, OSError):
        return []  # attending to it meets the same, and tells


def _attended(chain: Chain, jobs: Sequence[Job], past: Sequence[Job], care: NodeCare | None) -> Attended:
    try:
        return Attended(train=chain.run.name, done=tuple(attend(chain, jobs, past, care=care)))
    except (OpsctlError, OSError) as error:
        return Attended(train=chain.run.name, error=str(error))


def attend(
    chain: Chain, jobs: Sequence[Job] | None = None, past: Sequence[Job] | None = None, *,
    care: NodeCare | None = None,
) -> list[str]:  # fmt: skip
    """Settle what nobody settled, note switches, carry out requests, give nodes back whose exclusion is over; what was
    done, in words. Only for the owner; without `care` nothing is done about nodes."""
    done = switches.note(chain.run, chain.journal)
    given = read_toml(chain.run.config)
    rules = parse(Guard, given.get("guard", {}), str(chain.run.config))
    for ended in settle_ended(chain, rules, chain.look(jobs), past=past, care=care):
        done.append(f"settled {ended.life}: {ended.outcome.value}, {ended.action.value}: {ended.why}")
    for request in switches.requests(chain.run):
        done += carry_out(chain, request, nodes=_nodes(given))
    return done + give_back(chain, given)


def give_back(chain: Chain, given: dict[str, Any]) -> list[str]:
    """Let what is queued have the nodes again whose exclusion is over, but those that a person has excluded."""
    table = given.get("slurm")
    kept = nodeset(str(table.get("exclude", ""))) if isinstance(table, dict) else nodeset("")
    ends, now = excluded_until(chain.journal.events()), chain.journal.clock.now()
    over = fold(node for node, end in ends.items() if end <= now and node not in kept)
    if not over:
        return []
    chain.readmit(over)
    return [f"{over} may be used again: the exclusion is over"]


def _nodes(given: dict[str, object]) -> int:
    table = given.get("slurm")
    nodes = table.get("nodes") if isinstance(table, dict) else None
    if not isinstance(nodes, int):
        raise ConfigError("train.toml", ["[slurm] nodes: missing"])
    return nodes


def carry_out(chain: Chain, request: Request, *, nodes: int) -> list[str]:
    """Do what a team-mate asked for, or refuse it; then take the request away, last, so that none is lost.

    Nothing if somebody else was faster. Raises Unreachable, and then the request stays.
    """
    with lease(chain.run.path, chain.journal.clock):
        if not request.path.exists():
            return []
        try:
            done = _release(chain, request, nodes)
            chain.journal.append(Kind.REQUEST_DONE, verb=request.verb, by=request.by)
        except Unreachable:
            raise
        except (InputError, SchedulerError) as error:
            done = f"{request.verb.value} asked for by {request.by} refused: {error.message}"
            chain.journal.append(Kind.REQUEST_REFUSED, verb=request.verb, by=request.by, why=error.message)
        request.path.unlink(missing_ok=True)
    return [done]


def _release(chain: Chain, request: Request, nodes: int) -> str:
    if armed := switches.read(chain.run, Switch.KILL):
        raise InputError(f"the kill switch is armed, by {armed.by}")
    if request.exclude:
        chain.exclude(request.exclude, needed=nodes)
    # The next life would see the pause switch and hold the rest again.
    if switches.read(chain.run, Switch.PAUSE):
        chain.journal.append(Kind.DISARMED, switch=Switch.PAUSE, by=request.by)
        switches.disarm(chain.run, Switch.PAUSE)
    arrays = chain.release()
    excluded = f" without {request.exclude}" if request.exclude else ""
    return f"released {', '.join(arrays) or 'nothing'}{excluded}, as {request.by} asked"
