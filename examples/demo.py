"""`make demo`: a GPT on a private Slurm that survives the loss of a node and the time limit of its tasks.

Needs only this checkout. All files are below build/demo. The sandbox is always removed at the end.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

from ClusterShell.NodeSet import NodeSet
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from opsctl.host.system import SystemClock
from opsctl.state.journal import EventKind, Journal
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.iteration_lines import parse

ROOT = Path(__file__).parents[1]
HOME = ROOT / "build" / "demo"
TRAIN = "tiny-gpt"
CRASH_AT = 70
"""At this step, after the checkpoint of step 50, the first node of the train loses its power."""
LIMIT_S = 480
"""The longest time until the train ends."""
ENV = {**os.environ, "OPSCTL_SITE": str(HOME / "site.toml"), "XDG_STATE_HOME": str(HOME / "state")}
for name in ("SLURM_CONF", "OPSCTL_ROOT"):
    ENV.pop(name, None)

console = Console(highlight=False, soft_wrap=True)


def opsctl(*words: str, quiet: bool = False) -> str:
    """Run a command as a user does, and return its output. Raises SystemExit if the command fails."""
    if not quiet:
        console.print(f"[dim]$[/dim] opsctl {' '.join(words)}")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "opsctl", *words], env=ENV, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        console.print(done.stdout + done.stderr, markup=False)
        raise SystemExit(f"demo: opsctl {words[0]} ended with {done.returncode}")
    if not quiet and done.stdout.strip():
        console.print(done.stdout.rstrip(), markup=False)
    return done.stdout


def prepare() -> None:
    """Write the site file, and a corpus from the source text of Python's library."""
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    site = f'root = "{HOME / "trains"}"\nengine = "sandbox"\nsandbox = "demo"\ntrust_parents = true\n'
    (HOME / "site.toml").write_text(site)
    library = sysconfig.get_paths()["stdlib"]
    sources = [str(path) for path in sorted(Path(library).glob("*.py"))]
    prepare_argv = [sys.executable, "-P", "-m", "opsctl.trainer.prepare"]
    words = [*prepare_argv, "--input", *sources, "--output", str(HOME / "corpus")]
    console.print(f"[dim]$[/dim] python -m opsctl.trainer.prepare   [dim]({len(sources)} files of {library})[/dim]")
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"demo: no corpus:\n{done.stderr}")


def status() -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(opsctl("status", TRAIN, "--json", quiet=True))[0]
    return fields


def follow() -> tuple[str, str]:
    """Show progress until the train has ended: a bar on a terminal, else a line a change; crash a node on the way.

    How the train ended, and which task lost the node.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]}"), TimeElapsedColumn())
    until = time.monotonic() + LIMIT_S
    shown, crashed = "", ""
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(TRAIN, status="", total=None)
        while time.monotonic() < until:
            fields = status()
            step = fields["progress"] or {}
            attempts = [job["job"] for job in fields["running"]]
            loss = "not known yet" if step.get("loss") is None else f"{step['loss']:.3f}"
            text = f"{fields['state']} {','.join(attempts)} step {step.get('step', 0)} loss {loss}"
            bar.update(task, completed=step.get("step", 0), total=step.get("last_step"), status=text)
            if not console.is_terminal and text != shown:
                print(f"  {text}", flush=True)
            shown = text
            if not crashed and attempts and step.get("step", 0) >= CRASH_AT:
                opsctl("sandbox", "fault", NodeSet(fields["running"][0]["nodes"])[0], "crash", "--name", "demo")
                crashed = attempts[0].rpartition("_")[2]
            if fields["state"] in ("finished", "ended", "held"):
                return fields["state"], crashed
            time.sleep(1)
    raise SystemExit(f"demo: not finished after {LIMIT_S} s; look at {HOME / 'trains' / TRAIN / 'logs'}")


def summary(took: float) -> None:
    run = RunDir(HOME / "trains" / TRAIN)
    lines = run.main_log.read_text(errors="replace").splitlines()
    steps = [iteration for iteration in map(parse, lines) if iteration]
    attempts = [
        event.data for event in Journal(run, SystemClock()).events() if event.kind is EventKind.ATTEMPT_FINALIZED
    ]
    console.rule("summary")
    console.print(f"{steps[-1].step} steps over {len(attempts)} array tasks, in {took:.0f} s of wall-clock")
    console.print(f"loss {steps[0].loss:.3f} at the first step, {steps[-1].loss:.3f} at the last")
    for attempt in attempts:
        console.print(f"  {attempt['attempt']:8} {attempt['outcome']}: {attempt['why']}", markup=False)
    console.print(
        f"\nEverything lies in {run.path.relative_to(ROOT)}; build/demo/report.html is for a browser. Try it yourself:"
    )
    for line in (
        "opsctl sandbox up --nodes 4",
        "opsctl launch examples/tiny-gpt.toml --dry-run",
        "opsctl launch examples/tiny-gpt.toml && opsctl status --watch",
    ):
        console.print(f"  .venv/bin/{line}", markup=False)


def main() -> None:
    started = time.monotonic()
    subprocess.run(
        [sys.executable, "-P", "-m", "opsctl", "sandbox", "down", "--name", "demo"],
        env=ENV,
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    prepare()
    try:
        opsctl("sandbox", "up", "--name", "demo", "--nodes", "4", "--fast")
        opsctl("launch", "examples/tiny-gpt.toml")
        state, crashed = follow()
        opsctl("status", TRAIN)
        if crashed:
            opsctl("why", TRAIN, "--task", crashed)
        opsctl("report", TRAIN)
        opsctl("report", TRAIN, "--html", str((HOME / "report.html").relative_to(ROOT)))
    finally:
        opsctl("sandbox", "down", "--name", "demo")
    summary(time.monotonic() - started)
    if state != "finished":
        raise SystemExit(f"demo: the train is {state} and has not finished")


if __name__ == "__main__":
    main()
