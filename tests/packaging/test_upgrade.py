"""Replace opsctl below a running train by a version with a newer format of its files, and go back."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.conftest import Installed

TRAIN = Path(__file__).with_name("upgraded_train.toml").read_text()
SCRIPT = Path(__file__).with_suffix(".sh").read_text()


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
