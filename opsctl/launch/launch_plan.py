"""The complete submission of a train, computed from its settings. Pure: a dry run is the first half of a launch."""

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opsctl.base.errors import ConfigError
from opsctl.base.model import JobSpec, LaunchPlan
from opsctl.base.nodesets import nodeset
from opsctl.base.tables import PACKAGE
from opsctl.launch.code_freeze import FrozenCode
from opsctl.launch.rank_wrapper import start_on_node, start_with
from opsctl.launch.render import command_line, directives, read_job_variables, render
from opsctl.launch.train_paths import resolve_paths
from opsctl.settings.loader import SiteSettings, TrainSettings
from opsctl.state.run_dir import RunDir

ROLLBACK_WORDS = re.compile(r"\$\{TRAIN_ROLLBACK_ARGUMENTS")
"""In a command that has the placeholder `rollback_arguments`, so that the body appends no words."""
RANK_WRAPPER_MOUNT = "/opt/opsctl-rank-wrapper"
"""Directory in the container that holds opsctl's package."""


def job_spec(
    train: TrainSettings,
    site: SiteSettings,
    *,
    tasks: int | None = None,
    after: str = "",
    exclude: str = "",
    nice: int | None = None,
) -> JobSpec:
    """Return what the train asks of Slurm. Options override [slurm]; the site's defaults fill what [slurm] omits.

    Raises InputError.
    """
    table, default = train.slurm, site.slurm
    return JobSpec(
        name=train.name,
        nodes=table.nodes,
        spare_nodes=table.spare_nodes,
        survives_nodes=train.guard.restart_in_place and table.spare_nodes > 0,
        processes_per_node=table.processes_per_node,
        cpus_per_process=table.cpus_per_process,
        gpus_per_node=table.gpus_per_node,
        time_limit=table.time_limit,
        tasks=table.tasks if tasks is None else tasks,
        partition=table.partition or default.partition,
        account=table.account or default.account,
        qos=table.qos or default.qos,
        constraint=table.constraint or default.constraint,
        reservation=table.reservation,
        memory_per_node=table.memory_per_node,
        exclusive=table.exclusive,
        nice=table.nice if nice is None else nice,
        exclude=str(nodeset(table.exclude) | nodeset(exclude)),
        after=after,
        signal_seconds=table.signal_seconds,
        extra=table.extra,
    )


def trainer_json(train: TrainSettings, base: Path) -> str:
    """Return the text of trainer.json for the embedded trainer; empty for any other trainer.

    The trainer runs in another directory, so relative paths of corpora and weights are resolved against
    `base`.
    """
    if train.trainer is None:
        return ""
    return dump_trainer(resolve_paths(train, base).trainer or {}, train)


def dump_trainer(settings: Mapping[str, Any], train: TrainSettings) -> str:
    """Return the text of trainer.json: the settings of the trainer, with skipped samples and rate of [rollback].

    `settings` may be those of an earlier trainer.json: what an earlier rollback set there is replaced.
    """
    rollback, table = train.rollback, train.trainer or {}
    skipped = [*table.get("data", {}).get("skip_samples", ()), *rollback.skip_samples]
    scale = table.get("optimizer", {}).get("lr_scale", 1.0) * (rollback.lr_scale or 1.0)
    fields = {key: value for key, value in settings.items() if key not in {"data", "optimizer"}}
    data = {key: value for key, value in settings.get("data", {}).items() if key != "skip_samples"}
    optimizer = {key: value for key, value in settings.get("optimizer", {}).items() if key != "lr_scale"}
    data |= {"skip_samples": list(dict.fromkeys(skipped))} if skipped else {}
    optimizer |= {"lr_scale": scale} if scale != 1 else {}
    fields |= {"data": data} | ({"optimizer": optimizer} if optimizer else {})
    return json.dumps(fields, indent=2, ensure_ascii=False) + "\n"


