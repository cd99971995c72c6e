"""How the samples of a blend are dealt to its corpora: exact at any weight, and a pure function of the position.

The corpora are the leaves of a Huffman tree. A node deals its samples to its two halves as evenly as whole numbers
allow: of its first n samples, round(n x share) go left. Every level adds at most half a sample to the deviation of the
level above times the share, so that a corpus of share s never deviates by 2 samples or more from n x s. No cycle
repeats, and a weight may be as small as it likes. Memory and time of a lookup grow with the depth of the tree only.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class _Node:
    left: _Node | int
    """A node, or the number of a corpus."""
    right: _Node | int
    part: int
    whole: int
    """part / whole is the share of `left` in the samples of this node: integers, for floats are not exact."""

    def count_left(self, samples: int) -> int:
        return (2 * samples * self.part + self.whole) // (2 * self.whole)


class Mixture:
    """The order in which corpora of the given weights take turns. Weights are above 0."""

    def __init__(self, weights: Sequence[float]) -> None:
        self._size, self._tree = len(weights), _grow_tree([Fraction(weight) for weight in weights])

    def place(self, position: int) -> tuple[int, int]:
        """Return the number of the corpus at `position`, and how many earlier positions that corpus has."""
        node = self._tree
        while isinstance(node, _Node):
            before, through = node.count_left(position), node.count_left(position + 1)
            if through > before:
                node, position = node.left, before
            else:
                node, position = node.right, position - before
        return node, position

    def counts(self, samples: int) -> list[int]:
        """Return how many of the first `samples` positions every corpus has."""
        counts, open_nodes = [0] * self._size, [(self._tree, samples)]
        while open_nodes:
            node, total = open_nodes.pop()
            if isinstance(node, _Node):
                left = node.count_left(total)
                open_nodes += [(node.left, left), (node.right, total - left)]
            else:
                counts[node] = total
        return counts


def _grow_tree(weights: Sequence[Fraction]) -> _Node | int:
    """Join the two lightest until one is left; equal weights are joined in the order of their numbers."""
    heap: list[tuple[Fraction, int, _Node | int]] = [(weight, n, n) for n, weight in enumerate(weights)]
    heapq.heapify(heap)
    for number in range(len(weights), 2 * len(weights) - 1):
        light, _, right = heapq.heappop(heap)
        heavy, _, left = heapq.heappop(heap)
        share = heavy / (light + heavy)
        heapq.heappush(heap, (light + heavy, number, _Node(left, right, share.numerator, share.denominator)))
    return heap[0][2]
