"""Asking the ranks of a running life for their stacks: by a file of the run directory, by a signal, by py-spy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from opsctl.diagnosis.ranks import NOBODY, speaker_of_file
from opsctl.diagnosis.stacks import Stack, parse
from opsctl.errors import OpsctlError
from opsctl.model import Job
from opsctl.ports import Clock, Runner, TimedOut
from opsctl.rundir import Life

PYSPY_SECONDS = 30.0
SIGNAL_SECONDS = 10.0
_PYSPY = """for p in /proc/[0-9]*; do
  env=$(tr '\\0' '\\n' <"$p/environ") 2>/dev/null || continue
  case "$(readlink "$p/exe")" in */python*) ;; *) continue ;; esac
  printf '%s\\n' "$env" | grep -qx "TRAIN_LIFE=$0" || continue
  rank=$(printf '%s\\n' "$env" | sed -n 's/^RANK=//p')
  [ -n "$rank" ] || continue
  echo "== node $SLURMD_NODENAME rank $rank pid ${p#/proc/}"
  "$1" dump --nonblocking $2 --pid "${p#/proc/}" 2>&1
done"""
"""On each node: every Python process of the life that has a rank."""


def ask(life: Life, target: Path, *, ranks: int, seconds: float, clock: Clock) -> None:
    """Ask every rank for its stacks, wait for them, and keep what came in `target`. Raises OSError."""
    stacks = life.path / "stacks"
    before = _sizes(stacks.glob("*.txt"))
    life.stacks_request.touch()
    _keep_what_comes(lambda: stacks.glob("*.txt"), before, target, ranks=ranks, seconds=seconds, clock=clock)


def by_signal(job: Job, logs: Path, target: Path, *, ranks: int, seconds: float, runner: Runner, clock: Clock) -> str:
    """Send USR2 to every process of the job's steps, and keep in `target` what they write to their own logs; why that
    was not possible, if it was not. It ends a process that does not handle the signal. Raises OSError."""
    before = _sizes(logs.glob("*.log"))
    try:
        done = runner.run(("scancel", "--signal=USR2", job.id), timeout=SIGNAL_SECONDS)
    except (OpsctlError, TimedOut) as error:
        return f"USR2: {error}"
    if done.code:
        return f"USR2: {done.err.strip()[-200:]}"
    _keep_what_comes(lambda: logs.glob("*.log"), before, target, ranks=ranks, seconds=seconds, clock=clock)
    return ""


def py_spy(program: str, job: Job, life: Life, target: Path, runner: Runner, *, native: bool = False) -> str:
    """Have py-spy (`program`) look at every rank, in a step beside those that run; why that failed, if it did.
    Raises OSError."""
    argv = (
        "srun", f"--jobid={job.id}", "--overlap", f"--nodes={job.node_count}", f"--ntasks={job.node_count}",
        "--ntasks-per-node=1", "--mem=0", "--gres=none", "--export=ALL", "--chdir=/", "sh", "-c", _PYSPY,
        life.name, program, "--native" if native else "",
    )  # fmt: skip
    try:
        done = runner.run(argv, timeout=PYSPY_SECONDS)
    except (OpsctlError, TimedOut) as error:
        return f"py-spy: {error}"
    target.mkdir(parents=True, exist_ok=True)
    (target / "py-spy.txt").write_text(done.out + done.err)
    return "" if done.code == 0 and "== node" in done.out else f"py-spy: {(done.err or done.out).strip()[-200:]}"


def answers(target: Path) -> list[Stack]:
    """What was kept: of each rank the newest; where py-spy and the rank itself tell, py-spy."""
    found: dict[tuple[str, int | None, int | None], Stack] = {}
    for path in sorted(target.glob("*.txt"), key=lambda path: path.name == "py-spy.txt"):
        known = NOBODY if path.name == "py-spy.txt" else speaker_of_file(f"{path.stem}.log")
        for stack in parse(path.read_bytes(), known):
            key = (stack.node, stack.rank, None if stack.rank is not None else stack.pid)
            if stack.frames or key not in found:
                found[key] = stack
        if known.rank is not None:
            found.setdefault((known.node, known.rank, None), Stack(node=known.node, rank=known.rank))
    return list(found.values())


def _keep_what_comes(
    paths: Callable[[], Iterable[Path]], before: dict[str, int], target: Path, *, ranks: int, seconds: float,
    clock: Clock,
) -> None:  # fmt: skip
    until = clock.monotonic() + seconds
    while clock.monotonic() < until:
        clock.sleep(0.25)
        grown = [name for name, size in _sizes(paths()).items() if size > before.get(name, 0)]
        if len(grown) >= ranks:
            clock.sleep(0.25)  # the last one may still be writing
            break
    target.mkdir(parents=True, exist_ok=True)
    for path in paths():
        known = before.get(path.name, 0)
        with path.open("rb") as file:
            file.seek(known)
            if new := file.read():
                (target / f"{path.stem}.txt").write_bytes(new)


def _sizes(paths: Iterable[Path]) -> dict[str, int]:
    found = {}
    for path in paths:
        try:
            found[path.name] = path.stat().st_size
        except FileNotFoundError:
            continue
    return found
