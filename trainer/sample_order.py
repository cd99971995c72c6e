"""The order of samples: a pure function of the seed and the number of consumed samples.

No state is stored and no index is shuffled in memory, so that a resumed run, or a run with another number of
data-parallel ranks, reads exactly the remaining samples.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_ROUNDS = 4
_MASK = (1 << 64) - 1
_RANGE = re.compile(r"(\d{1,18})-(\d{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOrder:
    """The order of `samples` samples; every epoch has its own permutation."""

    samples: int
    seed: int

    def sample(self, position: int) -> int:
        """Return the sample at `position`, counted from 0 over all epochs."""
        epoch, index = divmod(position, self.samples)
        return permute(index, self.samples, key=mix(self.seed ^ mix(epoch)))


def permute(index: int, size: int, *, key: int) -> int:
    """Return the image of `index` in a permutation of range(size): a Feistel network, iterated until in range."""
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    while True:
        index = _feistel(index, half, key)
        if index < size:
            return index


def _feistel(index: int, half: int, key: int) -> int:
    low_bits = (1 << half) - 1
    left, right = index >> half, index & low_bits
    for turn in range(_ROUNDS):
        left, right = right, left ^ (mix(right ^ mix(key + turn)) & low_bits)
    return left << half | right


def mix(value: int) -> int:
    """Return one step of splitmix64: every bit of the result depends on every bit of the 64-bit value."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK
    return value ^ value >> 31


def check_range(text: str) -> str:
    """Return a range of samples `A-B`, such as those of a loss spike: `2048000-2049023`. Raises ValueError."""
    match = _RANGE.fullmatch(text)
    if not match or int(match[1]) > int(match[2]):
        raise ValueError(f"{text!r:.80} is not a range of samples A-B with A up to B")
    return text


def taken(consumed: int, count: int, skipped: Sequence[range]) -> list[int]:
    """Return the next `count` positions from `consumed` on outside `skipped`, which is sorted and disjoint."""
    positions: list[int] = []
    for gap in skipped:
        positions.extend(range(consumed, max(consumed, min(gap.start, consumed + count - len(positions)))))
        if len(positions) == count:
            return positions
        consumed = max(consumed, gap.stop)
    return [*positions, *range(consumed, consumed + count - len(positions))]
