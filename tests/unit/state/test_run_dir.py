"""Run directories: layout, modes and trust."""

import grp
import os
import stat
import tempfile
from pathlib import Path

import pytest

from opsctl.base.errors import InputError, RunDirError
from opsctl.state.run_dir import RunDir, all_trains, check_trusted, find, may_act
from tests.support.trains import as_user

NOBODY = 65534


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "root" / "gpt")
    run.create()
    return run


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_run_dir_may_be_created_twice(run):
    run.write(run.config, "x")
    run.create()
    assert run.config.read_text() == "x"


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_only_the_owner_may_write_despite_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        run = RunDir(tmp_path / "new" / "root" / "gpt")
        run.create()
    finally:
        os.umask(before)
    check_trusted([run.path / name for name in ("journal", "logs", "attempts")], root=tmp_path)
    assert mode(run.switches) & 0o022 == 0


def test_switches_and_requests_belong_to_the_group(tmp_path):
    run = RunDir(tmp_path / "gpt")
    run.create(grp.getgrgid(os.getegid()).gr_name)
    assert [mode(path) for path in (run.switches, run.requests)] == [0o2775, 0o2775]
    assert mode(run.journal) == 0o755


def test_group_reaches_the_switches_despite_the_umask(tmp_path):
    before = os.umask(0o077)
    try:
        run = RunDir(tmp_path / "root" / "gpt")
        run.create(grp.getgrgid(os.getegid()).gr_name)
    finally:
        os.umask(before)
    assert [mode(path) for path in (run.path.parent, run.path, run.journal)] == [0o755, 0o755, 0o755]


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_attempt_directory_has_the_mode_of_the_train(run, umask):
    before = os.umask(umask)
    try:
        run.make(run.attempt("12_1.0").path)
        run.path.chmod(0o700)
        run.make(run.attempt("12_2.0").path)
    finally:
        os.umask(before)
    assert [mode(run.attempt(name).path) for name in ("12_1.0", "12_2.0")] == [0o755, 0o700]


def test_unknown_group_is_named(tmp_path):
    with pytest.raises(InputError, match="group 'nosuchgroup': no such group"):
        RunDir(tmp_path / "gpt").create("nosuchgroup")


def test_group_of_others_is_refused():
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        train = RunDir(Path(name) / "gpt")
        if os.geteuid() == 0:
            text = as_user(NOBODY, NOBODY, lambda: str(train.create("root")))
        else:
            with pytest.raises(InputError) as caught:
                train.create("root")
            text = f"{caught.value.message} | {caught.value.hint}"
        assert "group 'root': you are not a member | log in again after you were added" in text


def test_unwritable_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirError, match="Not a directory") as caught:
        RunDir(tmp_path / "file" / "gpt").create()
    assert caught.value.hint == "is it there, may you write there, and is there space left?"


def test_directory_writable_by_others_is_not_trusted(run):
    run.journal.chmod(0o775)
    with pytest.raises(RunDirError) as caught:
        check_trusted([run.journal], root=run.path)
    assert caught.value.message == (
        f"others could have written what would be run here as you:\n  {run.journal}: mode 0775 lets others write"
    )


def test_parents_are_checked_up_to_the_root(run):
    run.path.parent.chmod(0o777)
    check_trusted([run.journal], root=run.path)
    with pytest.raises(RunDirError, match="root: mode 0777 lets others write"):
        check_trusted([run.journal], root=run.path.parent)


def test_sticky_directory_is_trusted(run):
    run.path.parent.chmod(0o1777)
    check_trusted([run.journal], root=run.path.parent)


@pytest.mark.root
def test_file_of_another_user_is_not_trusted(run):
    os.chown(run.journal, 12345, 0)
    with pytest.raises(RunDirError, match="journal: belongs to 12345"):
        check_trusted([run.journal], root=run.path)


def test_missing_file_is_not_trusted(run):
    with pytest.raises(RunDirError) as caught:
        check_trusted([run.body], root=run.path)
    assert caught.value.message == (
        f"opsctl cannot check who wrote what would be run here as you:\n  {run.body}: No such file or directory"
    )
    assert "chmod" not in str(caught.value.hint)


def test_missing_file_beside_an_offence_is_named(run):
    run.journal.chmod(0o775)
    with pytest.raises(RunDirError, match=r"others could have written(.|\n)*journal: mode(.|\n)*body.sh: No such file"):
        check_trusted([run.journal, run.body], root=run.path)


@pytest.fixture
def launched(run):
    run.write(run.config, "")
    return run


def test_train_is_found_by_name_path_and_file(launched, monkeypatch):
    root = launched.path.parent
    assert find(root, "gpt") == launched
    assert find(root, str(launched.path)) == launched
    assert find(root, str(launched.config)) == launched
    monkeypatch.chdir(root)
    assert find(root.parent, "./gpt") == launched
    with pytest.raises(InputError) as caught:
        find(root.parent, "gpt")
    assert caught.value.hint == "a run directory outside of the root needs a slash: ./gpt"


def test_unknown_train_lists_the_known_trains(launched):
    root = launched.path.parent
    with pytest.raises(InputError) as caught:
        find(root, "gtp")
    assert caught.value.message == f"no train 'gtp' below {root}; did you mean 'gpt'? there are: gpt"


def test_list_of_known_trains_is_short(launched):
    root = launched.path.parent
    for number in range(20):
        other = RunDir(root / f"t{number:02}")
        other.create()
        other.write(other.config, "")
    with pytest.raises(InputError) as caught:
        find(root, "zzz")
    assert caught.value.message.endswith("; there are: gpt, t00, t01, t02, t03, t04, t05, t06, t07, t08 and 11 more")


def test_empty_name_is_refused(launched, monkeypatch):
    monkeypatch.chdir(launched.path)
    with pytest.raises(InputError, match="the name of the train is empty"):
        find(launched.path.parent, "")


@pytest.mark.parametrize("name", ["..", "a b", "$(id)", "x" * 300, "a\nb", ""])
def test_invalid_name_is_refused(launched, name):
    with pytest.raises(InputError):
        find(launched.path.parent, name)


def test_unfinished_or_hidden_directory_is_no_train(launched):
    root = launched.path.parent
    RunDir(root / "half").create()
    RunDir(root / ".site").create()
    RunDir(root / ".site").write(root / ".site" / "train.toml", "")
    assert all_trains(root) == [launched]
    assert all_trains(root / "none") == []


def test_attempt_name_has_array_task_and_restart(run):
    attempt = run.attempt("12_3.1")
    assert (attempt.job, attempt.array, run.attempt("12.0").array) == ("12_3", "12", "12")


def test_unreadable_train_does_not_hide_the_others():
    """The directories of other users lie in a shared root, where umask does not matter."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        root.chmod(0o755)
        for name in ("gpt", "hidden"):
            (root / name).mkdir(mode=0o755)
            (root / name / "train.toml").write_text("")
        (root / "hidden").chmod(0)
        is_root = os.geteuid() == 0
        try:
            if is_root:
                os.seteuid(65534)
            assert [run.name for run in all_trains(root)] == ["gpt"]
        finally:
            if is_root:
                os.seteuid(0)
            (root / "hidden").chmod(0o700)


def test_removed_train_may_not_be_acted_for(run):
    assert may_act(run)
    assert not may_act(RunDir(run.path.parent / "gone"))
