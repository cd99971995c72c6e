"""Everything that the pages show, from one query of the queue, one of the nodes, and the files of the site."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from opsctl.actions.find_statuses import read_train_status
from opsctl.alerts.ledger_files import OpenAlert, open_alerts
from opsctl.app import App
from opsctl.base.errors import OpsctlError, RunDirError
from opsctl.base.findings import Severity
from opsctl.base.model import Job, Node
from opsctl.base.statements import Statement, say
from opsctl.cron.cron_status import CronStatus, read_cron_status
from opsctl.dash.alert_groups import AlertGroup, group_alerts
from opsctl.dash.node_tiles import NodeTile, describe_lost_nodes, list_node_tiles
from opsctl.dash.show_times import format_age
from opsctl.dash.train_card import TrainCard, make_card
from opsctl.dash.train_figures import Sparkline, draw_sparkline
from opsctl.dash.train_headline import TONES, Tone
from opsctl.dash.train_reasons import describe_rollback
from opsctl.launch.rollback_state import read_rollback_state
from opsctl.monitor.run_watchdogs import filesystems
from opsctl.state.run_dir import RunDir, may_act, scan
from opsctl.watchdogs.context import WatchdogMemory
from opsctl.watchdogs.fs_quota import FORECAST, GROWTH, FsQuota, UsageMemory

MAX_REASONS = 3
LATE = timedelta(minutes=30)
"""A watch without a finding for this long is late, whatever the tick of cron."""
UNKNOWN_RANK = TONES.index(Tone.UNKNOWN)

HOURS_A_YEAR = 8760
UNMEASURED_S = 180
"""An interval between checkpoints that is shorter says nothing about the rate of a day."""
_TONES = {"ok": "green", "unknown": "unknown", "warning": "amber", "critical": "red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskCard:
    name: str
    tone: str
    texts: tuple[str, ...]
    """Usage and forecast, or why they are unknown."""
    checked: datetime | None
    curve: Sparkline | None
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmAnswer:
    """The queue and the nodes; None for what is unknown."""

    jobs: list[Job] | None = None
    nodes: Sequence[Node] | None = None
    away: str = ""
    """Why the queue is unknown; empty if Slurm answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchAge:
    """The newest check of any watchdog."""

    last: datetime | None
    """None if no watch cycle has recorded anything."""
    now: datetime

    @property
    def is_late(self) -> bool:
        return self.last is None or self.now - self.last > LATE

    @property
    def text(self) -> str:
        return f"last watch cycle {format_age(self.now - self.last)} ago" if self.last else "no watch cycle yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteView:
    site: str
    made: datetime
    trains: tuple[TrainCard, ...]
    """The most urgent first."""
    slurm: str
    """Why Slurm's state is unknown; empty if Slurm answered."""
    nodes: tuple[NodeTile, ...] | None
    """None if Slurm did not answer."""
    watch: WatchAge
    """How fresh the watchdogs' findings are."""
    alerts: tuple[OpenAlert, ...] = ()
    cron: CronStatus | None = None
    disks: tuple[DiskCard, ...] = ()
    problems: tuple[str, ...] = ()

    def find(self, train: str) -> TrainCard | None:
        return next((card for card in self.trains if card.name == train), None)

    @property
    def needy(self) -> tuple[TrainCard, ...]:
        """The trains that need a person now."""
        return tuple(card for card in self.trains if card.headline.tone is Tone.RED)

    @property
    def needy_groups(self) -> tuple[AlertGroup, ...]:
        """The alerts of the site, not of a train, that need a person now."""
        groups = (group for group in self.alert_groups if group.severity is Severity.CRITICAL and not group.trains)
        return tuple(group for group in groups if any(alert.is_loud for alert in group.alerts))

    @property
    def summary(self) -> str:
        """One sentence on what needs a person now, for the title and the top of the page."""
        ages = [f" {format_age(self.made - at)}" if (at := card.headline.since) else "" for card in self.needy]
        names = [f"{card.name}, {card.state}{age}" for card, age in zip(self.needy, ages, strict=True)]
        names += [group.title for group in self.needy_groups]
        if not names:
            unknown = [card for card in self.trains if card.headline.tone is Tone.UNKNOWN]
            calm = f"Nothing is watched: {self.watch.text}" if self.watch.is_late else "Nothing needs you now"
            calm = calm if self.trains else "No trains yet"
            return f"{len(unknown)} unknown" if unknown else calm
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return f"{len(names)} need{'s' * (len(names) == 1)} you now: {names[0]}{more}"

    @property
    def rest(self) -> str:
        """The other trains: `1 needs a decision (tr11: queued tasks run out) · 2 running`."""
        parts = []
        for tone, needs in ((Tone.AMBER, "a decision"), (Tone.BLUE, "something later")):
            if cards := [card for card in self.trains if card.headline.tone is tone]:
                reasons = [f"{card.name}: {card.headline.short[:1].lower()}{card.headline.short[1:]}" for card in cards]
                shown = "; ".join(reasons[:MAX_REASONS]) + ("; …" if len(reasons) > MAX_REASONS else "")
                parts.append(f"{len(cards)} need{'s' * (len(cards) == 1)} {needs} ({shown})")
        others = (card for card in self.trains if card.headline.rank >= UNKNOWN_RANK)
        states = Counter(card.state for card in others if card.headline.tone is not Tone.BLUE)
        if not self.needy and not parts and set(states) == {"unknown"}:
            return ""
        return " · ".join([*parts, *(f"{count} {state}" for state, count in states.items())])

    @property
    def alert_groups(self) -> tuple[AlertGroup, ...]:
        return group_alerts(self.alerts)


