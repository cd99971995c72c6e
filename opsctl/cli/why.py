"""`opsctl why`: the cause, node and rank of a failed attempt, and the advice."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import click

from opsctl.actions.diagnose_train import diagnose_train
from opsctl.app import App
from opsctl.base.errors import InputError
from opsctl.base.nodesets import expand_if_list
from opsctl.cli.dependent_option import dependent_option
from opsctl.cli.options import list_files
from opsctl.cli.output import app_and_json, optional_train, print_result
from opsctl.diagnosis.causes import CauseKind, Confidence, read_table
from opsctl.diagnosis.diagnose_attempt import diagnose_logs
from opsctl.diagnosis.root_cause import Diagnosis
from opsctl.guard.end_record import Action, read_end
from opsctl.state.events import RestartDecided
from opsctl.watchdogs.held_cause import advise_still

DOUBTS = {
    Confidence.LIKELY: "the usual cause of this line, but not the only one",
    Confidence.POSSIBLE: "a symptom with several causes",
}
"""What a confidence below certain means."""
JSON_FORMAT = 1
"""Number of the format of `--json`. Keys are only added within a format; docs/reference/diagnosis.md describes each."""


@click.command()
@optional_train
@dependent_option(
    "--task",
    not_with=("--log",),
    type=click.IntRange(min=0),
    help="Array task to diagnose (default: the most recent attempt).",
)
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="Log file or directory to read instead of TRAIN; repeatable.",
)
@app_and_json
def why(app: App, train: str | None, *, task: int | None, logs: tuple[Path, ...]) -> None:
    """Diagnose why a task of a train ended.

    Shows the first cause, the node and rank, the time, the log lines that prove it, and what to do.

    \b
    opsctl why tiny-gpt
    opsctl why tiny-gpt --task 3
    opsctl why --log main_log.txt
    """
    if bool(train) == bool(logs):
        raise click.UsageError("Name a TRAIN, or logs with --log, not both.")
    run = app.find(train) if train else None
    diagnosis = diagnose_train(app, run, task) if run else diagnose_logs(_files(logs))
    finalized = read_end(run.attempt(diagnosis.attempt)) if run else None
    if finalized and finalized.action is Action.EXCLUDE_NODES:
        diagnosis = replace(diagnosis, advice=advise_still(diagnosis, expand_if_list(diagnosis.node)))
    done = finalized.done if finalized else ()
    restarts = [event for event in app.journal(run).events() if isinstance(event, RestartDecided)] if run else []
    restart = next((event for event in restarts if event.attempt == diagnosis.attempt), None)
    data = {"format": JSON_FORMAT, **asdict(diagnosis), "suspects": diagnosis.suspects, "done": done}
    data |= {"restarted_on": restart.nodes if restart else "", "spares": restart.spares if restart else ""}
    lines = render_diagnosis(diagnosis, train or "", done)
    if restart:
        spares = f"; spare: {restart.spares}" if restart.spares else ""
        lines.append(f"  then   started again in place on {restart.nodes}: {restart.why}{spares}")
    print_result(data, "\n".join(lines))


def _files(paths: Sequence[Path]) -> list[Path]:
    """Return the files of `paths`, and those inside its directories. Raises InputError if there are none."""
    files = [path.resolve() for path in list_files(paths)]
    if not files:
        raise InputError(f"{', '.join(map(str, paths))}: no file there", hint="name a log, or a directory with logs")
    return files


def render_diagnosis(diagnosis: Diagnosis, train: str, done: Sequence[str] = ()) -> list[str]:
    """Return lines for a terminal: cause, place, time, proof, actions and advice."""
    places = {"node": diagnosis.node, "rank": diagnosis.rank, "GPU": diagnosis.gpu}
    where = ", ".join(f"{name} {place}" for name, place in places.items() if place not in (None, ""))
    after = "" if diagnosis.iteration is None else f"after iteration {diagnosis.iteration}"
    when = ", ".join(filter(None, (diagnosis.at, after)))
    subject = " ".join(filter(None, (train, diagnosis.attempt)))
    kind = "" if diagnosis.kind is CauseKind.NONE else diagnosis.kind.value
    lines = [": ".join(filter(None, (subject, kind, diagnosis.says)))]
    sure = "" if diagnosis.sure is Confidence.CERTAIN else f"{diagnosis.sure.value}; {DOUBTS[diagnosis.sure]}"
    rows = [("where", where), ("when", when), ("sure", sure)]
    rows += [("proof", line) for line in diagnosis.evidence] + [("also", line) for line in diagnosis.also]
    has_place = train and diagnosis.place is not None and Path(diagnosis.log).name == "main_log.txt"
    place = f"; opsctl logs {train} --at {diagnosis.place}" if has_place else ""
    rows += [("log", f"{diagnosis.log}{place}"), ("test", read_table("proofs").get(diagnosis.kind.value, ""))]
    rows += [*(("done", action) for action in done), ("do", diagnosis.advice)]
    if train and diagnosis.suspects and not done:
        rows.append(("", f"opsctl release {train} --exclude {','.join(diagnosis.suspects)}"))
    rows.append(("see", diagnosis.link))
    last = ""
    for label, text in rows:
        if text:
            lines.append(f"  {label if label != last else '':<7}{text}")
            last = label
    return lines
