"""`opsctl publish` through the command line: choice of trains, precedence of rules, secrets."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from opsctl.app import build
from opsctl.base.errors import OpsctlError
from opsctl.cli import cli
from opsctl.state.run_dir import RunDir

WEBHOOK = "https://hooks.example.org/services/T0001/B0002/zYxWvUtSrQpOnMlKjIhG"
TRAIN = 'name = "{name}"\ncommand = ["true"]\n[slurm]\nnodes = 1\ntime_limit = "5"\n{more}'


class PublishSite:
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
def publish_site(tmp_path: Path) -> PublishSite:
    return PublishSite(tmp_path)


def test_nothing_is_published_without_settings(publish_site: PublishSite) -> None:
    publish_site.settings("")
    assert publish_site.opsctl() == (0, "nothing is published: there is no [publish] in site.toml or train.toml\n")
    assert not (publish_site.runs[0].path / "publish").exists()


def test_publish_table_needs_to(publish_site: PublishSite) -> None:
    publish_site.settings('[publish]\npath = "/somewhere"\n')
    with pytest.raises(OpsctlError, match="to is missing; by the other keys: path"):
        publish_site.opsctl()


def test_webhook_of_the_alerts_is_redacted(publish_site: PublishSite) -> None:
    code, text = publish_site.opsctl()
    assert code == 0
    assert f"one: copied 1 file, 24 B, to {publish_site.out}/one; 0 unchanged" in text
    assert "  logs/main_log.txt: 24 B, 2 secrets struck out\n" in text
    assert [publish_site.log(name) for name in ("one", "two")] == ["posting to ***\nwith ***\n"] * 2


def test_unreadable_webhook_publishes_nothing(publish_site: PublishSite) -> None:
    (publish_site.path / "webhook").unlink()
    code, text = publish_site.opsctl()
    assert code == 1
    assert text.count("not published: nothing is published: a configured secret cannot be read: webhook_file") == 2
    assert not publish_site.out.exists()


def test_rules_of_the_train_override_the_site(publish_site: PublishSite) -> None:
    publish_site.train("two", more=f'[publish]\nto = "path"\npath = "{publish_site.path}/elsewhere"\n')
    publish_site.opsctl()
    assert (publish_site.out / "one").exists()
    assert not (publish_site.out / "two").exists()
    assert (publish_site.path / "elsewhere/two/logs/main_log.txt").exists()


def test_failed_train_does_not_stop_the_others(publish_site: PublishSite) -> None:
    publish_site.runs[0].config.write_text("nonsense")
    code, text = publish_site.opsctl()
    assert code == 2
    assert "one: not published: " in text
    assert publish_site.log("two")


def test_command_writable_by_others_is_not_run(publish_site: PublishSite) -> None:
    run = publish_site.train("two", more='[publish]\nto = "command"\ncommand = "touch {source}/../../../hacked"\n')
    run.config.chmod(0o666)
    code, text = publish_site.opsctl("two")
    assert code == 1
    assert "others could have written what would be run here as you" in text
    assert not list(publish_site.path.rglob("hacked"))


def test_dry_run_and_json(publish_site: PublishSite) -> None:
    _, text = publish_site.opsctl("one", "--dry-run")
    assert text.startswith("one: would copy 4 files")
    assert "  report.html: rendered when copied\n" in text
    assert not publish_site.out.exists()
    result = json.loads(publish_site.opsctl("--json")[1])
    assert [(row["train"], row["shipped"]) for row in result["published"]] == [("one", True), ("two", True)]
    assert result["failed"] == {}


def test_least_recently_published_comes_first(publish_site: PublishSite) -> None:
    publish_site.opsctl("one")
    result = json.loads(publish_site.opsctl("--json")[1])
    assert [row["train"] for row in result["published"]] == ["two", "one"]
