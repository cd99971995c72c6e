"""Names and kinds of entries of the root: only a valid name that is a real directory is a train."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.base.errors import InputError, RunDirError
from opsctl.base.model import JobState
from opsctl.launch.submit import check_owner
from opsctl.launch.train_arrays import TrainArrays
from opsctl.state.events import AttemptFinalized
from opsctl.state.journal import Journal
from opsctl.state.run_dir import RunDir, all_trains, find, find_entries_skipped
from tests.hostile.conftest import Site, needs_squeue
from tests.support.cases import read_table
from tests.support.reconciled_roots import reconcile_root

NAMES = [*read_table(__file__, "names"), "tr\udcff"]


def plant(site: Site, name: str) -> Path:
    path = site.root / name
    path.mkdir()
    (path / "train.toml").write_text("[slurm]\nnodes = 1\n")
    return path


@pytest.mark.attack("a directory with a hostile name is taken for a train")
@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_hostile_name_is_no_train(site, name):
    plant(site, name)
    site.train()
    assert [run.name for run in all_trains(site.root)] == ["tr11"]
    [line] = find_entries_skipped(site.root)
    assert line.isprintable()
    assert line.isascii()
    assert "not a valid name of a train" in line


@pytest.mark.attack("bash completion executes the name of a directory")
def test_completion_runs_no_name(site, tmp_path):
    plant(site, "k7$(touch hacked)")
    plant(site, "k7;touch hacked")
    site.train("k7real")
    script = subprocess.run(
        [sys.executable, "-P", "-m", "opsctl", "completion", "bash"], capture_output=True, text=True, check=True
    ).stdout
    opsctl = tmp_path / "bin" / "opsctl"
    opsctl.parent.mkdir()
    opsctl.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m opsctl "$@"\n')
    opsctl.chmod(0o755)
    program = (
        f"{script}\nCOMP_WORDS=(opsctl status k7); COMP_CWORD=2; _opsctl_completion opsctl k7 status\n"
        'eval "opsctl status ${COMPREPLY[*]} --help >/dev/null"; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    env = {**os.environ, "PATH": f"{opsctl.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, cwd=tmp_path, env=env, check=False)
    assert done.stdout.split() == ["k7real"], done.stderr
    assert not (tmp_path / "hacked").exists()


@pytest.mark.attack("newlines in a name forge rows of status")
def test_status_shows_no_forged_row(site):
    plant(site, "x\ntr99  running")
    site.train()
    done = site.opsctl("status")
    assert "tr99" not in done.stdout.replace(ascii("x\ntr99  running"), "")
    assert "skipped" in done.stderr


@pytest.mark.attack("a symbolic link is taken for a second train")
def test_link_is_no_train(site):
    site.train()
    (site.root / "latest").symlink_to("tr11")
    assert [run.name for run in all_trains(site.root)] == ["tr11"]
    with pytest.raises(InputError, match=r"no train 'latest' below .* \(a symbolic link to tr11\)"):
        find(site.root, "latest")
    with pytest.raises(InputError, match="a symbolic link to tr11"):
        find(site.root, str(site.root / "latest"))
    [line] = find_entries_skipped(site.root)
    assert line == "latest: a symbolic link"


@pytest.mark.attack("a directory in the working directory takes the place of the train")
@pytest.mark.parametrize("text", ["tr11", "./tr11", *read_table(__file__, "refused")])
def test_root_wins_over_the_working_directory(site, text, tmp_path, monkeypatch):
    real = site.train()
    planted = tmp_path / "tr11"
    planted.mkdir()
    planted.rename(tmp_path / "tr11.new")
    for name in ("tr11", "tr12", "TR11"):
        plant(Site(tmp_path), name)
    monkeypatch.chdir(tmp_path)
    if text in ("tr11", "./tr11"):
        assert find(site.root, text).path == (real.path if text == "tr11" else planted)
    else:
        with pytest.raises(InputError):
            find(site.root, text)


@pytest.mark.attack("launch writes through a link in the root")
def test_launch_follows_no_link(site):
    site.train()
    (site.root / "gpt").symlink_to("tr11")
    with pytest.raises(RunDirError, match="gpt: a symbolic link"):
        check_owner(RunDir(site.root / "gpt"))


@pytest.mark.attack("train.toml is a link to somebody's private file")
@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_train_toml_is_a_regular_file(site, kind, tmp_path):
    (tmp_path / "secret").write_text("password = 'x'\n")
    (config := site.root / "tr12" / "train.toml").parent.mkdir()
    {
        "link": lambda: config.symlink_to(tmp_path / "secret"),
        "pipe": lambda: os.mkfifo(config),
        "directory": config.mkdir,
    }[kind]()
    assert all_trains(site.root) == []
    assert find_entries_skipped(site.root) == ["tr12: train.toml is not a regular file"]


@pytest.mark.attack("a link makes the attempt of the real train be finalized as lost")
def test_link_finalizes_nothing(train):
    """The copy of the train under the link's name knows no row of the queue."""
    train.start_attempt()
    train.add_row((1,), JobState.RUNNING)
    (train.run.path.parent / "latest").symlink_to("gpt")

    def chain_of(run):
        return TrainArrays(run=run, journal=Journal(run, train.clock), slurm=train.queue)

    assert reconcile_root(train.run.path.parent, train.queue, chain_of) == []
    assert AttemptFinalized not in train.event_kinds()


@needs_squeue
@pytest.mark.attack("a name that is not UTF-8 makes the watch report bugs")
def test_watch_passes_over_hostile_names(site):
    for name in NAMES:
        plant(site, name)
    site.train()
    done = site.opsctl("watch", "--dry-run")
    assert "tr11" in done.output
    assert "bug in opsctl" not in done.output
    assert "hacked" not in done.output
