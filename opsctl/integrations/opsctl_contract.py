"""What a trainer needs to work with opsctl, in one file of the standard library: copy the file beside the trainer.

    import opsctl_contract

    contract = opsctl_contract.Contract()    # does nothing outside a train of opsctl
    for step in range(first, last + 1):
        ...
        request = contract.after_step(step, last_steps=last, loss=loss)   # the same on all ranks
        if request.save:
            save(step)
            contract.saved(step)
        if request.stop:
            break
    contract.end(step)

transformers and TRL: `callbacks=[opsctl_contract.transformers_callback()]`. Lightning:
`callbacks=[opsctl_contract.lightning_callback()]`. `newest_checkpoint(DIRECTORY)` is the checkpoint to resume from.
A failed write never stops the training. Rank 0 reads the files; all ranks get its decision by torch.distributed.
"""

import contextlib
import importlib
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

POLL_S = 5.0
"""Time between two looks at the files, and between two heartbeats."""
MAX_STEPS_BETWEEN_POLLS = 100
STOP_MARGIN_S = 20.0
"""Time left for the end of the processes when the trainer stops before the end of the job."""
LIMITS_S = {"init": 3600.0, "eval": 7200.0, "save": 3600.0, "exit": 900.0}
"""Time limits of the phases. The limit of a training step follows from the slowest step."""
MIN_STEP_LIMIT_S = 900.0
MAX_TIME_CHARS = 100
STOP_FILES = (("kill", "TRAIN_KILL_SWITCH"), ("pause", "TRAIN_PAUSE_SWITCH"), ("stop-request", "TRAIN_STOP_REQUEST"))
"""Stop reasons and the variables of the files that ask for them."""


class StepRequest(NamedTuple):
    """What opsctl asks for after a step. A stop asks for a save as well."""

    save: bool = False
    stop: bool = False


class TrainFiles:
    """The files by which opsctl asks one rank to stop or to save. opsctl's own trainer uses this class as well."""

    def __init__(self, environ: Mapping[str, str], report: Callable[[str], None]) -> None:
        """`report` gets a line for every file that cannot be read or removed."""
        self._environ, self._report = environ, report
        self._answered: tuple[int, int] | None = None
        self._taken: tuple[int, int] | None = None

    def path(self, variable: str) -> Path | None:
        value = self._environ.get(variable)
        return Path(value) if value else None

    def find_stop(self, *, margin_s: float, slowest_step_s: float, save_s: float) -> tuple[str, str]:
        """Return why to stop, and the details; both empty if nothing asks for a stop."""
        for reason, variable in STOP_FILES:
            if self._identify(variable):
                return reason, f"{self.path(variable)} exists"
        left_s, needed_s = self._left_s(), margin_s + 2 * (slowest_step_s + save_s)
        if not -math.inf < left_s < needed_s:
            return "", ""
        return "deadline", (
            f"the job ends in {left_s:.0f} s, and stopping needs up to {needed_s:.0f} s: {margin_s:g} s + "
            f"2 x (slowest step {slowest_step_s:.1f} s + save {save_s:.1f} s)"
        )

    def _left_s(self) -> float:
        """Return the seconds until the end of the job; not finite if unknown."""
        path = self.path("TRAIN_DEADLINE")
        with contextlib.suppress(OSError, ValueError):
            if path and path.is_file():  # a pipe would block the training
                with path.open() as file:
                    return float(file.read(MAX_TIME_CHARS)) - time.time()
        return math.inf

    def is_save_requested(self) -> bool:
        identity = self._identify("TRAIN_SAVE_SWITCH")
        return identity is not None and identity != self._answered

    def start_save(self) -> None:
        """Remember the save switch as it is now: this save answers it, until the file is touched again."""
        self._answered = self._taken = self._identify("TRAIN_SAVE_SWITCH")

    def finish_save(self, *, saved: bool = True) -> None:
        """Remove the save switch that a complete save answers, unless the file has been touched since.

        After a save that failed the switch stays; it is not answered again before it is touched.
        """
        path, taken, self._taken = self.path("TRAIN_SAVE_SWITCH"), self._taken, None
        if saved and path and taken and self._identify("TRAIN_SAVE_SWITCH") == taken:
            try:
                path.unlink()
            except OSError as error:
                self._report(f"save switch {path} cannot be removed: {error.strerror}")

    def _identify(self, variable: str) -> tuple[int, int] | None:
        """Return inode and modification time; None without the file, and for a file that cannot be read."""
        path = self.path(variable)
        try:
            if path:
                status = path.lstat()  # a link is a switch itself: its target may be another user's
                return status.st_ino, status.st_mtime_ns
        except OSError as error:
            if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
                self._report(f"switch {path} cannot be read: {error.strerror}")
        return None


