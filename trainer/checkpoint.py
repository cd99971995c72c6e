"""Saving so that a checkpoint is complete or not there, and resuming from the newest that verifies.

DeepSpeed's own save is not atomic: rank 0 says "latest" without knowing whether the others managed. Here each rank
hashes what it writes and remembers what failed; all hear of it; and only then rank 0 writes the manifest and COMPLETE
and gives the directory its name, or takes it away.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

from trainer import manifest
from trainer.config import TrainerConfig
from trainer.contract import fsync_directory
from trainer.engine import Engine
from trainer.errors import Refused
from trainer.layout import Layout
from trainer.manifest import Checkpoint, FileRecord, Manifest
from trainer.parallel import Control
from trainer.report import say
from trainer.state import State

_SHAPE = ("family", "layers", "hidden", "heads", "sequence", "vocabulary")


class _Hashing:
    """A file being written that hashes what passes through."""

    def __init__(self, file: RawIOBase) -> None:
        self._file, self._digest, self.size = file, hashlib.sha256(), 0
        self.error: OSError | None = None
        """What the file system said; torch raises something else in its place."""

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        length = len(left)
        self._digest.update(left)
        try:
            while left:  # one call writes 2 GiB at most, and less where the disk is nearly full
                left = left[self._file.write(left) :]
        except OSError as error:
            self.error = error
            raise
        self.size += length
        return length

    def flush(self) -> None:
        """Nothing is held back; torch calls it."""

    def record(self) -> FileRecord:
        return FileRecord(size=self.size, sha256=self._digest.hexdigest())


class RecordingEngine(TorchCheckpointEngine):  # type: ignore[misc]  # DeepSpeed has no types
    """Writes files durably and remembers their hashes; a failure is remembered, not raised.

    Raised, it would leave this rank out of the barriers that the others are waiting in.
    """

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, FileRecord] = {}
        self.errors: list[str] = []

    def makedirs(self, path: str, exist_ok: bool = False) -> None:  # noqa: FBT001, FBT002 - DeepSpeed's signature
        try:
            Path(path).mkdir(parents=True, exist_ok=exist_ok)
        except OSError as error:
            self.errors.append(f"{path}: {error}")

    def save(self, state_dict: Any, path: str) -> None:
        target = Path(path)
        try:
            self.files[target.name] = _write_durably(state_dict, target)
        except (OSError, RuntimeError) as error:
            self.errors.append(f"{target.name}: {getattr(error, 'strerror', None) or error}")

    def start(self) -> None:
        self.files, self.errors = {}, []


def _write_durably(state_dict: Any, target: Path) -> FileRecord:
    part = target.with_name(target.name + ".part")
    with part.open("wb", buffering=0) as file:  # buffered, an error would come again when the file is closed
        hashing = _Hashing(file)
        try:
            torch.save(state_dict, hashing)
        except RuntimeError as error:
            raise hashing.error or error from error
        os.fsync(file.fileno())
    part.replace(target)
    return hashing.record()


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpoints of this run, as all ranks together write and read them."""

    directory: Path
    config: TrainerConfig
    layout: Layout
    engine: Engine
    control: Control
    recorder: RecordingEngine

    def save(self, state: State) -> bool:
        """Save the state after `state.step`; the same answer on every rank. A failure is noted, and nothing is lost."""
        started = time.monotonic()
        name = manifest.directory_name(state.step)
        if state.checkpoint_step == state.step:
            return True
        part = self.directory / f".saving-{name}"
        failure = self.control.from_first(self._clear(part))
        if not failure:
            files, errors = self._write(part)
            failure = "; ".join(errors) or self.control.from_first(self._commit(part, state, files, started))
        if self.control.process.is_first and failure:
            shutil.rmtree(part, ignore_errors=True)
        self.control.barrier()
        self._tell(state, name, failure, seconds=time.monotonic() - started)
        return not failure

    def _clear(self, part: Path) -> str:
        """Take away what earlier saves left; on rank 0."""
        if not self.control.process.is_first:
            return ""
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            for leftover in part.parent.glob(".saving-*"):
                shutil.rmtree(leftover)
        except OSError as error:
            return str(error)
        return ""

    def _write(self, part: Path) -> tuple[dict[str, FileRecord], list[str]]:
        """Write this rank's files; return the files and the errors of all ranks."""
        self.recorder.start()
        self.engine.save(part)
        rank = self.control.process.rank
        self.recorder.save(state_dict=_random_state(), path=str(part / f"rank-{rank:05d}.pt"))
        gathered = self.control.gather((self.recorder.files, self.recorder.errors))
        files = {name: record for each, _ in gathered for name, record in each.items()}
        return files, [f"rank {rank}: {error}" for rank, (_, errors) in enumerate(gathered) for error in errors]

    def _commit(self, part: Path, state: State, files: dict[str, FileRecord], started: float) -> str:
        """Make the written files a checkpoint; on rank 0. Returns what failed."""
        if not self.control.process.is_first:
            return ""
        final = part.with_name(manifest.directory_name(state.step))
        try:
            short = [name for name, record in files.items() if (part / name).stat().st_size != record.size]
            if short:
                return f"cut short: {', '.join(short)}"
            manifest.write_manifest(part, self._manifest(state, files, save_s=time.monotonic() - started))
            if final.exists():
                manifest.set_aside(final)
            part.rename(final)
            fsync_directory(part.parent)
        except OSError as error:
            return str(error)
        return ""

    def _manifest(self, state: State, files: dict[str, FileRecord], *, save_s: float) -> Manifest:
        return Manifest(
            step=state.step,
            consumed_samples=state.consumed_samples,
            topology=self._topology(),
            model=self.config.model.model_dump(),
            precision=self.config.precision,
            slowest_step_s=state.slowest_step_s,
            save_s=save_s,
            files=files,
        )

    def _topology(self) -> dict[str, int | str]:
        parallel = self.config.parallel
        return {
            "pipeline": self.layout.pipeline,
            "tensor": self.layout.tensor,
            "data": self.layout.data,
            "zero_stage": parallel.zero_stage,
            "balance": parallel.balance,
        }

    def _tell(self, state: State, name: str, failure: str, *, seconds: float) -> None:
        if failure:
            state.notes.append(f"checkpoint {name} was not saved: {failure}")
        else:
            state.checkpoint_step, state.save_s = state.step, seconds
        if self.control.process.is_first:
            say(state.notes[-1] if failure else f"saved checkpoint {name} in {seconds:.2f} s")
            self._prune()

    def _prune(self) -> None:
        found = manifest.checkpoints(self.directory)
        for old in manifest.superfluous(found, keep_last=self.config.checkpoint.keep_last):
            (old.path / manifest.COMPLETE).unlink(missing_ok=True)  # first, so that half of it is no checkpoint
            shutil.rmtree(old.path, ignore_errors=True)
            say(f"removed checkpoint {old.path.name}")

    def resume(self, state: State) -> None:
        """Load the newest checkpoint that verifies into engine and `state`. Raises Refused if it is of another run."""
        found = self._newest_verified(state)
        if found is None:
            state.step, state.consumed_samples, state.checkpoint_step = 0, 0, None
            if self.control.process.is_first:
                say(f"no checkpoint in {self.directory}: starting from the beginning")
            return
        held = _understood(found)
        self._refuse_other(found, held)
        self.engine.load(found.path)
        _restore_random_state(found.path / f"rank-{self.control.process.rank:05d}.pt")
        state.step, state.consumed_samples, state.checkpoint_step = held.step, held.consumed_samples, held.step
        state.slowest_step_s, state.save_s = held.slowest_step_s, held.save_s
        if self.control.process.is_first:
            say(f"resumed from checkpoint {found.path.name}: {held.consumed_samples} samples consumed")

    def _newest_verified(self, state: State) -> Checkpoint | None:
        """The newest checkpoint without a fault; each rank hashes its share, and damaged ones are set aside."""
        process = self.control.process
        while True:
            found = self.control.from_first(manifest.newest_complete(self.directory))
            if found is None:
                return None
            share = manifest.verify(found.path, mine=lambda n: n % process.world_size == process.rank)
            problems = sorted({problem for each in self.control.gather(share) for problem in each})
            if not problems:
                return found
            aside = self.control.from_first(manifest.set_aside(found.path) if process.is_first else None)
            state.notes.append(f"damaged checkpoint set aside as {aside}: {'; '.join(problems)}")
            if process.is_first:
                say(state.notes[-1])

    def _refuse_other(self, found: Checkpoint, held: Manifest) -> None:
        wanted = {**self._topology(), "precision": self.config.precision}
        wanted |= {key: value for key, value in self.config.model.model_dump().items() if key in _SHAPE}
        there = {**held.topology, "precision": held.precision, **held.model}
        differences = [
            f"{key} is {there.get(key)} there and {value} here"
            for key, value in wanted.items()
            if there.get(key) != value
        ]
        if differences:
            raise Refused(f"checkpoint {found.path} is of another run: {'; '.join(differences)}")


