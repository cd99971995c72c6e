"""One alert of every kind, rendered for mail, Slack and plain text, to be read as a whole."""

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from opsctl.alerts.channels import email, plain_text, slack
from opsctl.alerts.ledger_state import AlertTransition, Batch
from opsctl.alerts.message import Message, render_group, render_single, render_storm
from opsctl.base.findings import Severity, Transition
from opsctl.base.statements import Remedy, advise, quote, read_sentences, state, type_now
from opsctl.diagnosis.causes import find_row
from opsctl.host.system import SystemRunner
from opsctl.settings.alert_channels import EmailTable
from opsctl.settings.alerts import AlertSettings
from opsctl.state.events import AttemptFinalized, Cancelled, Event, HoldReleased, Submitted
from opsctl.state.reasons import as_written
from opsctl.state.run_dir import RunDir
from opsctl.watchdogs.failures import failures
from tests.support.findings import make_finding
from tests.support.made_events import make_diagnosed

PLACE = Path(__file__).parents[1] / "corpus/alerts"
AT = datetime(2026, 3, 1, 2, 10, tzinfo=UTC)
RULES = AlertSettings(
    site_name="jz",
    time_zone="Europe/Paris",
    link_base=("https://hub.example.org/{train}/report.html", "https://grafana.example.org/d/opsctl?var-train={train}"),
)
RULER = "=" * 100


def load_changes() -> list[AlertTransition]:
    """Return the transitions of findings.toml."""
    changes = []
    rows = tomllib.loads((PLACE / "findings.toml").read_text())["alert"]
    for number, fields in enumerate(rows, 1):
        before, was = Severity(fields.pop("before", "ok")), fields.pop("was", "")
        minutes, to = fields.pop("minutes", 0), tuple(fields.pop("to", ()))
        lists = {name: tuple(fields.pop(name, ())) for name in ("evidence", "done")}
        kind, facts, part = (fields.pop(name, None) for name in ("kind", "facts", "part"))
        fix = _make_remedy(fields.pop("remedy", []), fields.pop("advice", ""))
        finding = replace(make_finding(**{**fields, **lists, "severity": Severity(fields["severity"])}), fix=fix)
        if kind:
            parts = [state(part[0], **part[1])] if part else []
            finding = replace(finding, says=state(kind, *parts, **facts))
        transition = Transition(id=f"{number:012}.1", finding=finding, before=before, at=AT)
        changes.append(
            AlertTransition(
                transition=transition, opened=AT - timedelta(minutes=minutes), was=quote(was) if was else None, to=to
            )
        )
    return changes


def _make_remedy(words: Sequence[str], text: str) -> Remedy:
    """Return the remedy of a kind of templates/findings.toml and its commands, or of commands alone."""
    commands = [tuple(word.split()) for word in words]
    is_advice = bool(words) and words[0] in read_sentences()
    return advise(words[0], *commands[1:], text=text) if is_advice else type_now(*commands)


TRACEBACK = ('  File "/work/tr11/data.py", line 88, in read_batch', '    return batch["image"]', "KeyError: 'image'")
BUG = {"cause_kind": "code", "cause": "python-error", "node": "node002", "evidence": TRACEBACK}
BUG |= {"says": "an error in the training program or its settings: KeyError: 'image'"}
NODE = {"cause_kind": "gpu", "cause": "gpu-off-the-bus", "says": "a GPU has fallen off the bus", "node": "node017"}
ENDS = (
    HoldReleased(jobs=("7301",)),
    Submitted(nonce="n", array="7302"),
    Cancelled(jobs=("7301",), reason=as_written("x")),
)


def list_states_of_the_queue() -> Iterator[AlertTransition]:
    """Yield the alert of a train that a failure stopped, in every state of the queue, and its ends."""
    for number, (cause, waiting, end) in enumerate(
        [(BUG, 46, None), (BUG, 1, None), (BUG, 0, None), (BUG, None, None), (NODE, 46, None), (NODE, 0, None)]
        + [(BUG, 46, end) for end in ENDS],
        100,
    ):
        events: list[Event] = []
        for attempt, action in (("7301_3.0", "continue"), ("7301_4.0", "hold-queued")):
            row = find_row(cause["cause"])
            events += [make_diagnosed(attempt=attempt, **cause, advice=row.advice if row else "")]
            events += [AttemptFinalized(attempt=attempt, outcome="crashed", action=action, why="exit code 1")]
        events += [end] if end else []
        dated = [
            replace(event, number=n, at=AT.isoformat(), actor="anna@login1:1") for n, event in enumerate(events, 1)
        ]
        [finding] = [
            row for row in failures(RunDir(Path("/trains/tr11")), dated, AT, waiting=waiting) if row.key[-1] == "0"
        ]
        before = Severity.CRITICAL if end else Severity.OK
        transition = Transition(id=f"{number:012}.1", finding=finding, before=before, at=AT)
        yield AlertTransition(transition=transition, opened=AT - timedelta(minutes=35 if end else 0))


def list_messages() -> Iterator[Message]:
    changes = load_changes()
    for change in (*changes, *list_states_of_the_queue()):
        yield render_single(change, RULES)
    batch = Batch(id="0123456789ab", number=1, changes=tuple(changes))
    yield render_group(batch, [change for change in changes if change.transition.finding.key == "loss/tr11"], RULES)
    yield render_storm(batch, changes, RULES)


def render_mail(message: Message) -> str:
    """Return the mail with its main headers and its text as a reader shows it."""
    table = EmailTable(kind="email", sender="opsctl@example.org", to=("oncall@example.org",))
    mail = email.Email(table, SystemRunner())._mail(message)
    headers = "".join(f"{name}: {mail[name]}\n" for name in ("From", "To", "Subject", "Message-ID"))
    return f"{headers}\n{mail.get_content()}"


RENDERERS = {"mail": render_mail, "slack": slack._text, "plain": plain_text._text}


def render_corpus(kind: str) -> str:
    return "".join(f"{RULER}\n{RENDERERS[kind](message).rstrip()}\n" for message in list_messages())


if __name__ == "__main__":
    for kind in RENDERERS:
        (PLACE / f"{kind}.txt").write_text(render_corpus(kind))