def list_heartbeats(environ: Mapping[str, str], *, rank: int, local_rank: int, node: str) -> list[Path]:
    """Return the heartbeat files of a rank: `train.json` of rank 0, `NODE-0.json` of the first rank of every node."""
    directory = environ.get("TRAIN_HEARTBEAT_DIR")
    names = ["train.json"] * (rank == 0) + [f"{node}-{local_rank}.json"] * (local_rank == 0)
    return [Path(directory) / name for name in names] if directory else []


class Contract:
    """The train of opsctl that this process belongs to. Outside a train, every method does nothing."""

    def __init__(self, environ: Mapping[str, str] | None = None, *, poll_s: float = POLL_S) -> None:
        self._environ, self._poll_s = os.environ if environ is None else environ, poll_s
        self.is_active = bool(self._environ.get("TRAIN_STOP_REQUEST"))
        self.rank = int(self._environ.get("RANK") or self._environ.get("SLURM_PROCID") or 0)
        self.stop_reason = self._stop_detail = ""
        """Why the training stops: kill, pause, stop-request or deadline; empty while it goes on."""
        self.loss: float | None = None
        self.last_steps: int | None = None
        self._checkpoint_step: int | None = None
        self._step = self._polled_step = self._next_poll = 0
        self._phase, self._heartbeat_at = "", 0.0
        self._step_at = self._polled_at = time.monotonic()
        self._step_s = self._slowest_step_s = self._save_s = self._save_began = 0.0
        self._mlflow_run = self._environ.get("MLFLOW_RUN_ID", "")
        self._problems: list[str] = []
        self._files = TrainFiles(self._environ, self._report)

    def begin(self, step: int, *, last_steps: int | None = None) -> None:
        """Report that the training begins after `step`, which is 0 without a checkpoint."""
        self._step = self._polled_step = self._next_poll = step
        self.last_steps = last_steps
        self._step_at = self._polled_at = time.monotonic()
        self.phase("init")

    def after_step(self, step: int, *, last_steps: int | None = None, loss: float | None = None) -> StepRequest:
        """Return what opsctl asks for after `step`. Call this on every rank after every step."""
        if not self.is_active:
            return StepRequest()
        if not self._phase:
            self.begin(step - 1, last_steps=last_steps)
        now = time.monotonic()
        if self._phase == "train":
            self._slowest_step_s = max(self._slowest_step_s, now - self._step_at)
        self._step, self._step_at = step, now
        self.last_steps = self.last_steps if last_steps is None else last_steps
        self.loss = self.loss if loss is None else float(loss)
        self.phase("train")
        if step < self._next_poll:
            return StepRequest()
        request = self._poll(step, now)
        if request.save:
            self._save_began = time.monotonic()
            self.phase("save")
        return request

    def saved(self, step: int) -> None:
        """Report a complete checkpoint. A requested save is answered by this call."""
        self._checkpoint_step = step
        now = time.monotonic()
        if self._save_began:
            self._save_s = max(self._save_s, now - self._save_began)
        self._files.finish_save()
        self._step_at, self._save_began = now, 0.0
        self.phase("exit" if self.stop_reason else "train")

    def end(self, step: int, *, finished: bool = True) -> None:
        """Report the end of the loop: the training is finished unless opsctl stopped it or `finished` is False."""
        self._step = step
        self.phase("exit")
        if self.rank != 0 or not (self.stop_reason or finished):
            return
        record = {"reason": self.stop_reason or "finished", "step": step, "at": time.time(), "notes": self._problems}
        record.update(detail=self._stop_detail, checkpoint_step=self._checkpoint_step)
        self._write(self._files.path("TRAIN_STOP_REASON"), json.dumps(record))
        if not self.stop_reason:
            self._write(self._files.path("TRAIN_FINISHED"), f"step {step}")

    def phase(self, phase: str) -> None:
        """Report the phase: init, train, eval, save or exit. A heartbeat is written at most every `poll_s`."""
        now = time.monotonic()
        if not self.is_active or (phase == self._phase and now - self._heartbeat_at < self._poll_s):
            return
        self._phase, self._heartbeat_at = phase, now
        local_rank = int(self._environ.get("LOCAL_RANK") or self._environ.get("SLURM_LOCALID") or 0)
        node = self._environ.get("TRAIN_NODE") or self._environ.get("SLURMD_NODENAME") or os.uname().nodename
        is_endless = not 0 < (self.last_steps or 0) < math.inf
        heartbeat = {
            "attempt": self._environ.get("TRAIN_ATTEMPT", ""),
            "node": node,
            "rank": self.rank,
            "phase": phase,
            "step": self._step,
            "at": time.time(),
            "limit_s": LIMITS_S.get(phase, max(MIN_STEP_LIMIT_S, 20 * self._slowest_step_s)),
            "last_steps": None if is_endless else int(self.last_steps or 0),
            "checkpoint_step": self._checkpoint_step,
            "loss": self.loss,
            "step_s": self._step_s or None,
            "note": self._problems[-1] if self._problems else "",
        }
        for path in list_heartbeats(self._environ, rank=self.rank, local_rank=local_rank, node=node):
            self._write(path, json.dumps(heartbeat), name=f"the heartbeat {path.name}")

    @contextlib.contextmanager
    def checkpoint(self, step: int, directory: str | Path = "", *, suffix: str = "", keep: int = 0) -> Iterator[str]:
        """Yield the path at which all ranks save; `step-N` exists once all have saved. 0 keeps all older ones."""
        parent = Path(directory or self._environ.get("TRAIN_CHECKPOINT_DIR") or ".")
        final, temporary = parent / f"step-{step}{suffix}", parent / f".saving-step-{step}{suffix}"
        distributed = _find_distributed()
        wait_for_ranks = distributed.barrier if distributed else lambda: None
        if self.rank == 0:
            parent.mkdir(parents=True, exist_ok=True)
            _remove(temporary)
        wait_for_ranks()
        yield str(temporary)
        wait_for_ranks()
        if self.rank == 0:
            _remove(final)
            temporary.rename(final)
            others = sorted({*parent.glob(f"step-*{suffix}")} - {final}, key=lambda path: -path.stat().st_mtime_ns)
            for old in others[keep - 1 :] if keep else ():
                _remove(old)
        wait_for_ranks()
        self.saved(step)

    def _poll(self, step: int, now: float) -> StepRequest:
        """Return the request of rank 0. The ranks agree on the step of the next poll as well."""
        if step > self._polled_step:
            self._step_s = (now - self._polled_at) / (step - self._polled_step)
        steps = int(self._poll_s / self._step_s) if self._step_s else 1
        # The first steps are no measure.
        steps = max(1, min(steps, 2 * (step - self._polled_step), MAX_STEPS_BETWEEN_POLLS))
        self._note_mlflow_run()
        decision: list[Any] = ["", False, steps]
        if self.rank == 0:
            # The end of the job must leave time for two more of the slowest steps and saves, and for the next poll.
            decision[0], self._stop_detail = self._files.find_stop(
                margin_s=STOP_MARGIN_S + self._poll_s, slowest_step_s=self._slowest_step_s, save_s=self._save_s
            )
            if self._files.is_save_requested():
                decision[1] = True
                self._files.start_save()
        if distributed := _find_distributed():
            distributed.broadcast_object_list(decision, src=0)
        self.stop_reason, save, steps = decision
        self._polled_step, self._polled_at, self._next_poll = step, now, step + steps
        return StepRequest(save=save or bool(self.stop_reason), stop=bool(self.stop_reason))

    def _note_mlflow_run(self) -> None:
        """Record the id of the active run in MLflow, which the server has chosen, for the next attempt."""
        mlflow = sys.modules.get("mlflow") if self.rank == 0 else None
        run = mlflow.active_run() if mlflow and hasattr(mlflow, "active_run") else None
        if run and run.info.run_id != self._mlflow_run:
            self._mlflow_run = run.info.run_id
            self._write(self._files.path("TRAIN_MLFLOW_RUN"), self._mlflow_run)

    def _write(self, path: Path | None, line: str, *, name: str = "") -> None:
        """Replace a file whole; print a failure once and go on."""
        try:
            if path:
                temporary = path.with_name(f".{path.name}.{os.getpid()}")
                temporary.write_text(f"{line}\n")
                temporary.replace(path)
        except OSError as error:
            self._report(f"{name or path} cannot be written", f": {error}")

    def _report(self, problem: str, detail: str = "") -> None:
        if problem not in self._problems:
            self._problems.append(problem)
            print(f"opsctl: {problem}{detail}", flush=True)  # noqa: T201 (the log is stdout)


