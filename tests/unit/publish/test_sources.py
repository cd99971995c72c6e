"""Publishing to a directory: changed files, ends of large logs, no checkpoints and no links out of the run."""

import pytest

from opsctl.base.errors import ConfigError, InputError, RunDirError
from opsctl.publish.publisher import Published
from opsctl.publish.staging import DeadlinePassed
from opsctl.settings.loader import parse
from opsctl.settings.publish import PublishTable
from tests.support.cases import read_cases
from tests.unit.publish.conftest import EVENTS, Site, git

ALL = {
    "logs/main_log.txt": b"iteration 1/ 9 |\niteration 2/ 9 |\n",
    "logs/pulse.log": b"all is well\n",
    "metrics/metrics.jsonl": b'{"step": 1}\n',
    "metrics/tensorboard/events.out.tfevents.1": EVENTS,
    "report.md": b"# gpt: 97 % effective\n",
    "report.html": b"<h1># gpt: 97 % effective\n",
    "dash.html": b"<h2># gpt: 97 % effective\n",
}


def actions(result: Published) -> dict[str, str]:
    return {item.name: item.action for item in result.items}


def why(result: Published, name: str) -> str:
    return next(item.why for item in result.items if item.name == name)


def test_logs_curves_and_report_are_published(site: Site) -> None:
    assert site.publish().shipped
    assert site.out() == ALL
    assert (site.path / "out/gpt/logs/main_log.txt").stat().st_mode & 0o777 == 0o644


def test_second_publish_writes_nothing(site: Site) -> None:
    site.publish()
    before = {path: path.stat().st_mtime_ns for path in (site.path / "out").rglob("*")}
    site.report = "# made anew, a minute later\n"
    repeated = site.publish()
    assert (repeated.shipped, set(actions(repeated).values())) == (False, {"unchanged"})
    assert {path: path.stat().st_mtime_ns for path in (site.path / "out").rglob("*")} == before


def test_only_changed_files_are_written(site: Site) -> None:
    site.publish()
    site.write("logs/pulse.log", "all is well\nand still is\n")
    result = actions(site.publish())
    assert [name for name, action in result.items() if action == "copied"] == ["logs/pulse.log"]


def test_report_is_rendered_again_when_the_log_grows(site: Site) -> None:
    site.publish()
    site.write("logs/main_log.txt", "iteration 3/ 9 |\n")
    site.report = "# gpt: 98 % effective\n"
    site.publish()
    assert site.out()["report.md"] == b"# gpt: 98 % effective\n"


def test_removed_copy_is_made_again(site: Site) -> None:
    site.publish()
    (site.path / "out/gpt/logs/pulse.log").unlink()
    site.publish()
    assert site.out() == ALL


def test_copy_of_a_removed_file_stays(site: Site) -> None:
    site.publish()
    (site.run.path / "logs/pulse.log").unlink()
    site.publish()
    assert site.out() == ALL


def test_end_of_a_large_log_is_published_with_a_note(site: Site) -> None:
    site.write("logs/main_log.txt", "".join(f"iteration {n}/ 99999 |\n" for n in range(10_000)))
    result = site.publish(max_file="1K")
    text = site.out()["logs/main_log.txt"].decode()
    first, *rest = text.splitlines()
    assert rest[-1] == "iteration 9999/ 99999 |"
    assert len(text) <= 1024 + 80
    size = (site.run.path / "logs/main_log.txt").stat().st_size
    assert first == f"[opsctl: about {size - sum(len(line) + 1 for line in rest)} bytes before this line are left out]"
    assert next(item.left_out for item in result.items if item.name == "logs/main_log.txt") == size - 1024


def test_large_binary_file_is_not_published(site: Site) -> None:
    result = site.publish(max_file="1K")
    name = "metrics/tensorboard/events.out.tfevents.1"
    assert (why(result, name), name in site.out()) == ("larger than 1024 bytes", False)


def test_unfinished_line_is_not_published(site: Site) -> None:
    site.write("logs/pulse.log", "whole\nhalf of a secr")
    site.publish()
    assert site.out()["logs/pulse.log"] == b"whole\n"


