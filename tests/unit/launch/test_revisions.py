"""What the next attempt reads: compared, kept, swapped."""

import pytest

from opsctl.host.system import SystemClock, SystemRunner
from opsctl.launch.revisions import Files, diff, frozen_changes, note_edit, read_files, revisions, swap, syntax_problems
from opsctl.state.journal import EventKind, Journal
from opsctl.state.run_dir import RunDir

FIRST = Files(config="a = 1\n", trainer="{}\n", body="true\n")
SECOND = Files(config="a = 2\n", trainer='{"x": 1}\n', body="false\n")
FOREIGN = Files(config="a = 3\n", trainer="", body="run\n")


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "gpt")
    run.create()
    return run


def test_the_first_set_keeps_nothing(run):
    assert swap(run, FIRST) == ""
    assert (read_files(run), revisions(run)) == (FIRST, [])


def test_the_set_before_is_kept_whole(run):
    swap(run, FIRST)
    assert swap(run, SECOND) == "0001"
    assert (read_files(run), read_files(RunDir(run.revisions / "0001"))) == (SECOND, FIRST)


def test_the_same_set_again_changes_nothing(run):
    swap(run, FIRST)
    assert (swap(run, FIRST), revisions(run)) == ("", [])


def test_a_change_to_a_foreign_trainer_leaves_no_settings_of_the_embedded_one(run):
    swap(run, FIRST)
    swap(run, FOREIGN)
    assert not run.trainer_config.exists()
    assert read_files(run) == FOREIGN


def test_only_the_owner_may_write_the_body_and_all_may_read_it(run):
    swap(run, FIRST)
    assert run.body.stat().st_mode & 0o777 == 0o755
    assert run.config.stat().st_mode & 0o777 == 0o644


class Cut(KeyboardInterrupt):
    pass


@pytest.mark.parametrize("after", range(6))
def test_a_swap_that_is_killed_leaves_a_whole_set_or_a_mixed_one_of_whole_files_and_can_be_repeated(run, after):
    swap(run, FIRST)
    with pytest.raises(Cut):
        swap(_CutAfter(run.path, after), SECOND)
    there = read_files(run)
    for name in ("config", "trainer", "body"):
        assert getattr(there, name) in (getattr(FIRST, name), getattr(SECOND, name))
    swap(run, SECOND)
    assert read_files(run) == SECOND
    assert read_files(RunDir(revisions(run)[0])) == FIRST


def test_the_settings_that_a_body_reads_are_there_before_it(run):
    swap(run, FOREIGN)
    with pytest.raises(Cut):
        swap(_CutAfter(run.path, 3), SECOND)  # two files kept, one written
    assert (read_files(run).trainer, read_files(run).body) == (SECOND.trainer, FOREIGN.body)


class _CutAfter(RunDir):
    """A run directory whose process is killed after so many files were written."""

    def __init__(self, path, writes):
        super().__init__(path)
        object.__setattr__(self, "left", [writes])

    def write(self, path, data, *, mode=0o644):
        if self.left[0] == 0:
            raise Cut
        self.left[0] -= 1
        super().write(path, data, mode=mode)


def test_an_edit_is_journalled_once_also_when_it_was_cut_off_before(run):
    journal = Journal(run, SystemClock())
    swap(run, FIRST)
    swap(run, SECOND)  # and killed here
    note_edit(run, journal, swap(run, SECOND))
    note_edit(run, journal, swap(run, SECOND))
    assert [(event.kind, event.data) for event in journal.events()] == [(EventKind.EDITED, {"revision": "0001"})]


def test_what_sbatch_has_frozen_is_named_with_its_old_and_new_value(train):
    assert frozen_changes(train(), train(nodes=4, time_limit="60")) == [
        "[slurm] nodes: 2 -> 4: frozen when the tasks were queued",
        "[slurm] time_limit: '30' -> '60': frozen when the tasks were queued",
    ]


def test_what_is_not_slurms_is_not_frozen(train):
    assert frozen_changes(train(), train({"environment": {"A": "b"}, "command": ["false"]})) == []


def test_a_difference_reads_like_diff():
    assert diff(FIRST, Files(config="a = 2\n", trainer="{}\n", body="true\n")) == (
        "--- now/train.toml\n+++ next/train.toml\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
    )
    assert diff(FIRST, FIRST) == ""


def test_what_bash_cannot_read_is_said_before_anything_is_submitted():
    found = syntax_problems("if true; then\n", SystemRunner())
    assert found
    assert all(each.startswith("[setup] lines: bash: ") for each in found)
    assert syntax_problems("true\n", SystemRunner()) == []


@pytest.mark.parametrize("after", range(1, 6))
def test_a_swap_that_was_killed_and_is_done_again_keeps_the_set_before_alone(run, after):
    swap(run, FIRST)
    with pytest.raises(Cut):
        swap(_CutAfter(run.path, after), SECOND)
    swap(run, SECOND)
    assert [read_files(RunDir(path)) for path in revisions(run)] == [FIRST]
