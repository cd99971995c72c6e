"""What opsctl costs a train with a long history, against one with a short history, in CPU seconds of one run.

python -P benchmarks/scale.py            prints a table in some minutes; starts a sandbox
python -P benchmarks/scale.py --json
python -P benchmarks/scale.py --trains   100 trains, 10,000 queued tasks of ten other users, 512 nodes; minutes
python -P benchmarks/scale.py --ranks    metadata operations of the start of a rank, by strace; seconds

The largest size is that of three months on 16,384 GPUs: 5,000 attempts, 19 events each.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `python -P`

from benchmarks.commands import sandbox
from opsctl.guard.attempt_record import Start
from opsctl.guard.end_record import Action, FinishedAttempt, Outcome
from opsctl.guard.unfinalized import list_unfinalized
from opsctl.host.system import SystemClock
from opsctl.launch.rank_wrapper import render_rank_wrapper, start_on_node, start_with
from opsctl.state.events import AttemptFinalized, AttemptStarted, Event, StopStep, to_line
from opsctl.state.journal import Journal, replay
from opsctl.state.records import to_text
from opsctl.state.run_dir import RunDir

OPSCTL = [sys.executable, "-P", "-m", "opsctl"]
ATTEMPTS = (100, 1000, 5000)
EVENTS_PER_ATTEMPT = 19
ROUNDS = 3
LINE = " iteration {step:8d}/ 9999999 | elapsed time per iteration (s): 1.0 | lm loss: 2.0E+00 | TFLOPs: 149.0 |\n"
TRAIN = """name = "{name}"
command = ["sleep", "3600"]
[slurm]
nodes = 1
time_limit = "60"
tasks = 2
"""
ARRAY = 900_000_000
"""Of the made-up attempts: no array of the sandbox has this number."""


def make_history(run: RunDir, attempts: int) -> None:
    """Give a train the records of so many ended attempts, as guards write them, before its running one."""
    began = datetime.now(UTC) - timedelta(minutes=20 * (attempts + 1))
    lines: list[bytes] = []
    number = 0
    journal = Journal(run, SystemClock())
    own = journal.events()
    for place in range(attempts):
        name, at = f"{ARRAY + place}_1.0", began + timedelta(minutes=20 * place)
        attempt = run.attempt(name)
        attempt.path.mkdir(parents=True)
        start = Start(
            attempt=name, job=str(ARRAY + place), nodes="n1", node_count=1, gpus="", node="n1", at=at, checkpoint=0
        )
        attempt.start.write_text(to_text(start))
        end = FinishedAttempt(
            attempt=name,
            outcome=Outcome.CRASHED,
            action=Action.CONTINUE,
            why="exit code 1",
            started=at,
            ended=at + timedelta(minutes=19),
            new_checkpoint=True,
        )
        attempt.end.write_text(to_text(end))
        steps = [StopStep(attempt=name, step="signal", why="limit")] * (EVENTS_PER_ATTEMPT - 2)
        final = AttemptFinalized(attempt=name, outcome="crashed", action="continue", why="exit code 1")
        events: list[Event] = [AttemptStarted(attempt=name, nodes="n1"), *steps, final]
        for event in events:
            number += 1
            stamp = at if isinstance(event, AttemptStarted) else end.ended
            lines.append(to_line(replace(event, number=number, at=stamp.isoformat())))
    for event in own:  # the train's real events come after the history
        number += 1
        lines.append(to_line(replace(event, number=number)))
    next(run.journal.glob("*.jsonl")).write_bytes(b"".join(lines))
    run.main_log.parent.mkdir(exist_ok=True)
    with run.main_log.open("w") as log:
        log.writelines(LINE.format(step=step) for step in range(1, 20_001))
    Journal(run, SystemClock()).leave_out_old()


def cpu_s(argv: Sequence[str], env: dict[str, str]) -> float:
    """Return the CPU seconds of a command and its children; the median of some rounds."""
    times = []
    for _ in range(ROUNDS):
        before = os.times()
        subprocess.run(argv, env=env, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        after = os.times()
        spent = (after.children_user + after.children_system) - (before.children_user + before.children_system)
        times.append(spent)
    return statistics.median(times)


def in_process_s(work: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return statistics.median(times)


def measure(home: Path, env: dict[str, str], attempts: int) -> dict[str, float]:
    """Return CPU seconds by what was done."""
    name = f"t{attempts}"
    path = home / f"{name}.toml"
    path.write_text(TRAIN.format(name=name))
    subprocess.run([*OPSCTL, "launch", str(path)], env=env, check=True, stdout=subprocess.DEVNULL)
    run = RunDir(home / "trains" / name)
    make_history(run, attempts)

    def start_guard() -> None:
        history = replay(Journal(run, SystemClock()).events())
        list_unfinalized(run, history)

    watch = [*OPSCTL, "watch", "--train", name]
    cpu_s(watch, env)
    event = StopStep(attempt=f"{ARRAY}_1.0", step="signal", why="limit")
    return {
        "journal: one append": in_process_s(lambda: Journal(run, SystemClock()).append(event)),
        "guard: history and open attempts": in_process_s(start_guard),
        "status": cpu_s([*OPSCTL, "status", name], env),
        "watch, later cycles": cpu_s(watch, env),
        "metrics --quick": cpu_s([*OPSCTL, "metrics", "--quick", name], env),
        "metrics": cpu_s([*OPSCTL, "metrics", name], env),
        "report": cpu_s([*OPSCTL, "report", name], env),
    }


def measure_trains(place: Path, trains: int, others: int, nodes: int) -> dict[str, float]:
    """Return CPU seconds of a watch cycle and of a refresh of the page. Slurm answers at once."""
    from benchmarks.watch import Bench, Queue, line
    from opsctl.base.model import Job, JobState, Node
    from opsctl.dash.collect_site import collect_site
    from opsctl.dash.pages import PageContext, render_overview
    from opsctl.host.system import SystemRunner
    from opsctl.monitor.watch_cycle import Watch
    from opsctl.settings.loader import SiteSettings
    from opsctl.state.events import Submitted, Submitting

    os.environ["XDG_STATE_HOME"] = str(place / "state")
    names, dice = [f"t{number}" for number in range(trains)], random.Random(3)
    queue = Queue(names)
    for number in range(others):
        fields = {"id": str(10**6 + number), "array": str(10**6 + number), "name": "other", "user": f"u{number % 10}"}
        queue._jobs.append(Job(**fields, state=JobState.PENDING, reason="Priority", comment="other"))
    queue._nodes = [Node(name=f"n{number}", state="MIXED", address="") for number in range(1, nodes + 1)]
    app = Bench(site=SiteSettings(root=str(place)), site_path=None, clock=SystemClock(), runner=SystemRunner())
    object.__setattr__(app, "queue", queue)
    for number, name in enumerate(names, 1):
        run = RunDir(place / name)
        run.create()
        run.config.write_text(TRAIN.format(name=name))
        journal = Journal(run, app.clock)
        journal.append(Submitting(nonce="n", tasks=3, after=""))
        journal.append(Submitted(nonce="n", array=str(number)))
        run.main_log.write_text("".join(line(step, dice) for step in range(2000)))
    watching = Watch(services=app)
    results = {"watch, first cycle": once_s(watching.cycle), "watch, nothing changed": once_s(watching.cycle)}
    results |= {"page, first refresh": once_s(lambda: collect_site(app))}
    results |= {"page, nothing changed": once_s(lambda: collect_site(app))}
    view = collect_site(app)
    return results | {"page, rendered": in_process_s(lambda: render_overview(view, PageContext(is_static=True)))}


ON_NODE = ("/proc/", "/sys/", "/dev/", "/etc/", "/lib/", "/lib64/", "/usr/", "/bin/")
"""Places on the disk of a node. Everything else counts as shared."""
RANK = {"SLURM_PROCID": "9", "SLURM_NTASKS": "16384", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}
RANK |= {"SLURM_STEP_TASKS_PER_NODE": "8(x2048)", "SLURMD_NODENAME": "node002", "PATH": "/usr/bin:/bin"}


def count_operations(command: str, place: Path) -> int:
    """Return how often a rank names a path, or lists a directory, that is not on the disk of its node."""
    trace = place / "trace"
    strace = ["strace", "-f", "-y", "-qq", "-s", "300", "-e", "trace=%file,getdents64", "-o", str(trace)]
    subprocess.run([*strace, "/bin/sh", "-c", f"exec {command}"], env=RANK, cwd=place, check=True)
    paths = []
    for line in trace.read_text(errors="replace").splitlines():
        named = re.search(r'getdents64\(\d+<([^>]*)>.*= [1-9]|\w+\((?:AT_FDCWD(?:<[^>]*>)?, )?"([^"]+)"', line)
        if named and "AT_EMPTY_PATH" not in line:
            paths.append(named[1] or named[2])
    return sum(not path.startswith(ON_NODE) for path in paths)


def measure_ranks(place: Path) -> dict[str, int]:
    """Return the metadata operations of a rank on a shared file system, from its start to its end."""
    wrapper, logs = place / "rank_wrapper.py", place / "logs"
    (logs / "quiet").mkdir(parents=True)
    (logs / "quiet" / "node002").touch()  # another rank of the node has ended already
    run = f" --logs {logs} -- /bin/true"
    missing = count_operations(shlex.join(start_with(sys.executable, wrapper)) + run, place)
    wrapper.write_text(render_rank_wrapper())
    return {
        "the Python of the node": count_operations(start_on_node(sys.executable, wrapper) + run, place),
        "the Python of opsctl": count_operations(shlex.join(start_with(sys.executable, wrapper)) + run, place),
        "the Python of opsctl and its modules, as without a guard": missing,
    }


def once_s(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    if "--ranks" in sys.argv:
        with tempfile.TemporaryDirectory(prefix="opsctl-scale-") as place:
            for name, count in measure_ranks(Path(place)).items():
                print(f"| {name} | {count} | {count * 16_384:,} |")
        return
    if "--trains" in sys.argv:
        with tempfile.TemporaryDirectory(prefix="opsctl-scale-") as place:
            for name, spent_s in measure_trains(Path(place), 100, 10_000, 512).items():
                print(f"| {name} | {spent_s:.2f} |")
        return
    with tempfile.TemporaryDirectory(prefix="opsctl-scale-") as place, sandbox(Path(place)) as env:
        sizes = {attempts: measure(Path(place), env, attempts) for attempts in ATTEMPTS}
    if "--json" in sys.argv:
        print(json.dumps(sizes, indent=2))
        return
    smallest, largest = ATTEMPTS[0], ATTEMPTS[-1]
    print(f"| CPU seconds | {' | '.join(f'{attempts:,} attempts' for attempts in ATTEMPTS)} | growth |")
    print("|---" * (len(ATTEMPTS) + 2) + "|")
    for name in sizes[smallest]:
        figures = " | ".join(f"{sizes[attempts][name]:.3f}" for attempts in ATTEMPTS)
        print(f"| {name} | {figures} | {sizes[largest][name] / max(sizes[smallest][name], 1e-4):.2f} |")


if __name__ == "__main__":
    main()