def foresee(directory: Path, state: State) -> None:
    """Take into `state` what the newest checkpoint says, before it is verified: enough to decide not to start."""
    newest = manifest.newest_complete(directory)
    if newest is None:
        return
    try:
        held = manifest.read_manifest(newest.path)
    except (OSError, ValueError):
        return  # resume() will look closer
    state.step, state.consumed_samples, state.checkpoint_step = held.step, held.consumed_samples, held.step
    state.slowest_step_s, state.save_s = held.slowest_step_s, held.save_s


def open_checkpoints(
    directory: Path, config: TrainerConfig, layout: Layout, engine: Engine, control: Control
) -> Checkpoints:
    """Have `engine` write its checkpoints in our way, below `directory`."""
    recorder = RecordingEngine()
    engine.write_with(recorder)
    return Checkpoints(directory, config, layout, engine, control, recorder)


def _understood(checkpoint: Checkpoint) -> Manifest:
    try:
        return manifest.read_manifest(checkpoint.path)
    except ValueError as error:
        raise Refused(str(error)) from error


def _random_state() -> dict[str, Any]:
    """What DeepSpeed does not save: without it a resumed run drops other activations."""
    state = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _restore_random_state(path: Path) -> None:
    state = torch.load(path, map_location="cpu", weights_only=True)
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