def _find_distributed() -> Any:
    """Return torch.distributed if the trainer has initialized it: then there are other ranks."""
    torch = sys.modules.get("torch")  # a trainer that has not imported torch has no process group
    is_up = torch and torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed if torch and is_up else None


def newest_checkpoint(directory: str | Path | None = None) -> str | None:
    """Return the newest complete checkpoint in `directory`, or None. The default is the directory of the train.

    Known are `checkpoint-N/` of transformers, `step-N` of Contract.checkpoint, and `*.ckpt` of Lightning.
    """
    parent = Path(directory or os.environ.get("TRAIN_CHECKPOINT_DIR") or ".")
    marks = {path.parent: path for path in parent.glob("checkpoint-*/trainer_state.json")}  # written last
    marks.update({path: path for path in (*parent.glob("step-*"), *parent.glob("[!.]*.ckpt"))})
    # Of the same moment the longer name has the larger number.
    newest = max(marks, key=lambda path: (marks[path].stat().st_mtime_ns, len(path.name), path.name), default=None)
    return None if newest is None else str(newest)


def transformers_callback(contract: Contract | None = None, **options: Any) -> Any:
    """Return a TrainerCallback. The options are those of TransformersHooks."""
    from transformers import TrainerCallback  # noqa: PLC0415 (only where transformers is used)

    return type("TransformersCallback", (TransformersHooks, TrainerCallback), {})(contract, **options)


