"""Gather the facts for all checks, once. Only `gather_cluster` asks Slurm. Facts that fail are recorded as unknown."""

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any

from opsctl.base.errors import OpsctlError
from opsctl.base.model import Accounting, JobSpec, Limits
from opsctl.base.nodesets import nodeset
from opsctl.base.ports import Runner, TimedOut
from opsctl.calc.accelerators import gpu_kind
from opsctl.checkpoints.trainer_command.read_command import read_command
from opsctl.checkpoints.trainer_command.shell import separate_documents, split_command
from opsctl.nodes.history import NodeRecord
from opsctl.preflight import corpus_files
from opsctl.preflight.checks.slurm import find_partitions
from opsctl.preflight.command_files import exists, find_misplaced_paths
from opsctl.preflight.facts import ClusterFacts, CorpusFacts, Facts, FreeSpace
from opsctl.preflight.problem import LaunchRequest
from opsctl.preflight.shared_saves import find_shared_saves
from opsctl.settings.loader import TrainSettings
from opsctl.settings.watch import Filesystem
from opsctl.slurm.commands import Slurm
from opsctl.state.files import MAX_RECORD_BYTES, parse_json, read_text
from opsctl.state.run_dir import RunDir
from opsctl.state.switches import Armed, Switch, read
from opsctl.telemetry import disk_usage
from opsctl.telemetry.progress.iteration_lines import recent_iterations
from opsctl.telemetry.progress.signs import list_save_directories
from opsctl.telemetry.progress.step_pace import median_step_s
from opsctl.trainer import manifest
from opsctl.trainer.checkpoint.transformers_config import refuse_other_model
from opsctl.trainer.errors import Refused
from opsctl.trainer.manifest import Manifest
from opsctl.trainer.precision import read_processor

NAMES = dict.fromkeys(("nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13"), "nccl")
NAMES |= {"torch": "torch", "deepspeed": "deepspeed"}
"""Packages, and the software that each package holds."""
LIST_VERSIONS = """import importlib.metadata as m, json, sys
found = {}
for name in sys.argv[1:]:
    try: found[name] = m.version(name)
    except m.PackageNotFoundError: pass
print(json.dumps(found))"""


def versions(train: TrainSettings, run: RunDir, runner: Runner) -> dict[str, str]:
    """Return versions from the embedded trainer's interpreter, else from the last attempt; empty if unknown."""
    if train.command:
        return _by_software(_list_of_last_attempt(run))
    if train.python and train.python != sys.executable:
        with contextlib.suppress(OpsctlError, TimedOut, ValueError):
            completed = runner.run((train.python, "-P", "-c", LIST_VERSIONS, *NAMES), timeout=10)
            return _by_software(json.loads(completed.out)) if completed.code == 0 else {}
        return {}
    installed = {}
    for name in NAMES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return _by_software(installed)


def _by_software(packages: dict[str, str]) -> dict[str, str]:
    return {NAMES[name]: version for name, version in packages.items() if name in NAMES}


def _list_of_last_attempt(run: RunDir) -> dict[str, str]:
    """Read `packages.txt` of the last attempt, in the format of pip freeze."""
    recorded = [attempt for attempt in run.attempts() if attempt.repro.is_dir()]
    newest = max(recorded, key=lambda attempt: attempt.path.stat().st_mtime, default=None)
    if newest is None:
        return {}
    with contextlib.suppress(OSError, ValueError):
        lines = read_text(newest.repro / "packages.txt", MAX_RECORD_BYTES).splitlines()
        rows = (line.partition("==") for line in lines)
        return {name.lower(): version for name, _, version in rows if version}
    return {}


