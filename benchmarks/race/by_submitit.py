"""What submitit runs: the trainer, and its own way of going on after the time limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from race.trainer import Trainer


class Training:
    def __init__(self, place: Path, checkpoints: Path) -> None:
        self.place, self.checkpoints = place, checkpoints

    def __call__(self) -> None:
        self.trainer = Trainer(self.place, self.checkpoints)
        self.trainer.run()

    def checkpoint(self) -> Any:
        """Save, and be run again: called in each rank when the job's time is nearly up or it is preempted."""
        from submitit.helpers import DelayedSubmission

        self.trainer.save()
        return DelayedSubmission(Training(self.place, self.checkpoints))