def lightning_callback(contract: Contract | None = None, **options: Any) -> Any:
    """Return a Callback of lightning or pytorch_lightning, whichever the trainer has imported."""
    is_old = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
    library = importlib.import_module("pytorch_lightning" if is_old else "lightning.pytorch")
    return type("LightningCallback", (LightningHooks, library.Callback), {})(contract, **options)


class TransformersHooks:
    """The methods of a TrainerCallback, for Trainer and every trainer of TRL."""

    def __init__(self, contract: Contract | None = None, *, exit_on_stop: bool = True, finish: bool = True) -> None:
        """`exit_on_stop`: after a stop, exit with 0 instead of returning from train(). `finish`: the end of train() is
        the end of the training; with False, call `callback.contract.end(step)` at the end of the script."""
        self.contract = contract or Contract()
        self._exits, self._finishes = exit_on_stop, finish

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.contract.begin(state.global_step, last_steps=state.max_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        request = self.contract.after_step(state.global_step)
        control.should_save = control.should_save or request.save
        if request.stop:
            control.should_training_stop, control.should_evaluate = True, False

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.contract.phase("eval")

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.contract.saved(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if logs and isinstance(logs.get("loss"), (int, float)):
            self.contract.loss = float(logs["loss"])

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.contract.stop_reason or self._finishes:
            self.contract.end(state.global_step)
        if self.contract.stop_reason and self._exits:
            raise SystemExit(0)


class LightningHooks:
    """The methods of a Lightning Callback. Lightning's own requeue is switched off: opsctl queues the tasks."""

    def __init__(self, contract: Contract | None = None, *, directory: str | Path = "", finish: bool = True) -> None:
        """`directory`: of requested checkpoints, by default $TRAIN_CHECKPOINT_DIR. `finish`: as above, for fit()."""
        self.contract = contract or Contract()
        self._directory, self._finishes, self._step = directory, finish, -1

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        environment: Any = getattr(trainer._accelerator_connector, "cluster_environment", None)
        if self.contract.is_active and hasattr(environment, "auto_requeue"):
            environment.auto_requeue = False  # before Lightning registers its signal handlers
        self.contract.rank = trainer.global_rank

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._step = trainer.global_step
        self.contract.begin(self._step, last_steps=trainer.estimated_stepping_batches)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self._step:  # gradients are accumulated
            return
        self._step = trainer.global_step
        request = self.contract.after_step(self._step)
        if request.save:
            with self.contract.checkpoint(self._step, self._directory, suffix=".ckpt", keep=1) as path:
                trainer.save_checkpoint(path)
        if request.stop:
            self.contract.end(self._step)
            raise SystemExit(0)  # Lightning tears down and passes this on; should_stop would validate first

    def on_validation_batch_end(self, *_: Any) -> None:
        self.contract.phase("eval")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        timers = [callback for callback in trainer.callbacks if hasattr(callback, "time_remaining")]
        if self._finishes and not any((timer.time_remaining() or 1) <= 0 for timer in timers):
            self.contract.end(trainer.global_step)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
