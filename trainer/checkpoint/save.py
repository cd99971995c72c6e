"""Save checkpoints atomically, in the background of training.

DeepSpeed's own save is not atomic: rank 0 writes "latest" before the other ranks have succeeded. Here every rank copies
its state to host memory, and training waits only for the copy. A thread then writes and hashes the copy and records
failures, and all ranks exchange their results. Finally rank 0 writes the manifest and COMPLETE and renames the
directory, or removes the directory.
"""

import threading
import time
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from opsctl.trainer import loss_spikes, manifest
from opsctl.trainer.atomic_files import fsync_directory
from opsctl.trainer.checkpoint.rank_files import RecordingEngine
from opsctl.trainer.checkpoint.resume import Resuming, random_file, random_state
from opsctl.trainer.checkpoint.rewrite import RESHAPED, shortage
from opsctl.trainer.engine import Engine
from opsctl.trainer.heartbeats import print_line
from opsctl.trainer.manifest import FileRecord, Manifest
from opsctl.trainer.process_groups import Control
from opsctl.trainer.run_state import RunState

_BYTES_PER_PARAMETER = {"bf16": 14.5, "fp32": 16.5}
"""Weight, the optimizer's two means in fp32, with bf16 the fp32 weight, and a small reserve."""
_FILE_OVERHEAD_BYTES = 1 << 18
"""Names, shapes and the state of random generators in a file."""
_UNFINISHED = ".saving-*"


