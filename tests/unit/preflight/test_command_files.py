"""Files without which a command cannot start: certain, or only suspected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opsctl.preflight.command_files import find_misplaced_paths, find_started_words
from opsctl.settings.loader import TrainSettings


def find(tmp_path: Path, command: list[str], setup: dict[str, object], extra: tuple[str, ...] = ()) -> dict[str, bool]:
    """Return the missing files of a command, and whether the command certainly needs them."""
    run, base = tmp_path / "run", tmp_path / "base"
    for directory in (run, base):
        directory.mkdir(exist_ok=True)
    (run / "train.py").touch()
    (base / "near.py").touch()
    fields = {"name": "t", "command": command, "setup": setup, "slurm": {"nodes": 1, "time_limit": "5"}}
    train = TrainSettings.model_validate_json(json.dumps(fields))
    return {path.path: path.is_needed for path in find_misplaced_paths(train, run, base, extra)}


@pytest.mark.parametrize(
    ("command", "setup", "missing"),
    [
        (["python3", "train.py"], {}, {}),
        (["python3", "-u", "-X", "dev", "gone.py"], {}, {"gone.py": True}),
        (["python3", "near.py"], {}, {"near.py": True}),
        (["/etc/gone/train", "--steps", "3"], {}, {"/etc/gone/train": True}),
        (["/gone/bin/train", "--steps", "3"], {}, {"/gone/bin/train": False}),
        (["pyhton3", "train.py"], {"lines": ["source env"]}, {"pyhton3": False}),
        (["python3", "train.py"], {"lines": ["source /etc/gone/activate"]}, {"/etc/gone/activate": False}),
        (["./train", "x"], {}, {"./train": True}),
        (["no-such-program-anywhere"], {}, {"no-such-program-anywhere": True}),
        (["deepspeed", "train.py"], {}, {"deepspeed": False}),
        (["no-such-program-anywhere"], {"lines": ["source env"]}, {}),
        (["no-such-program-anywhere"], {"modules": ["cuda"]}, {}),
        (["torchrun", "--nproc-per-node", "2", "gone.py", "other.py"], {}, {"gone.py": True, "other.py": False}),
        (["torchrun", "--config", "conf.py", "gone.py"], {}, {"conf.py": False, "gone.py": True}),
        (["python3", "-m", "torch.distributed.run", "gone.py"], {}, {"gone.py": True}),
        (["python3", "train.py", "--plan", "gone.py"], {}, {"gone.py": False}),
        (["bash", "-c", "python3 gone.py"], {}, {"gone.py": False}),
        (["python3", "gone.py"], {"lines": ["export A=1", "source env/bin/activate"]}, {"gone.py": True}),
        (["python3", "gone.py"], {"lines": ["cp /data/gone.py ."]}, {"gone.py": False}),
        (["python3", "code/gone.py"], {"lines": ["git clone https://example.org/code"]}, {"code/gone.py": False}),
        (["python3", "gone.py"], {"lines": ["cd /data"]}, {}),
        (["python3", "gone.py"], {"directory": "/nowhere"}, {"gone.py": True}),
        (["{{ python }}", "{{ run_dir }}/gone.py"], {}, {}),
        (["apptainer", "exec", "a.sif", "python3", "gone.py"], {}, {}),
    ],
)
def test_file_that_certainly_misses_is_needed(
    tmp_path: Path, command: list[str], setup: dict[str, object], missing: dict[str, bool]
) -> None:
    if "torchrun" in command[0]:
        setup = {**setup, "modules": ["torch"]}
    assert find(tmp_path, command, setup) == missing


def test_container_option_hides_files(tmp_path: Path) -> None:
    assert find(tmp_path, ["python3", "gone.py"], {}, ("--container-image=a.sqsh",)) == {}


def test_started_words_of_an_empty_command() -> None:
    assert find_started_words([]) == set()
