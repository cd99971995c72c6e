"""`opsctl publish`: copy logs, curves and reports of trains to where others can read them."""

import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial

import click

from opsctl.app import App
from opsctl.base.errors import InputError, OpsctlError, cannot_read
from opsctl.base.units import format_size
from opsctl.cli.output import app_json_and_dry_run, optional_train, print_result
from opsctl.dash.collect_site import SlurmAnswer, ask_slurm
from opsctl.dash.pages import render_train_file
from opsctl.publish.publisher import REPORTS, Published, Publisher, gather_secrets
from opsctl.publish.staging import StagedFile, TimeLimit
from opsctl.report import formats
from opsctl.report.html_page import render_page
from opsctl.report.train_report import read_train
from opsctl.settings.loader import TrainSettings, parse, read_toml
from opsctl.state.run_dir import RunDir, all_trains, may_act


@click.command()
@optional_train
@app_json_and_dry_run
def publish(app: App, train: str | None, *, dry_run: bool) -> int:
    """Publish logs, curves and reports of trains.

    Copies logs, TensorBoard events and the report of TRAIN, or of all your trains, to the target in [publish]. Only
    changed files are copied; an interrupted copy continues at the next call. Checkpoints and secrets are never
    copied. Without [publish] in site.toml or train.toml the command does nothing.

    \b
    opsctl publish tiny-gpt --dry-run
    opsctl publish
    """
    deadline = TimeLimit.within(app.clock, app.site.publish.timeout_seconds)
    ask = cache(partial(ask_slurm, app))  # once for all trains, and only if a page is rendered
    done: list[Published] = []
    failed: dict[str, OpsctlError] = {}
    for run in _runs(app, train):
        try:
            if publisher := _publisher(app, run, deadline, ask):
                done.append(publisher.plan() if dry_run else publisher.publish())
        except OpsctlError as error:
            failed[run.name] = error
        except OSError as error:
            failed[run.name] = cannot_read(run.path, error)
    data = {"published": done, "failed": {name: error.message for name, error in failed.items()}}
    nothing = "nothing is published: there is no [publish] in site.toml or train.toml"
    print_result(data, "\n".join(_lines(done, failed, dry_run=dry_run)) or nothing)
    return max((error.exit_code for error in failed.values()), default=0)


def _runs(app: App, train: str | None) -> list[RunDir]:
    """Return the trains, least recently published first, so that the time limit starves no train."""
    if train:
        return [app.find(train)]
    return sorted(filter(may_act, all_trains(app.root)), key=_published_at)


def _published_at(run: RunDir) -> float:
    try:
        return (run.path / "publish" / "state.json").stat().st_mtime
    except OSError:
        return 0.0


def _publisher(app: App, run: RunDir, deadline: TimeLimit, ask: Callable[[], SlurmAnswer]) -> Publisher | None:
    """Return the publisher, or None without [publish]. Raises InputError for a train of another user."""
    config = parse(TrainSettings, read_toml(run.config), str(run.config))
    table = config.publish or app.site.publish
    if not table.to:
        return None
    if not run.is_ours:
        raise InputError(f"{run.path}: belongs to another user; only the owner can publish the train")
    app.check_trusted(run)  # [publish] may name a command
    if config.publish:
        deadline = TimeLimit.within(app.clock, table.timeout_seconds)
    secrets = gather_secrets(app.site.alerts, table.secret_files, of_train=config.environment, of_process=os.environ)
    return Publisher(
        run=run,
        table=table,
        root=app.root,
        secrets=secrets,
        reports=lambda: _reports(app, run, ask),
        runner=app.runner,
        clock=app.clock,
        deadline=deadline,
    )


def _reports(app: App, run: RunDir, ask: Callable[[], SlurmAnswer]) -> Mapping[str, str]:
    try:
        report = read_train(run, app.journal(run).all_events(), app.clock.now()).report
    except OpsctlError:
        return {}
    return {
        "report.md": formats.markdown(report),
        "report.html": render_page(report),
        "dash.html": render_train_file(app, run, ask()),
    }


def _lines(done: list[Published], failed: Mapping[str, OpsctlError], *, dry_run: bool) -> Iterator[str]:
    for published in done:
        changed = [item for item in published.items if item.action in ("copied", "would copy")]
        unchanged = sum(item.action == "unchanged" for item in published.items)
        size = format_size(sum(item.size for item in changed))
        action = "would copy" if dry_run else "copied"
        detail = f"; {published.detail}" if published.detail else ""
        files = f"{len(changed)} file{'s' * (len(changed) != 1)}"
        yield f"{published.train}: {action} {files}, {size}, to {published.to}; {unchanged} unchanged{detail}"
        yield from (f"  {item.name}: {_about(item)}" for item in published.items if _about(item))
    for name, error in failed.items():
        yield f"{name}: not published: {error.message}" + (f" ({error.hint})" if error.hint else "")


def _about(item: StagedFile) -> str:
    if item.action == "refused":
        return f"not published: {item.why}"
    size = "rendered when copied" if item.action == "would copy" and item.name in REPORTS else format_size(item.size)
    parts = [size] if item.action != "unchanged" else []
    if item.left_out and parts:
        parts.append(f"the first {format_size(item.left_out)} left out")
    if item.struck and parts:
        parts.append(f"{item.struck} secret{'s' * (item.struck != 1)} struck out")
    return ", ".join(parts)
