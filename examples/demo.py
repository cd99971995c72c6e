"""`make demo`: a GPT on a private Slurm that survives the loss of a node and the time limit of its tasks.

Tells what happens as a story. Needs only this checkout. All files are below build/demo. The sandbox is always removed
at the end. A trial of a few steps measures the machine first: a slow one gets fewer processes, a smaller model, fewer
steps and longer tasks. `--record FILE.svg` draws the part from the launch to the end of the train.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any, TypeVar

import tomlkit
from ClusterShell.NodeSet import NodeSet
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from opsctl import Train, errors
from opsctl.host.system import SystemClock
from opsctl.monitor.status import TrainStatus
from opsctl.state.events import AttemptFinalized, AttemptStarted, Event
from opsctl.state.journal import Journal
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.iteration import Iteration
from opsctl.telemetry.progress.log_formats import parse_megatron

E = TypeVar("E", bound=Event)
ROOT = Path(__file__).parents[1]
HOME = ROOT / "build" / "demo"
TRAIN = "tiny-gpt"
SLOW_START_S, FEWER_START = 25.0, 0.6
"""From this start-up of four processes on, the train has two, whose start-up takes this share on two cores."""
SLOW_STEP_S = 1.0
"""From this step on, the train has a smaller model."""
SMALL_MODEL = {"layers": 2, "hidden": 64, "heads": 2, "sequence": 64}
SMALL_STEP = 0.2
"""Step of the smaller model over that of the larger one; half of it is communication."""
SAVE_S, WORK_S = 3.0, 13.0
"""Training between two checkpoints, and of one task until its time limit. The train needs 1.5 times their sum: the
first task loses a node after a checkpoint, the second reaches its limit, the third or fourth finishes, also if steps
take 30 % less or 40 % more than in the trial."""
NOTICE_S = 45.0
"""The longest time until Slurm notices that a node is gone, with --fast; 25 s on a quiet machine."""
SILENCE_S = 900.0
"""The longest time without any change. A train that advances is waited for, however slow it is."""

RECORD = sys.argv[2] if sys.argv[1:2] == ["--record"] else ""
ENDS = {
    "node-failed": "it lost a node (found by the guard of the next task)",
    "deadline": "its time was nearly over, so it saved a checkpoint and stopped",
}
"""Words of the story for outcomes."""

console = Console(highlight=False, soft_wrap=not RECORD, record=bool(RECORD), width=112 if RECORD else None)


def run(shown: str, module: str, *words: str) -> None:
    """Run a module as a user does, and show it as `shown`. Raises SystemExit if it fails."""
    console.print(f"[dim]$[/dim] {shown}")
    argv = [sys.executable, "-P", "-m", module, *words]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        console.print(done.stdout + done.stderr, markup=False)
        raise SystemExit(f"demo: {module} ended with {done.returncode}")
    if done.stdout.strip():
        console.print(done.stdout.rstrip().replace(f"{ROOT}/", ""), markup=False)


def opsctl(*words: str) -> None:
    run(f"opsctl {' '.join(words)}", "opsctl", *words)


def prepare() -> None:
    """Write the site file, for this process too, and a corpus from the source text of Python's library."""
    os.environ.update(OPSCTL_SITE=str(HOME / "site.toml"), XDG_STATE_HOME=str(HOME / "state"))
    for name in ("SLURM_CONF", "OPSCTL_ROOT"):
        os.environ.pop(name, None)
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    site = f'root = "{HOME / "trains"}"\nengine = "sandbox"\nsandbox = "demo"\ntrust_parents = true\n'
    (HOME / "site.toml").write_text(site)
    sources = sorted(map(str, Path(sysconfig.get_paths()["stdlib"]).glob("*.py")))
    shown = f"python -m opsctl.trainer.prepare   [dim]({len(sources)} files of Python's library)[/dim]"
    run(shown, "opsctl.trainer.prepare", "--input", *sources, "--output", str(HOME / "corpus"))


def read_events(train: str, *kinds: type[E]) -> list[E]:
    journal = Journal(RunDir(HOME / "trains" / train), SystemClock())
    return [event for event in journal.events() if isinstance(event, kinds)]


def read_steps(train: str) -> list[Iteration]:
    lines = RunDir(HOME / "trains" / train).main_log.read_text(errors="replace").splitlines()
    return [iteration for iteration in map(parse_megatron, lines) if iteration]


