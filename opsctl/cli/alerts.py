"""`opsctl alerts`: list, show, acknowledge, accept, silence and test alerts."""

from dataclasses import asdict
from datetime import datetime, timedelta
from operator import attrgetter

import click
from rich.table import Table
from rich.text import Text

from opsctl.alerts import dispatch
from opsctl.alerts.alert_history import list_decisions, read_alert_history
from opsctl.alerts.duty import find_shift, is_in_force
from opsctl.alerts.ledger_state import LedgerEntry, LedgerState, Silence
from opsctl.alerts.outbox_item import OutboxItem
from opsctl.app import App
from opsctl.base.errors import InputError, RunDirError
from opsctl.base.findings import Severity
from opsctl.cli.command_names import SuggestingGroup
from opsctl.cli.dependent_option import dependent_option
from opsctl.cli.options import Duration, Moment, required_reason
from opsctl.cli.output import (
    SEVERITY_STYLES,
    app_and_json,
    app_json_and_dry_run,
    make_table,
    print_on_stderr,
    print_result,
    print_unless_json,
    report_problems,
    train_argument,
)
from opsctl.state.files import MAX_STATE_BYTES
from opsctl.state.journal import actor

MAX_CHECK_AGE = timedelta(hours=2)
"""Older checks are marked in the list."""

STYLES = {Severity.OK: "green", Severity.UNKNOWN: "magenta", Severity.WARNING: "yellow", Severity.CRITICAL: "red"}
SHOWN_SHIFTS = 5
ENTRY_KEYS = "key severity since latest_severity checked_at incident finding acknowledged follows"
"""Fields of a ledger entry in JSON."""


@click.group(cls=SuggestingGroup)
def alerts() -> None:
    """List, acknowledge, accept and silence alerts.

    \b
    opsctl alerts list                       list open, silenced and undelivered alerts
    opsctl alerts show hang/tiny-gpt         all evidence of an alert
    opsctl alerts test                       send a test message through every channel
    opsctl alerts silence 'hang/*' --for 4h --reason "maintenance"
    opsctl alerts ack hang/tiny-gpt --reason "on it"
    opsctl alerts accept throughput/tiny-gpt --reason "a smaller batch"
    """


@alerts.command("list")
@click.option("--all", "show_all", is_flag=True, help="List keys that are ok as well.")
@app_and_json
def list_alerts(app: App, *, show_all: bool) -> None:
    """List open alerts, silences and undelivered messages.

    The column `alerted` holds the severity of the last alert, `last check` the severity at the last check. They differ
    until watch cycles confirm the change, and while a silence lasts. --all lists the keys that are ok as well.

    \b
    opsctl alerts list
    """
    alerting = app.alerting
    now, state = app.clock.now(), alerting.ledger.read()
    calm = set() if show_all else {Severity.OK}
    entries = [entry for entry in state.entries.values() if {entry.severity, entry.latest_severity} != calm]
    silences = state.in_force(now)
    undelivered, abandoned = dispatch.list_undelivered(alerting), dispatch.list_abandoned(alerting)
    data = {
        "open": [_as_data(state, entry, now) for entry in entries],
        "silences": silences,
        "undelivered": list(map(_item_as_data, undelivered)),
        "abandoned": list(map(_item_as_data, abandoned)),
    }
    lines = []
    for planned in app.site.alerts.silences:
        if is_in_force(planned, now, app.site.alerts.time_zone):
            when = planned.hours or f"until {planned.until}"
            lines.append(f"silenced {when} by site.toml: {', '.join(planned.keys)}: {planned.reason}")
    for silence in silences:
        begin = f"from {silence.since:%Y-%m-%d %H:%M} " if silence.since and silence.since > now else ""
        until = f"until {silence.until:%Y-%m-%d %H:%M} UTC"
        lines.append(f"silenced {begin}{until}: {silence.pattern}, by {silence.by}: {silence.reason}")
    lines += [f"not delivered yet by {item.channel}: {_describe_delivery(item, now)}" for item in undelivered]
    lines += [f"delivery by {item.channel} abandoned: {_describe_delivery(item, now)}" for item in abandoned]
    print_result(data, _table(state, entries, now) if entries else "no open alerts", *lines)


@alerts.command()
@click.argument("key")
@app_and_json
def show(app: App, key: str) -> None:
    """Show the open alert KEY with all its evidence.

    \b
    opsctl alerts show hang/tiny-gpt
    """
    ledger = app.alerting.ledger
    entry = ledger.find(key)
    finding = entry.finding
    lines = [f"{entry.severity.value} since {entry.since:%Y-%m-%d %H:%M} UTC: {finding.summary if finding else key}"]
    if finding:
        lines += [f"  {line}" for line in (*finding.lines, *finding.done)]
        lines += [f"remedy: {finding.remedy}"] * bool(finding.remedy)
        lines += [finding.rollback] * bool(finding.rollback)
    if entry.acknowledged:
        lines.append(f"acknowledged by {entry.acknowledged.by}: {entry.acknowledged.reason}")
    print_result(_as_data(ledger.read(), entry, app.clock.now()), "\n".join(lines))