def collect_site(app: App) -> SiteView:
    """Return the site now, from one query of the queue and one of the nodes, whatever the number of trains.

    Raises RunDirError if the root cannot be listed, so that the pages keep the earlier trains.
    """
    runs, skipped = scan(app.root)
    alerts = open_alerts(app.alert_ledger, app.clock.now())
    problems = [f"Skipped in the root directory: {entry}" for entry in skipped[:5]]
    view = _make_view(app, runs, ask_slurm(app), alerts)
    cron, disks = _read_cron(app, problems), tuple(list_disks(app, problems))
    return replace(view, alerts=tuple(alerts), cron=cron, disks=disks, problems=tuple(problems))


def collect_train(app: App, run: RunDir, slurm: SlurmAnswer) -> SiteView:
    """Return the view of one train alone, without the parts of the site."""
    view = _make_view(app, [run], slurm, open_alerts(app.alert_ledger, app.clock.now()))
    return replace(view, alerts=view.trains[0].status.alerts)


def _make_view(app: App, runs: Sequence[RunDir], slurm: SlurmAnswer, alerts: Sequence[OpenAlert]) -> SiteView:
    """Return the view of these trains and of all nodes."""
    excluded = {exclusion.node: datetime.fromtimestamp(exclusion.since, UTC) for exclusion in app.exclusions.shown()}
    cards = [_make_card(app, run, slurm, alerts, excluded) for run in runs]
    nodes = _list_nodes(app, slurm, cards)
    cards = [replace(card, marks=(*card.marks, *describe_lost_nodes(card.last_nodes, nodes or ()))) for card in cards]
    return SiteView(
        site=app.site.alerts.site_name,
        made=app.site_now(),
        trains=tuple(sorted(cards, key=lambda card: (card.headline.rank, -card.weight, card.name))),
        slurm=slurm.away,
        nodes=nodes,
        watch=_read_watch_age(app),
    )