def render_body(train: TrainSettings, run: RunDir, *, python: str, code: FrozenCode | None = None) -> str:
    """Render body.sh, the script that runs the trainer in its directory, or in the copy `code`.

    `python` is the interpreter that runs opsctl.

    Raises ConfigError for an unknown placeholder.
    """
    trainer_python = train.container.python if train.container else train.python or python
    if train.command:
        command = command_line(train.command, {"python": trainer_python, "train": train.name})
    else:
        command = shlex.join((trainer_python, "-P", "-m", "opsctl.trainer", str(run.trainer_config)))
    directory = str(code.directory(run)) if code else train.setup.directory
    return render(
        "slurm/body.sh.j2",
        name=train.name,
        run_dir=run.path,
        python=python,
        directory=directory,
        rank_wrapper=_start_rank_wrapper(train, run, directory, python=python),
        logs_option="--rank-logs" if train.guard.rank_logs else "--logs",
        modules=train.setup.modules,
        environment=train.environment,
        lines=train.setup.lines,
        command=command,
        has_rollback_words=bool(train.command) and not ROLLBACK_WORDS.search(command) and train.rollback.has_words,
    )


def _start_rank_wrapper(train: TrainSettings, run: RunDir, directory: str, *, python: str) -> str:
    """Return the words that start the rank wrapper; in a container, to follow the options of the job step.

    The rank wrapper needs the standard library only, so that an image needs Python but not opsctl, whose files are
    mounted. The working directory is that of the shell. Raises ConfigError for a directory that cannot be mounted.
    """
    table = train.container
    if table is None:
        return start_on_node(python, run.rank_wrapper)
    directories = [run.path, *([Path(directory)] if directory else [])]
    for path in directories:
        if set(str(path)) & set(":,"):
            raise ConfigError("[container]", [f"{path}: cannot be mounted: its path has a colon or a comma"])
    own = [f"{path}:{path}" for path in dict.fromkeys(directories)]
    mounts = [*own, f"{PACKAGE}:{RANK_WRAPPER_MOUNT}/opsctl:ro", *table.mounts]
    image = [table.image]
    match table.runtime:
        case "pyxis":
            words = [f"--container-image={table.image}", f"--container-mounts={','.join(mounts)}"]
            directory_option, image = "--container-workdir=", []  # an option names the image
        case "apptainer":
            words = ["apptainer", "exec", *(f"--bind={mount}" for mount in mounts)]
            directory_option = "--pwd="
        case "podman":
            variables = [*read_job_variables()["podman"]["passed"], *sorted(train.environment)]
            # Without cgroups of its own, the container stays in Slurm's cgroup of the job, with its limits and its end.
            isolation = ["--cgroups=disabled", "--network=host", "--ipc=host", "--security-opt=label=disable"]
            volumes = [f"--volume={mount}" for mount in mounts]
            words = ["podman", "run", "--rm", *isolation, *volumes, *(f"--env={name}" for name in variables)]
            directory_option = "--workdir="
    words_inside = [
        *table.options,
        *image,
        *start_with(table.python, run.rank_wrapper, Path(RANK_WRAPPER_MOUNT, "opsctl")),
    ]
    return f'{shlex.join(words)} {directory_option}"$PWD" {shlex.join(words_inside)}'


def make_plan(
    train: TrainSettings,
    spec: JobSpec,
    run: RunDir,
    *,
    nonce: str,
    python: str,
    site_file: Path | None,
    code: FrozenCode | None = None,
) -> LaunchPlan:
    """Return the submission for `spec`: wrapper, body and nonce. Raises ConfigError."""
    wrapper = render(
        "slurm/wrapper.slurm.j2",
        directives=directives(spec),
        run_dir=str(run.path),
        python=python,
        site_file=str(site_file or ""),
    )
    body = render_body(train, run, python=python, code=code)
    return LaunchPlan(train=train.name, spec=spec, wrapper=wrapper, body=body, nonce=nonce)