@alerts.command()
@train_argument
@app_and_json
def history(app: App, train: str) -> int:
    """Show the alerts of a train, and who did what about them.

    Alerts, answers from phones, actions on pages, and decisions about TRAIN with their authors, the oldest first.
    Exit 1 if a journal cannot be read.

    \b
    opsctl alerts history tiny-gpt
    opsctl alerts history tiny-gpt --json
    """
    run = app.find(train)
    rows, problems = read_alert_history(app.site_dir.alerts, run.name, tail_bytes=MAX_STATE_BYTES)
    rows += list_decisions(app.journal(run).all_events(), run.name)
    rows.sort(key=attrgetter("at"))
    shown = [(f"{row.at:%Y-%m-%d %H:%M:%S} UTC", row.by, row.severity.upper(), row.text) for row in rows]
    print_result(rows, "\n".join(" ".join(filter(None, parts)) for parts in shown))
    return report_problems(problems)


@alerts.command("test")
@app_and_json
def test_alerts(app: App) -> int:
    """Send a test message through every channel now.

    Prints the result of each channel, and warns of secret files that others can read. Exit 1 if a delivery failed.

    \b
    opsctl alerts test
    """
    results = []
    for channel, error in dispatch.test(app.alerting):
        results.append({"channel": channel, "delivered": error is None, "error": error.message if error else ""})
        print_unless_json(f"{channel}: {f'not delivered: {error.message}' if error else 'delivered'}")
    print_result(results)
    for place, path in dispatch.find_exposed_secrets(app.alerting):
        print_on_stderr(f"opsctl: {place}: others can read {path}\n        chmod 600 {path}")
    return 0 if all(result["delivered"] for result in results) else 1


@alerts.command()
@click.argument("key")
@dependent_option(
    "--for",
    "span",
    not_with=("--end",),
    type=Duration(maximum=timedelta(days=366)),
    default="4h",
    show_default=True,
    help="Duration of the silence.",
)
@dependent_option("--at", not_with=("--end",), type=Moment(), help="Begin, such as '2026-03-01 12:00' (default: now).")
@click.option("--end", is_flag=True, help="End the silence of KEY.")
@click.option("--reason", default="", help="Reason, recorded and shown with the silence.")
@app_json_and_dry_run
def silence(app: App, key: str, *, span: timedelta, at: datetime | None, end: bool, reason: str, dry_run: bool) -> None:
    """Silence KEY, or all keys that match a pattern.

    A silenced alert is not sent. When the silence ends, opsctl sends the changes that still hold. --reason is required
    unless --end is given; it is recorded with the silence. Windows that recur: [[alerts.silences]] in site.toml.

    \b
    opsctl alerts silence 'hang/*' --for 4h --reason "maintenance"
    opsctl alerts silence '*' --at '2026-03-01 12:00' --for 6h --reason "power"
    opsctl alerts silence 'hang/*' --end
    """
    if not end and not reason:
        raise InputError("--reason is required; it is recorded with the silence")
    now = app.clock.now()
    if end:
        patterns = [silence.pattern for silence in app.alerting.ledger.read().in_force(now)]
        if key not in patterns:
            raise InputError(f"no silence of {key!r} is in force; silences in force: {', '.join(patterns) or 'none'}")
    if at and at < now:
        raise InputError(f"--at is in the past: {at:%Y-%m-%d %H:%M} UTC", hint="without --at the silence begins now")
    until = now if end else (at or now) + span
    new_silence = Silence(pattern=key, since=at, until=until, reason=reason, by="", at=now)
    if not dry_run:
        new_silence = app.alerting.ledger.silence(key, until, reason, since=at)
    begin = f"from {at:%Y-%m-%d %H:%M} " if at else ""
    change = "no longer silenced" if end else f"silenced {begin}until {until:%Y-%m-%d %H:%M} UTC"
    data = {**asdict(new_silence), "dry_run": dry_run}
    print_result(data, f"{key}: {'would be ' if dry_run else ''}{change}")


@alerts.command()
@click.argument("key")
@required_reason
@app_json_and_dry_run
def ack(app: App, key: str, *, reason: str, dry_run: bool) -> None:
    """Acknowledge the alert KEY.

    An acknowledged alert is not repeated until it gets worse or is resolved.

    \b
    opsctl alerts ack hang/tiny-gpt --reason "on it"
    """
    ledger = app.alerting.ledger
    entry = ledger.find(key) if dry_run else ledger.ack(key, reason)
    text = f"{'would be ' if dry_run else ''}acknowledged; opsctl alerts again if it gets worse or is resolved"
    print_result({**_as_data(ledger.read(), entry, app.clock.now()), "dry_run": dry_run}, f"{key}: {text}")


