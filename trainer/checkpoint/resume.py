"""Resume from the newest checkpoint that verifies."""

import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from opsctl.trainer import manifest
from opsctl.trainer.checkpoint import rewrite
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.engine import Engine
from opsctl.trainer.errors import Refused
from opsctl.trainer.heartbeats import print_line, warn
from opsctl.trainer.manifest import Checkpoint, Differences, Manifest
from opsctl.trainer.process_groups import Control
from opsctl.trainer.rank_layout import Layout, describe_topology
from opsctl.trainer.run_state import RunState

_POLL_S = 5.0
"""Between two signs of life while rank 0 copies a checkpoint, which may take hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A verified checkpoint of this run."""

    path: Path
    saved: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Resuming:
    """The search for a checkpoint before the model is built, and the load of that checkpoint afterwards."""

    directory: Path
    config: TrainerConfig
    topology: dict[str, int | str]
    control: Control

    def find(self, state: RunState, waiting: Callable[[], None] = lambda: None) -> Found | None:
        """Return the newest verified checkpoint; all ranks together. Raises Refused if it belongs to another run.

        One of another topology is copied for any topology first, with a call of `waiting` every few seconds.
        """
        checkpoint = self._newest_verified(state)
        if checkpoint is None:
            state.step, state.consumed_samples, state.checkpoint_step, state.earlier_tokens = 0, 0, None, 0
            if self.control.process.is_first:
                weights = self.config.weights
                begin = f"with the weights of {weights}" if weights else "from the beginning"
                print_line(f"no checkpoint in {self.directory}: starting {begin}")
            return None
        saved = manifest.read_manifest(checkpoint.path)  # _newest_verified has just read the manifest
        self._refuse_other(checkpoint, saved)
        self._refuse_other_rate(checkpoint, saved)
        self._note_other_optimizer(state, saved)
        if cuts := manifest.find_other_cuts(saved, self.topology):
            return self._reshape(checkpoint.path, saved, cuts, waiting)
        return Found(path=checkpoint.path, saved=saved)

    def load(self, found: Found, engine: Engine, state: RunState) -> None:
        """Load a checkpoint into `engine`, `state` and the random generators; all ranks together."""
        saved = found.saved
        engine.load(found.path, universal=saved.kind == manifest.UNIVERSAL)
        self._restore_random(found)
        _take_over(state, saved)
        sequence = saved.model.get("sequence", self.config.model.sequence)
        state.earlier_tokens += saved.consumed_samples * (sequence - self.config.model.sequence)
        if self.control.process.is_first:
            how = " (written by another topology)" if saved.kind == manifest.UNIVERSAL else ""
            print_line(f"resumed from checkpoint {found.path.name}: {saved.consumed_samples} samples consumed{how}")

    def _reshape(self, path: Path, saved: Manifest, cuts: Differences, waiting: Callable[[], None]) -> Found:
        """Return a copy of a checkpoint for any topology. Rank 0 writes the copy, unless it is there already."""
        work: Future[Path] | None = None
        if self.control.process.is_first:
            shown = ", ".join(f"{key} was {there} and is {here}" for key, (there, here) in cuts.items())
            print_line(f"checkpoint {path.name} has another topology ({shown}): resuming from a copy for any topology")
            work = ThreadPoolExecutor(max_workers=1).submit(rewrite.copy_for_any_topology, path, saved)
        while self.control.from_first(work is not None and bool(wait([work], _POLL_S).not_done)):
            waiting()
        copied, problem = self.control.from_first(_outcome(work.result) if work else (path, ""))
        if problem:
            raise Refused(f"checkpoint {path} cannot be copied for another topology: {problem}")
        return Found(path=copied, saved=manifest.read_manifest(copied))

    def _newest_verified(self, state: RunState) -> Checkpoint | None:
        """Return the newest undamaged checkpoint; every rank hashes its share, and damaged checkpoints are set aside.

        An unreadable checkpoint is not damaged: the function raises, and no older checkpoint is resumed.
        """
        process = self.control.process
        while True:
            checkpoint = self.control.from_first(manifest.find_newest_complete(self.directory))
            if checkpoint is None:
                return None
            shares = self.control.gather(self._share_of_problems(checkpoint))
            _raise_unreadable(checkpoint, [error for _, error in shares if error])
            problems = sorted(set().union(*(share for share, _ in shares)))
            if not problems:
                return checkpoint
            aside, failed = self.control.from_first(
                _outcome(partial(manifest.set_aside, checkpoint.path)) if process.is_first else (checkpoint.path, "")
            )
            if failed:
                raise Refused(f"checkpoint {checkpoint.path} is damaged and cannot be set aside: {failed}")
            warn(state, process, f"damaged checkpoint set aside as {aside}: {'; '.join(problems)}")

    def _share_of_problems(self, checkpoint: Checkpoint) -> tuple[list[str], OSError | None]:
        """Return the problems of this rank's share of the files, and the error if a file cannot be read."""
        process = self.control.process
        try:
            return manifest.verify(checkpoint.path, mine=lambda n: n % process.world_size == process.rank), None
        except OSError as error:
            return [], error

    def _refuse_other(self, checkpoint: Checkpoint, saved: Manifest) -> None:
        differences = manifest.find_differences(saved, self.config)
        can_accept = manifest.can_accept(differences, self.config)
        if not differences or (can_accept and self.config.accept):
            return
        shown = "; ".join(f"{key} is {there} there and {here} here" for key, (there, here) in differences.items())
        hint = " (no weight depends on that: [trainer] accept = true takes it)" if can_accept else ""
        raise Refused(f"checkpoint {checkpoint.path} is of another run: {shown}{hint}")

    def _refuse_other_rate(self, checkpoint: Checkpoint, saved: Manifest) -> None:
        """Refuse a jump of the learning rate, as by another number of steps, unless the config accepts it.

        Another `lr_scale` is no jump: it is set for just that.
        """
        rate = self.config.rate().at(saved.consumed_samples)
        if self.config.accept or saved.rate is None:
            return
        rescaled = saved.rate * self.config.optimizer.lr_scale / float(saved.optimizer.get("lr_scale", 1.0))
        if math.isclose(rate, rescaled, rel_tol=1e-6):
            return
        raise Refused(
            f"checkpoint {checkpoint.path}: the learning rate of step {saved.step} was {saved.rate:.4g} and is"
            f" {rate:.4g} by this config (steps, batch or optimizer changed). Restore them, or accept the change with"
            " [trainer] accept = true"
        )

    def _note_other_optimizer(self, state: RunState, saved: Manifest) -> None:
        here = self.config.optimizer.model_dump()
        changed = [key for key in here if key in saved.optimizer and saved.optimizer[key] != here[key]]
        if changed:
            changes = ", ".join(f"{key} was {saved.optimizer[key]} and is {here[key]}" for key in changed)
            warn(state, self.control.process, f"optimizer of step {saved.step}: {changes}")

    def _restore_random(self, found: Found) -> None:
        """Restore the random state of this rank; with another topology, draw a new one from the seed and the step."""
        rank = self.control.process.rank
        if found.saved.kind == manifest.NATIVE:
            restore_random_state(found.path / random_file(rank))
        else:
            torch.manual_seed(torch.initial_seed() ^ found.saved.step << 20)


