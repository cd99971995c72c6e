"""One alert of every kind, rendered for mail, Slack and plain text, to be read as a whole."""

import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from opsctl.alerts.channels import email, plain_text, slack
from opsctl.alerts.ledger_state import AlertTransition, Batch
from opsctl.alerts.message import Message, render_group, render_single, render_storm
from opsctl.base.findings import Level, Transition
from opsctl.base.statements import quote
from opsctl.host.system import SystemRunner
from opsctl.settings.alert_channels import EmailTable
from opsctl.settings.alerts import AlertSettings
from tests.support.findings import make_finding

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
        before, was = Level(fields.pop("before", "ok")), fields.pop("was", "")
        minutes, to = fields.pop("minutes", 0), tuple(fields.pop("to", ()))
        lists = {name: tuple(fields.pop(name, ())) for name in ("evidence", "done")}
        finding = make_finding(**{**fields, **lists, "level": Level(fields["level"])})
        transition = Transition(id=f"{number:012}.1", finding=finding, before=before, at=AT)
        changes.append(
            AlertTransition(
                transition=transition, opened=AT - timedelta(minutes=minutes), was=quote(was) if was else None, to=to
            )
        )
    return changes


def list_messages() -> Iterator[Message]:
    changes = load_changes()
    for change in changes:
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
