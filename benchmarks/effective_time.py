"""The race: the share of effective time in ten minutes of faults, without a person who repairs them.

python benchmarks/effective_time.py                                  every contender, ten minutes, side by side
python benchmarks/effective_time.py --seconds 120 --contender opsctl --contender plain
python benchmarks/effective_time.py --json
python benchmarks/effective_time.py --busy            other users wait for the nodes; NAME+2 holds two spare nodes

Each contender has a private Slurm of six nodes (`opsctl sandbox run`) and trains on three of them with the same light
trainer, which knows nothing of opsctl (race/trainer.py); the same things break for all at the same time
(race/faults.py). The score is first-time steps x their time / wall-clock. `submitit` needs `pip install submitit`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from opsctl.host.processes import die_with_parent

ROOT = Path(__file__).parents[1]
HOME = ROOT / "build" / "race"
CONTENDER_SCRIPT = Path(__file__).parent / "race" / "run_contender.py"
CONTENDERS = ("plain", "retry", "submitit", "opsctl", "opsctl-default", "person-5", "person-1", "no-faults")
BUSY_CONTENDERS = ("plain", "loop", "loop+2", "torchrun", "torchrun+2", "ft_launcher", "ft_launcher+2")
BUSY_CONTENDERS += ("opsctl-default", "opsctl-default+2", "opsctl", "opsctl+2")
FAULTS = ("gpu", "rank", "disk", "hang", "stuck", "node", "bug")
NODES, BUSY_NODES = 6, 7


def main() -> int:
    namespace = arguments()
    every = BUSY_CONTENDERS if namespace.busy else CONTENDERS
    names = [name for name in namespace.contender or every if is_there(name)]
    home = namespace.place.absolute()
    shutil.rmtree(home, ignore_errors=True)
    with started(names, namespace, home) as children:
        await_all(names, children, home)
        (home / ".go").write_text(repr(time.time() + 1))
        (home / ".go").rename(home / "go")
        for child in children:
            child.wait()
    results = [json.loads(path.read_text()) for name in names if (path := home / name / "result.json").exists()]
    print(json.dumps(results, indent=1) if namespace.json else table(results, namespace.seconds))
    return 0 if len(results) == len(names) else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="faults keep their shares of it (default: 600)")
    parser.add_argument("--contender", action="append", choices={*CONTENDERS, *BUSY_CONTENDERS}, help="may be repeated")
    parser.add_argument("--slow-timers", action="store_true", help="the defaults of Slurm, such as SlurmdTimeout=300")
    parser.add_argument("--busy", action="store_true", help="others wait for the nodes; tasks of twelve minutes")
    parser.add_argument("--faults", default=",".join(FAULTS), help="only these (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="moves the faults a little (default: 1)")
    parser.add_argument("--place", type=Path, default=HOME, help="directory for the race (default: build/race)")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def is_there(name: str) -> bool:
    if name != "submitit" or importlib.util.find_spec("submitit"):
        return True
    print("submitit is left out: it is not installed (pip install submitit)", file=sys.stderr)
    return False


@contextlib.contextmanager
def started(names: Sequence[str], arguments: argparse.Namespace, home: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start every contender in its own namespaces: when its first process ends, all its processes end."""
    children: list[subprocess.Popen[bytes]] = []
    try:
        for name in names:
            place = home / name
            place.mkdir(parents=True)
            faults = "" if name == "no-faults" else arguments.faults
            inner = [
                sys.executable,
                "-P",
                str(CONTENDER_SCRIPT),
                name,
                str(place),
                str(arguments.seconds),
                str(arguments.seed),
                faults,
                "busy" if arguments.busy else "free",
            ]
            sandbox = [
                sys.executable,
                "-P",
                "-m",
                "opsctl",
                "sandbox",
                "run",
                *(() if arguments.slow_timers else ("--fast",)),
                "--gpus-per-node",
                "0",
                "--nodes",
                str(BUSY_NODES if arguments.busy else NODES),
                "--",
            ]
            env = {**os.environ, "HOME": str(place), "XDG_STATE_HOME": str(place / "state")}
            env.pop("OPSCTL_SITE", None)
            with (place / "race.txt").open("wb") as out:
                run = subprocess.Popen(
                    [*sandbox, *inner],
                    env=env,
                    stdout=out,
                    stderr=out,
                    preexec_fn=end_with_us,  # noqa: PLW1509 (one prctl; there are no threads)
                )
                children.append(run)
        yield children
    finally:
        for child in children:
            if child.poll() is None:
                child.terminate()
        for child in children:
            child.wait()


def end_with_us() -> None:
    die_with_parent(signal.SIGTERM)


def await_all(names: Sequence[str], children: Sequence[subprocess.Popen[bytes]], home: Path) -> None:
    until = time.monotonic() + 120
    while not all((home / name / "ready").exists() for name in names):
        for name, child in zip(names, children, strict=True):
            if child.poll() is not None:
                raise SystemExit(f"{name} did not start:\n{(home / name / 'race.txt').read_text()}")
        if time.monotonic() > until:
            raise SystemExit(f"not all are ready after two minutes; see {home}")
        time.sleep(0.1)


def table(results: Sequence[dict[str, Any]], seconds: float) -> str:
    """Return one column per contender: its share, then the seconds lost by cause, the largest first."""
    spent = {
        cause: sum(result["lost"].get(cause, 0) for result in results) for result in results for cause in result["lost"]
    }
    rows = [
        ["", *(result["contender"] for result in results)],
        ["---", *("---:" for _ in results)],
        ["**effective time**", *(f"**{result['share']:.1%}**" for result in results)],
        ["attempts", *(str(result["attempts"]) for result in results)],
        ["tasks still queued", *(str(result["queued"]) for result in results)],
        *(
            [f"{cause}, s", *(f"{result['lost'].get(cause, 0):.1f}" for result in results)]
            for cause in sorted(spent, key=lambda cause: -spent[cause])
        ),
    ]
    night = ", ".join(f"{kind} {at:.0f}" for at, kind in list_faults(results))
    return "\n".join(
        [f"{seconds:g} s per contender; seconds of the faults: {night}", "", *(f"| {' | '.join(r)} |" for r in rows)]
    )


def list_faults(results: Sequence[dict[str, Any]]) -> list[tuple[float, str]]:
    return max((result["faults"] for result in results), key=len, default=[])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