def open_resuming(directory: Path, config: TrainerConfig, layout: Layout, control: Control) -> Resuming:
    """Return the resuming of this run from the checkpoints in `directory`."""
    return Resuming(directory=directory, config=config, topology=describe_topology(config, layout), control=control)


def preview_newest(directory: Path, state: RunState) -> None:
    """Read progress from the newest checkpoint, unverified, into `state`: enough to decide not to start."""
    newest = manifest.find_newest_complete(directory)
    if newest is None:
        return
    try:
        saved = manifest.read_manifest(newest.path)
    except (OSError, ValueError):
        return  # resume() reports the problem
    if not manifest.is_misnamed(newest.path, saved):  # as above
        _take_over(state, saved)


def _take_over(state: RunState, saved: Manifest) -> None:
    state.step, state.consumed_samples, state.checkpoint_step = saved.step, saved.consumed_samples, saved.step
    state.slowest_step_s, state.save_s = saved.slowest_step_s, saved.save_s
    state.seed, state.data, state.positions = saved.seed, saved.data, saved.positions
    state.earlier_tokens = saved.earlier_tokens


def _raise_unreadable(checkpoint: Checkpoint, errors: list[OSError]) -> None:
    """Raise the same error on all ranks: OSError for the file system, Refused for a manifest of another version."""
    if errors:
        kind = OSError if any(error.errno for error in errors) else Refused
        raise kind(f"checkpoint {checkpoint.path} cannot be verified: {'; '.join(sorted(set(map(str, errors))))}")


def _outcome(work: Callable[[], Path]) -> tuple[Path, str]:
    """Return the path that `work` returns, or the error, for ranks that wait for either."""
    try:
        return work(), ""
    except (OSError, Refused) as error:
        return Path(), str(error)


def random_file(rank: int) -> str:
    return f"rank-{rank:05d}.pt"


def random_state() -> dict[str, Any]:
    """Return the random state, which DeepSpeed does not save: without it a resumed run drops other activations."""
    state = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_state(path: Path) -> None:
    state = torch.load(path, map_location="cpu", weights_only=True)
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
