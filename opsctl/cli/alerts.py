"""`opsctl alerts`: what is open, whether people can be told, and what they do not want to hear."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta

import click
from rich.table import Table
from rich.text import Text

from opsctl.alerts import dispatch
from opsctl.alerts.ledger_state import LedgerEntry, LedgerState, Silence
from opsctl.alerts.outbox import OutboxItem
from opsctl.app import App
from opsctl.cli.options import Duration
from opsctl.cli.output import dry_run_option, json_option, print_json, print_table, say
from opsctl.errors import InputError
from opsctl.model import Level

STYLES = {Level.OK: "green", Level.UNKNOWN: "magenta", Level.WARNING: "yellow", Level.CRITICAL: "red"}

reason_option = click.option("--reason", required=True, help="For whoever wonders: it is shown wherever the alert is.")


@click.group()
def alerts() -> None:
    """What is open, who is told, and what nobody wants to hear.

    \b
    opsctl alerts list                       what is open, silenced, not delivered
    opsctl alerts test                       a message through every channel
    opsctl alerts silence 'hang/*' --for 4h --reason "maintenance"
    opsctl alerts ack hang/tiny-gpt --reason "on it"
    """


@alerts.command("list")
@click.option("--all", "show_all", is_flag=True, help="Also what is ok.")
@json_option
@click.pass_obj
def list_alerts(app: App, *, show_all: bool, as_json: bool) -> None:
    """What people were told that is not over, silences in force, and messages that are still to be delivered.

    \b
    opsctl alerts list
    """
    alerting = app.alerting
    now, state = app.clock.now(), alerting.ledger.read()
    entries = [entry for entry in state.entries.values() if show_all or {entry.level, entry.latest_level} != {Level.OK}]
    silences = state.in_force(now)
    waiting, lost = dispatch.list_undelivered(alerting), dispatch.list_abandoned(alerting)
    if as_json:
        print_json({"open": [_as_data(state, entry, now) for entry in entries],
                    "silences": [asdict(each) for each in silences],
                    "undelivered": [_item_as_data(outbox_item) for outbox_item in waiting],
                    "given_up": [_item_as_data(outbox_item) for outbox_item in lost]})  # fmt: skip
        return
    print_table(_table(state, entries, now)) if entries else say("nothing is open")
    for silence in silences:
        say(f"silenced until {silence.until:%Y-%m-%d %H:%M} UTC: {silence.pattern}, by {silence.by}: {silence.why}")
    for item in waiting:
        say(f"not delivered by {item.channel}: {item.message.subject}{_how_it_went(item, now)}")
    for item in lost:
        say(f"given up, nobody got it by {item.channel}: {item.message.subject}{_how_it_went(item, now)}")


@alerts.command("test")
@json_option
@click.pass_obj
def test_alerts(app: App, *, as_json: bool) -> int:
    """Send a message through every channel, now, and say of each how it went. Exit 1 if any failed.

    A secret's file that others can read is told, too: it has been used all the same.

    \b
    opsctl alerts test
    """
    results = []
    for channel, error in dispatch.test(app.alerting):
        results.append({"channel": channel, "delivered": error is None, "error": error.message if error else ""})
        if not as_json:
            say(f"{channel}: {f'not delivered: {error.message}' if error else 'delivered'}")
    if as_json:
        print_json(results)
    for place, path in dispatch.find_exposed_secrets(app.alerting):
        click.echo(f"opsctl: {place}: others can read {path}\n        chmod 600 {path}", err=True)
    return 0 if all(result["delivered"] for result in results) else 1


@alerts.command()
@click.argument("key")
@click.option(
    "--for",
    "span",
    type=Duration(maximum=timedelta(days=366)),
    default="4h",
    show_default=True,
    help="How long the silence lasts.",
)
@click.option("--end", is_flag=True, help="End the silence of KEY now.")
@click.option("--reason", default="", help="For whoever wonders: it is shown with the silence.")
@dry_run_option
@json_option
@click.pass_obj
def silence(app: App, key: str, *, span: timedelta, end: bool, reason: str, dry_run: bool, as_json: bool) -> None:
    """Tell nobody of KEY, or of the keys that fit it as a pattern, for a while.

    What changes meanwhile is told afterwards, if it is still so then.

    \b
    opsctl alerts silence 'hang/*' --for 4h --reason "maintenance"
    opsctl alerts silence 'hang/*' --end
    """
    if not end and not reason:
        raise InputError("--reason is required; it is recorded with the silence")
    now = app.clock.now()
    if end and key not in (known := [each.pattern for each in app.alerting.ledger.read().in_force(now)]):
        raise InputError(f"no silence of {key!r} is in force; there are: {', '.join(known) or 'none'}")
    until = now if end else now + span
    given = Silence(pattern=key, until=until, why=reason, by="", at=now)
    if not dry_run:
        given = app.alerting.ledger.silence(key, until, reason)
    would = "would be " if dry_run else ""
    if as_json:
        print_json({**asdict(given), "dry_run": dry_run})
    else:
        say(f"{key}: {would}{'no longer silenced' if end else f'silenced until {until:%Y-%m-%d %H:%M} UTC'}")


@alerts.command()
@click.argument("key")
@reason_option
@dry_run_option
@json_option
@click.pass_obj
def ack(app: App, key: str, *, reason: str, dry_run: bool, as_json: bool) -> None:
    """Say that somebody takes care of KEY: it is not repeated until it is worse, or over.

    \b
    opsctl alerts ack hang/tiny-gpt --reason "on it"
    """
    ledger = app.alerting.ledger
    entry = ledger.find(key) if dry_run else ledger.ack(key, reason)
    if as_json:
        print_json({**_as_data(ledger.read(), entry, app.clock.now()), "dry_run": dry_run})
    else:
        say(f"{key}: {'would be ' if dry_run else ''}acknowledged; you are told again when it gets worse, or is over")


def _as_data(state: LedgerState, entry: LedgerEntry, now: datetime) -> dict[str, object]:
    silenced = state.silenced(entry.key, now)
    return {
        "key": entry.key,
        "level": entry.level,
        "since": entry.since,
        "seen": entry.latest_level,
        "checked_at": entry.checked_at,
        "incident": entry.incident,
        "finding": asdict(entry.finding) if entry.finding else None,
        "acknowledged": asdict(entry.acknowledged) if entry.acknowledged else None,
        "silenced_until": silenced.until if silenced else None,
    }


def _item_as_data(item: OutboxItem) -> dict[str, object]:
    return {
        "channel": item.channel,
        "id": item.message.id,
        "subject": item.message.subject,
        "at": item.message.at,
        "not_before": item.not_before,
        "attempts": item.tries,
        "next_attempt": item.next_try,
        "error": item.error,
        "fallback": item.fallback,
    }


def _table(state: LedgerState, entries: list[LedgerEntry], now: datetime) -> Table:
    table = Table("key", "level", "since (UTC)", "now", "what", "", box=None, pad_edge=False, header_style="bold")
    for ledger_entry in sorted(entries, key=lambda entry: entry.key):
        table.add_row(
            Text(ledger_entry.key),
            Text(ledger_entry.level, STYLES[ledger_entry.level]),
            f"{ledger_entry.since:%Y-%m-%d %H:%M}",
            Text(ledger_entry.latest_level, STYLES[ledger_entry.latest_level]),
            Text(ledger_entry.finding.summary if ledger_entry.finding else ""),
            Text(_marks(state, ledger_entry, now)),
        )
    return table


def _marks(state: LedgerState, entry: LedgerEntry, now: datetime) -> str:
    acknowledged = entry.acknowledged
    return ", ".join(
        [
            *([f"acknowledged by {acknowledged.by}: {acknowledged.why}"] if acknowledged else []),
            *(["silenced"] if state.silenced(entry.key, now) else []),
            *(
                [f"not looked at since {entry.checked_at:%Y-%m-%d %H:%M}"]
                if now - entry.checked_at > timedelta(hours=2)
                else []
            ),
        ]
    )


def _how_it_went(item: OutboxItem, now: datetime) -> str:
    if item.is_held_back(now):
        return f" (waits until {item.not_before or now:%H:%M} UTC, the end of the quiet hours)"
    by = f"; also given to {item.fallback}" if item.fallback else ""
    times = f"{item.tries} attempt{'s' if item.tries != 1 else ''}"
    return f" ({times}{f': {item.error}' if item.error else ''}{by})"
