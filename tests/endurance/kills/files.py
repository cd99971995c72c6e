"""Verbs that need no Slurm, each in a place of its own: switches, alerts, checkpoints, copies, cron."""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from opsctl.alerts.dispatch import list_undelivered
from opsctl.app import build
from opsctl.base.findings import Severity
from opsctl.state.run_dir import RunDir
from opsctl.state.switches import Switch, arm
from opsctl.trainer import manifest
from opsctl.trainer.manifest import FileRecord, Manifest
from tests.endurance.kills.state import State, leftovers, tree
from tests.endurance.soak.servers import Inbox, Mail, Slack
from tests.support.findings import make_finding

TRAIN = 'name = "t"\ncommand = ["true"]\n[slurm]\nnodes = 1\ntime_limit = "5"\n'
PATH = os.environ.get("PATH", "/usr/bin:/bin")
MOST_LEFT = 3
"""A temporary file and what a lease is made of, once for each directory that a killed process was writing in."""


@dataclass(kw_only=True)
class Place:
    """A site with one train that was never launched."""

    words: Sequence[str]
    settings: str = ""
    prepare: Callable[[Any], None] = lambda _: None
    also: Callable[[Any], State] = lambda _: {}
    """What to compare besides files."""
    without: Sequence[str] = ()
    """Files that are not compared."""
    skip: Sequence[str] = ()
    """Files whose contents are another each time; that they are there is compared."""
    env: dict[str, str] = field(default_factory=dict)
    words_of: dict[str, str] = field(default_factory=dict)
    """Words that are another one in each run, and what stands for them."""

    def __post_init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="opsctl-cut-"))
        self.root.chmod(0o755)
        self.trains, self.site = self.root / "trains", self.root / "site.toml"
        (self.root / "home").mkdir()
        self.env = {"PATH": PATH, "HOME": str(self.root / "home"), "LANG": "C.UTF-8", **self.env}
        head = f'root = "{self.trains}"\n' if "root =" not in self.settings else ""
        self.site.write_text(head + self.settings.replace("{root}", str(self.root)))
        self.site.chmod(0o600)
        self.make_train()
        self.prepare(self)

    def make_train(self) -> None:
        self.run = RunDir(self.trains / "t")
        self.run.create()
        self.run.config.write_text(TRAIN)

    @property
    def argv(self) -> list[str]:
        return ["--site", str(self.site), *(word.replace("{root}", str(self.root)) for word in self.words)]

    @property
    def names(self) -> dict[str, str]:
        return {str(self.root): "<root>", **self.words_of}

    def state(self) -> State:
        found = tree(self.root, self.names)
        files = {name: what for name, what in found.items() if not any(part in name for part in self.without)}
        for name in files:
            if any(part in name for part in self.skip):
                files[name] = "is there"
        left = leftovers(self.root)
        return {"files": files, "too much is left": left if len(left) > 3 * MOST_LEFT else [], **self.also(self)}

    def close(self) -> None:
        shutil.rmtree(self.root)


def armed(switch: Switch) -> Callable[[Place], None]:
    def prepare(place: Place) -> None:
        arm(place.run, switch, why="x")
        app = build(place.site)
        from opsctl.state.events import SwitchArmed  # noqa: PLC0415
        from opsctl.state.journal import Journal, actor  # noqa: PLC0415

        Journal(place.run, app.clock).append(SwitchArmed(switch=switch.value, by=actor(), why="x"))

    return prepare


def raise_alert(place: Place) -> None:
    """People were told of something, so that there is something to acknowledge."""
    alerting = build(place.site).alerting
    alerting.ledger.record([make_finding(key="hang/t", severity=Severity.CRITICAL, summary="t hangs", train="t")])


# --- alerts, at real servers


