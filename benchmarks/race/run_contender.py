"""One contender's race, inside the private Slurm that `opsctl sandbox run` made for it.

python -P run_contender.py NAME PLACE SECONDS SEED FAULTS COURSE

FAULTS is a list with commas, or none; COURSE is free or busy. `NAME+2` holds two spare nodes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # last: beside it lies another trainer.py

from race import contenders
from race.cluster import queue
from race.course import BUSY, FREE, Course, Others
from race.faults import Night, schedule
from race.time_account import Account, Event, Sample, account, recoveries
from race.with_opsctl import Opsctl, OpsctlDefault

HELD = {"JobHeldUser", "JobHeldAdmin"}
LOOK_S = 1.0
CONTENDERS = {
    "plain": contenders.Plain,
    "loop": partial(contenders.Plain, launch=contenders.LOOP),
    "torchrun": partial(contenders.Plain, launch=contenders.AGENT),
    "ft_launcher": partial(contenders.Plain, launch=contenders.AGENT, agent=contenders.FT_LAUNCHER),
    "retry": contenders.Retry,
    "submitit": contenders.Submitit,
    "person-5": partial(contenders.Person, every=300),
    "person-1": partial(contenders.Person, every=60),
    "opsctl": Opsctl,
    "opsctl-default": OpsctlDefault,
    "no-faults": contenders.Plain,
}


def main(name: str, place: Path, seconds: float, seed: int, faults: tuple[str, ...], *, course: Course) -> None:
    kind, _, spares = name.partition("+")
    contender = CONTENDERS[kind](place=place, course=course, spares=int(spares or 0))
    (place / "faults").mkdir()
    contender.prepare()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "race", str(contender.checkpoints)]
    subprocess.run(mount, check=True, timeout=10)
    night = Night(
        faults=schedule(faults, seconds=seconds, seed=seed, is_busy=course.others > 0),
        place=place,
        checkpoints=contender.checkpoints,
        done=[],
    )
    others = Others(course=course)
    if course.others:
        others.hold_all()
        contender.start()
        begin = await_start(place)
        others.give_back()
    else:
        begin = await_start(place)
        contender.start()
    samples = []
    while (now := time.time()) < begin + seconds:
        night.pass_to(now - begin)
        contender.pass_to(now - begin)
        samples.append(look())
        others.pass_to(trains="RUNNING" in samples[-1].states.values())
        time.sleep(max(0.0, LOOK_S - (time.time() - now)))
    result = account(
        heard(place),
        samples,
        begin=begin,
        end=begin + seconds,
        faults=[(begin + at, what) for at, what in night.done],
        noticed=cancelled(place),
    )
    (place / "samples.json").write_text(json.dumps([asdict(sample) for sample in samples]))
    write(place, name, result, night, begin)


def await_start(place: Path) -> float:
    """All start at the same moment: when the file is there."""
    (place / "ready").touch()
    while not (place.parent / "go").exists():
        time.sleep(0.05)
    begin = float((place.parent / "go").read_text())
    time.sleep(max(0.0, begin - time.time()))
    return begin


def look() -> Sample:
    rows = queue()
    waiting = [row for row in rows if row.state == "PENDING"]
    held = bool(waiting) and all(row.reason in HELD for row in waiting)
    states = {row.raw: row.state for row in rows}
    return Sample(at=time.time(), states=states, waits=bool(waiting), held=held)


def heard(place: Path) -> list[Event]:
    path = place / "events.jsonl"
    return [Event(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def cancelled(place: Path) -> list[float]:
    """When opsctl cancelled something, as its journal says."""
    from datetime import datetime

    rows = [json.loads(line) for path in place.glob("trains/race/journal/*.jsonl") for line in path.open()]
    return sorted(datetime.fromisoformat(row["at"]).timestamp() for row in rows if row["kind"] == "cancelled")


def write(place: Path, name: str, result: Account, night: Night, begin: float) -> None:
    left = [row for row in queue() if row.state == "PENDING"]
    fields = {
        "contender": name,
        "share": result.share,
        "steps": result.steps,
        "attempts": result.attempts,
        "queued": len(left),
        "lost": result.lost,
        "faults": night.done,
        "seconds to the next start and to its first step": recoveries(
            heard(place), [(begin + at, name) for at, name in night.done]
        ),
    }
    (place / "result.json").write_text(json.dumps(fields, indent=1))


if __name__ == "__main__":
    who, where, how_long, dice, broken, way = sys.argv[1:]
    on = BUSY if way == "busy" else FREE
    main(who, Path(where), float(how_long), int(dice), tuple(filter(None, broken.split(","))), course=on)
