"""Everything that the pages show, from one squeue, one sinfo and the files of the site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from opsctl.actions.find_statuses import read_train_status
from opsctl.alerts.open_alerts import OpenAlert, open_alerts
from opsctl.app import App
from opsctl.cron.cron_status import CronStatus, read_cron_status
from opsctl.dash.disk_forecast import DiskCard, list_disks
from opsctl.dash.node_tiles import NodeTile, list_node_tiles
from opsctl.dash.train_card import TrainCard, make_card
from opsctl.errors import OpsctlError
from opsctl.model import Job, Node
from opsctl.state.run_dir import RunDir, scan


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmAnswer:
    """The queue and the nodes; None for what is unknown."""

    jobs: list[Job] | None = None
    nodes: Sequence[Node] | None = None
    away: str = ""
    """Why the queue is unknown; empty if Slurm answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteView:
    """The site at one moment."""

    site: str
    made: datetime
    trains: tuple[TrainCard, ...]
    """The most urgent first."""
    slurm: str
    """Why Slurm's state is unknown; empty if Slurm answered."""
    nodes: tuple[NodeTile, ...] | None
    """None if Slurm did not answer."""
    alerts: tuple[OpenAlert, ...]
    cron: CronStatus | None
    disks: tuple[DiskCard, ...]
    problems: tuple[str, ...]

    def find(self, train: str) -> TrainCard | None:
        return next((card for card in self.trains if card.name == train), None)

    @property
    def tones(self) -> Mapping[str, int]:
        """The number of trains by tone."""
        counts: dict[str, int] = {}
        for card in self.trains:
            counts[card.headline.tone] = counts.get(card.headline.tone, 0) + 1
        return counts

    @property
    def summary(self) -> str:
        """One sentence on all trains, for the title and the top of the page."""
        if not self.trains:
            return "no trains yet"
        needy = self.tones.get("red", 0) + self.tones.get("amber", 0)
        unknown = self.tones.get("unknown", 0)
        parts = [f"{needy} of {len(self.trains)} need{'s' * (needy == 1)} you"] if needy else []
        parts += [f"{unknown} unknown"] if unknown else []
        return ", ".join(parts) or f"{len(self.trains)} train{'s' * (len(self.trains) != 1)}, all well"


def collect_site(app: App) -> SiteView:
    """Return the site now, from one call of squeue and one of sinfo, whatever the number of trains."""
    problems: list[str] = []
    runs, skipped = scan(app.root)
    slurm = ask_slurm(app)
    alerts = open_alerts(app.site_dir.alerts / "ledger.json")
    cards = [_make_card(app, run, slurm, alerts) for run in runs]
    problems += [f"skipped in the root: {entry}" for entry in skipped[:5]]
    trains_on: dict[str, list[str]] = {}
    for card in cards:
        for name in card.nodes:
            trains_on.setdefault(name, []).append(card.name)
    return SiteView(
        site=app.site.alerts.site_name,
        made=app.clock.now(),
        trains=tuple(sorted(cards, key=lambda card: (card.headline.rank, card.name))),
        slurm=slurm.away,
        nodes=None if slurm.nodes is None else tuple(list_node_tiles(app, slurm.nodes, trains_on)),
        alerts=tuple(alerts),
        cron=_read_cron(app, problems),
        disks=tuple(list_disks(app, problems)),
        problems=tuple(problems),
    )


def collect_train(app: App, run: RunDir, slurm: SlurmAnswer) -> SiteView:
    """Return the view of one train alone, without the parts of the site."""
    card = _make_card(app, run, slurm, open_alerts(app.site_dir.alerts / "ledger.json"))
    trains_on = dict.fromkeys(card.nodes, (card.name,))
    return SiteView(
        site=app.site.alerts.site_name,
        made=app.clock.now(),
        trains=(card,),
        slurm=slurm.away,
        nodes=None if slurm.nodes is None else tuple(list_node_tiles(app, slurm.nodes, trains_on)),
        alerts=card.alerts,
        cron=None,
        disks=(),
        problems=(),
    )


def ask_slurm(app: App) -> SlurmAnswer:
    """Return the queue and the nodes, by one call each. Raises nothing."""
    try:
        jobs = app.scheduler.jobs()
    except OpsctlError as error:
        return SlurmAnswer(away=f"Slurm does not answer: {error.message}")
    try:
        return SlurmAnswer(jobs=jobs, nodes=app.scheduler.nodes())
    except OpsctlError:
        return SlurmAnswer(jobs=jobs)


def _make_card(app: App, run: RunDir, slurm: SlurmAnswer, alerts: Sequence[OpenAlert]) -> TrainCard:
    status = read_train_status(app, run, slurm.jobs, alerts, slurm.away)
    try:
        events = app.journal(run).events()
    except (OpsctlError, OSError):
        events = []
    return make_card(run, status, events, app.clock.now())


def _read_cron(app: App, problems: list[str]) -> CronStatus | None:
    try:
        return read_cron_status(app.cron)
    except (OpsctlError, OSError) as error:
        problems.append(f"cron: {error}")
        return None
