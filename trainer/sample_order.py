"""The order of samples: a pure function of the seed and of how many were consumed.

Nothing is stored and nothing is shuffled in memory, so a resumed run, or one with another number of data-parallel
ranks, sees exactly the samples that were still to come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_ROUNDS = 4
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOrder:
    """Each epoch is its own permutation of `samples` samples."""

    samples: int
    seed: int

    def sample(self, position: int) -> int:
        """The sample that is consumed as number `position`, counted from 0 over all epochs."""
        epoch, index = divmod(position, self.samples)
        return permute(index, self.samples, key=mix(self.seed ^ mix(epoch)))


def permute(index: int, size: int, *, key: int) -> int:
    """Where `index` goes in a permutation of range(size): a Feistel network, walked until it lands inside."""
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
    """One step of splitmix64: every bit of the result depends on every bit of the 64-bit value."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK
    return value ^ value >> 31


def taken(consumed: int, count: int, skipped: Sequence[range]) -> list[int]:
    """The next `count` positions after `consumed` that lie in none of the ranges, which are in order and apart."""
    positions: list[int] = []
    for gap in skipped:
        positions.extend(range(consumed, max(consumed, min(gap.start, consumed + count - len(positions)))))
        if len(positions) == count:
            return positions
        consumed = max(consumed, gap.stop)
    return [*positions, *range(consumed, consumed + count - len(positions))]
