"""Faults around the trains that are no news of them: nobody is to be told anything because of these, and nothing that
is news may be lost in them.
"""

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from opsctl.host.system import SystemRunner
from opsctl.sandbox.faults import FaultKind, run_lines
from tests.endurance.soak.servers import Mail, Slack
from tests.endurance.soak.soak_cluster import LONG, Field

MILLION = 1_000_000
Undo = Callable[[], None]
PROGRAMS = ("squeue", "sinfo", "sacct", "scontrol", "scancel")
WRAPPER = """#!/bin/sh
case "$(cat {mood})" in
hangs) exec sleep 60 ;;
refuses) echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2; exit 1 ;;
babbles) head -c 2000 /dev/urandom; exit 0 ;;
esac
exec {program} "$@"
"""


@dataclass
class Weather:
    """`blind` is whether Slurm's answers are cut off from those who watch now."""

    field: Field
    mail: Mail
    slack: Slack
    dice: random.Random
    programs: Path
    site_dir: Path
    busy: set[str] = field(default_factory=set)
    """What is broken already."""
    blind: bool = False
    controller_down: bool = False
    mounted: bool = False
    """Whether this machine lets us mount."""

    def __post_init__(self) -> None:
        self.programs.mkdir()
        self.mood.write_text("well")
        for name in PROGRAMS:
            wrapper = self.programs / name
            wrapper.write_text(WRAPPER.format(mood=self.mood, program=shutil.which(name)))
            wrapper.chmod(0o755)

    @property
    def mood(self) -> Path:
        return self.programs / "mood"

    # --- channels

    def _channel(self, server: Mail | Slack) -> Undo:
        server.feel(self.dice.choice(server.MOODS))
        return lambda: server.feel("well")

    # --- Slurm

    def _slurm(self, mood: str) -> Undo:
        self.blind = True
        self.mood.write_text(mood)

        def well() -> None:
            self.blind = False
            self.mood.write_text("well")

        return well

    def controller_killed(self) -> Undo:
        # What it was given in its last five seconds it forgets, and then it is right to say that a train is gone.
        time.sleep(max(0.0, self.field.changed + 7 - time.monotonic()))
        return self._controller(FaultKind.KILL, FaultKind.RESTART)

    def _controller(self, do: FaultKind, undo: FaultKind) -> Undo:
        self.blind = self.controller_down = True
        self.field.sandbox.fault("controller", do)

        def well() -> None:
            self.field.sandbox.fault("controller", undo)
            self.field.program("squeue")
            self.blind = self.controller_down = False

        return well

    def controller_restarted(self) -> Undo:
        self.field.sandbox.fault("controller", FaultKind.RESTART)
        self.field.program("squeue")
        return lambda: None

    # --- logs

    def _log(self) -> Path:
        with self.field.here(self.dice.choice(LONG)) as run:
            return run / "logs/main_log.txt"

    def rubbish(self) -> Undo:
        with self._log().open("ab") as log:
            log.write(self.dice.randbytes(50_000))
        return lambda: None

    def last_line_cut(self) -> Undo:
        with self._log().open("ab") as log:
            log.write(b" iteration 9999999/ 3 | lm lo")
        return lambda: None

    def rotated(self) -> Undo:
        log = self._log()
        log.rename(log.with_suffix(".1"))
        log.touch()
        return lambda: None

    def emptied(self) -> Undo:
        os.truncate(self._log(), 0)
        return lambda: None

    def million_lines(self) -> Undo:
        with self._log().open("ab") as log:
            log.write(b"NCCL INFO chatter\n" * MILLION)
        return lambda: None

    # --- disks

    def run_directory_read_only(self) -> Undo:
        name = self.dice.choice(LONG)
        path = self.field.run(name).path
        self.field.inside[name] = os.open(path, os.O_PATH)
        _mount("--bind", path, path)
        _mount("-o", "remount,bind,ro", path)

        def well() -> None:
            subprocess.run(["umount", "--lazy", path], check=True)
            os.close(self.field.inside.pop(name))

        return well

    def site_disk_full(self) -> Undo:
        run_lines(f"fill_disk {self.site_dir}", {"RUN": ""}, SystemRunner())
        return (self.site_dir / "filler").unlink

    def memory_lost(self) -> Undo:
        shutil.rmtree(self.site_dir / "watch", ignore_errors=True)
        return lambda: None

    def faults(self) -> dict[str, tuple[Callable[[], Undo], int]]:
        """By name: how it begins, and how often for one of the rarest."""
        given = {
            "mail": (partial(self._channel, self.mail), 14),
            "slack": (partial(self._channel, self.slack), 14),
            "slurm refuses": (partial(self._slurm, "refuses"), 5),
            "slurm babbles": (partial(self._slurm, "babbles"), 3),
            "slurm hangs": (partial(self._slurm, "hangs"), 1),
            "controller stopped": (partial(self._controller, FaultKind.STOP, FaultKind.RESUME), 1),
            "controller killed": (self.controller_killed, 1),
            "controller restarted": (self.controller_restarted, 3),
            "log: rubbish": (self.rubbish, 4),
            "log: last line cut": (self.last_line_cut, 4),
            "log: rotated": (self.rotated, 4),
            "log: emptied": (self.emptied, 2),
            "log: a million lines": (self.million_lines, 1),
            "memory lost": (self.memory_lost, 3),
        }
        if self.mounted:
            given |= {
                "run directory read-only": (self.run_directory_read_only, 5),
                "site's disk full": (self.site_disk_full, 5),
            }
        return given


SLURM = {"slurm refuses", "slurm babbles", "slurm hangs", "controller stopped", "controller killed"}
SLOW = {"slurm hangs", "controller stopped", "controller killed"}
"""Each costs ten seconds a cycle."""


def _mount(*words: object) -> None:
    subprocess.run(["mount", *map(str, words)], check=True, capture_output=True)


def can_mount(place: Path, size: str) -> bool:
    """A small disk at `place`, if this machine lets us."""
    place.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", place], check=False, capture_output=True
    )
    return done.returncode == 0
