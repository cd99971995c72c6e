"""hold, release, cancel and edit on a real slurmctld."""

import itertools
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.base.errors import ConfigError, InputError
from opsctl.base.model import JobState
from opsctl.sandbox.cluster import Sandbox
from opsctl.state.events import Created, Edited, Held, HoldReleased, Submitted, Submitting
from tests.support.cases import read_cases
from tests.support.trains import Trains, until


@pytest.fixture
def full(slurm: Sandbox, trains: Trains, tmp_path: Path) -> Iterator[None]:
    """A job that occupies every node, so that a train waits for nodes and its age counts."""
    argv = ("sbatch", "--parsable", "--exclusive", "--nodes=4", "--time=5", "--wrap=sleep 300", "--output=/dev/null")
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=250, cwd=tmp_path)
    job_id = done.stdout.strip()
    queue = trains.app.slurm
    try:
        until(lambda: [job for job in queue.jobs() if job.id == job_id and job.state is JobState.RUNNING])
    except AssertionError:
        print(queue.jobs(), queue.nodes(), sep="\n")  # noqa: T201 (why Slurm cannot start it)
        raise
    yield
    queue.cancel(job_id)
    until(lambda: not [job for job in queue.jobs() if job.id == job_id and not job.state.is_final])


def test_held_train_keeps_its_age_and_is_released(trains: Trains, full: None) -> None:
    trains.opsctl("launch", trains.toml(extra=()))
    (array,) = trains.arrays()
    since = until(lambda: trains.rows()[0].accrued)
    text = trains.opsctl("hold", "t", "--reason", "look at the loss")
    assert text == f"t: held array {array}; its age in the queue is kept; opsctl release t lets it go on\n"
    assert all(job.is_held for job in trains.rows())
    assert trains.opsctl("release", "t") == f"t: released array {array}\n"
    assert not any(job.is_held for job in trains.rows())
    assert {job.accrued for job in trains.rows()} == {since}
    assert trains.kinds()[-2:] == [Held, HoldReleased]


def test_all_arrays_are_held_starting_with_the_last(trains: Trains) -> None:
    path = trains.toml(extra=("--begin=now+1hour",))
    first = json.loads(trains.opsctl("launch", path, "--json"))["array"]
    second = json.loads(trains.opsctl("launch", path, "--after", first, "--json"))["array"]
    assert json.loads(trains.opsctl("hold", "t", "--json")) == {"train": "t", "done": "held", "arrays": [second, first]}
    assert [job.is_held for job in trains.rows()] == [True, True]


@pytest.mark.parametrize("verb", ["hold", "release", "cancel"])
def test_dry_run_changes_nothing(trains: Trains, verb: str) -> None:
    trains.opsctl("launch", trains.toml(extra=("--begin=now+1hour",)))
    (array,) = trains.arrays()
    before = [(job.is_held, job.state) for job in trains.rows()]
    assert trains.opsctl(verb, "t", "--dry-run") == f"t: would {verb} array {array}\n"
    would = json.loads(trains.opsctl(verb, "t", "--dry-run", "--json"))
    assert (would["would"], would["arrays"]) == (verb, [array])
    assert [(job.is_held, job.state) for job in trains.rows()] == before
    assert trains.kinds() == [Created, Submitting, Submitted]


def test_release_adds_excluded_nodes(trains: Trains) -> None:
    trains.opsctl("launch", trains.toml(extra=("--begin=now+1hour",), exclude="node001"))
    (array,) = trains.arrays()
    trains.opsctl("hold", "t")
    text = trains.opsctl("release", "t", "--exclude", "node002", "--reason", "the disk is free")
    assert text == f"t: excluded now: node[001-002]; released array {array}\n"
    assert trains.app.slurm.excluded(array) == "node[001-002]"
    assert "released: the disk is free" in trains.opsctl("audit")


def test_exclusion_that_leaves_too_few_nodes_is_refused(trains: Trains) -> None:
    trains.opsctl("launch", trains.toml(nodes=2))
    (array,) = trains.arrays()
    error = trains.refusal("release", "t", "--exclude", "node[001-003]")
    assert error.message == f"with node[001-003] excluded 1 nodes are left, and array {array} needs 2"
    assert trains.rows()[0].is_held
    assert trains.refusal("release", "t", "--exclude", "node9").message == "no such nodes: node9"


def test_release_disarms_the_pause_switch_first(trains: Trains) -> None:
    trains.opsctl("launch", trains.toml())
    trains.opsctl("kill-switch", "arm", "t", "--pause", "--reason", "x")
    text = trains.opsctl("release", "t")
    assert text.endswith(f"t: the pause switch is disarmed; released array {trains.arrays().pop()}\n")
    assert not (trains.run().switches / "pause").exists()


def test_all_arrays_are_cancelled_and_the_run_directory_stays(trains: Trains) -> None:
    path = trains.toml()
    first = json.loads(trains.opsctl("launch", path, "--json"))["array"]
    second = json.loads(trains.opsctl("launch", path, "--after", first, "--json"))["array"]
    assert trains.opsctl("cancel", "t") == f"t: cancelled {second}, {first}\n"
    assert trains.arrays() == set()
    assert trains.run().exists


