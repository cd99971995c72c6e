"""One verb, cut off at its effects, and done again: what is left must be as if it had never been cut off."""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.endurance.kills import kill_points
from tests.endurance.kills.state import State, differences

KILLED = -9
MOST_LEFTOVERS = 3
"""A temporary file, and what a lease is made of: what one killed process leaves."""


class World(Protocol):
    """What a verb finds: made anew for each cut."""

    root: Path
    argv: Sequence[str]
    env: dict[str, str]

    def state(self) -> State: ...
    def close(self) -> None: ...


@dataclass(kw_only=True)
class Runs:
    """The program that forks opsctl, and what its last run said."""

    place: Path
    process: subprocess.Popen[str] = field(init=False)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.process = subprocess.Popen(
            (sys.executable, kill_points.__file__),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=kill_points.ROOT,
            env={**os.environ, "PYTHONPATH": str(kill_points.ROOT)},
        )
        assert self._answer() == "ready"

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def run(
        self, world: World, argv: Sequence[str], *, at: int = 0, after: bool = False, lines: Sequence[str] = ()
    ) -> tuple[int, list[str], str]:
        """The exit code, the effects, if it came to its end, and what it printed."""
        number = next(self._numbers)
        log, path = self.place / f"{number}.log", self.place / f"{number}.effects"
        order = {
            "argv": list(argv),
            "env": world.env,
            "cwd": str(world.root),
            "at": at,
            "after": after,
            "lines": list(lines),
            "log": str(log),
            "told": str(path),
        }
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        code = int(json.loads(self._answer())["code"])
        effects = json.loads(path.read_text() or "[]")
        text = log.read_text(errors="replace")
        log.unlink()
        path.unlink()
        return code, effects, text

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(100)
        self.process.stdout.close()


@dataclass(kw_only=True)
class Verdict:
    """What became of all cuts of one verb."""

    verb: str
    effects: int = 0
    cuts: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"| {self.verb} | {self.effects} | {self.cuts} | {self.cuts - len(self.failures)} | {self.seconds:.0f} s"


@dataclass(kw_only=True)
class Proof:
    """Cuts one verb off at every effect, or at `most` of its places, evenly spread."""

    verb: str
    make: Callable[[], World]
    runs: Runs
    most: int = 0
    lines: Sequence[str] = ()
    """Files below opsctl/ of which every line counts as an effect."""
    pause_s: float = 0.0
    """Seconds between the cut and the next run, for what was started meanwhile."""
    wrong: tuple[int, ...] = ()
    """Exit codes, besides 0, with which the second run may say that there is nothing left to do."""

    def go(self) -> Verdict:
        verdict, began = Verdict(verb=self.verb), time.monotonic()
        with self._world() as world:
            code, effects, text = self.runs.run(world, world.argv, lines=self.lines)
            assert code == 0, text
            expected = world.state()
        assert effects, f"{self.verb} does nothing"
        verdict.effects = len(effects)
        for at, after in self._places(len(effects)):
            with self._world() as world:
                what = f"{self.verb}, {'after' if after else 'before'} {at} of {len(effects)}: {effects[at - 1]}"
                if found := list(self._cut(world, at, after=after, expected=expected)):
                    verdict.failures.append("\n    ".join([what, *found]))
            verdict.cuts += 1
        verdict.seconds = time.monotonic() - began
        print(verdict, flush=True)  # noqa: T201 (progress, and the table of docs/explanation/reliability.md)
        return verdict

    def _places(self, effects: int) -> list[tuple[int, bool]]:
        every = [(at, after) for at in range(1, effects + 1) for after in (False, True)]
        most = int(os.environ.get("CUTS", self.most))
        if not most or most >= len(every):
            return every
        return [every[round(n * (len(every) - 1) / (most - 1))] for n in range(most)]

    def _cut(self, world: World, at: int, *, after: bool, expected: State) -> Iterator[str]:
        argv = world.argv
        code, _, text = self.runs.run(world, argv, at=at, after=after, lines=self.lines)
        if code not in {KILLED, 0}:
            yield f"was not killed: exit {code}: {text[-800:]}"
        time.sleep(self.pause_s)
        code, _, text = self.runs.run(world, argv)
        if code not in {0, *self.wrong}:
            yield f"the second run: exit {code}: {text[-800:]}"
        yield from differences(expected, world.state())

    @contextlib.contextmanager
    def _world(self) -> Iterator[Any]:
        world = self.make()
        try:
            yield world
        finally:
            world.close()
