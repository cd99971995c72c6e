"""What is published to a directory: what has changed, whole or its end, never a checkpoint, never what leads out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from opsctl.errors import InputError, RunDirError
from opsctl.publish.publisher import Published
from opsctl.publish.staging import DeadlinePassed
from opsctl.settings.publish import PublishTable
from tests.unit.publish.conftest import EVENTS, Site

ALL = {
    "logs/main_log.txt": b"iteration 1/ 9 |\niteration 2/ 9 |\n",
    "logs/pulse.log": b"all is well\n",
    "metrics/metrics.jsonl": b'{"step": 1}\n',
    "metrics/tensorboard/events.out.tfevents.1": EVENTS,
    "report.md": b"# gpt: 97 % effective\n",
    "report.html": b"<h1># gpt: 97 % effective\n",
}


def actions(done: Published) -> dict[str, str]:
    return {item.name: item.action for item in done.items}


def why(done: Published, name: str) -> str:
    return next(item.why for item in done.items if item.name == name)


def test_logs_curves_and_the_report_are_published_and_nothing_else(site: Site) -> None:
    assert site.publish().shipped
    assert site.out() == ALL
    assert (site.path / "out/gpt/logs/main_log.txt").stat().st_mode & 0o777 == 0o644


def test_a_second_time_nothing_is_written(site: Site) -> None:
    site.publish()
    before = {path: path.stat().st_mtime_ns for path in (site.path / "out").rglob("*")}
    site.report = "# made anew, a minute later\n"
    again = site.publish()
    assert (again.shipped, set(actions(again).values())) == (False, {"unchanged"})
    assert {path: path.stat().st_mtime_ns for path in (site.path / "out").rglob("*")} == before


def test_only_what_has_changed_is_written(site: Site) -> None:
    site.publish()
    site.write("logs/pulse.log", "all is well\nand still is\n")
    done = actions(site.publish())
    assert [name for name, action in done.items() if action == "copied"] == ["logs/pulse.log"]


def test_the_report_is_made_anew_when_the_log_has_grown(site: Site) -> None:
    site.publish()
    site.write("logs/main_log.txt", "iteration 3/ 9 |\n")
    site.report = "# gpt: 98 % effective\n"
    site.publish()
    assert site.out()["report.md"] == b"# gpt: 98 % effective\n"


def test_a_copy_that_somebody_removed_is_made_again(site: Site) -> None:
    site.publish()
    (site.path / "out/gpt/logs/pulse.log").unlink()
    site.publish()
    assert site.out() == ALL


def test_what_is_gone_here_stays_published(site: Site) -> None:
    site.publish()
    (site.run.path / "logs/pulse.log").unlink()
    site.publish()
    assert site.out() == ALL


def test_of_a_large_log_the_end_is_published_and_the_gap_is_named(site: Site) -> None:
    site.write("logs/main_log.txt", "".join(f"iteration {n}/ 99999 |\n" for n in range(10_000)))
    done = site.publish(max_file="1K")
    text = site.out()["logs/main_log.txt"].decode()
    first, *rest = text.splitlines()
    assert rest[-1] == "iteration 9999/ 99999 |"
    assert len(text) <= 1024 + 80
    size = (site.run.path / "logs/main_log.txt").stat().st_size
    assert first == f"[opsctl: about {size - sum(len(line) + 1 for line in rest)} bytes before this line are left out]"
    assert next(item.left_out for item in done.items if item.name == "logs/main_log.txt") == size - 1024


def test_large_binary_file_is_not_published(site: Site) -> None:
    done = site.publish(max_file="1K")
    name = "metrics/tensorboard/events.out.tfevents.1"
    assert (why(done, name), name in site.out()) == ("larger than 1024 bytes", False)


def test_a_last_line_without_an_end_waits_for_it(site: Site) -> None:
    site.write("logs/pulse.log", "whole\nhalf of a secr")
    site.publish()
    assert site.out()["logs/pulse.log"] == b"whole\n"


def test_checkpoints_are_not_published_whatever_is_asked_for(site: Site) -> None:
    site.write("metrics/best/model.safetensors", b"weights")
    (site.run.path / "metrics/link.txt").symlink_to(site.run.path / "checkpoints/step-0000100/COMPLETE")
    done = site.publish(files=("**/*",))
    assert [name for name, data in site.out().items() if data in (b"weights", b"x")] == []
    for name in ("checkpoints/step-0000100/model.pt", "metrics/best/model.safetensors", "metrics/link.txt"):
        assert why(done, name) == "is part of a checkpoint"


def test_a_link_that_leads_out_is_not_followed(site: Site) -> None:
    (site.path / "private.txt").write_text("mine\n")
    (site.run.path / "logs/a.txt").symlink_to(site.path / "private.txt")
    assert why(site.publish(), "logs/a.txt") == "points outside the run directory"
    assert "logs/a.txt" not in site.out()


def test_what_is_hidden_is_nobody_elses_business(site: Site) -> None:
    site.write("logs/.main_log.txt.abcdefgh", "half\n")
    site.write("metrics/.git/config.txt", "half\n")
    site.publish(files=("logs/*", "logs/.*", "metrics/**/*"))
    assert site.out() == ALL


def test_the_place_is_never_among_the_trains(site: Site) -> None:
    for place in (site.run.path.parent, site.run.path, site.run.path / "logs", site.run.path.parent / "x"):
        with pytest.raises(InputError, match="lies inside the directory of the trains"):
            site.publish(path=str(place))
    assert site.run.main_log.read_bytes() == ALL["logs/main_log.txt"]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"to": "path"}, "to = path needs `path`"),
        ({"to": "git"}, "to = git needs `remote`"),
        ({"to": "command"}, "to = command needs `command`"),
        ({"to": "path", "path": "out"}, "'out' is relative: an absolute path is needed"),
        ({"to": "git", "remote": "/x", "branch": "a..b"}, "'a..b' is not a branch name"),
        ({"files": ("../x",)}, "is not a pattern of files of a run directory"),
        ({"files": ("/etc/*",)}, "is not a pattern of files of a run directory"),
        ({"files": ("checkpoints/*",)}, "checkpoints are never published"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(why)):
        PublishTable.model_validate(settings)


def test_a_dry_run_says_what_would_be_done_and_does_nothing(site: Site) -> None:
    planned = site.publisher().plan()
    assert actions(planned) == dict.fromkeys(ALL, "would copy")
    assert not (site.path / "out").exists()
    assert not (site.run.path / "publish").exists()
    site.publish()
    assert set(actions(site.publisher().plan()).values()) == {"unchanged"}


def test_next_call_continues_after_the_deadline(site: Site) -> None:
    class Hands(type(site.clock)):  # type: ignore[misc]  # the class of the real one
        seconds = 0.0

        def monotonic(self) -> float:
            self.seconds += 1
            return self.seconds

    site.clock = Hands()
    with pytest.raises(DeadlinePassed, match="not published within 9 s; the next call continues from here"):
        site.publisher(seconds=9).publish()
    done = set(site.out())
    assert 0 < len(done) < len(ALL)
    again = actions(site.publish())
    assert {name for name, action in again.items() if action == "unchanged"} == done
    assert site.out() == ALL


@pytest.mark.parametrize("state", ["", "{", "[]", '{"rules": 1}'])
def test_a_state_that_cannot_be_understood_only_costs_copying_again(site: Site, state: str) -> None:
    site.publish()
    (site.run.path / "publish" / "state.json").write_text(state)
    assert set(actions(site.publish()).values()) == {"copied"}
    assert site.out() == ALL


def test_what_killed_writers_left_is_swept_away(site: Site) -> None:
    place = site.path / "out/gpt/logs"
    place.mkdir(parents=True)
    (place / ".main_log.txt.a1b2c3d4").write_text("half")
    (place / ".mine").write_text("kept")
    site.publish()
    assert sorted(path.name for path in place.iterdir()) == [".mine", "main_log.txt", "pulse.log"]


def test_a_place_that_cannot_be_written_is_an_expected_failure(site: Site) -> None:
    (site.path / "out").write_text("a file")
    with pytest.raises(RunDirError, match="out/gpt/"):
        site.publish()


def test_names_are_published_as_they_are(site: Site) -> None:
    name = "metrics/a b'c;$(touch x).txt"
    site.write(name, "1\n")
    site.publish()
    assert site.out()[name] == b"1\n"
    bad = Path(str(site.run.path) + "/metrics/a\nb.txt")
    bad.write_text("1\n")
    assert why(site.publish(), "metrics/a\nb.txt") == "its name is not plain text"