def test_checkpoints_are_never_published(site: Site) -> None:
    site.write("metrics/best/model.safetensors", b"weights")
    (site.run.path / "metrics/link.txt").symlink_to(site.run.path / "checkpoints/step-0000100/COMPLETE")
    result = site.publish(files=("**/*",))
    assert [name for name, data in site.out().items() if data in (b"weights", b"x")] == []
    for name in ("checkpoints/step-0000100/model.pt", "metrics/best/model.safetensors", "metrics/link.txt"):
        assert why(result, name) == "is part of a checkpoint"


def test_link_out_of_the_run_is_not_followed(site: Site) -> None:
    (site.path / "private.txt").write_text("mine\n")
    (site.run.path / "logs/a.txt").symlink_to(site.path / "private.txt")
    assert why(site.publish(), "logs/a.txt") == "points outside the run directory"
    assert "logs/a.txt" not in site.out()


def test_hidden_files_are_not_published(site: Site) -> None:
    site.write("logs/.main_log.txt.abcdefgh", "half\n")
    site.write("metrics/.git/config.txt", "half\n")
    site.publish(files=("logs/*", "logs/.*", "metrics/**/*"))
    assert site.out() == ALL


def test_target_inside_the_trains_is_refused(site: Site) -> None:
    for target in (site.run.path.parent, site.run.path, site.run.path / "logs", site.run.path.parent / "x"):
        with pytest.raises(InputError, match="lies inside the directory of the trains"):
            site.publish(path=str(target))
    assert site.run.main_log.read_bytes() == ALL["logs/main_log.txt"]


@pytest.mark.parametrize(*read_cases(__file__, "invalid_settings_are_refused"))
def test_invalid_settings_are_refused(settings: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(PublishTable, settings, "site.toml")
    assert why in "".join(caught.value.problems)


def test_dry_run_lists_actions_and_does_nothing(site: Site) -> None:
    planned = site.publisher().plan()
    assert actions(planned) == dict.fromkeys(ALL, "would copy")
    assert not (site.path / "out").exists()
    assert not (site.run.path / "publish").exists()
    site.publish()
    assert set(actions(site.publisher().plan()).values()) == {"unchanged"}


def test_next_call_continues_after_the_deadline(site: Site) -> None:
    class CountingClock(type(site.clock)):  # type: ignore[misc]  # the class of the real clock
        seconds = 0.0

        def monotonic(self) -> float:
            self.seconds += 1
            return self.seconds

    site.clock = CountingClock()
    with pytest.raises(DeadlinePassed, match="not published within 9 s; the next call continues from here"):
        site.publisher(seconds=9).publish()
    result = set(site.out())
    assert 0 < len(result) < len(ALL)
    repeated = actions(site.publish())
    assert {name for name, action in repeated.items() if action == "unchanged"} == result
    assert site.out() == ALL


@pytest.mark.parametrize("state", ["", "{", "[]", '{"rules": 1}'])
def test_broken_state_is_refused(site: Site, state: str) -> None:
    site.publish()
    (site.run.path / "publish" / "state.json").write_text(state)
    with pytest.raises(RunDirError, match=r"state.json: cannot be read"):
        site.publish()


def test_stale_temporary_files_are_removed(site: Site) -> None:
    target = site.path / "out/gpt/logs"
    target.mkdir(parents=True)
    (target / ".main_log.txt.a1b2c3d4").write_text("half")
    (target / ".mine").write_text("kept")
    site.publish()
    assert sorted(path.name for path in target.iterdir()) == [".mine", "main_log.txt", "pulse.log"]


def test_unwritable_target_is_an_error(site: Site) -> None:
    (site.path / "out").write_text("a file")
    with pytest.raises(RunDirError, match="out/gpt/"):
        site.publish()


@pytest.mark.parametrize("to", ["path", "git"])
def test_names_are_published_unchanged_or_refused(site: Site, to: str) -> None:
    name = "metrics/a b'c;$(touch x).txt"
    refused = {"a\nb": "its name is not plain text", "a" * 250: "its name is too long"}
    refused["hf_" + "a1B2" * 9] = "its name holds a secret"
    for bad in refused:
        site.write(f"metrics/{bad}.txt", "1\n")
    site.write(name, "1\n")
    git("init", "--quiet", "--bare", site.path / "remote.git")
    done = site.publish(to=to, remote=f"file://{site.path}/remote.git")
    assert {bad: why(done, f"metrics/{bad}.txt") for bad in refused} == refused
    assert done.shipped
    assert to == "git" or site.out()[name] == b"1\n"
