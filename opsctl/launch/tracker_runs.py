"""The runs of a train in experiment trackers: every attempt continues the run of the first one.

The ids follow from the train's name and the nonce of its first submission, so that they are known without the tracker.
An MLflow server chooses its ids itself; a trainer with opsctl_contract.py records the id for the next attempt.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from opsctl.base.errors import ConfigError
from opsctl.base.findings import Finding
from opsctl.base.statements import state
from opsctl.settings.loader import read_toml
from opsctl.state.events import Event, Submitting
from opsctl.state.files import read_text
from opsctl.state.run_dir import RunDir

OWN_VARIABLES = "TRAIN_TRACKER_RUNS"
"""Variable with the variables that opsctl has set, as NAME=VALUE: ranks other than 0 do not get these."""
MAX_ID_BYTES = 200
MLFLOW_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def tracker_variables(run: RunDir, events: Iterable[Event], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that name the runs of the train, without those that the job or train.toml sets itself.

    Empty if `[trackers]` says so, and for a train without a submission.
    """
    config = _read_config(run)
    first = next((event.nonce for event in events if isinstance(event, Submitting)), "")
    if not first or config.get("trackers", {}).get("continue_runs", True) is not True:
        return {}
    runs = _name_runs(run.name, first)
    if mlflow_id := _read_mlflow_id(run):
        runs["MLFLOW_RUN_ID"] = mlflow_id
    known = {**environ, **_environment(config)}
    own = {name: value for name, value in runs.items() if name not in known}
    resume = {} if "WANDB_RESUME" in known else {"WANDB_RESUME": "allow"}
    return {**own, **resume, OWN_VARIABLES: " ".join(f"{name}={value}" for name, value in own.items())}


def tracker_links(run: RunDir, events: Iterable[Event]) -> tuple[str, ...]:
    """Return the addresses of the train's runs, as far as train.toml names entity or workspace, and project."""
    environment, variables = _environment(_read_config(run)), tracker_variables(run, events, {})
    runs = {**variables, **environment}
    links = []
    entity, project = environment.get("WANDB_ENTITY"), environment.get("WANDB_PROJECT")
    is_online = environment.get("WANDB_MODE", "online") == "online"
    if entity and project and is_online and "WANDB_RUN_ID" in runs:
        server = environment.get("WANDB_BASE_URL", "https://wandb.ai").replace("//api.wandb.ai", "//wandb.ai")
        links.append(f"{server.rstrip('/')}/{entity}/{project}/runs/{runs['WANDB_RUN_ID']}")
    workspace, project = environment.get("COMET_WORKSPACE"), environment.get("COMET_PROJECT_NAME")
    if workspace and project and "COMET_EXPERIMENT_KEY" in runs:
        links.append(f"https://www.comet.com/{workspace}/{project}/{runs['COMET_EXPERIMENT_KEY']}")
    return tuple(links)


def add_links(findings: Sequence[Finding], run: RunDir, events: Sequence[Event]) -> list[Finding]:
    """Return the findings, those that are not OK with the addresses of the train's runs as the first evidence.

    A message shows only the first lines.
    """
    if all(finding.is_ok for finding in findings):
        return list(findings)
    lines = tuple(state("site.run_link", url=link) for link in tracker_links(run, events))
    return [finding if finding.is_ok else replace(finding, details=(*lines, *finding.details)) for finding in findings]


def _name_runs(name: str, nonce: str) -> dict[str, str]:
    digest = hashlib.sha256(f"{name}:{nonce}".encode()).hexdigest()
    # Comet takes 32 to 50 letters and digits; Weights & Biases takes at least 64 characters without : ; , # ? / '.
    return {"WANDB_RUN_ID": f"{name[:50]}-{digest[:10]}", "COMET_EXPERIMENT_KEY": digest[:40]}


def _read_mlflow_id(run: RunDir) -> str:
    try:
        text = read_text(run.mlflow_run, MAX_ID_BYTES).strip()
    except (OSError, ValueError):
        return ""
    return text if MLFLOW_ID.fullmatch(text) else ""


def _read_config(run: RunDir) -> dict[str, Any]:
    """Return train.toml as launched; empty if the file cannot be read."""
    try:
        return read_toml(run.config)
    except ConfigError:
        return {}


def _environment(config: Mapping[str, Any]) -> dict[str, str]:
    environment = config.get("environment", {})
    return {name: value for name, value in environment.items() if isinstance(value, str)}
