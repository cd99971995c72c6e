"""Evidence of a hang: the stacks of all ranks, kept in the life's directory and summed up in a few lines."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from ClusterShell.RangeSet import RangeSet

from opsctl.errors import OpsctlError
from opsctl.model import Job
from opsctl.ports import Clock, Runner, TimedOut
from opsctl.rundir import Life

_FRAME = re.compile(r'  File "([^"]*)", line (\d+) in (.+)')
_PYSPY_SECONDS = 30.0
_PYSPY = """for p in /proc/[0-9]*; do
  env=$(tr '\\0' '\\n' <"$p/environ") 2>/dev/null || continue
  case "$(readlink "$p/exe")" in */python*) ;; *) continue ;; esac
  printf '%s\\n' "$env" | grep -qx "TRAIN_LIFE=$0" || continue
  rank=$(printf '%s\\n' "$env" | sed -n 's/^RANK=//p')
  [ -n "$rank" ] || continue
  echo "== node $SLURMD_NODENAME rank $rank pid ${p#/proc/}"
  "$1" dump --nonblocking --pid "${p#/proc/}" 2>&1
done"""
"""On each node: every Python process of the life that has a rank."""


def ask(life: Life, target: Path, *, ranks: int, seconds: float, clock: Clock) -> None:
    """Ask every rank for its stacks, wait for them, and keep what came in `target`. Raises OSError."""
    stacks = life.path / "stacks"
    before = _sizes(stacks)
    life.stacks_request.touch()
    until = clock.monotonic() + seconds
    while clock.monotonic() < until:
        clock.sleep(0.25)
        grown = [name for name, size in _sizes(stacks).items() if size > before.get(name, 0)]
        if len(grown) >= ranks:
            clock.sleep(0.25)  # the last one may still be writing
            break
    target.mkdir(parents=True, exist_ok=True)
    for name, size in _sizes(stacks).items():
        if size > before.get(name, 0):
            (target / name).write_bytes((stacks / name).read_bytes()[before.get(name, 0) :])


def py_spy(program: str, job: Job, life: Life, target: Path, runner: Runner) -> str:
    """Have py-spy (`program`) look at every rank, in a step beside those that run; why that failed, if it did."""
    argv = (
        "srun", f"--jobid={job.id}", "--overlap", f"--nodes={job.node_count}", f"--ntasks={job.node_count}",
        "--ntasks-per-node=1", "--mem=0", "--gres=none", "--export=ALL", "--chdir=/", "sh", "-c", _PYSPY,
        life.name, program,
    )  # fmt: skip
    try:
        done = runner.run(argv, timeout=_PYSPY_SECONDS)
    except (OpsctlError, TimedOut) as error:
        return f"py-spy: {error}"
    target.mkdir(parents=True, exist_ok=True)
    (target / "py-spy.txt").write_text(done.out + done.err)
    return "" if done.code == 0 and "== node" in done.out else f"py-spy: {(done.err or done.out).strip()[-200:]}"


def summary(target: Path, *, ranks: int) -> list[str]:
    """Which ranks are where: the fewest first, for the odd ones out are what everybody else waits for."""
    places: dict[str, list[int]] = defaultdict(list)
    found = sorted(target.glob("*-*.txt"))
    for path in found:
        rank = path.stem.rpartition("-")[2]
        if rank.isdecimal():
            places[innermost(path.read_text(errors="replace"))].append(int(rank))
    lines = [f"rank{'s' * (len(at) > 1)} {RangeSet(map(str, at))}: {place}" for place, at in _by_size(places)]
    missing = ranks - sum(len(at) for at in places.values())
    if missing > 0:
        lines.append(f"{missing} of {ranks} ranks did not answer")
    return lines + ([f"stacks: {target}"] if target.exists() else [])


def _by_size(places: Mapping[str, list[int]]) -> Iterable[tuple[str, list[int]]]:
    return sorted(places.items(), key=lambda pair: (len(pair[1]), pair[0]))


def innermost(dump: str) -> str:
    """Where the main thread is, in what faulthandler wrote: it comes last. `function (file.py:12)`."""
    threads = re.split(r"^(?:Current thread|Thread) 0x.*$", dump, flags=re.MULTILINE)[1:]
    frames = [_FRAME.findall(thread) for thread in threads]
    others = [each for each in frames if each and not any(name == "_dump" for _, _, name in each)]
    if not others:
        return "nowhere that can be told"
    path, line, function = others[-1][0]
    caller = next((f", from {name} ({Path(file).name}:{at})" for file, at, name in others[-1][1:2]), "")
    return f"{function} ({Path(path).name}:{line}){caller}"


def _sizes(directory: Path) -> dict[str, int]:
    try:
        return {path.name: path.stat().st_size for path in directory.iterdir()}
    except FileNotFoundError:
        return {}
