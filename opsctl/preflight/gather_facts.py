"""Looking, once, for all that checks want to know. Only `cluster` asks Slurm; what cannot be found out is unknown."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from opsctl.errors import OpsctlError
from opsctl.host import disk_usage
from opsctl.model import Accounting, JobSpec, Limits
from opsctl.nodes.history import NodeRecord
from opsctl.nodesets import nodeset
from opsctl.ports import Runner, Scheduler
from opsctl.preflight import corpus_files
from opsctl.preflight.checks.slurm import asked
from opsctl.preflight.command_flags import words
from opsctl.preflight.facts import (
    ArmedSwitch,
    ClusterFacts,
    CorpusFacts,
    Facts,
    FreeSpace,
    MisplacedPath,
    ObservedNode,
    SavedCheckpoint,
)
from opsctl.preflight.gpu_kinds import gpu_kind
from opsctl.preflight.package_versions import versions
from opsctl.preflight.problem import LaunchRequest
from opsctl.settings.watch import Filesystem
from opsctl.state.run_dir import RunDir
from opsctl.state.switches import Switch, read
from opsctl.telemetry.progress.eta import median_step_s
from opsctl.telemetry.progress.iteration_lines import recent_iterations
from opsctl.trainer import manifest

LARGEST_SCRIPT = 1 << 20
SCRIPTS = (".py", ".sh", ".bash")
CONTAINERS = {"apptainer", "singularity", "docker", "podman", "enroot", "ch-run", "sarus", "shifter"}
"""Within these, paths are others than here."""
_PLACEHOLDER = re.compile(r"\{\{.*?\}\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlace:
    """Where to look."""

    run: RunDir
    base: Path
    """What relative paths of the embedded trainer's corpora start from."""
    filesystems: Sequence[Filesystem]
    measured: Path
    """Where the watch keeps what it has measured of file systems."""
    history: Iterable[NodeRecord]
    runner: Runner
    user: str
    now: datetime


def gather_cluster(scheduler: Scheduler, spec: JobSpec, user: str) -> ClusterFacts:
    """Ask Slurm all that checks want to know. Raises SchedulerError."""
    partitions, limits = tuple(scheduler.partitions()), scheduler.limits()
    known = {partition.name for partition in partitions}
    members = {node for name in asked(spec, partitions) if name in known for node in scheduler.members(name)}
    accounting, unasked = _accounting(scheduler, spec, user, limits)
    return ClusterFacts(
        partitions=partitions,
        limits=limits,
        accounting=accounting,
        unasked=unasked,
        nodes=tuple(scheduler.nodes()),
        members=tuple(sorted(members)),
        jobs=tuple(scheduler.jobs()),
        reservations=tuple(scheduler.reservations()),
    )


def _accounting(
    scheduler: Scheduler, spec: JobSpec, user: str, limits: Limits
) -> tuple[Accounting | None, dict[str, str]]:
    """What sacctmgr knows. Slurm runs jobs while it does not answer, so that keeps nothing from being launched."""
    asked_of = "account, QOS and their limits"
    try:
        accounting = scheduler.accounting(user, limits.cluster)
    except OpsctlError as refusal:
        return None, {asked_of: refusal.message}
    if accounting is None and (spec.account or spec.qos):
        return None, {asked_of: "this Slurm keeps no accounts, and takes any name for one"}
    return accounting, {}