class Removal:
    """Deletes what was renamed in `directory`, one deletion at a time, in a thread of rank 0.

    Terabytes take minutes to delete, and every collective has a timeout: no rank waits for a removal. A removal is a
    rename, which is done at once, and a deletion, which an interruption leaves to the next attempt.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._thread: threading.Thread | None = None
        self._failure = ""

    def retire_unfinished(self, *others: str) -> None:
        """Rename the remains of interrupted saves, and `others`, and begin to delete them. Raises OSError."""
        for pattern in (_UNFINISHED, *others):
            for leftover in self._directory.glob(pattern):
                manifest.retire(leftover)
        self.begin()

    def begin(self) -> None:
        """Begin to delete what was renamed, unless a deletion is under way, which the next call continues."""
        if self.is_under_way():
            return
        self._thread = threading.Thread(target=self._sweep, name="removal", daemon=True)
        self._thread.start()

    def is_under_way(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def wait(self, timeout_s: float) -> None:
        """Wait for the deletion under way, at most `timeout_s`."""
        if self._thread:
            self._thread.join(timeout_s)

    def take_failure(self) -> str:
        """Return why the last deletion failed, once; empty if it did not."""
        failure, self._failure = self._failure, ""
        return failure

    def _sweep(self) -> None:
        try:
            manifest.sweep(self._directory)
        except OSError as error:
            self._failure = f"remains of a removed checkpoint cannot be deleted: {error}"


@dataclass(slots=True, kw_only=True)
class _Save:
    """One save and its result. The thread of the save writes the result; it is read after the thread has ended."""

    state: RunState
    """The state at the time of the copy."""
    part: Path
    keep: str
    started: float
    stall_s: float = 0.0
    """Seconds that training stood still."""
    seconds: float = 0.0
    failure: str = ""
    log_lines: list[str] = field(default_factory=list)
    thread: threading.Thread | None = None

    @property
    def name(self) -> str:
        return manifest.directory_name(self.state.step)


class Checkpoints:
    """The checkpoints of this run, which all ranks write together. One save at a time."""

    def __init__(self, resuming: Resuming, engine: Engine, *, parameters: int) -> None:
        """Make `engine` write through this object; all ranks together. `parameters` are those of the whole model."""
        self._config, self._control, self._engine = resuming.config, resuming.control, engine
        self._directory, self._topology, self._parameters = resuming.directory, resuming.topology, parameters
        self._recorder = RecordingEngine()
        engine.write_with(self._recorder)
        self._writers = Control(self._control.process, timeout=timedelta(seconds=self._config.limits.save_s))
        self._removal = Removal(self._directory)
        self._save: _Save | None = None

    def save(self, state: RunState, *, background: bool, keep: str = "") -> None:
        """Start to save the state after `state.step`. `keep` is a reason never to prune the checkpoint.

        All ranks call this method, and only when no save is in flight. With `background`, the call returns after the
        copy of the state. `collect_save` returns the result.
        """
        assert self._save is None
        part = self._directory / f".saving-{manifest.directory_name(state.step)}"
        save = _Save(state=replace(state), part=part, keep=keep, started=time.monotonic())
        save.failure = "" if state.checkpoint_step == state.step else self._control.from_first(self._prepare(save.part))
        self._save = save
        if save.failure or state.checkpoint_step == state.step:
            return
        self._recorder.start(copying=background)
        self._engine.save(save.part)
        rank = self._control.process.rank
        self._recorder.save(state_dict=random_state(), path=str(save.part / random_file(rank)))
        if background:
            save.stall_s = time.monotonic() - save.started
            save.thread = threading.Thread(target=self._try_to_finish, args=(save,), name="save", daemon=True)
            save.thread.start()
        else:
            self._finish(save)
            save.stall_s = save.seconds

    def collect_save(self, state: RunState, *, wait: bool = False) -> bool | None:
        """Return whether the save that has ended since the last call succeeded; None if no save has ended.

        A failure is noted, and training goes on. All ranks get the same result, but not at the same step unless they
        `wait` for a save in flight.
        """
        save = self._save
        if save is None or (save.thread and save.thread.is_alive() and not wait):
            return None
        started = time.monotonic()
        if save.thread:
            save.thread.join()
        self._save = None
        if save.failure:
            state.notes.append(f"checkpoint {save.name} was not saved: {save.failure}")
        elif save.seconds:
            state.checkpoint_step, state.save_s = save.state.step, save.seconds
        self._log_result(save, state, waited=time.monotonic() - started)
        return not save.failure

    def _log_result(self, save: _Save, state: RunState, *, waited: float) -> None:
        if not self._control.process.is_first:
            return
        if save.failure:
            print_line(state.notes[-1])
        elif save.seconds:
            stall = save.stall_s + (waited if save.thread else 0.0)
            print_line(f"saved checkpoint {save.name} in {save.seconds:.2f} s; training stood still for {stall:.3f} s")
        for line in save.log_lines:
            print_line(line)

    def _prepare(self, part: Path) -> str:
        """Retire leftovers of earlier saves, check the space and make the directory, on rank 0; return the problem."""
        if not self._control.process.is_first:
            return ""
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            self._removal.retire_unfinished()
            lacking = self._find_shortage(part.parent)
            if lacking and self._removal.is_under_way():  # the other ranks wait for at most twice as long
                self._removal.wait(self._config.parallel.timeout_s / 2)
                lacking = self._find_shortage(part.parent)
            if not lacking:
                part.mkdir()
            return lacking
        except OSError as error:
            return str(error)

    def _find_shortage(self, directory: Path) -> str:
        precision, ranks = self._config.precision, self._control.process.world_size
        size, files = expected_size(directory, parameters=self._parameters, precision=precision, ranks=ranks)
        return shortage(directory, size=size, files=files)

    def close(self) -> None:
        """Let rank 0 finish all removals, for a shorter time than the other ranks wait for rank 0."""
        if self._control.process.is_first:
            for _ in range(2):  # what the one under way has not found
                self._removal.begin()
                self._removal.wait(min(self._config.limits.exit_s, self._config.parallel.timeout_s) / 4)

    def _try_to_finish(self, save: _Save) -> None:
        """Record every exception as the failure of the save; a thread would only print it."""
        try:
            self._finish(save)
        except Exception as error:  # noqa: BLE001 - any failure only costs this checkpoint
            save.failure = save.failure or f"{type(error).__name__}: {error}"

    def _finish(self, save: _Save) -> None:
        """Write the copies, gather the errors of all ranks, and commit.

        Runs in its own thread and uses its own process group, so that its messages do not mix with those of training.
        """
        self._recorder.write_copies()
        gathered = self._writers.gather((self._recorder.files, self._recorder.errors))
        files: dict[str, FileRecord] = {}
        errors: list[str] = []
        for rank, (rank_files, rank_errors) in enumerate(gathered):
            files |= rank_files
            errors += [f"rank {rank}: {error}" for error in rank_errors]
        save.failure = "; ".join(errors) or self._writers.from_first(self._commit(save, files))
        if self._writers.process.is_first:
            save.log_lines = self._prune(*([] if save.failure else [f"{RESHAPED}*"]))
        self._writers.barrier()
        save.seconds = time.monotonic() - save.started

    def _commit(self, save: _Save, files: dict[str, FileRecord]) -> str:
        """Turn the written files into a checkpoint, on rank 0; return the failure, or an empty text."""
        if not self._writers.process.is_first:
            return ""
        part, final = save.part, save.part.with_name(save.name)
        try:
            short = [name for name, record in files.items() if (part / name).stat().st_size != record.size]
            if short:
                return f"cut short: {', '.join(short)}"
            if save.keep:
                manifest.keep(part, save.keep, by=loss_spikes.NAME)
            manifest.write_manifest(part, self._manifest(save, files))
            if final.exists():
                manifest.set_aside(final)
            part.rename(final)
            fsync_directory(part.parent)
        except OSError as error:
            return str(error)
        return ""

    def _manifest(self, save: _Save, files: dict[str, FileRecord]) -> Manifest:
        return Manifest(
            step=save.state.step,
            consumed_samples=save.state.consumed_samples,
            topology=self._topology,
            model=self._config.model.model_dump(),
            precision=self._config.precision,
            seed=self._config.seed,
            data=save.state.data,
            positions=save.state.positions,
            optimizer=self._config.optimizer.model_dump(),
            rate=self._config.rate().at(save.state.consumed_samples),
            earlier_tokens=save.state.earlier_tokens,
            slowest_step_s=save.state.slowest_step_s,
            save_s=time.monotonic() - save.started,
            files=files,
        )

    def _prune(self, *superfluous: str) -> list[str]:
        checkpoint_config = self._config.checkpoint
        checkpoints = manifest.list_checkpoints(self._directory)
        log_lines = []
        try:
            manifest.unprotect(checkpoints, by=loss_spikes.NAME, newest=self._config.spike.keep)
        except OSError as error:
            log_lines.append(f"checkpoints of old loss spikes stay protected: {error}")
        log_lines += filter(None, [self._removal.take_failure()])
        for old in manifest.find_superfluous(
            checkpoints, keep_last=checkpoint_config.keep_last, keep_every=checkpoint_config.keep_every
        ):
            try:
                manifest.retire(old.path)
                log_lines.append(f"removed checkpoint {old.path.name}")
            except OSError as error:
                log_lines.append(f"checkpoint {old.path.name} cannot be removed: {error}")
        try:
            self._removal.retire_unfinished(*superfluous)  # also this save, if it failed
        except OSError as error:
            log_lines.append(f"remains of a save cannot be removed: {error}")
        return log_lines


def expected_size(directory: Path, *, parameters: int, precision: str, ranks: int) -> tuple[int, int]:
    """Return bytes and files of the next checkpoint: those of the newest, else an estimate by parameters."""
    newest = manifest.find_newest_complete(directory)
    if newest is not None:
        try:
            files = manifest.read_manifest(newest.path).files
            return sum(record.size for record in files.values()), len(files) + 2
        except (OSError, ValueError):
            pass  # damaged or of another version: resume reports the problem
    return int(parameters * _BYTES_PER_PARAMETER[precision]) + ranks * _FILE_OVERHEAD_BYTES, 4 * ranks + 2
