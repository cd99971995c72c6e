"""What a rollback takes from others: names of checkpoints, directories that the log names, checkpoints of strangers."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from opsctl.actions.rollback_plan import _verify_step
from opsctl.base.errors import InputError
from opsctl.checkpoints.scan import list_checkpoints_in
from opsctl.settings.loader import load_train
from opsctl.settings.rollback import RollbackSettings
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.signs import find_all_directories
from tests.hostile.conftest import Site
from tests.support.hostile_users import STRANGER

NAMES = (
    "step-1;touch x", "step-1$(touch x)", "step-1`touch x`", "step-1'\"$(touch x)", "step-1\n touch x", "a b", "*",
    "{step}", "{checkpoint}", "${IFS}touch", "step-1)touch x(", "-o=x", "\\", "!!",
)  # fmt: skip


@pytest.mark.attack("the name of a checkpoint is shell text")
@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_name_stays_one_word(tmp_path: Path, name: str) -> None:
    settings = RollbackSettings(step_argument="--at '{checkpoint}' {step}", step=7, checkpoint=f"/c/{name}")
    text = 'eval "rollback_words=(${TRAIN_ROLLBACK_ARGUMENTS:-})"; printf "%s\\0" "${rollback_words[@]}"'
    environment = {"TRAIN_ROLLBACK_ARGUMENTS": shlex.join(settings.first_words())}
    done = subprocess.run(["/bin/bash", "-c", text], env=environment, cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == ["--at", f"/c/{name}", "7"]
    assert not list(tmp_path.iterdir())


SAVED = "  successfully saved checkpoint from iteration {} to {}\n"


def list_all(run: RunDir) -> list[Path]:
    run.config.write_text(f"name = '{run.name}'\n{run.config.read_text()}")
    return find_all_directories(run, load_train(run.config, layout=False))


def make_checkpoint(directory: Path, step: int) -> Path:
    """Return a checkpoint in the layout of Megatron."""
    checkpoint = directory / f"iter_{step:07}"
    (checkpoint / "mp_rank_00").mkdir(parents=True)
    (checkpoint / "mp_rank_00" / "model_optim_rng.pt").write_bytes(b"weights")
    (directory / "latest_checkpointed_iteration.txt").write_text(str(step))
    return checkpoint


@pytest.mark.attack("a line of the log has a rollback move the checkpoints of another train")
def test_log_names_no_other_train(site: Site, tmp_path: Path) -> None:
    run, other = site.train("tr11"), site.train("tr12")
    make_checkpoint(other.checkpoints, 900)
    own = tmp_path / "own"
    make_checkpoint(own, 5)
    (tmp_path / "link").symlink_to(other.checkpoints)
    with run.main_log.open("a") as log:
        for place in (other.checkpoints, tmp_path / "link", site.root, site.root.parent, own):
            log.write(SAVED.format(900, place))
    assert list_all(run) == [run.checkpoints, own]


class TestDirectoriesOfStrangers:
    pytestmark = pytest.mark.root

    @pytest.mark.attack("a line of the log has a rollback load the checkpoint of a stranger")
    @pytest.mark.parametrize("mode", [0o755, 0o777])
    def test_log_names_no_directory_of_a_stranger(self, site: Site, tmp_path: Path, mode: int) -> None:
        run = site.train()
        place = tmp_path / "theirs"
        make_checkpoint(place, 5)
        place.chmod(mode)
        if mode == 0o755:
            os.chown(place, STRANGER.uid, -1)
        with run.main_log.open("a") as log:
            log.write(SAVED.format(5, place))
        assert list_all(run) == [run.checkpoints]

    @pytest.mark.attack("a stranger saves a checkpoint into a shared directory of the train")
    def test_checkpoint_of_a_stranger_is_not_chosen(self, site: Site) -> None:
        run = site.train()
        checkpoint = make_checkpoint(run.checkpoints, 5)
        found = list_checkpoints_in([run.checkpoints])
        assert _verify_step(run, found, 5, lambda _: None)[0].step == 5
        os.chown(checkpoint, STRANGER.uid, -1)
        with pytest.raises(InputError, match="belongs to uid"):
            _verify_step(run, found, 5, lambda _: None)