def gather(request: LaunchRequest, place: LaunchPlace, slurm: ClusterFacts | None, unknown: Mapping[str, str]) -> Facts:
    """Everything that is to be known, with what `unknown` says already."""
    why = {**unknown, **(slurm.unavailable if slurm else {})}
    observed_nodes = _seen(request, place, slurm)
    if request.has_gpus and not any(observed_node.driver or observed_node.shm_kb for observed_node in observed_nodes):
        why["shared memory and drivers"] = "opsctl health has looked at none of the nodes yet"
    named = [name for observed_node in observed_nodes for name in observed_node.gpus] or [
        *request.spec.extra,
        request.spec.constraint,
    ]
    gpu = gpu_kind(named) if request.has_gpus else ""
    if request.has_gpus and not gpu and request.recipe.shape():
        why["memory and the time of a step"] = (
            "which GPUs these are is known neither from opsctl health nor from a constraint or gres that names them"
        )
    return Facts(
        now=place.now,
        user=place.user,
        cluster=slurm,
        switches=_switches(place.run, why),
        free_space=_room(request, place, why),
        corpora=tuple(_corpora(request, place)),
        tokenizers={path: corpus_files.tokenizer_size(_at(request, place, path)) for path in request.recipe.tokenizers},
        files=_files(request, place),
        misplaced_paths=tuple(_strays(request, place)),
        scripts=_scripts(request, place),
        deepspeed=_deepspeed(request, place),
        observed_nodes=observed_nodes,
        gpu=gpu,
        saved=_saved(request, place.run, why),
        step_s=median_step_s(recent_iterations(place.run.main_log, 20)),
        versions=versions(request.train, place.run, place.runner),
        unknown=why,
    )


def _at(request: LaunchRequest, place: LaunchPlace, path: str) -> Path:
    """What a path is to the trainer."""
    return place.run.path / request.train.setup.directory / path


def _switches(run: RunDir, unknown: dict[str, str]) -> tuple[ArmedSwitch, ...]:
    found = []
    for switch in (Switch.KILL, Switch.PAUSE):
        try:
            if armed := read(run, switch):
                found.append(ArmedSwitch(switch=switch.value, by=armed.by, since=armed.since, why=armed.why))
        except OSError as error:
            unknown[f"the {switch.value} switch"] = str(error)
    return tuple(found)


def _room(request: LaunchRequest, place: LaunchPlace, unknown: dict[str, str]) -> FreeSpace | None:
    text = next(iter(request.recipe.flags.get("save", ())), "{{")
    target = place.run.checkpoints if "{{" in text or "$" in text else _at(request, place, text)
    there = next((path for path in (target, *target.parents) if _is_there(path)), Path("/"))
    chosen = _filesystem(there, place.filesystems)
    try:
        if chosen.by == "du" and not any(place.measured.glob("du-*")):
            raise disk_usage.MeasurementFailed("the watch has not measured it yet")
        # Whatever its age, the last measurement will do: looking starts none.
        space = disk_usage.read(
            chosen.model_copy(update={"every_minutes": 1e9}), place.runner, keep=place.measured, now=place.now
        )
    except (OpsctlError, OSError) as error:
        unknown[f"what is left of {chosen.name}"] = str(error)
        return None
    limit = space.limit if space.limit is not None else chosen.limit
    if limit is None or space.used is None:
        unknown[f"what is left of {chosen.name}"] = "its figures are percentages"
        return None
    inodes = space.inodes_limit if space.inodes_limit is not None else chosen.inode_limit
    return FreeSpace(
        filesystem=chosen.name,
        free=max(0, int(limit * chosen.reliable_percent / 100) - space.used),
        inodes_free=None if inodes is None or space.inodes_used is None else inodes - space.inodes_used,
    )


def _filesystem(path: Path, known: Sequence[Filesystem]) -> Filesystem:
    """The one of the site's that holds it: the innermost directory, or else any on the same device."""
    above = [filesystem for filesystem in known if path.is_relative_to(filesystem.path)]
    beside = [filesystem for filesystem in known if _is_beside(path, Path(filesystem.path))]
    return max(
        above or beside, key=lambda filesystem: len(filesystem.path), default=Filesystem(name=str(path), path=str(path))
    )


def _is_beside(path: Path, other: Path) -> bool:
    try:
        return path.stat().st_dev == other.stat().st_dev
    except OSError:
        return False