VARIABLE = re.compile(r"\$\{?(\w+)\}?")
DEEPSPEED_KEYS = frozenset(
    {"train_batch_size", "train_micro_batch_size_per_gpu", "fp16", "bf16", "bfloat16", "zero_optimization"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlace:
    """Where facts about a launch are found."""

    run: RunDir
    base: Path
    """The directory against which relative paths of the embedded trainer's corpora are resolved."""
    filesystems: Sequence[Filesystem]
    measured: Path
    """The directory with the watch's measurements of file systems."""
    history: Iterable[NodeRecord]
    runner: Runner
    user: str
    now: datetime


def gather_cluster(slurm: Slurm, spec: JobSpec, user: str) -> ClusterFacts:
    """Ask Slurm for all facts that checks need. Raises SlurmError."""
    partitions, limits = tuple(slurm.partitions()), slurm.limits()
    known = {partition.name for partition in partitions}
    names = [name for name in find_partitions(spec, partitions) if name in known]
    members = set(chain.from_iterable(slurm.members(name) for name in names))
    accounting, unavailable = _query_accounting(slurm, spec, user, limits)
    return ClusterFacts(
        partitions=partitions,
        limits=limits,
        accounting=accounting,
        unavailable=unavailable,
        nodes=tuple(slurm.nodes()),
        members=tuple(sorted(members)),
        features=slurm.features() if spec.constraint else frozenset(),
        jobs=tuple(slurm.jobs()),
        reservations=tuple(slurm.reservations()),
    )


def _query_accounting(
    slurm: Slurm, spec: JobSpec, user: str, limits: Limits
) -> tuple[Accounting | None, dict[str, str]]:
    """Ask Slurm's accounting. A failure does not prevent a launch, because Slurm runs jobs without accounting."""
    subject = "account, QOS and their limits"
    try:
        accounting = slurm.accounting(user, limits.cluster)
    except OpsctlError as refusal:
        return None, {subject: refusal.message}
    if accounting is None and (spec.account or spec.qos):
        return None, {subject: "this Slurm has no accounting and accepts any name"}
    return accounting, {}


def gather(request: LaunchRequest, place: LaunchPlace, slurm: ClusterFacts | None, unknown: Mapping[str, str]) -> Facts:
    """Gather all facts. `unknown` holds facts that have failed before, and why."""
    why = {**unknown, **(slurm.unavailable if slurm else {})}
    observed_nodes = _list_observed_nodes(request, place, slurm)
    if request.has_gpus and not any(node.driver or node.shm_kb for node in observed_nodes):
        why["shared memory and drivers"] = "opsctl health has checked none of the nodes yet"
    gpu_names = list(chain.from_iterable(node.gpu_names for node in observed_nodes))
    gpu = gpu_kind(gpu_names or [*request.spec.extra, request.spec.constraint]) if request.has_gpus else ""
    if request.has_gpus and not gpu and request.recipe.shape():
        why["memory and the time of a step"] = "neither opsctl health nor a constraint or gres names the kind of GPU"
    train = request.train
    scripts = dict(read_command(train.command, train.environment, _trainer_path(request, place, "")).scripts)
    processor = read_processor({**os.environ, **request.train.environment})
    saved, saved_count = _read_checkpoints(request, place.run, why)
    return Facts(
        now=place.now,
        user=place.user,
        cluster=slurm,
        switches=_read_switches(place.run, why),
        free_space=_measure_free_space(request, place, why),
        corpora=tuple(_read_corpora(request, place)),
        weights_problem=_check_weights(request, place),
        tokenizers={
            path: corpus_files.tokenizer_size(_trainer_path(request, place, path)) for path in request.recipe.tokenizers
        },
        files=_find_files(request, place),
        unseen=frozenset(_list_unseen(request, place)),
        misplaced_paths=tuple(find_misplaced_paths(request.train, place.run.path, place.base, request.spec.extra)),
        scripts=scripts,
        deepspeed=next(filter(None, map(_find_written_settings, scripts.values())), {}),
        observed_nodes=observed_nodes,
        processor_without_bf16=processor.name if processor.has_bf16 is False else "",
        gpu=gpu,
        saved=saved,
        saved_count=saved_count,
        shared_saves=tuple(find_shared_saves(place.run, request.train, slurm.jobs if slurm else ())),
        step_s=median_step_s(recent_iterations(place.run.main_log, 20)),
        versions=versions(request.train, place.run, place.runner),
        unknown=why,
    )


def _trainer_path(request: LaunchRequest, place: LaunchPlace, path: str) -> Path:
    """Resolve a path as the trainer does."""
    return place.run.path / request.train.setup.directory / path


def _read_switches(run: RunDir, unknown: dict[str, str]) -> tuple[Armed, ...]:
    switches: list[Armed] = []
    for switch in (Switch.KILL, Switch.PAUSE):
        try:
            switches += filter(None, [read(run, switch)])
        except OSError as error:
            unknown[f"the {switch.value} switch"] = str(error)
    return tuple(switches)


def _measure_free_space(request: LaunchRequest, place: LaunchPlace, unknown: dict[str, str]) -> FreeSpace | None:
    is_embedded = request.recipe.is_embedded
    target = place.run.checkpoints if is_embedded else list_save_directories(place.run, request.train)[0]
    existing = next((path for path in (target, *target.parents) if exists(path)), Path("/"))
    filesystem = _choose_filesystem(existing, place.filesystems)
    try:
        if filesystem.by == "du" and not any(place.measured.glob("du-*")):
            raise disk_usage.MeasurementFailed("opsctl watch has not measured this file system yet")
        # The last measurement counts at any age: preflight starts no measurement.
        space = disk_usage.read(
            filesystem.model_copy(update={"every_minutes": 1e9}), place.runner, keep=place.measured, now=place.now
        )
    except (OpsctlError, OSError) as error:
        unknown[f"free space of {filesystem.name}"] = str(error)
        return None
    limit = space.limit if space.limit is not None else filesystem.limit
    if limit is None or space.used is None:
        unknown[f"free space of {filesystem.name}"] = "only percentages are known"
        return None
    inodes = space.inodes_limit if space.inodes_limit is not None else filesystem.inode_limit
    return FreeSpace(
        filesystem=filesystem.name,
        free=max(0, int(limit * filesystem.reliable_percent / 100) - space.used),
        inodes_free=None if inodes is None or space.inodes_used is None else inodes - space.inodes_used,
    )


def _choose_filesystem(path: Path, known: Sequence[Filesystem]) -> Filesystem:
    """Return the site's file system with the innermost directory above `path`, else one on the same device."""
    above = [filesystem for filesystem in known if path.is_relative_to(filesystem.path)]
    same_device = [filesystem for filesystem in known if _is_same_device(path, Path(filesystem.path))]
    return max(
        above or same_device,
        key=lambda filesystem: len(filesystem.path),
        default=Filesystem(name=str(path), path=str(path)),
    )


def _is_same_device(path: Path, other: Path) -> bool:
    try:
        return path.stat().st_dev == other.stat().st_dev
    except OSError:
        return False


def _read_corpora(request: LaunchRequest, place: LaunchPlace) -> Iterable[CorpusFacts]:
    for prefix in request.recipe.corpora:
        path = place.base / prefix if request.recipe.is_embedded else _trainer_path(request, place, prefix)
        if request.recipe.is_embedded or not exists(path):  # some trainers read a directory
            yield corpus_files.read(path, prefix)


def _check_weights(request: LaunchRequest, place: LaunchPlace) -> str:
    config = request.recipe.embedded
    if config is None or config.weights is None:
        return ""
    try:
        refuse_other_model(place.base / config.weights, config.model)
    except (Refused, OSError) as error:
        return str(error)
    return ""


def _find_files(request: LaunchRequest, place: LaunchPlace) -> dict[str, bool]:
    named = [*request.recipe.tokenizers, *request.recipe.flags.get("kill-switch-path", ())[:1]]
    named += filter(None, [request.train.setup.directory])
    existence = {path: exists(_trainer_path(request, place, path)) for path in named}
    return {path: exists for path, exists in existence.items() if exists is not None}


def _list_unseen(request: LaunchRequest, place: LaunchPlace) -> Iterable[str]:
    """Yield the paths in directories that are not on this machine."""
    for path in (*request.recipe.corpora, *request.recipe.tokenizers):
        if not request.recipe.is_embedded and exists(_trainer_path(request, place, path).parent) is False:
            yield path
    directory = Path(request.train.setup.directory)
    if len(directory.parents) > 1 and exists(directory.parents[-2]) is False:
        yield request.train.setup.directory


def _find_written_settings(script: str) -> dict[str, Any]:
    """Return DeepSpeed's settings that a script writes into a file by a here-document, as BLOOM's scripts did.

    Empty if the script writes none. A variable without a value counts as not set.
    """
    variables: dict[str, str] = {}
    split_command([script], variables)
    for document in separate_documents(script)[1]:
        filled = VARIABLE.sub(lambda match: variables.get(match[1], "null"), document)
        try:
            settings = parse_json(filled)
        except ValueError:
            continue
        if isinstance(settings, dict) and DEEPSPEED_KEYS & settings.keys():
            return settings
    return {}


def _list_observed_nodes(
    request: LaunchRequest, place: LaunchPlace, slurm: ClusterFacts | None
) -> tuple[NodeRecord, ...]:
    members = set(slurm.members) if slurm and slurm.members else None
    excluded = nodeset(request.spec.exclude)
    return tuple(
        record
        for record in place.history
        if record.node not in excluded and (members is None or record.node in members)
    )


def _read_checkpoints(request: LaunchRequest, run: RunDir, unknown: dict[str, str]) -> tuple[Manifest | None, int]:
    """Return the newest complete checkpoint of the embedded trainer, and the number of checkpoints."""
    if not request.recipe.is_embedded:
        return None, 0
    try:
        checkpoints = manifest.list_checkpoints(run.checkpoints)
        newest = manifest.read_manifest(checkpoints[-1].path) if checkpoints else None
    except (OSError, ValueError) as error:
        unknown["the newest checkpoint"] = str(error)
        return None, 0
    return newest, len(checkpoints)
