"""A root that cannot be listed, and settings files that others can write: critical or refused, never an empty list."""

import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from opsctl.app import build
from opsctl.base.errors import NotTrusted
from opsctl.base.findings import Severity
from opsctl.metrics.collect import gather
from opsctl.monitor.watch_cycle import Watch
from opsctl.state import trust
from opsctl.state.files import list_names
from opsctl.state.run_dir import RunDir
from tests.hostile.conftest import Site, needs_squeue
from tests.support.cases import read_cases
from tests.support.hostile_users import MEMBER, OWNER

COMMANDS = ("status", "status --json", "health", "digest", "publish", "nodes")
TRAIN = 'command = ["true"]\n[slurm]\nnodes = 1\ntime_limit = "60"\n'


@pytest.fixture
def full(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A root that was listed once, and has more entries since than are listed: 50, to be made in no time."""
    site.train("tr11")
    Watch(app=build()).cycle()
    monkeypatch.setattr("opsctl.state.run_dir.list_names", partial(list_names, max_entries=50))
    for number in range(51):
        (site.root / f"x{number}").touch()
    return site


@needs_squeue
@pytest.mark.attack("a stranger fills the root, and the watch sees no trains")
def test_full_root_is_critical(full, monkeypatch):
    pings: list[str] = []
    monkeypatch.setattr("opsctl.alerts.dispatch.ping", lambda _, kind, __: pings.append(kind.name))
    report = Watch(app=build()).cycle()
    [finding] = [finding for finding in report.findings if finding.key == "root/site"]
    assert finding.severity is Severity.CRITICAL
    assert f"the watch knows 1 train from an earlier list: {full.root}: more than 50 entries" in finding.summary
    assert "SUCCESS" not in pings
    assert any(finding.train == "tr11" for finding in report.findings)
    samples = {(sample.name, sample.labels.get("train")): sample.value for sample in gather(build())}
    assert samples["opsctl_root_up", None] == 0
    assert samples["opsctl_train_up", "tr11"] == 1
    for words in COMMANDS:
        done = full.opsctl(*words.split())
        assert isinstance(done.exception, Exception), (words, done.output)
    for name in os.listdir(full.root):
        if name.startswith("x"):
            os.unlink(full.root / name)
    [finding] = [finding for finding in Watch(app=build()).cycle().findings if finding.key == "root/site"]
    assert finding.severity is Severity.OK


def change_listed_root(site: Site, aside: Path, change: str) -> None:
    for name in ("tr11", "tr12"):
        site.train(name).config.write_text(f'name = "{name}"\n{TRAIN}')
    Watch(app=build()).cycle()
    subprocess.run(["bash", "-ec", change], env={**os.environ, "root": str(site.root), "aside": str(aside)}, check=True)


def read_severities() -> dict[str, str]:
    return {finding.key: finding.severity.value for finding in Watch(app=build()).cycle().findings}


@pytest.mark.attack("a root that is gone, or is another one, hides the trains")
@pytest.mark.parametrize(*read_cases(__file__, "lost"))
def test_lost_root_is_critical(site, tmp_path, monkeypatch, change):
    change_listed_root(site, tmp_path / "aside", change)
    pings: list[str] = []
    monkeypatch.setattr("opsctl.alerts.dispatch.ping", lambda _, kind, __: pings.append(kind.name))
    expected = {"root/site": "critical", "train/tr11": "warning", "train/tr12": "warning"}
    for _ in range(2):  # the first cycle leaves files there, which prove nothing
        assert read_severities().items() >= expected.items()
    assert "SUCCESS" not in pings


@pytest.mark.attack("a train that is no longer one is forgotten")
@pytest.mark.parametrize(*read_cases(__file__, "changed"))
def test_changed_train_is_reported(site, tmp_path, change):
    change_listed_root(site, tmp_path / "aside", change)
    severities = read_severities()
    assert severities["train/tr11"] == "warning"
    assert "train/tr12" not in severities


@pytest.mark.root
@pytest.mark.attack("root's mount point in the place of an ordinary user's root hides the trains")
@pytest.mark.parametrize("change", ["mkdir $root", "ln -s /etc $root", "ln -s /etc/passwd $root"])
def test_lost_root_of_a_user_is_alerted(site, change):
    (site.root.parent / "state").mkdir()
    os.chown(site.root.parent / "state", OWNER.uid, -1)
    site.owned_train()
    OWNER.run(lambda: Watch(app=build()).cycle())
    subprocess.run(["bash", "-ec", f"mv $root $root.aside; {change}"], env={"root": str(site.root)}, check=True)
    alerted = OWNER.run(lambda: [change.finding.key for change in Watch(app=build()).cycle().transitions])
    assert "'root/site'" in alerted
    severities = OWNER.run(read_severities)
    assert "'root/site': 'critical'" in severities
    assert "'train/tr11': 'warning'" in severities


@needs_squeue
@pytest.mark.root
@pytest.mark.attack("a root without permission to list hides the trains")
def test_unreadable_root_is_critical(site):
    site.owned_train()
    site.root.chmod(0o733)
    said = OWNER.run(lambda: [f"{x.key} {x.severity}" for x in Watch(app=build(), acts=False).cycle().findings])
    assert "root/site critical" in said
    assert Watch(app=build(), trains=("tr11",), acts=False).cycle().findings


def write_site(path: Path, root: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'root = "{root}"\n')
    return path


@pytest.mark.root
@pytest.mark.attack("commands of a settings file that others can write run as its reader")
@pytest.mark.parametrize(*read_cases(__file__, "settings"))
def test_unsafe_settings_are_refused(site, tmp_path, change):
    path = write_site(tmp_path / "a" / "b" / "site.toml", site.root)
    environment = {**os.environ, "at": str(path.parent), "path": str(path)}
    subprocess.run(["bash", "-ec", change], env=environment, check=True)
    with pytest.raises(NotTrusted, match="others could have written"):
        build(path)
    with pytest.raises(NotTrusted):
        build().check_settings(path)
    assert build(path, trust=True).root == site.root
    assert build(path).root == site.root, "remembered, as jobs and cron need it"
    trust.trusted_files().chmod(0o666)
    with pytest.raises(NotTrusted):
        build(path)


@pytest.mark.root
@pytest.mark.attack("another user's train is launched, or a hook of a shared train.toml run, as the reader")
def test_anothers_train_is_not_launched(site, tmp_path):
    file = tmp_path / "bob.toml"
    file.write_text('name = "bob"\ncommand = ["true"]\n[slurm]\nnodes = 1\ntime_limit = "5"\n')
    os.chown(file, MEMBER.uid, -1)
    run = site.train()
    for words in (["launch", file], ["edit", run.name, file]):
        assert isinstance(site.opsctl(*words, "--dry-run").exception, NotTrusted)
    assert not isinstance(site.opsctl("--trust", "launch", file, "--dry-run").exception, NotTrusted)
    assert not trust.trusted_files().exists(), "for this command only"
    assert RunDir(site.root / "bob").why_no_train