def _is_there(path: Path) -> bool | None:
    """None where that may not be told, or nothing can have such a name."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return None
    return True


def _corpora(request: LaunchRequest, place: LaunchPlace) -> Iterable[CorpusFacts]:
    for prefix in request.recipe.corpora:
        path = place.base / prefix if request.recipe.is_embedded else _at(request, place, prefix)
        if request.recipe.is_embedded or not _is_there(path):  # some trainers take a directory
            yield corpus_files.read(path, prefix)


def _files(request: LaunchRequest, place: LaunchPlace) -> dict[str, bool]:
    named = [*request.recipe.tokenizers, *request.recipe.flags.get("kill-switch-path", ())[:1]]
    named += filter(None, [request.train.setup.directory])
    looked = {path: _is_there(_at(request, place, path)) for path in named}
    return {path: there for path, there in looked.items() if there is not None}


def _strays(request: LaunchRequest, place: LaunchPlace) -> Iterator[MisplacedPath]:
    """What placeholders, the shell and containers make of a path is not known."""
    given = words(_PLACEHOLDER.sub("$", word) for word in request.train.command)
    if any("cd " in line for line in request.train.setup.lines) or _is_contained(given, request.spec.extra):
        return
    for word in given:
        path = word.partition("=")[2] if word.startswith("-") else word
        if "$" in path or _is_there(_at(request, place, path)) is not False:
            continue
        if path.endswith(SCRIPTS) or (Path(path).suffix and (place.base / path).is_file()):
            yield MisplacedPath(path=path, here=str(place.base) if _is_there(place.base / path) else "")


def _is_contained(command: Sequence[str], extra: Sequence[str]) -> bool:
    return any(Path(word).name in CONTAINERS for word in command) or any("--container" in each for each in extra)


def _scripts(request: LaunchRequest, place: LaunchPlace) -> dict[str, str]:
    found = {}
    for word in words(request.train.command):
        if word.endswith((".sh", ".bash", ".slurm", ".sbatch")) and "{{" not in word:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                if (path := _at(request, place, word)).stat().st_size < LARGEST_SCRIPT:
                    found[word] = path.read_text(encoding="utf-8")
    return found


def _deepspeed(request: LaunchRequest, place: LaunchPlace) -> dict[str, Any]:
    for path in request.recipe.flags.get("deepspeed-config", ())[:1]:
        with contextlib.suppress(OSError, ValueError):
            given = json.loads(_at(request, place, path).read_text(encoding="utf-8"))
            return given if isinstance(given, dict) else {}
    return {}


def _seen(request: LaunchRequest, place: LaunchPlace, slurm: ClusterFacts | None) -> tuple[ObservedNode, ...]:
    """Of the nodes that the train may get, those that were ever looked at."""
    wanted, excluded = set(slurm.members) if slurm and slurm.members else None, nodeset(request.spec.exclude)
    return tuple(
        ObservedNode(
            node=record.node,
            gpus=tuple(card.name for card in record.cards if card.name),
            driver=record.driver,
            shm_kb=record.shm_kb,
        )
        for record in place.history
        if record.node not in excluded and (wanted is None or record.node in wanted)
    )


def _saved(request: LaunchRequest, run: RunDir, unknown: dict[str, str]) -> SavedCheckpoint | None:
    if not request.recipe.is_embedded:
        return None
    try:
        checkpoints = manifest.list_checkpoints(run.checkpoints)
        if not checkpoints:
            return None
        held = manifest.read_manifest(checkpoints[-1].path)
    except (OSError, ValueError) as error:
        unknown["the newest checkpoint"] = str(error)
        return None
    return SavedCheckpoint(
        step=held.step,
        kind=held.kind,
        topology=held.topology,
        model=held.model,
        precision=held.precision,
        count=len(checkpoints),
        size=sum(file.size for file in held.files.values()),
        files=len(held.files) + 3,
        save_s=held.save_s,
        slowest_step_s=held.slowest_step_s,
    )
