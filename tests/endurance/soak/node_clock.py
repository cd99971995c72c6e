"""The clock of the node on which the watchers run: it jumps by hours and back, and is set by minutes for good."""

import random
from dataclasses import dataclass
from datetime import timedelta

JUMPS, STEPS = 0.06, 0.03
"""Share of the cycles in which the clock jumps by hours, and in which it is set by minutes for good."""
MAX_JUMP_CYCLES = 4
MAX_STEPS_S = 1200
"""All steps together."""


@dataclass
class NodeClock:
    dice: random.Random
    step: timedelta = timedelta()
    """By how much the clock was set for good."""
    jump: timedelta = timedelta()
    """By how much the clock is wrong for some cycles."""
    jump_cycles: int = 0
    """Cycles until the jump is over."""

    @property
    def skew(self) -> timedelta:
        return self.step + self.jump

    @property
    def is_wrong(self) -> bool:
        """Whether the clock is off by hours."""
        return self.jump_cycles > 0

    def set_right(self) -> timedelta:
        """End the jump; return by how much the clock is wrong then."""
        self.jump, self.jump_cycles = timedelta(), 0
        return self.skew

    def move(self, *, is_memory_kept: bool) -> str:
        """Begin or end a jump or a step, at random; return what happened. Without a memory, no jump begins."""
        if self.jump_cycles:
            self.jump_cycles -= 1
            return "" if self.jump_cycles else self._return()
        chance = self.dice.random()
        if chance < JUMPS and is_memory_kept:
            self.jump = self.dice.choice((-1, 1)) * timedelta(hours=self.dice.uniform(1, 12))
            self.jump_cycles = self.dice.randint(1, MAX_JUMP_CYCLES)
            return "hours ahead" if self.jump > timedelta() else "hours behind"
        if JUMPS <= chance < JUMPS + STEPS:
            step = timedelta(seconds=self.dice.choice((-1, 1)) * self.dice.uniform(180, 600))
            if abs((self.step + step).total_seconds()) < MAX_STEPS_S:
                self.step += step
                return "set ahead by minutes" if step > timedelta() else "set back by minutes"
        return ""

    def _return(self) -> str:
        self.jump = timedelta()
        return "back again"