def write_config(train: str, changes: dict[str, Any]) -> str:
    """Write examples/tiny-gpt.toml with `changes`, by dotted key, as TRAIN.toml of `train`; return its path."""
    config = tomlkit.parse((ROOT / "examples" / "tiny-gpt.toml").read_text())
    for key, value in {"name": train, "trainer.data.prefix": str(HOME / "corpus"), **changes}.items():
        table: Any = config
        *tables, last = key.split(".")
        for part in tables:
            table = table.setdefault(part, {})
        table[last] = value
    path = HOME / f"{train}.toml"
    path.write_text(tomlkit.dumps(config))
    return str(path.relative_to(ROOT))


def run_trial() -> tuple[float, float]:
    """Train a few steps of the example.

    Returns the time of an undisturbed step, and that of everything else: loading libraries, building the model, saving.
    """
    story = Story("trial")
    opsctl("launch", write_config("trial", {"slurm.tasks": 1, "slurm.time_limit": "60", "trainer.steps": 12}))
    state = follow(story, crashes=False)
    if state != "finished":
        raise SystemExit(f"demo: the trial is {state}; look at {HOME / 'trains' / 'trial' / 'logs'}")
    began = read_events("trial", AttemptStarted)[0].when
    ended = read_events("trial", AttemptFinalized)[0].when
    steps = sorted(step.step_s for step in read_steps("trial") if step.step_s)
    return steps[len(steps) // 4], (ended - began).total_seconds() - sum(steps)


def choose(step_s: float, start_s: float) -> tuple[dict[str, Any], float]:
    """Return the changes to examples/tiny-gpt.toml that suit this machine, and the seconds until a task leaves."""
    found, changes, processes = f"{start_s:.0f} s to start and stop, {step_s:.2g} s a step", dict[str, Any](), 4
    if step_s > SLOW_STEP_S:
        step_s *= SMALL_STEP
        changes = {f"trainer.model.{key}": value for key, value in SMALL_MODEL.items()}
    if start_s > SLOW_START_S:
        processes, start_s = 2, FEWER_START * start_s
    # A start may take longer than that of the trial: twice as long on a machine that has become busy.
    work_s = max(WORK_S, min(1.5 * start_s, 25.0), 0.4 * start_s, 10 * step_s)
    every = max(2, round(SAVE_S / step_s))
    steps = round(1.5 * (every + work_s / step_s))
    model = "a smaller model" if changes else "the model"
    console.print(f"trial: {found}. So {processes} processes train {model} for {steps} steps and save every {every}.")
    changes |= {
        "slurm.processes_per_node": processes // 2,
        "slurm.tasks": 5,
        "trainer.steps": steps,
        "trainer.checkpoint.every": every,
        "trainer.optimizer.warmup_samples": 32 * max(1, steps // 15),
    }
    return changes, start_s + work_s


def limit(task_s: float) -> dict[str, Any]:
    """Return the settings of tasks that leave after `task_s`, with time for Slurm to notice a lost node.

    Slurm's limits are whole minutes, so the trainer's margin sets the seconds.
    """
    minutes = math.ceil((task_s + NOTICE_S) / 60)
    return {"slurm.time_limit": str(minutes), "trainer.limits.margin_s": round(60 * minutes - task_s)}


def crash_node(status: TrainStatus) -> bool:
    """Take the power from the first node of the train, if a task runs and has a checkpoint; return whether."""
    if not status.running or not status.progress or not status.progress.checkpoint_step:
        return False
    console.rule("A node loses its power")
    opsctl("sandbox", "fault", NodeSet(status.running[0].nodes)[0], "crash", "--name", "demo")
    console.print("Nobody tells opsctl. Ranks wait for ranks that are gone, until the guard and Slurm notice.")
    return True


class Story:
    """Tells of each attempt once where it begins, from which checkpoint, how it ended, and what was found."""

    def __init__(self, train: str) -> None:
        self.train = train
        self.told = len(self._attempts())
        """Events of attempts told so far, or of earlier launches."""
        self.warned = False

    def _attempts(self) -> list[AttemptStarted | AttemptFinalized]:
        return read_events(self.train, AttemptStarted, AttemptFinalized)

    def tell(self, status: TrainStatus) -> None:
        saved = status.progress.checkpoint_step if status.progress else None
        for event in self._attempts()[self.told :]:
            self.told += 1
            if isinstance(event, AttemptFinalized):
                self._tell_end(event)
            else:
                whence = f", from the checkpoint at step {saved}" if saved else ""
                console.print(f"  task {task_of(event.attempt)} begins on {event.nodes}{whence}", markup=False)
        if status.alerts and not self.warned:
            self.warned = True
            console.rule("What a person is told")
            opsctl("alerts", "list")

    def _tell_end(self, attempt: AttemptFinalized) -> None:
        words = ENDS.get(attempt.outcome, attempt.outcome)
        console.print(f"  task {task_of(attempt.attempt)} ended: {words}", markup=False)
        if attempt.outcome == "node-failed":
            console.rule("What opsctl found, and did")
            opsctl("why", self.train, "--task", task_of(attempt.attempt))


def task_of(attempt: str) -> str:
    """Return the number of the task of an attempt: "2" of "17_2.0"."""
    return attempt.partition(".")[0].rpartition("_")[2]


def follow(story: Story, *, crashes: bool) -> str:
    """Show progress until the train ends, and crash a node on the way; return how it ended."""
    train = story.train
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]}"), TimeElapsedColumn())
    watched, crashed, shown, changed = Train.find(train), not crashes, "", time.monotonic()
    printed = 0
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(train, status="", total=None)
        while time.monotonic() < changed + SILENCE_S:
            with contextlib.suppress(errors.WaitTimedOut):
                ended = watched.wait(timeout_s=1, poll_s=1)
                story.tell(ended)
                return ended.state
            status = watched.status()
            story.tell(status)
            progress, attempts = status.progress, ",".join(job.job for job in status.running or ())
            step, last = (progress.step, progress.last_step) if progress else (0, None)
            loss = f"{progress.loss:.3f}" if progress and progress.loss is not None else "not known yet"
            text = f"{status.state} {attempts} step {step} loss {loss}"
            bar.update(task, completed=step, total=last, status=text)
            if text != shown:
                shown, changed = text, time.monotonic()
                if not console.is_terminal and last and step >= printed + last / 8:
                    printed = step
                    print(f"  step {step} of {last}, loss {loss}", flush=True)
            crashed = crashed or crash_node(status)
    raise SystemExit(f"demo: nothing has changed for {SILENCE_S:.0f} s; look at {HOME / 'trains' / train / 'logs'}")


