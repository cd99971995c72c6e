"""Replace opsctl below a running train by a version with a newer format of its files, and go back."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.conftest import Installed

TRAIN = """name = "long"
command = ["bash", "-c", '''
for ((step = 1000 * SLURM_ARRAY_TASK_ID; step <= 9999; step++)); do
  echo " iteration $step/9999 | elapsed time per iteration (ms): 200.0 | lm loss: 2.00 |"
  sleep 0.2
  if [ -e end-$SLURM_ARRAY_TASK_ID ]; then exit 0; fi
done
''']
[slurm]
nodes = 2
time_limit = "10"
tasks = 3
[guard]
on_exit_0 = "continue"
poll_seconds = 0.2
"""
SCRIPT = """set -eux
exchange() {
  mv $PACKAGES/opsctl $PACKAGES/away
  mv $PACKAGES/other $PACKAGES/opsctl
  mv $PACKAGES/away $PACKAGES/other
}
await() { until opsctl logs long 2>/dev/null | grep -q "iteration $1[0-9][0-9][0-9]/"; do sleep 0.3; done; }
look() {
  opsctl status long --json >$1.status.json
  opsctl report long --json >$1.report.json
  [ $1 = 1 ] || opsctl why long --json >$1.why.json
}
opsctl launch train.toml
await 1
exchange
look 1
touch $RUN/end-1
await 2
exchange
look 2
touch $RUN/end-2
await 3
look 3
opsctl cancel long
"""


@pytest.mark.long
def test_train_survives_an_upgrade_and_the_way_back(install: Callable[[], Installed], tmp_path: Path) -> None:
    installed = install()
    [packages] = (installed.bin.parent / "lib").glob("python*/site-packages")
    newer = packages / "other"
    shutil.copytree(packages / "opsctl", newer)
    for name, old, new in (("__init__.py", '"0.', '"9.'), ("state/records.py", "FORMAT = 1", "FORMAT = 2")):
        text = (newer / name).read_text()
        assert old in text
        (newer / name).write_text(text.replace(old, new))
    (tmp_path / "train.toml").write_text(TRAIN)
    words = ("sandbox", "run", "--nodes", "2", "--fast", "--", "bash", "-c", SCRIPT)
    run = installed.home / "trains" / "long"
    installed.run("opsctl", *words, cwd=tmp_path, PACKAGES=str(packages), RUN=str(run))
    starts = [json.loads((run / "attempts" / f"1_{task}.0" / "start.json").read_text()) for task in (1, 2, 3)]
    assert [(start["opsctl"][:2], start["format"]) for start in starts] == [("0.", 1), ("9.", 2), ("0.", 1)]
    for place in (1, 2, 3):
        [status] = json.loads((tmp_path / f"{place}.status.json").read_text())
        assert (status["state"], status["notes"]) == ("running", [])
        report = json.loads((tmp_path / f"{place}.report.json").read_text())
        assert [attempt["outcome"] for attempt in report["attempts"]] == ["exited"] * (place - 1) + [""]
    whys = [json.loads((tmp_path / f"{place}.why.json").read_text()) for place in (2, 3)]
    assert [why["attempt"] for why in whys] == ["1_1.0", "1_2.0"]