@dataclass
class Ends:
    """Where alerts arrive."""

    mail: Mail = field(default_factory=Mail)
    slack: Slack = field(default_factory=Slack)

    @property
    def settings(self) -> str:
        template = Path(__file__).with_name("alerts.toml").read_text()
        return template.format(port=self.mail.port, slack=self.slack.url)

    def forget(self, _: Place) -> None:
        for inbox in (self.mail, self.slack):
            inbox.taken.clear()
            inbox.alerts.clear()

    def arrived(self, place: Place) -> State:
        """What is new to people, what still waits, what the journal of alerts says of it, and what came twice without a
        word of that."""
        journal = [
            json.loads(row)
            for path in place.trains.glob(".site/alerts/journal-*.jsonl")
            for row in path.read_text().splitlines()
        ]
        journalled = {
            kind: [row["id"] for row in journal if row["kind"] == kind] for kind in ("ambiguous", "delivered")
        }
        inboxes: dict[str, Inbox] = {"mail": self.mail, "slack": self.slack}
        return {
            "waiting": [item.channel for item in list_undelivered(build(place.site).alerting)],
            "transitions": sorted({row["key"] for row in journal if row["kind"] == "transition"}),
            "told": {name: sorted(map(str, set(inbox.alerts))) for name, inbox in inboxes.items()},
            "delivered and not said": [
                key for inbox in inboxes.values() for key in set(inbox.taken) if journalled["delivered"].count(key) < 1
            ],
            "doubled and not said": [
                key
                for inbox in inboxes.values()
                for key, times in inbox.taken.items()
                if times > 1 and key not in journalled["ambiguous"]
            ],
        }

    def close(self) -> None:
        self.mail.close()
        self.slack.close()


# --- checkpoints


def saved(place: Place) -> None:
    for step in (10, 20, 30, 40):
        save(place.run.checkpoints, step)


def save(directory: Path, step: int) -> None:
    path = directory / manifest.directory_name(step)
    (path / "zero").mkdir(parents=True)
    files = {}
    for name in ("layer_00.pt", "zero/fp32.pt"):
        content = f"{step} {name} ".encode() * 100
        (path / name).write_bytes(content)
        files[name] = FileRecord(size=len(content), sha256=hashlib.sha256(content).hexdigest())
    held = Manifest(
        step=step, consumed_samples=16 * step, topology={"data": 2}, model={}, precision="bf16", files=files
    )
    manifest.write_manifest(path, held)


# --- copies for others


def written(place: Place) -> None:
    for path in (place.run.body, place.run.wrapper):
        path.write_text("true\n")
    for name, text in (
        ("logs/main_log.txt", "iteration 1/ 9 |\niteration 2/ 9 |\n"),
        ("logs/pulse.log", "well\n"),
        ("metrics/metrics.jsonl", '{"step": 1}\n'),
    ):
        path = place.run.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(("git", "init", "--quiet", "--bare", str(place.root / "remote.git")), check=True, timeout=100)


def pushed(place: Place) -> State:
    """What the branch has, and in how many commits."""
    git = ("git", f"--git-dir={place.root}/remote.git")
    shown = subprocess.run(
        (*git, "ls-tree", "-r", "--name-only", "main"), capture_output=True, text=True, timeout=100, check=False
    ).stdout
    count = subprocess.run(
        (*git, "rev-list", "--count", "main"), capture_output=True, text=True, timeout=100, check=False
    ).stdout
    return {"branch": shown, "commits": count}


# --- cron


def due(place: Place) -> None:
    """Two entries that were due some minutes ago, and one that will not be."""
    then = datetime.now(UTC) - timedelta(minutes=3)
    cron = place.root / "cron"
    cron.mkdir()
    when, later = (f"{moment.minute} {moment.hour} * * *" for moment in (then, then - timedelta(hours=2)))
    place.words_of = {when: "<now>", later: "<later>"}
    rows = [f"{when} echo one >$HOME/one", f"{when} echo two | tee $HOME/two", f"{later} echo never >$HOME/never"]
    (cron / "crontab").write_text("\n".join(rows) + "\n")


def littered(place: Place) -> None:
    """What killed writers left two days ago, and what entries printed a month ago."""
    due(place)
    app = build(place.site)
    app.cron.place.create()
    old = datetime.now(UTC).timestamp() - 40 * 86_400
    for path in (app.cron.place.output / "20260101T000000-x.txt", app.cron.place.path / ".ledger.json.abcdefgh"):
        path.write_text("x")
        os.utime(path, (old, old))


CRON = '[cron]\ndirectory = "{root}/cron"\ntime_zone = "UTC"\n'
