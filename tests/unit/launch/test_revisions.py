"""Files that the next attempt reads: comparison, replacement and earlier revisions."""

import pytest

from opsctl.host.system import SystemClock, SystemRunner
from opsctl.launch.revisions import Files, diff, frozen_changes, note_edit, read_files, revisions, swap, syntax_problems
from opsctl.state.events import Edited
from opsctl.state.journal import Journal
from opsctl.state.run_dir import RunDir

FIRST = Files(config="a = 1\n", trainer="{}\n", body="true\n")
SECOND = Files(config="a = 2\n", trainer='{"x": 1}\n', body="false\n")
FOREIGN = Files(config="a = 3\n", trainer="", body="run\n")


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "gpt")
    run.create()
    return run


def test_first_set_stores_no_revision(run):
    assert swap(run, FIRST) == ""
    assert (read_files(run), revisions(run)) == (FIRST, [])


def test_previous_set_is_stored(run):
    swap(run, FIRST)
    assert swap(run, SECOND) == "0001"
    assert (read_files(run), read_files(RunDir(run.revisions / "0001"))) == (SECOND, FIRST)


def test_same_set_changes_nothing(run):
    swap(run, FIRST)
    assert (swap(run, FIRST), revisions(run)) == ("", [])


def test_change_to_a_foreign_trainer_removes_trainer_json(run):
    swap(run, FIRST)
    swap(run, FOREIGN)
    assert not run.trainer_config.exists()
    assert read_files(run) == FOREIGN


def test_modes_of_body_and_config(run):
    swap(run, FIRST)
    assert run.body.stat().st_mode & 0o777 == 0o755
    assert run.config.stat().st_mode & 0o777 == 0o644


class Killed(KeyboardInterrupt):
    pass


@pytest.mark.parametrize("after", range(6))
def test_killed_swap_leaves_whole_files_and_can_be_repeated(run, after):
    swap(run, FIRST)
    with pytest.raises(Killed):
        swap(KilledAfter(run.path, after), SECOND)
    current = read_files(run)
    for name in ("config", "trainer", "body"):
        assert getattr(current, name) in (getattr(FIRST, name), getattr(SECOND, name))
    swap(run, SECOND)
    assert read_files(run) == SECOND
    assert read_files(RunDir(revisions(run)[0])) == FIRST


def test_settings_are_written_before_the_body(run):
    swap(run, FOREIGN)
    with pytest.raises(Killed):
        swap(KilledAfter(run.path, 3), SECOND)  # two files are stored and one is written
    assert (read_files(run).trainer, read_files(run).body) == (SECOND.trainer, FOREIGN.body)


class KilledAfter(RunDir):
    """A run directory whose process is killed after `writes` files."""

    def __init__(self, path, writes):
        super().__init__(path)
        object.__setattr__(self, "left", [writes])

    def write(self, path, data, *, mode=0o644):
        if self.left[0] == 0:
            raise Killed
        self.left[0] -= 1
        super().write(path, data, mode=mode)


def test_interrupted_edit_is_journalled_once(run):
    journal = Journal(run, SystemClock())
    swap(run, FIRST)
    swap(run, SECOND)  # killed before the journal entry
    note_edit(run, journal, swap(run, SECOND))
    note_edit(run, journal, swap(run, SECOND))
    assert [(type(event), event.revision) for event in journal.events()] == [(Edited, "0001")]


def test_frozen_settings_are_named_with_both_values(train):
    assert frozen_changes(train(), train(nodes=4, time_limit="60")) == [
        "[slurm] nodes: 2 -> 4: frozen when the tasks were queued",
        "[slurm] time_limit: '30' -> '60': frozen when the tasks were queued",
    ]


def test_settings_outside_slurm_are_not_frozen(train):
    assert frozen_changes(train(), train({"environment": {"A": "b"}, "command": ["false"]})) == []


def test_difference_has_the_format_of_diff():
    assert diff(FIRST, Files(config="a = 2\n", trainer="{}\n", body="true\n")) == (
        "--- now/train.toml\n+++ next/train.toml\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
    )
    assert diff(FIRST, FIRST) == ""


def test_syntax_errors_of_the_body_are_reported():
    problems = syntax_problems("if true; then\n", SystemRunner())
    assert problems
    assert all(problem.startswith("[setup] lines: bash: ") for problem in problems)
    assert syntax_problems("true\n", SystemRunner()) == []


@pytest.mark.parametrize("after", range(1, 6))
def test_repeated_swap_stores_the_previous_set_once(run, after):
    swap(run, FIRST)
    with pytest.raises(Killed):
        swap(KilledAfter(run.path, after), SECOND)
    swap(run, SECOND)
    assert [read_files(RunDir(path)) for path in revisions(run)] == [FIRST]
