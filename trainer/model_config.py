"""The table of the model: a GPT-2, a BLOOM, or a Llama and its relatives (Mistral, Qwen)."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from opsctl.trainer.config_tables import ConfigTable, Count, Share, refuse

_FFN_MULTIPLE = 256
"""Llama rounds the width of its feed-forward up to a multiple of this (Touvron et al., arXiv 2302.13971)."""
_LLAMA_KEYS = ("kv_heads", "head_width", "ffn", "rope_theta", "rope_scaling", "norm_eps", "qk_norm", "qkv_bias", "tied")


class RopeScaling(ConfigTable):
    """A stretch of rotary positions beyond the length that a model was trained with."""

    kind: Literal["linear", "llama3"]
    """linear divides all frequencies by `factor` (Chen et al., arXiv 2306.15595); llama3 only the low ones."""
    factor: Annotated[float, Field(gt=0)]
    """Stretch, such as 8."""
    low_freq_factor: Annotated[float, Field(gt=0)] = 1.0
    """llama3: wavelengths above original_sequence / low_freq_factor are stretched by `factor`."""
    high_freq_factor: Annotated[float, Field(gt=0)] = 4.0
    """llama3: wavelengths below original_sequence / high_freq_factor stay; those in between are interpolated."""
    original_sequence: Count = 8192
    """llama3: tokens of a sample before the stretch."""


class ModelConfig(ConfigTable):
    """A decoder with pre-norm blocks."""

    family: Literal["gpt2", "bloom", "llama"] = "gpt2"
    """gpt2: learnt positions. bloom: a norm after the embedding, and ALiBi instead of positions. llama: RMSNorm, rotary
    positions and SwiGLU, no biases; Mistral and Qwen by the keys below."""
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
    init_std: Annotated[float, Field(gt=0)] | None = None
    """Standard deviation of initial weights; √(1/(3·hidden)) if absent."""
    kv_heads: Count | None = None
    """llama: heads of keys and values, each shared by heads / kv_heads queries (grouped-query attention); `heads` if
    absent."""
    head_width: Count | None = None
    """llama: width of a head, an even number; hidden / heads if absent."""
    ffn: Count | None = None
    """llama: width of the feed-forward; 8/3 · hidden, rounded up to a multiple of 256, if absent."""
    rope_theta: Annotated[float, Field(gt=1)] | None = None
    """llama: base of the rotary frequencies; 10,000 if absent."""
    rope_scaling: RopeScaling | None = None
    """llama: stretch of the rotary positions."""
    norm_eps: Annotated[float, Field(gt=0)] | None = None
    """llama: epsilon of RMSNorm; 1e-5 if absent."""
    qk_norm: bool = False
    """llama: normalise queries and keys of every head, as Qwen3."""
    qkv_bias: bool = False
    """llama: biases of queries, keys and values, as Qwen2."""
    tied: bool | None = None
    """llama: use the token embedding as output too; gpt2 and bloom always do, llama does not if absent."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        refuse([*(self._wrong_llama() if self.family == "llama" else self._foreign_keys()), *self._wrong_heads()])
        return self

    def _foreign_keys(self) -> Iterator[str]:
        fields = type(self).model_fields
        for key in _LLAMA_KEYS:
            if getattr(self, key) != fields[key].default:
                yield f"{key} has no meaning with family = {self.family}, only with llama"

    def _wrong_llama(self) -> Iterator[str]:
        if self.heads % self.group_count:
            yield f"kv_heads = {self.kv_heads} does not divide heads = {self.heads}"
        if self.width_of_head % 2:
            yield f"a head of width {self.width_of_head} cannot be rotated in pairs: use an even head_width"

    def _wrong_heads(self) -> Iterator[str]:
        if self.head_width is None and self.hidden % self.heads:
            yield f"heads = {self.heads} does not divide hidden = {self.hidden}"

    @property
    def width_of_head(self) -> int:
        return self.head_width or self.hidden // self.heads

    @property
    def group_count(self) -> int:
        """Groups of queries that share keys and values."""
        return self.kv_heads or self.heads

    @property
    def width_of_ffn(self) -> int:
        if self.family != "llama":
            return 4 * self.hidden
        return self.ffn or -(-8 * self.hidden // (3 * _FFN_MULTIPLE)) * _FFN_MULTIPLE

    @property
    def theta(self) -> float:
        return self.rope_theta or 10_000.0

    @property
    def epsilon(self) -> float:
        return self.norm_eps or 1e-5

    @property
    def is_tied(self) -> bool:
        return self.family != "llama" or bool(self.tied)
