"""The table of the model: its family, described in families/, and its sizes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from opsctl.trainer import families
from opsctl.trainer.config_tables import ConfigTable, Count, Share, refuse
from opsctl.trainer.families import ModelFamily

_FFN_MULTIPLE = 256
"""Llama rounds the width of its feed-forward up to a multiple of this (Touvron et al., arXiv 2302.13971)."""
_COMMON = ("family", "layers", "hidden", "heads", "sequence", "vocabulary", "dropout", "init_std")
"""Keys of every family."""

if TYPE_CHECKING:
    FamilyName: TypeAlias = str
else:
    FamilyName = Literal[tuple(families.NAMES)]
Positive = Annotated[float, Field(gt=0)]
Blocks = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)]  # lists of JSON and TOML


class RopeScaling(ConfigTable):
    """A stretch of rotary positions beyond the length that a model was trained with."""

    kind: Literal["linear", "llama3", "yarn"]
    """linear divides all frequencies by `factor` (Chen et al., arXiv 2306.15595); llama3 and yarn (Peng et al., arXiv
    2309.00071) only the low ones."""
    factor: Positive
    """Stretch, such as 8."""
    low_freq_factor: Positive = 1.0
    """llama3, yarn: positions that turn less often in original_sequence tokens are stretched by `factor`."""
    high_freq_factor: Positive = 4.0
    """llama3, yarn: positions that turn more often stay; those in between are interpolated. yarn's authors use 32."""
    original_sequence: Count = 8192
    """llama3, yarn: tokens of a sample before the stretch."""
    attention_factor: Positive | None = None
    """yarn: factor of queries and keys; 0.1 x log(factor) + 1 if absent."""


