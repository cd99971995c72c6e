"""`opsctl publish` as it is typed: which trains, by whose rules, with which secrets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from opsctl.app import build
from opsctl.cli import cli
from opsctl.errors import OpsctlError
from opsctl.state.run_dir import RunDir

WEBHOOK = "https://hooks.example.org/services/T0001/B0002/zYxWvUtSrQpOnMlKjIhG"
TRAIN = 'name = "{name}"\ncommand = ["true"]\n[slurm]\nnodes = 1\ntime_limit = "5"\n{more}'


class Place:
    def __init__(self, path: Path) -> None:
        self.path, self.out = path, path / "out"
        self.site = path / "site.toml"
        (path / "webhook").write_text(WEBHOOK)
        self.runs = [self.train(name) for name in ("one", "two")]
        self.settings(f'[publish]\nto = "path"\npath = "{self.out}"\n')

    def settings(self, more: str) -> None:
        channel = f'[alerts.channels.chat]\nkind = "slack"\nwebhook_file = "{self.path}/webhook"\n'
        self.site.write_text(f'root = "{self.path}/trains"\ntrust_parents = true\n{more}\n{channel}')

    def train(self, name: str, more: str = "") -> RunDir:
        run = RunDir(self.path / "trains" / name)
        run.create()
        run.config.write_text(TRAIN.format(name=name, more=more))
        run.body.write_text("")
        run.wrapper.write_text("")
        run.main_log.write_text(f"posting to {WEBHOOK}\nwith {WEBHOOK.rpartition('/')[2]}\n")
        return run

    def opsctl(self, *words: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, ["publish", *words], obj=build(self.site), standalone_mode=False)
        if done.exception:
            raise done.exception
        return done.return_value, done.output

    def log(self, name: str) -> str:
        return (self.out / name / "logs/main_log.txt").read_text()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_without_settings_nothing_is_published_and_nothing_is_wrong(place: Place) -> None:
    place.settings("")
    assert place.opsctl() == (0, "nothing is published: there is no [publish] in site.toml or train.toml\n")
    assert not (place.runs[0].path / "publish").exists()


def test_a_place_without_how_is_told_and_not_passed_over(place: Place) -> None:
    place.settings('[publish]\npath = "/somewhere"\n')
    with pytest.raises(OpsctlError, match="to is missing; by the other keys: path"):
        place.opsctl()


def test_every_train_is_published_without_the_webhook_that_the_alerts_use(place: Place) -> None:
    code, text = place.opsctl()
    assert code == 0
    assert f"one: copied 1 file, 24 B, to {place.out}/one; 0 unchanged" in text
    assert "  logs/main_log.txt: 24 B, 2 secrets struck out\n" in text
    assert [place.log(name) for name in ("one", "two")] == ["posting to ***\nwith ***\n"] * 2


def test_a_webhook_that_cannot_be_read_publishes_nothing(place: Place) -> None:
    (place.path / "webhook").unlink()
    code, text = place.opsctl()
    assert code == 1
    assert text.count("not published: nothing is published: a configured secret cannot be read: webhook_file") == 2
    assert not place.out.exists()


def test_a_trains_own_rules_go_before_the_sites(place: Place) -> None:
    place.train("two", more=f'[publish]\nto = "path"\npath = "{place.path}/elsewhere"\n')
    place.opsctl()
    assert (place.out / "one").exists()
    assert not (place.out / "two").exists()
    assert (place.path / "elsewhere/two/logs/main_log.txt").exists()


def test_a_train_that_cannot_be_published_stops_no_other(place: Place) -> None:
    place.runs[0].config.write_text("nonsense")
    code, text = place.opsctl()
    assert code == 2
    assert "one: not published: " in text
    assert place.log("two")


def test_what_others_could_have_written_names_no_command(place: Place) -> None:
    run = place.train("two", more='[publish]\nto = "command"\ncommand = "touch {source}/../../../hacked"\n')
    run.config.chmod(0o666)
    code, text = place.opsctl("two")
    assert code == 1
    assert "others could have written what would be run here as you" in text
    assert not list(place.path.rglob("hacked"))


def test_a_dry_run_and_json(place: Place) -> None:
    _, text = place.opsctl("one", "--dry-run")
    assert text.startswith("one: would copy 3 files")
    assert "  report.html: rendered when copied\n" in text
    assert not place.out.exists()
    given = json.loads(place.opsctl("--json")[1])
    assert [(each["train"], each["shipped"]) for each in given["published"]] == [("one", True), ("two", True)]
    assert given["failed"] == {}


def test_one_that_was_not_published_for_long_comes_first(place: Place) -> None:
    place.opsctl("one")
    given = json.loads(place.opsctl("--json")[1])
    assert [each["train"] for each in given["published"]] == ["two", "one"]