def run_train(changes: dict[str, Any], task_s: float) -> str:
    """Run the train, again with longer tasks if it has not finished; return how it ended."""
    for factor in (1, 3, 9):
        story = Story(TRAIN)
        opsctl("launch", write_config(TRAIN, changes | limit(factor * task_s)))
        state = follow(story, crashes=factor == 1)
        if state == "finished":
            break
        console.print(f"{TRAIN} is {state}: tasks get more time")
        if state == "held":
            opsctl("cancel", TRAIN)
    return state


def attempts() -> list[AttemptFinalized]:
    return read_events(TRAIN, AttemptFinalized)


def summary(took: float) -> None:
    steps = read_steps(TRAIN)
    console.rule("Summary")
    console.print(f"{steps[-1].step} steps over {len(attempts())} array tasks, in {took:.0f} s of wall-clock")
    console.print(f"loss {steps[0].loss:.3f} at the first step, {steps[-1].loss:.3f} at the last")
    for attempt in attempts():
        console.print(f"  {attempt.attempt:8} {attempt.outcome}: {attempt.why}", markup=False)
    outcomes = {attempt.outcome for attempt in attempts()}
    if "node-failed" not in outcomes:
        console.print("The node was lost between two tasks, so no task was lost with it.")
    if "deadline" not in outcomes:
        console.print("The train was faster than the trial, so no task reached its time limit.")
    console.print("\nFor a browser: build/demo/pages/index.html, the page of all trains, and build/demo/report.html.")
    console.print("Everything is in build/demo. Try it yourself:")
    for line in (
        "opsctl sandbox up --nodes 4",
        "opsctl launch examples/tiny-gpt.toml --dry-run",
        "opsctl launch examples/tiny-gpt.toml && opsctl status --watch",
    ):
        console.print(f"  .venv/bin/{line}", markup=False)


def main() -> None:
    started = time.monotonic()
    prepare()
    down = [sys.executable, "-P", "-m", "opsctl", "sandbox", "down", "--name", "demo"]
    subprocess.run(down, cwd=ROOT, capture_output=True, check=False)
    try:
        console.rule("A private Slurm, and a trial that measures this machine")
        opsctl("sandbox", "up", "--name", "demo", "--nodes", "4", "--fast")
        chosen = choose(*run_trial())
        console.rule("A train of tasks with a time limit")
        if RECORD:
            console.export_text(clear=True)  # leaves out the trial
        state = run_train(*chosen)
        opsctl("status", TRAIN)
        if RECORD:
            drawn = console.export_svg(title="make demo")
            Path(RECORD).write_text(
                re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)
            )  # no fonts from elsewhere
        console.rule("Where the time went")
        opsctl("report", TRAIN)
        opsctl("report", TRAIN, "--html", "build/demo/report.html")
        opsctl("dash", "--static", "build/demo/pages")
    finally:
        opsctl("sandbox", "down", "--name", "demo")
    summary(time.monotonic() - started)
    if state != "finished":
        raise SystemExit(f"demo: the train is {state} and has not finished")


if __name__ == "__main__":
    main()