class ModelConfig(ConfigTable):
    """A dense decoder."""

    family: FamilyName = "gpt2"
    """gpt2: learnt positions. bloom: a norm after the embedding, and ALiBi instead of positions. llama: RMSNorm, rotary
    positions and SwiGLU, no biases. Its relatives gemma2, gemma3, mistral, olmo2, phi3, qwen2, qwen3 and smollm3 differ
    as their files in trainer/families say."""
    layers: Count = 4
    """Transformer blocks."""
    hidden: Count = 128
    """Width of the residual stream."""
    heads: Count = 4
    """Attention heads of a block; divides `hidden`, unless `head_width` is set."""
    sequence: Count = 128
    """Tokens of one sample; for gpt2 also the number of learnt positions."""
    vocabulary: Count = 264
    """Rows of the token embedding: 256 bytes and the end of a document, rounded up to a multiple of 8."""
    dropout: Share = 0.0
    """Probability of dropping an activation: after the embedding, in attention and after both halves of a block."""
    init_std: Positive | None = None
    """Standard deviation of initial weights; √(1/(3·hidden)) if absent."""
    kv_heads: Count | None = None
    """llama: heads of keys and values, each shared by heads / kv_heads queries (grouped-query attention); `heads` if
    absent."""
    head_width: Count | None = None
    """llama: width of a head, an even number; hidden / heads if absent."""
    ffn: Count | None = None
    """llama: width of the feed-forward; 8/3 · hidden, rounded up to a multiple of 256, if absent."""
    rope_theta: Annotated[float, Field(gt=1)] | None = None
    """llama: base of the rotary frequencies; 10,000 if absent, or that of the family."""
    rope_local_theta: Annotated[float, Field(gt=1)] | None = None
    """gemma3: base of the rotary frequencies in layers with a window; 10,000 if absent."""
    rope_scaling: RopeScaling | None = None
    """llama: stretch of the rotary positions."""
    unrotated: Blocks | None = None
    """smollm3: blocks without positions, counted from 0; every fourth if absent."""
    norm_eps: Positive | None = None
    """llama: epsilon of RMSNorm; 1e-5 if absent."""
    qk_norm: bool = False
    """llama: normalise queries and keys of every head, as Qwen3."""
    qkv_bias: bool = False
    """llama: biases of queries, keys and values, as Qwen2."""
    out_bias: bool = False
    """llama: biases of the output of attention."""
    ffn_bias: bool = False
    """llama: biases of the feed-forward."""
    tied: bool | None = None
    """llama: use the token embedding as output too; gpt2 and bloom always do, gemma and smollm3 if absent."""
    window: Count | None = None
    """mistral, qwen, gemma: tokens that a token attends to, itself included; all earlier ones if absent."""
    full: Blocks | None = None
    """qwen, gemma: blocks that attend without the window, counted from 0; every second with gemma2, every sixth with
    gemma3, and else none if absent."""
    query_width: Count | None = None
    """gemma: scores are divided by its square root; the width of a head if absent."""
    score_cap: Positive | None = None
    """gemma2: largest absolute score, reached smoothly; none if absent."""
    logit_cap: Positive | None = None
    """gemma2: largest absolute logit, reached smoothly; none if absent."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        refuse([*self._foreign_keys(), *self._wrong_heads()])
        return self

    def _foreign_keys(self) -> Iterator[str]:
        for key, field in type(self).model_fields.items():
            if getattr(self, key) != field.default and key not in (*_COMMON, *self.kind.keys):
                having = [name for name in families.NAMES if key in families.load(name).keys]
                yield f"{key} has no meaning with family = {self.family}, only with {', '.join(having)}"

    def _wrong_heads(self) -> Iterator[str]:
        if self.heads % self.group_count:
            yield f"kv_heads = {self.kv_heads} does not divide heads = {self.heads}"
        if self.kind.positions == "rotary" and self.width_of_head % 2:
            yield f"a head of width {self.width_of_head} cannot be rotated in pairs: use an even head_width"
        if self.head_width is None and self.hidden % self.heads:
            yield f"heads = {self.heads} does not divide hidden = {self.hidden}"

    @property
    def kind(self) -> ModelFamily:
        return families.load(self.family)

    @property
    def width_of_head(self) -> int:
        return self.head_width or self.hidden // self.heads

    @property
    def group_count(self) -> int:
        """Groups of queries that share keys and values."""
        return self.kv_heads or self.heads

    @property
    def width_of_ffn(self) -> int:
        if not self.kind.is_gated:
            return 4 * self.hidden
        return self.ffn or -(-8 * self.hidden // (3 * _FFN_MULTIPLE)) * _FFN_MULTIPLE

    @property
    def theta(self) -> float:
        return self.rope_theta or self.kind.theta

    @property
    def local_theta(self) -> float:
        """Base of the rotary frequencies of layers with a window."""
        return self.rope_local_theta or self.kind.local_theta or self.theta

    @property
    def epsilon(self) -> float:
        return self.norm_eps or 1e-5

    @property
    def is_tied(self) -> bool:
        return self.kind.is_tied if self.tied is None else self.tied

    @property
    def qk_norms(self) -> str:
        """What is normalised of queries and keys: every `head`, `all` heads together, or nothing."""
        return self.kind.qk_norm or "head" * self.qk_norm

    def has_bias(self, matrix: str) -> bool:
        """Return whether a matrix of a block has biases; those of the feed-forward all have them, or none."""
        place = matrix if matrix in ("qkv", "out") else "ffn"
        return place in self.kind.biases or bool(getattr(self, f"{place}_bias"))

    def window_of(self, block: int) -> int | None:
        """Return how many tokens a block attends to; None for all."""
        return None if block in _blocks(self.full, self.kind.full_every, self.layers) else self.window

    def rotates(self, block: int) -> bool:
        """Return whether a block has rotary positions."""
        unrotated = _blocks(self.unrotated, self.kind.unrotated_every, self.layers)
        return self.kind.positions == "rotary" and block not in unrotated

    def resolved(self) -> Mapping[str, Any]:
        """Return all that determines the logits, equal for every way to write the same model."""
        blocks = range(self.layers)
        of_family = ("norm", "norms", "positions", "activation", "is_gated", "has_embedding_norm", "scales_embedding")
        own = ("layers", "hidden", "heads", "vocabulary", "rope_scaling", "score_cap", "logit_cap")
        return {
            **{key: getattr(self.kind, key) for key in of_family},
            **{key: getattr(self, key) for key in own},
            "kv_heads": self.group_count,
            "head_width": self.width_of_head,
            "ffn": self.width_of_ffn,
            "rope_theta": self.theta,
            "rope_local_theta": self.local_theta if self.window else self.theta,
            "rotates": [self.rotates(block) for block in blocks],
            "norm_eps": self.epsilon,
            "qk_norm": self.qk_norms,
            "biases": [matrix for matrix in ("qkv", "out", "ffn") if self.has_bias(matrix)],
            "tied": self.is_tied,
            "window": [self.window_of(block) for block in blocks],
            "query_width": self.query_width or self.width_of_head,
        }


def _blocks(own: Sequence[int] | None, every: int, layers: int) -> Sequence[int]:
    """Return a model's own choice of blocks, or every so many of its layers, and none for 0."""
    if own is not None:
        return own
    return range(every - 1, layers, every) if every else ()
