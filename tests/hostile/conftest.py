"""A shared, sticky root in which everybody can write, as docs/team.md describes, and opsctl typed at it."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opsctl.cli import cli
from opsctl.host.system import SystemClock
from opsctl.state.events import AttemptStarted, Submitted, Submitting
from opsctl.state.journal import Journal
from opsctl.state.run_dir import RunDir
from tests.support.finalized_trains import QueuedTrain, make_train
from tests.support.hostile_users import OWNER, TEAM
from tests.support.slurms import SLURM_CONF

ITERATION = " iteration {} / 100 | elapsed time per iteration (ms): 1000 | lm loss: 2.5 |\n"


@dataclass(frozen=True)
class Site:
    """The root of a site."""

    root: Path

    def train(self, name: str = "tr11", *, step: int = 7) -> RunDir:
        """A train with one attempt and a log."""
        run = RunDir(self.root / name)
        run.create()
        run.config.write_text('command = ["true"]\n[slurm]\nnodes = 1\ntime_limit = "60"\n')
        journal = Journal(run, SystemClock())
        journal.append(Submitting(nonce="n1", tasks=5, after=""))
        journal.append(Submitted(nonce="n1", array="12"))
        journal.append(AttemptStarted(attempt="12_1.0", nodes="node001"))
        run.main_log.write_text(ITERATION.format(step))
        return run

    def owned_train(self, name: str = "tr11") -> RunDir:
        """A train of OWNER, whose switches and requests the team can write."""
        said = OWNER.run(lambda: self.train(name) and RunDir(self.root / name).create(TEAM))
        assert said == "None", said
        return RunDir(self.root / name)

    def opsctl(self, *words: object) -> Result:
        """What a command prints; Slurm does not answer."""
        return CliRunner().invoke(cli, [*map(str, words)], standalone_mode=False, prog_name="opsctl")


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="opsctl-hostile-") as name:
        place = Path(name)
        place.chmod(0o755)
        (place / "slurm.conf").write_text(SLURM_CONF)
        root = place / "trains"
        root.mkdir()
        root.chmod(0o1777)
        monkeypatch.setenv("SLURM_CONF", str(place / "slurm.conf"))
        monkeypatch.setenv("OPSCTL_ROOT", str(root))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(place / "config"))
        monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))
        monkeypatch.delenv("OPSCTL_SITE", raising=False)
        yield Site(root)
        for path in root.glob("*/"):
            if not path.is_symlink():
                os.chmod(path, 0o755)


needs_squeue = pytest.mark.skipif(not shutil.which("squeue"), reason="needs Slurm's commands")


@pytest.fixture
def train(tmp_path: Path) -> QueuedTrain:
    """A train with a queue that needs no Slurm."""
    return make_train(tmp_path)
