"""Everything that the pages show, from one query of the queue, one of the nodes, and the files of the site."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from opsctl.actions.find_statuses import read_train_status
from opsctl.alerts.ledger_files import OpenAlert, open_alerts
from opsctl.app import App
from opsctl.base.errors import OpsctlError, RunDirError
from opsctl.base.model import Job, Node
from opsctl.base.statements import Statement, say
from opsctl.cron.cron_status import CronStatus, read_cron_status
from opsctl.dash.alert_groups import AlertGroup, group_alerts
from opsctl.dash.show_times import format_age
from opsctl.dash.train_card import TrainCard, make_card
from opsctl.dash.train_figures import Sparkline, draw_sparkline
from opsctl.dash.train_headline import TONES, Tone
from opsctl.dash.train_reasons import describe_rollback
from opsctl.launch.rollback_state import read_rollback_state
from opsctl.monitor.run_watchdogs import filesystems
from opsctl.nodes.drain_plan import is_out
from opsctl.nodes.history import NodeRecord
from opsctl.state.run_dir import RunDir, may_act, scan
from opsctl.watchdogs.context import WatchdogMemory
from opsctl.watchdogs.fs_quota import FORECAST, GROWTH, FsQuota, UsageMemory

_TONE_BY_HEALTH = {"healthy": "green", "degraded": "amber", "faulty": "red"}
"""Others have not been checked, or not with a result."""
MAX_LOST_NODES = 3
"""Named below the headline of a train."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTile:
    """One node: Slurm's state, the last health check and the exclusion, each on its own."""

    name: str
    state: str
    """Slurm's word, with `*` for a node that does not respond."""
    state_tone: str
    health: str
    """The verdict of the last health check; empty without any."""
    health_tone: str
    checked: datetime | None
    excluded_since: datetime | None
    """Since when opsctl gives the node to no new attempt; None for a node that it gives."""
    why_excluded: str
    why_out: str
    """Slurm's reason for a node out of service."""
    evidence: tuple[str, ...]
    trains: tuple[str, ...]
    """The trains that run on the node."""
    ended: tuple[str, ...] = ()
    """The trains that do not run, and whose last attempt ran on the node."""

    @property
    def is_bad(self) -> bool:
        return self.tone in {"red", "amber"} or bool(self.why_out)

    @property
    def tone(self) -> str:
        """The worse of the state's and the health's colour; amber for a train on an excluded node."""
        tones = [self.state_tone, self.health_tone]
        if self.excluded_since and self.trains:
            tones.append("amber")
        return min(tones, key=_ORDER.index)


_ORDER = ("red", "amber", "unknown", "quiet", "green")


def list_node_tiles(
    app: App,
    nodes: Sequence[Node],
    trains_on: Mapping[str, Sequence[str]],
    ended_on: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[NodeTile]:
    """Yield a tile for every node, without a call of Slurm."""
    excluded = {exclusion.node: exclusion for exclusion in app.exclusions.shown()}
    records = {record.node: record for record in app.history.all()}
    for node in nodes:
        record = records.get(node.name) or NodeRecord(node=node.name)
        exclusion = excluded.get(node.name)
        yield NodeTile(
            name=node.name,
            state=describe_state(node.state),
            state_tone=_find_state_tone(node),
            health=record.health,
            health_tone=_TONE_BY_HEALTH.get(record.health, "quiet"),
            checked=datetime.fromtimestamp(record.at, UTC) if record.at else None,
            excluded_since=datetime.fromtimestamp(exclusion.since, UTC) if exclusion else None,
            why_excluded=exclusion.reason if exclusion else "",
            why_out=node.reason,
            evidence=record.evidence if record.health not in {"", "healthy"} else (),
            trains=tuple(trains_on.get(node.name, ())),
            ended=tuple((ended_on or {}).get(node.name, ())),
        )


def describe_lost_nodes(last_nodes: Collection[str], tiles: Sequence[NodeTile]) -> tuple[str, ...]:
    """Return a sentence for each node of the last attempt that is out of service or excluded: the first few."""
    texts = []
    for tile in tiles:
        facts = [tile.state] if tile.state_tone in {"red", "amber"} else []
        facts += ["excluded for new attempts"] if tile.excluded_since else []
        if tile.name in last_nodes and facts:
            texts.append(f"{tile.name}, a node of the last attempt, is {' and '.join(facts)}")
    more = len(texts) - MAX_LOST_NODES
    return (*texts[:MAX_LOST_NODES], *([f"{more} more nodes of the last attempt are out of service"] * (more > 0)))


def describe_state(state: str) -> str:
    """Return Slurm's state as Slurm lists it: `DOWN*` instead of `DOWN+NOT_RESPONDING`."""
    words = (word for word in state.rstrip("*").split("+") if word != "NOT_RESPONDING")
    return "+".join(words) + "*" * is_silent(state)


def is_silent(state: str) -> bool:
    """Return whether a node does not respond, by Slurm's state."""
    return state.endswith("*") or "NOT_RESPONDING" in state


def _find_state_tone(node: Node) -> str:
    """Return the colour of Slurm's state: red for a node that is down, amber out of service."""
    if "DOWN" in node.state or is_silent(node.state):
        return "red"
    return "amber" if is_out(node) else "quiet"


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
        groups = (group for group in self.alert_groups if group.level == "critical" and not group.trains)
        return tuple(group for group in groups if any(alert.is_loud for alert in group.alerts))

    @property
    def summary(self) -> str:
        """One sentence on what needs a person now, for the title and the top of the page."""
        ages = [f" {format_age(self.made - at)}" if (at := card.headline.since) else "" for card in self.needy]
        names = [f"{card.name}, {card.state}{age}" for card, age in zip(self.needy, ages, strict=True)]
        names += [group.title for group in self.needy_groups]
        if not names:
            unknown = [card for card in self.trains if card.headline.tone is Tone.UNKNOWN]
            calm = "Nothing needs you now" if self.trains else "No trains yet"
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
        entries = app.alerting.ledger.levels()
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
            tone=_TONES[entry.level],
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