def ask_slurm(app: App) -> SlurmAnswer:
    """Return the queue and the nodes, by one call each. Raises nothing."""
    try:
        jobs = app.jobs()
    except OpsctlError as error:
        return SlurmAnswer(away=f"Slurm does not answer: {error.message}")
    try:
        return SlurmAnswer(jobs=jobs, nodes=app.slurm.nodes())
    except OpsctlError:
        return SlurmAnswer(jobs=jobs)


def _list_nodes(app: App, slurm: SlurmAnswer, cards: Sequence[TrainCard]) -> tuple[NodeTile, ...] | None:
    """Return the nodes with the trains that run, or ran last, on each; None if Slurm did not answer."""
    if slurm.nodes is None:
        return None
    trains_on: dict[str, list[str]] = {}
    ended_on: dict[str, list[str]] = {}
    for card in cards:
        for name in card.nodes:
            trains_on.setdefault(name, []).append(card.name)
        for name in card.last_nodes:
            ended_on.setdefault(name, []).append(card.name)
    return tuple(list_node_tiles(app, slurm.nodes, trains_on, ended_on))


def _make_card(
    app: App, run: RunDir, slurm: SlurmAnswer, alerts: Sequence[OpenAlert], excluded: Mapping[str, datetime]
) -> TrainCard:
    status = read_train_status(app, run, slurm.jobs, alerts, slurm.away)
    try:
        events = app.journal(run).events()
    except (OpsctlError, OSError):
        events = []
    now = app.site_now()
    state = read_rollback_state(run, app.clock)
    rollback = describe_rollback(state, run.name, now) if state else None
    return make_card(run, status, events, now, excluded, rollback=rollback, is_ours=may_act(run))


def _read_cron(app: App, problems: list[str]) -> CronStatus | None:
    try:
        return read_cron_status(app.cron)
    except (OpsctlError, OSError) as error:
        problems.append(f"The state of cron cannot be read: {error}")
        return None


def _read_watch_age(app: App) -> WatchAge:
    """Return the time of the newest check in the ledger. An unreadable ledger proves no watch."""
    try:
        last = max((entry.checked_at for entry in app.alert_ledger.read().entries.values()), default=None)
    except RunDirError:
        last = None
    return WatchAge(last=last, now=app.site_now())


def list_disks(app: App, problems: list[str]) -> Iterator[DiskCard]:
    """Yield the site's file systems. Measures nothing."""
    try:
        entries = app.alerting.ledger.entries()
    except OpsctlError as error:
        problems.append(f"alerts: {error.message}")
        entries = {}
    memory = WatchdogMemory(app.site_dir.path / "watch")
    for filesystem in filesystems(app.site):
        entry = entries.get(f"{FsQuota.name}/{filesystem.name}")
        if entry is None or entry.finding is None:
            text = f"{filesystem.name} ({filesystem.path}): not measured yet; opsctl watch measures it"
            yield DiskCard(name=filesystem.name, tone="unknown", texts=(text,), checked=None, curve=None)
            continue
        says = entry.finding.says
        parts = tuple(filter(is_worth_showing, says.parts))
        samples = memory.recall(UsageMemory, FsQuota.name, filesystem.name).samples
        yield DiskCard(
            name=filesystem.name,
            tone=_TONES[entry.severity],
            texts=(say(replace(says, parts=parts[:1])), *map(say, parts[1:])),
            checked=entry.checked_at,
            curve=draw_sparkline([used for _, used in samples]),
            evidence=tuple(map(say, filter(is_worth_showing, entry.finding.details))),
        )


def is_worth_showing(part: Statement) -> bool:
    """Return False for an end that is over a year away, and for a rate that was measured over no time."""
    hours, every_s = part.facts.get("hours"), part.facts.get("every_s")
    is_far = part.kind == FORECAST and isinstance(hours, int | float) and hours > HOURS_A_YEAR
    is_unmeasured = part.kind == GROWTH and isinstance(every_s, int | float) and every_s < UNMEASURED_S
    return not (is_far or is_unmeasured)
