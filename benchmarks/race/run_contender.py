"""One contender's race, inside the private Slurm that `opsctl sandbox run` made for it.

python -P one.py NAME PLACE SECONDS SEED FAULTS    where FAULTS is a list with commas, or none
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # last: beside it lies another trainer.py

from race import contenders
from race.cluster import queue
from race.faults import Night, schedule
from race.time_account import Account, Event, Sample, account
from race.with_opsctl import Opsctl, OpsctlDefault

HELD = {"JobHeldUser", "JobHeldAdmin"}
LOOK_S = 0.5
CONTENDERS = {
    "plain": lambda place: contenders.Plain(place=place),
    "retry": lambda place: contenders.Retry(place=place),
    "submitit": lambda place: contenders.Submitit(place=place),
    "person-5": lambda place: contenders.Person(place=place, every=300),
    "person-1": lambda place: contenders.Person(place=place, every=60),
    "opsctl": lambda place: Opsctl(place=place),
    "opsctl-default": lambda place: OpsctlDefault(place=place),
    "no-faults": lambda place: contenders.Plain(place=place),
}


def main(name: str, place: Path, seconds: float, seed: int, faults: tuple[str, ...]) -> None:
    contender = CONTENDERS[name](place)
    (place / "faults").mkdir()
    contender.prepare()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "race", str(contender.checkpoints)]
    subprocess.run(mount, check=True, timeout=10)
    night = Night(
        faults=schedule(faults, seconds=seconds, seed=seed), place=place, checkpoints=contender.checkpoints, done=[]
    )
    begin = await_start(place)
    contender.start()
    samples = []
    while (now := time.time()) < begin + seconds:
        night.pass_to(now - begin)
        contender.pass_to(now - begin)
        samples.append(look())
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
    write(place, name, result, night)


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


def write(place: Path, name: str, result: Account, night: Night) -> None:
    left = [row for row in queue() if row.state == "PENDING"]
    fields = {
        "contender": name,
        "share": result.share,
        "steps": result.steps,
        "attempts": result.attempts,
        "queued": len(left),
        "lost": result.lost,
        "faults": night.done,
    }
    (place / "result.json").write_text(json.dumps(fields, indent=1))


if __name__ == "__main__":
    who, where, how_long, dice, broken = sys.argv[1:]
    main(who, Path(where), float(how_long), int(dice), tuple(filter(None, broken.split(","))))
