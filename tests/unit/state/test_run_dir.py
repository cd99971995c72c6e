"""Where a train's files lie, who may write there, and what is refused."""

import grp
import os
import stat
import tempfile
from pathlib import Path

import pytest

from opsctl.errors import InputError, RunDirError
from opsctl.state.run_dir import RunDir, all_trains, check_trusted, find, may_act


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "root" / "gpt")
    run.create()
    return run


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_it_is_made_again_without_harm(run):
    run.write(run.config, "x")
    run.create()
    assert run.config.read_text() == "x"


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_only_the_owner_may_write_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        run = RunDir(tmp_path / "new" / "root" / "gpt")
        run.create()
    finally:
        os.umask(before)
    check_trusted([run.path / name for name in ("journal", "logs", "attempts")], root=tmp_path)
    assert mode(run.switches) & 0o022 == 0


def test_switches_and_requests_belong_to_the_group_where_the_site_names_one(tmp_path):
    run = RunDir(tmp_path / "gpt")
    run.create(grp.getgrgid(os.getegid()).gr_name)
    assert [mode(path) for path in (run.switches, run.requests)] == [0o2775, 0o2775]
    assert mode(run.journal) == 0o755


def test_the_group_gets_to_the_switches_whatever_the_umask(tmp_path):
    before = os.umask(0o077)
    try:
        run = RunDir(tmp_path / "root" / "gpt")
        run.create(grp.getgrgid(os.getegid()).gr_name)
    finally:
        os.umask(before)
    assert [mode(path) for path in (run.path.parent, run.path, run.journal)] == [0o755, 0o755, 0o755]


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_a_lifes_directory_is_the_owners_to_write_and_as_open_as_the_train(run, umask):
    before = os.umask(umask)
    try:
        run.make(run.attempt("12_1.0").path)
        run.path.chmod(0o700)
        run.make(run.attempt("12_2.0").path)
    finally:
        os.umask(before)
    assert [mode(run.attempt(name).path) for name in ("12_1.0", "12_2.0")] == [0o755, 0o700]


def test_a_group_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(InputError, match="group 'nosuchgroup': no such group"):
        RunDir(tmp_path / "gpt").create("nosuchgroup")


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirError, match="Not a directory") as caught:
        RunDir(tmp_path / "file" / "gpt").create()
    assert caught.value.hint == "is it there, may you write there, and is there space left?"


def test_what_others_could_have_written_is_not_trusted(run):
    run.journal.chmod(0o775)
    with pytest.raises(RunDirError) as caught:
        check_trusted([run.journal], root=run.path)
    assert caught.value.message == (
        f"others could have written what would be run here as you:\n  {run.journal}: mode 0775 lets others write"
    )


def test_parents_are_looked_at_up_to_the_root_that_is_given(run):
    run.path.parent.chmod(0o777)
    check_trusted([run.journal], root=run.path)
    with pytest.raises(RunDirError, match="root: mode 0777 lets others write"):
        check_trusted([run.journal], root=run.path.parent)


def test_a_directory_where_nobody_can_replace_what_is_not_theirs_is_trusted(run):
    run.path.parent.chmod(0o1777)
    check_trusted([run.journal], root=run.path.parent)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root, to give a file away")
def test_a_strangers_file_is_not_trusted(run):
    os.chown(run.journal, 12345, 0)
    with pytest.raises(RunDirError, match="journal: belongs to uid 12345"):
        check_trusted([run.journal], root=run.path)


def test_what_is_not_there_is_not_trusted(run):
    with pytest.raises(RunDirError, match="No such file or directory"):
        check_trusted([run.body], root=run.path)


@pytest.fixture
def launched(run):
    run.write(run.config, "")
    return run


def test_a_train_is_found_by_name_by_path_and_by_its_file(launched, monkeypatch):
    root = launched.path.parent
    assert find(root, "gpt") == launched
    assert find(root, str(launched.path)) == launched
    assert find(root, str(launched.config)) == launched
    monkeypatch.chdir(root)
    assert find(root.parent, "gpt") == launched


def test_a_train_that_is_not_there_is_said_with_those_that_are(launched):
    root = launched.path.parent
    with pytest.raises(InputError) as caught:
        find(root, "gtp")
    assert caught.value.message == f"no train 'gtp' below {root}; did you mean 'gpt'? there are: gpt"


def test_of_many_trains_some_are_said(launched):
    root = launched.path.parent
    for number in range(20):
        (other := RunDir(root / f"t{number:02}")).create()
        other.write(other.config, "")
    with pytest.raises(InputError) as caught:
        find(root, "zzz")
    assert caught.value.message.endswith("; there are: gpt, t00, t01, t02, t03, t04, t05, t06, t07, t08 and 11 more")


def test_an_empty_name_is_not_the_directory_where_one_stands(launched, monkeypatch):
    monkeypatch.chdir(launched.path)
    with pytest.raises(InputError, match="the name of the train is empty"):
        find(launched.path.parent, "")


@pytest.mark.parametrize("name", ["..", "a b", "$(id)", "x" * 300, "a\nb", ""])
def test_what_is_no_name_is_not_looked_for(launched, name):
    with pytest.raises(InputError):
        find(launched.path.parent, name)


def test_what_is_half_made_or_hidden_is_no_train(launched):
    root = launched.path.parent
    RunDir(root / "half").create()
    RunDir(root / ".site").create()
    RunDir(root / ".site").write(root / ".site" / "train.toml", "")
    assert all_trains(root) == [launched]
    assert all_trains(root / "none") == []


def test_a_attempt_is_named_by_array_task_and_restart(run):
    attempt = run.attempt("12_3.1")
    assert (attempt.job, attempt.array, run.attempt("12.0").array) == ("12_3", "12", "12")


def test_a_train_that_its_user_keeps_from_us_hides_no_other():
    """Others' directories lie in a root that is shared; nobody's umask is ours to set."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
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


def test_a_train_that_is_gone_by_now_is_not_ours_to_act_for(run):
    assert may_act(run)
    assert not may_act(RunDir(run.path.parent / "gone"))
