"""Going on from the newest checkpoint that verifies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from opsctl.trainer import manifest
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.engine import Engine
from opsctl.trainer.errors import Refused
from opsctl.trainer.heartbeats import say
from opsctl.trainer.manifest import Checkpoint, Manifest
from opsctl.trainer.process_groups import Control
from opsctl.trainer.run_state import RunState

_SHAPE = ("family", "layers", "hidden", "heads", "sequence", "vocabulary")
"""What of the model's table a checkpoint must have in common with the run that resumes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resuming:
    """What all ranks together need to resume."""

    directory: Path
    config: TrainerConfig
    topology: dict[str, int | str]
    engine: Engine
    control: Control

    def resume(self, state: RunState) -> None:
        """Load the newest checkpoint that verifies into engine and `state`. Raises Refused if it is of another run."""
        checkpoint = self._newest_verified(state)
        if checkpoint is None:
            state.step, state.consumed_samples, state.checkpoint_step = 0, 0, None
            if self.control.process.is_first:
                say(f"no checkpoint in {self.directory}: starting from the beginning")
            return
        held = manifest.read_manifest(checkpoint.path)  # which has just been understood
        self._refuse_other(checkpoint, held)
        self.engine.load(checkpoint.path, universal=held.kind == manifest.UNIVERSAL)
        self._restore_random(checkpoint, held)
        _take_over(state, held)
        if self.control.process.is_first:
            how = " (written by another topology)" if held.kind == manifest.UNIVERSAL else ""
            say(f"resumed from checkpoint {checkpoint.path.name}: {held.consumed_samples} samples consumed{how}")

    def _newest_verified(self, state: RunState) -> Checkpoint | None:
        """The newest checkpoint without a fault; each rank hashes its share, and damaged ones are set aside.

        One that cannot be read is not damaged: it is left alone, and nothing older is taken in its stead.
        """
        process = self.control.process
        while True:
            checkpoint = self.control.from_first(manifest.find_newest_complete(self.directory))
            if checkpoint is None:
                return None
            heard = self.control.gather(self._share_of_problems(checkpoint))
            _raise_unreadable(checkpoint, [error for _, error in heard if error])
            problems = sorted({problem for share, _ in heard for problem in share})
            if not problems:
                return checkpoint
            aside, failed = self.control.from_first(_set_aside(checkpoint) if process.is_first else ("", ""))
            if failed:
                raise Refused(f"checkpoint {checkpoint.path} is damaged and cannot be set aside: {failed}")
            state.notes.append(f"damaged checkpoint set aside as {aside}: {'; '.join(problems)}")
            if process.is_first:
                say(state.notes[-1])

    def _share_of_problems(self, checkpoint: Checkpoint) -> tuple[list[str], OSError | None]:
        """What this rank finds to be wrong with its share of the files, and why it cannot know."""
        process = self.control.process
        try:
            return manifest.verify(checkpoint.path, mine=lambda n: n % process.world_size == process.rank), None
        except OSError as error:
            return [], error

    def _refuse_other(self, checkpoint: Checkpoint, held: Manifest) -> None:
        if held.kind == manifest.WEIGHTS:
            raise Refused(f"checkpoint {checkpoint.path} holds weights alone, without what the optimizer knows")
        model = self.config.model.model_dump()
        wanted: dict[str, Any] = {key: model[key] for key in _SHAPE}
        if held.kind == manifest.NATIVE:
            wanted = {**self.topology, "precision": self.config.precision, **wanted}
        there = {**held.topology, "precision": held.precision, **held.model}
        differences = [
            f"{key} is {there.get(key)} there and {value} here"
            for key, value in wanted.items()
            if there.get(key) != value
        ]
        if differences:
            raise Refused(f"checkpoint {checkpoint.path} is of another run: {'; '.join(differences)}")

    def _restore_random(self, checkpoint: Checkpoint, held: Manifest) -> None:
        """Go on with the random numbers that this rank was at; where the ranks are others, with fresh ones."""
        rank = self.control.process.rank
        if held.kind == manifest.NATIVE:
            restore_random_state(checkpoint.path / random_file(rank))
        else:
            torch.manual_seed(torch.initial_seed() ^ held.step << 20)


def foresee(directory: Path, state: RunState) -> None:
    """Take into `state` what the newest checkpoint says, before it is verified: enough to decide not to start."""
    newest = manifest.find_newest_complete(directory)
    if newest is None:
        return
    try:
        held = manifest.read_manifest(newest.path)
    except (OSError, ValueError):
        return  # resume() will look closer
    _take_over(state, held)


def _take_over(state: RunState, held: Manifest) -> None:
    state.step, state.consumed_samples, state.checkpoint_step = held.step, held.consumed_samples, held.step
    state.slowest_step_s, state.save_s = held.slowest_step_s, held.save_s
    state.seed, state.data = held.seed, held.data


def _raise_unreadable(checkpoint: Checkpoint, errors: list[OSError]) -> None:
    """On all ranks the same: OSError where the file system failed one, Refused where the manifest is another's."""
    if errors:
        kind = OSError if any(error.errno for error in errors) else Refused
        raise kind(f"checkpoint {checkpoint.path} cannot be verified: {'; '.join(sorted(set(map(str, errors))))}")


def _set_aside(checkpoint: Checkpoint) -> tuple[str, str]:
    """Where it is now, or what was in the way."""
    try:
        return str(manifest.set_aside(checkpoint.path)), ""
    except OSError as error:
        return "", str(error)


def random_file(rank: int) -> str:
    return f"rank-{rank:05d}.pt"


def random_state() -> dict[str, Any]:
    """What DeepSpeed does not save: without it a resumed run drops other activations."""
    state = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_state(path: Path) -> None:
    state = torch.load(path, map_location="cpu", weights_only=True)
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
