"""The daemon driver of cron, in its own process with APScheduler. These tests need no Slurm."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.app import build
from opsctl.cron.cron_dir import read_ledger, read_selected
from tests.support.trains import until


class Daemons:
    def __init__(self, path: Path) -> None:
        self.site = path / "site.toml"
        (path / "cron").mkdir()
        (path / "cron" / "crontab").write_text("* * * * * echo >>$HOME/log\n")
        self.site.write_text(
            f'root = "{path}/trains"\ntrust_parents = true\n[cron]\ndirectory = "{path}/cron"\ntick_seconds = 1\n'
        )
        self.place = build(self.site).cron.place
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *words: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-P", "-m", "opsctl", "--site", str(self.site), "cron", "start", "daemon", *words]
        self.started.append(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return self.started[-1]

    @property
    def ticks(self) -> int:
        return len(read_ledger(self.place).ticks)


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    made = Daemons(tmp_path)
    yield made
    for popen in made.started:
        popen.kill()
        popen.communicate()


def test_daemon_ticks_alone_until_sigterm(daemons: Daemons) -> None:
    first = daemons.start()
    until(lambda: daemons.ticks >= 2)
    second = daemons.start("--json")
    out, text = second.communicate(timeout=250)
    assert f"cron is driven already, by the daemon driver with pid {first.pid} on" in text
    assert out == ""
    assert second.returncode == 2
    first.send_signal(signal.SIGTERM)
    text = first.communicate(timeout=250)[1]
    lines = [line for line in text.splitlines() if "echo" not in line]  # the job, if a minute begins meanwhile
    assert [line.partition("Z ")[2] for line in lines] == [
        "INFO    cron      ticking every 1 s until Ctrl-C",
        "INFO    cron      leaving after the current tick",
    ]
    assert first.returncode == 0
    assert read_selected(daemons.place) is None


def test_daemon_starts_after_a_killed_one_and_is_stopped(daemons: Daemons) -> None:
    first = daemons.start()
    until(lambda: read_selected(daemons.place))
    first.kill()
    first.wait()
    second = daemons.start("--json")
    until(lambda: getattr(read_selected(daemons.place), "pid", None) == second.pid)
    argv = [sys.executable, "-P", "-m", "opsctl", "--site", str(daemons.site), "cron", "stop", "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=250, check=False)
    assert json.loads(done.stdout) == {
        "driver": "daemon",
        "done": f"asked the daemon with pid {second.pid} to leave",
        "cancelled": [],
    }
    begun = json.loads(second.communicate(timeout=250)[0])
    assert begun == {"driver": "daemon", "every": 1, "refused": {}, "pid": second.pid}
    assert second.returncode == 0