def test_single_task_is_cancelled_by_name(trains: Trains) -> None:
    trains.opsctl("launch", trains.toml())
    (array,) = trains.arrays()
    assert trains.opsctl("cancel", "t_2") == f"t: cancelled {array}_2\n"
    assert sorted(itertools.chain.from_iterable(job.tasks for job in trains.rows())) == [1, 3]
    assert trains.refusal("cancel", "t_9").message == "t: no task 9 is queued or running"


def test_train_name_that_looks_like_a_task_names_the_train(trains: Trains) -> None:
    trains.opsctl("launch", trains.toml("t"))
    trains.opsctl("launch", trains.toml("t_2"))
    trains.opsctl("cancel", "t_2")
    assert (trains.arrays("t_2"), len(trains.arrays("t"))) == (set(), 1)


@pytest.mark.parametrize(*read_cases(__file__, "command_without_queued_tasks_is_refused"))
def test_command_without_queued_tasks_is_refused(trains: Trains, verb: str, message: str) -> None:
    trains.opsctl("launch", trains.toml())
    trains.opsctl("cancel", "t")
    error = trains.refusal(verb, "t")
    assert (type(error), error.message) == (InputError, f"t: {message}")


def test_edit_takes_effect_with_the_next_task(trains: Trains) -> None:
    go = trains.place / "go"
    script = f'echo "$0" >>{trains.place}/words; until [ -e {go} ]; do sleep 0.1; done'
    more = "on_exit_0 = 'continue'"
    trains.opsctl("launch", trains.toml(command=("bash", "-c", script, "one"), more=more, extra=(), tasks=2))
    words = trains.place / "words"
    until(words.exists)
    changed = trains.toml(command=("bash", "-c", script, "two $(id)"), more=more, extra=(), tasks=2)
    text = trains.opsctl("edit", "t", changed, "--reason", "two words")
    assert text.endswith("t: the next task runs the changed files; the earlier ones are in revisions/0001\n")
    assert words.read_text() == "one\n"
    go.touch()
    until(lambda: words.read_text() == "one\ntwo $(id)\n")
    assert Edited in trains.kinds()
    assert "edited: two words" in trains.opsctl("audit")


def test_edit_of_frozen_settings_is_refused(trains: Trains) -> None:
    trains.opsctl("launch", trains.toml())
    error = trains.refusal("edit", "t", trains.toml(nodes=2, time_limit="9"))
    assert isinstance(error, ConfigError)
    assert error.problems == (
        "[slurm] nodes: 1 -> 2: frozen when the tasks were queued",
        "[slurm] time_limit: '5' -> '9': frozen when the tasks were queued",
    )


def test_edit_with_invalid_shell_changes_nothing(trains: Trains) -> None:
    trains.opsctl("launch", trains.toml())
    before = trains.run().body.read_text()
    error = trains.refusal("edit", "t", trains.toml(more="[setup]\nlines = ['case']"))
    assert "[setup] lines: bash: " in error.message
    assert trains.run().body.read_text() == before


def test_dry_edit_shows_the_difference(trains: Trains) -> None:
    trains.opsctl("launch", trains.toml())
    before = trains.run().body.read_text()
    text = trains.opsctl("edit", "t", trains.toml(command=("false",)), "--dry-run")
    assert "--- now/body.sh\n+++ next/body.sh\n" in text
    assert "-    true || code=$?\n+    false || code=$?\n" in text
    would = json.loads(trains.opsctl("edit", "t", trains.toml(command=("false",)), "--dry-run", "--json"))
    assert would == {"train": "t", "would_change": True, "diff": text.removesuffix("\n")}
    assert trains.run().body.read_text() == before


def test_edit_for_another_train_is_refused(trains: Trains) -> None:
    trains.opsctl("launch", trains.toml())
    assert trains.refusal("edit", "t", trains.toml("u")).problems == ("name: 'u', but the train is 't'",)


def test_edit_without_a_change_keeps_no_revision(trains: Trains) -> None:
    trains.opsctl("launch", trains.toml())
    assert trains.opsctl("edit", "t", trains.toml()) == "t: nothing has changed\n"
    assert list(trains.run().revisions.iterdir()) == []


def test_missing_script_is_refused_by_launch_preflight_and_edit(trains: Trains) -> None:
    missing = trains.place / "gone.py"
    broken = trains.toml(command=("python3", str(missing)))
    error = trains.refusal("launch", broken)
    assert (f"command: {missing} does not exist" in error.message, error.exit_code) == (True, 2)
    assert not trains.run().exists
    assert f"{missing} does not exist" in " ".join(trains.opsctl("preflight", broken).split())
    trains.opsctl("launch", trains.toml())
    error = trains.refusal("edit", "t", trains.toml(command=("python3", str(missing))))
    assert (f"command: {missing} does not exist" in error.message, error.exit_code) == (True, 2)
    assert trains.run().body.read_text().count("gone.py") == 0
