"""The shipped publish script, run by a cron tick, with a webhook planted in a log. This test needs no Slurm."""

import json
import subprocess
import sys
from pathlib import Path

from opsctl.cron.crontab import shipped
from opsctl.state.run_dir import RunDir

WEBHOOK = "https://hooks.example.org/services/T0001/B0002/zYxWvUtSrQpOnMlKjIhG"


def test_tick_publishes_without_secrets(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "trains" / "gpt")
    run.create()
    run.config.write_text('name = "gpt"\ncommand = ["true"]\n[slurm]\nnodes = 1\ntime_limit = "5"\n')
    run.body.write_text("")
    run.wrapper.write_text("")
    run.main_log.write_text(f"iteration 1/ 9 |\nposted to {WEBHOOK}\n")
    (tmp_path / "webhook").write_text(WEBHOOK)
    (tmp_path / "cron").mkdir()
    (tmp_path / "cron" / "crontab").write_text(f"* * * * * {shipped()}/cron.hourly/publish\n")
    site = tmp_path / "site.toml"
    site.write_text(
        f'root = "{tmp_path}/trains"\ntrust_parents = true\n'
        f'[cron]\ndirectory = "{tmp_path}/cron"\n[publish]\nto = "path"\npath = "{tmp_path}/out"\n'
        f'[alerts.channels.chat]\nkind = "slack"\nwebhook_file = "{tmp_path}/webhook"\n'
    )
    argv = [sys.executable, "-P", "-m", "opsctl", "--site", str(site), "cron", "tick", "--json"]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=250)
    runs = json.loads(done.stdout)
    assert [run["result"] for run in runs.values()] == ["ok"], done.stderr
    assert (tmp_path / "out/gpt/logs/main_log.txt").read_text() == "iteration 1/ 9 |\nposted to ***\n"
    lines = [path.read_text(errors="replace") for path in (tmp_path / "trains" / ".site").rglob("*") if path.is_file()]
    assert not [text for text in lines if "zYxWvUtSrQpOnMlKjIhG" in text]