@alerts.command()
@click.argument("key")
@required_reason
@app_json_and_dry_run
def accept(app: App, key: str, *, reason: str, dry_run: bool) -> None:
    """Accept the current level of the alert KEY as the new normal.

    For loss/TRAIN and throughput/TRAIN: the next watch cycle learns the level anew, and the alert is resolved.

    \b
    opsctl alerts accept throughput/tiny-gpt --reason "a smaller batch"
    """
    from opsctl.watchdogs import context  # noqa: PLC0415 (imports every watchdog)

    entry, place = app.alerting.ledger.find(key), app.alerting.site
    if key.count("/") != 1 or key.partition("/")[0] not in context.ACCEPTING:
        kinds = " and ".join(f"{name}/TRAIN" for name in context.ACCEPTING)
        raise InputError(f"{key}: has no level to accept", hint=f"only {kinds} have one; see opsctl alerts ack")
    if not dry_run:
        memory = context.WatchdogMemory(place.path / "watch")
        context.accept(memory, key, at=app.clock.now().isoformat(), by=actor(), reason=reason)
        if memory.problems:
            raise RunDirError(memory.problems[0], hint="only the owner of the site's directory can accept a level")
        app.alerting.ledger.journal("accept", key=key, reason=reason)
    data = {**_as_data(app.alerting.ledger.read(), entry, app.clock.now()), "dry_run": dry_run}
    is_now = "would be" if dry_run else "is"
    print_result(data, f"{key}: the current level {is_now} accepted; the next watch cycle learns the level anew")


@alerts.command()
@app_and_json
def duty(app: App) -> None:
    """Show who is on duty now and in the next shifts.

    \b
    opsctl alerts duty
    """
    rules = app.site.alerts
    if rules.duty is None:
        raise InputError(
            "no duty roster is configured", hint="[alerts.duty] in site.toml: opsctl config reference site"
        )
    shifts, at = [], app.clock.now()
    for _ in range(SHOWN_SHIFTS):
        shifts.append(find_shift(rules.duty, at, rules.time_zone))
        at = shifts[-1].end
    lines = [
        f"{shift.begin:%Y-%m-%d %H:%M} to {shift.end:%Y-%m-%d %H:%M %Z}: {shift.person}"
        + " (override)" * shift.is_override
        for shift in shifts
    ]
    print_result(shifts, "\n".join(lines))


def _as_data(state: LedgerState, entry: LedgerEntry, now: datetime) -> dict[str, object]:
    silenced = state.silenced(entry.key, now)
    data = {name: getattr(entry, name) for name in ENTRY_KEYS.split()}
    return {**data, "silenced_until": silenced.until if silenced else None}


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
    rows = [
        (
            entry.key,
            Text(entry.severity, SEVERITY_STYLES[entry.severity]),
            f"{entry.since:%Y-%m-%d %H:%M}",
            Text(entry.latest_severity, SEVERITY_STYLES[entry.latest_severity]),
            entry.finding.summary if entry.finding else "",
            _marks(state, entry, now),
        )
        for entry in sorted(entries, key=attrgetter("key"))
    ]
    return make_table(rows, ("key", "alerted", "since (UTC)", "last check", "finding", ""))


def _marks(state: LedgerState, entry: LedgerEntry, now: datetime) -> str:
    """Return who takes care of the alert, and why a change of severity was not alerted yet."""
    marks = []
    if entry.acknowledged:
        marks.append(f"acknowledged by {entry.acknowledged.by}: {entry.acknowledged.reason}")
    if entry.follows:
        marks.append(f"follows from {entry.follows}, not alerted itself")
    elif state.silenced(entry.key, now):
        marks.append("silenced")
    elif entry.latest_severity != entry.severity:
        marks.append(f"{entry.latest_severity} is alerted once confirmed")
    if now - entry.checked_at > MAX_CHECK_AGE:
        marks.append(f"not checked since {entry.checked_at:%Y-%m-%d %H:%M}")
    return ", ".join(marks)


def _describe_delivery(item: OutboxItem, now: datetime) -> str:
    subject = item.message.subject
    if item.is_held_back(now):
        return f"{subject} (held until the quiet hours end, {item.not_before or now:%H:%M} UTC)"
    by = f"; also sent by {item.fallback}" if item.fallback else ""
    times = f"{item.tries} attempt{'s' if item.tries != 1 else ''}"
    return f"{subject} ({times}{f': {item.error}' if item.error else ''}{by})"
