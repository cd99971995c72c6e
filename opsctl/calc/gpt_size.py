"""The number of parameters of a GPT."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.calc.argument_checks import not_positive, refuse
from opsctl.trainer import flops


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder of equal blocks. The output layer shares the weights of the embedding."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    sequence: int = 2048
    positions: bool = True
    """Learnt positions. Without them (ALiBi, rotary), there is no table of sequence x hidden."""
    embedding_norm: bool = False
    """A layer norm after the embedding, as BLOOM has."""

    def __post_init__(self) -> None:
        problems = list(
            not_positive(
                layers=self.layers,
                hidden=self.hidden,
                heads=self.heads,
                vocabulary=self.vocabulary,
                sequence=self.sequence,
            )
        )
        if not problems and self.hidden % self.heads:
            problems.append(f"hidden {self.hidden} does not divide by {self.heads} heads")
        refuse("model", problems)

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads

    @property
    def ratio(self) -> float:
        """Width over depth: 150-200 is usual beyond 100B (prequel of tr11, "Size")."""
        return self.hidden / self.layers


PUBLISHED: dict[str, ModelShape] = {
    "tr8-104b": ModelShape(layers=32, hidden=16384, heads=32, vocabulary=50257),
    "104b": ModelShape(layers=64, hidden=11600, heads=80, vocabulary=50257),
    "megatron-145b": ModelShape(layers=80, hidden=12288, heads=96, vocabulary=50257),
    "gpt-3": ModelShape(layers=96, hidden=12288, heads=96, vocabulary=50257),
    "megatron-310b": ModelShape(layers=96, hidden=16384, heads=128, vocabulary=50257),
    "mt-nlg-530b": ModelShape(layers=105, hidden=20480, heads=128, vocabulary=50257),
    "bloom": ModelShape(layers=70, hidden=14336, heads=112, vocabulary=250880, positions=False, embedding_norm=True),
}
"""Shapes of the README of tr8, of the prequel's table of sizes, and BLOOM's. Heads of Megatron's: Narayanan 2021."""


def parameters(shape: ModelShape) -> int:
    """Return the exact number of parameters.

    l·(12h² + 13h) + V·h + s·h + 2h (prequel of tr11, "Size"). The last 2h is the final layer norm.
    """
    count = flops.parameters(
        layers=shape.layers, hidden=shape.hidden, sequence=shape.sequence, vocabulary=shape.vocabulary
    )
    if not shape.positions:
        count -= shape.sequence * shape.hidden
    return count + 2 * shape.hidden * shape.embedding_norm


def approximate_parameters(shape: ModelShape) -> int:
    """Return the parameters without the final layer norm.

    l·(12h² + 13h) + V·h + s·h (README of tr8; Narayanan et al. 2021, eq. 2).
    """
    return shape.layers * block_parameters(shape) + (shape.vocabulary + shape.sequence) * shape.hidden


def block_parameters(shape: ModelShape) -> int:
    """Return the parameters of one transformer block: 12h² + 13h (prequel of tr11, "104B topology / memory usage")."""
    return 12 * shape.hidden**2 + 13 * shape.hidden


def embedding_parameters(shape: ModelShape) -> int:
    """Return the parameters of the word embedding, without positions: V·h (prequel of tr11, same section)."""
    return shape.vocabulary * shape.hidden
