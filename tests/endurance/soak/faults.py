"""Troubles of trains, with the alerts that must be sent once at their begin and once at their end."""

import contextlib
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.endurance.soak.soak_cluster import LONG, PAIR, WAITING, Field, until

PATIENCE = 5
"""Multiple of the usual number of cycles after which a missing alert counts as lost."""
RESTS = 14
"""Cycles before the same trouble may happen to the same train again: a flap would be alerted later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    key: str
    word: str
    begin: Callable[[], None]
    end: Callable[[], None]
    needs_slurm: bool = True
    """Whether the trouble is invisible while Slurm does not answer."""
    visible_before_alert: int = 1
    """The number of cycles with the trouble visible until the alert is sent, by a clock that does not jump."""
    after: int = 0
    """Cycles after the first visible cycle that do not count."""
    train: str = ""


@dataclass
class Open:
    """A trouble that has begun and not ended."""

    trouble: Trouble
    visible_cycles: int = 0
    first: int | None = None
    """The cycle in which the trouble was visible first."""
    is_recorded: bool = False
    """Whether a watcher has recorded the alert."""

    def update(self, cycle: int, *, slurm_answers: bool) -> None:
        if slurm_answers or not self.trouble.needs_slurm:
            self.first = cycle if self.first is None else self.first
            self.visible_cycles += cycle >= self.first + self.trouble.after

    @property
    def may_end(self) -> bool:
        """Whether the alert was recorded, or should have been: after a jump, limits are reached later."""
        return self.is_recorded or self.visible_cycles >= PATIENCE * self.trouble.visible_before_alert


def disturbs_pair(trouble: Trouble, open_troubles: list[Open]) -> bool:
    """Return whether the node of two trains would be drained while one of them has a trouble, or the reverse."""
    of_pair = [open.trouble for open in open_troubles if open.trouble.train in PAIR]
    is_drain = any(other.key.startswith("node_health") for other in (trouble, *of_pair))
    return trouble.train in PAIR and bool(of_pair) and is_drain


def gone(field: Field, name: str) -> Trouble:
    """Nothing of the train is queued: the evening of the chronicles."""
    return Trouble(
        key=f"slurm_status/{name}",
        word="CRITICAL",
        train=name,
        begin=lambda: field.cancel(name),
        end=lambda: field.launch(name),
    )


def silent(field: Field, name: str) -> Trouble:
    """A hang while Slurm says RUNNING."""
    return Trouble(
        key=f"hang/{name}",
        word="CRITICAL",
        train=name,
        visible_before_alert=4,
        begin=lambda: field.silent.add(name),
        end=lambda: field.silent.discard(name),
    )


def no_number(field: Field, name: str) -> Trouble:
    return Trouble(
        key=f"loss/{name}",
        word="CRITICAL",
        train=name,
        needs_slurm=False,
        begin=lambda: field.nans.add(name),
        end=lambda: field.nans.discard(name),
    )


def slow(field: Field, name: str) -> Trouble:
    return Trouble(
        key=f"throughput/{name}",
        word="CRITICAL",
        train=name,
        needs_slurm=False,
        begin=lambda: field.slow.add(name),
        end=lambda: field.slow.discard(name),
    )


def drained(field: Field, name: str) -> Trouble:
    node = field.node_of(name) or "none"
    if name in PAIR:  # one alert for both trains, under the first of them
        name = next((first for first in PAIR if field.node_of(first) == node), name)
    return Trouble(
        key=f"node_health/{name}/{node}",
        word="WARNING",
        train=name,
        visible_before_alert=2,
        begin=lambda: _update(field, node, "state=drain", "reason=soak"),
        end=resuming(field, node),
    )


def resuming(field: Field, node: str) -> Callable[[], None]:
    """What puts `node` back into service; Slurm has to have heard of it: after its own restart that takes a while."""

    def is_back() -> bool:
        # Slurm refuses it of a node that is not drained, and of one that it has not heard of since its own restart.
        with contextlib.suppress(subprocess.CalledProcessError):
            _update(field, node, "state=resume")
        state = field.program("sinfo", "--noheader", "--nodes", node, "--format=%T").upper()
        return "DRAIN" not in state and "*" not in state

    return lambda: until(is_back)


def _update(field: Field, node: str, *what: str) -> None:
    field.program("scontrol", "update", f"nodename={node}", *what)


def held(field: Field, name: str) -> Trouble:
    """By hand, and forgotten for three hours."""

    def control(verb: str, *, is_held: bool) -> None:
        for array in {job.array for job in field.jobs(name)}:
            field.program("scontrol", verb, array)
        until(lambda: all(job.is_held is is_held for job in field.jobs(name)))

    return Trouble(
        key=f"held/{name}",
        word="WARNING",
        train=name,
        after=18,
        visible_before_alert=3,
        begin=lambda: control("uhold", is_held=True),
        end=lambda: control("release", is_held=False),
    )


def unreadable(field: Field, name: str) -> Trouble:
    config, original = field.run(name).config, field.run(name).config.read_text()
    return Trouble(
        key=f"train/{name}",
        word="WARNING",
        train=name,
        needs_slurm=False,
        visible_before_alert=2,
        begin=lambda: config.write_text("name = ") and None,
        end=lambda: config.write_text(original) and None,
    )


def full(disk: Path) -> Trouble:
    filler = disk / "filler"
    return Trouble(
        key="fs_quota/scratch",
        word="CRITICAL",
        needs_slurm=False,
        begin=lambda: filler.write_bytes(bytes(31 << 20)) and None,
        end=filler.unlink,
    )


OF_RUNNING = (gone, silent, no_number, slow, drained, unreadable)
OF_WAITING = (gone, held, unreadable)
KINDS = [(kind, LONG) for kind in OF_RUNNING] + [(kind, WAITING) for kind in OF_WAITING]
