"""Scripts in place of Slurm's programs around a rendered script. They only run the command after their options."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from opsctl.launch.launch_plan import render_body
from opsctl.settings.loader import TrainSettings, parse
from opsctl.state.run_dir import RunDir

PROGRAMS = {
    "srun": '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nSLURM_PROCID=0 exec "$@"\n',
    "scontrol": "#!/bin/bash\n[[ $* == *hostnames* ]] && echo node001 && echo node002 && exit\n"
    'echo "NodeName=$4 Arch=x NodeAddr=10.0.0.7 NodeHostName=h"\n',
    "dump": '#!/bin/bash\nprintf "%s\\0" "$V" "$@" >"$OUT"\nexit "${CODE:-0}"\n',
    # Replaces the rank wrapper and takes a hundredth of its time.
    "python": "#!/bin/bash\n[[ $* == *--free-port* ]] && echo 12345 && exit\nwhile [[ $1 != -- ]]; do shift; done\n"
    'shift\nexec "$@"\n',
}
SLURM = {
    "SLURM_JOB_ID": "8",
    "SLURM_ARRAY_JOB_ID": "7",
    "SLURM_ARRAY_TASK_ID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_JOB_NODELIST": "node[001-002]",
    "SLURM_NNODES": "2",
}


@dataclass(frozen=True)
class Bench:
    """Renders the body of a train and runs it."""

    place: Path

    def script(self, command: Sequence[str], *, python: str = "", **top: Any) -> str:
        train = parse(
            TrainSettings,
            {"name": "gpt", "command": list(command), "slurm": {"nodes": 2, "time_limit": "9"}, **top},
            "train.toml",
        )
        return render_body(train, RunDir(self.place / "run dir"), python=python or str(self.place / "bin" / "python"))

    def run(self, script: str, **env: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.place / 'bin'}:{os.environ['PATH']}"
        full = {"PATH": path, "OUT": str(self.place / "out"), **SLURM, **env}
        return subprocess.run(
            ["bash"], input=script, env=full, capture_output=True, text=True, timeout=250, check=False, cwd=self.place
        )

    @property
    def dumped(self) -> list[str]:
        """The value of `V` and the arguments that the program `dump` received."""
        return (self.place / "out").read_bytes().decode().split("\0")[:-1]


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    place = tmp_path_factory.mktemp("bench")
    (place / "bin").mkdir()
    for name, text in PROGRAMS.items():
        (place / "bin" / name).write_text(text)
        (place / "bin" / name).chmod(0o755)
    return Bench(place)
