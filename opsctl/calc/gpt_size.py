"""The shape of a decoder and the number of its parameters: GPT, Llama, Qwen, Gemma, mixtures of experts."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from opsctl.base.tables import read_package_table
from opsctl.calc.argument_checks import not_positive, refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): queries, keys and values from small latents."""

    query_rank: int
    """0: queries come from the hidden state."""
    key_value_rank: int
    rope_size: int
    """Columns of a head with positions."""
    plain_size: int
    """Columns of a head without positions."""
    value_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder. By default a GPT: fourfold feed-forward width, biases, learnt positions, tied output layer."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    sequence: int = 2048
    positions: bool = True
    """Learnt positions. Without them (ALiBi, rotary), there is no table of sequence x hidden."""
    embedding_norm: bool = False
    """A layer norm after the embedding, as BLOOM has."""
    kv_heads: int | None = None
    """Heads of keys and values (grouped queries); None: as many as heads."""
    head_columns: int | None = None
    """Columns of a head; None: hidden / heads."""
    ffn: int | None = None
    """Width of the feed-forward part, or of one expert; None: 4 x hidden."""
    gated: bool = False
    """SwiGLU or GeGLU: three matrices instead of two."""
    biases: bool = True
    """Biases, and layer norms with a bias. Without: RMS norms."""
    tied: bool = True
    """The output layer shares the weights of the embedding."""
    experts: int = 0
    """Routed experts of a layer; 0: dense."""
    active_experts: int = 0
    """Routed experts that a token uses."""
    shared_ffn: int = 0
    """Width of the experts that every token uses."""
    dense_layers: int = 0
    """First layers without experts."""
    dense_ffn: int = 0
    """Width of the feed-forward part of these layers."""
    window: int = 0
    """Tokens that a layer with a sliding window looks back; 0: no window."""
    windowed: float = 1.0
    """Share of the layers that have the window."""
    latent: LatentAttention | None = None

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in ("layers", "hidden", "heads", "vocabulary", "sequence")}
        problems = list(not_positive(**sizes))
        if not problems:
            problems.extend(_find_contradictions(self))
        refuse("model", problems)

    @property
    def head_size(self) -> int:
        return self.head_columns or self.hidden // self.heads

    @property
    def groups(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def width(self) -> int:
        """Width of the feed-forward part, or of one expert."""
        return self.ffn or 4 * self.hidden

    @property
    def matrices(self) -> int:
        """Matrices of a feed-forward part."""
        return 3 if self.gated else 2

    @property
    def expert_layers(self) -> int:
        return self.layers - self.dense_layers if self.experts else 0


def _find_contradictions(shape: ModelShape) -> Iterator[str]:
    if shape.head_columns is None and shape.hidden % shape.heads:
        yield f"hidden {shape.hidden} does not divide by {shape.heads} heads"
    if shape.heads % shape.groups:
        yield f"{shape.heads} heads do not divide by {shape.groups} heads of keys and values"
    if shape.experts and not 0 < shape.active_experts <= shape.experts:
        yield f"active experts is {shape.active_experts}, needs to be between 1 and {shape.experts}"
    if shape.experts and shape.dense_layers >= shape.layers:
        yield f"dense layers is {shape.dense_layers}, needs to be below {shape.layers}"


def _shape(figures: dict[str, Any]) -> ModelShape:
    latent = figures.pop("latent", None)
    return ModelShape(**figures, latent=LatentAttention(**latent) if latent else None)


def parameters(shape: ModelShape) -> int:
    """Return the exact number of parameters.

    For a GPT: l·(12h² + 13h) + V·h + s·h + 2h (prequel of tr11, "Size"). The last 2h is the final layer norm.
    """
    count = shape.expert_layers * block_parameters(shape)
    count += (shape.layers - shape.expert_layers) * dense_block_parameters(shape)
    count += embedding_parameters(shape) * (1 if shape.tied else 2)
    count += shape.sequence * shape.hidden * shape.positions
    return count + (1 + shape.biases) * shape.hidden + 2 * shape.hidden * shape.embedding_norm


def active_parameters(shape: ModelShape) -> int:
    """Return the parameters that one token uses: all, without the routed experts that the token is not sent to."""
    idle = shape.experts - shape.active_experts
    return parameters(shape) - shape.expert_layers * idle * shape.matrices * shape.hidden * shape.width


def block_parameters(shape: ModelShape) -> int:
    """Return the parameters of one transformer block; of a mixture, of a block with experts.

    For a GPT: 12h² + 13h (prequel of tr11, "104B topology / memory usage").
    """
    if not shape.experts:
        return dense_block_parameters(shape)
    return common_parameters(shape) + expert_parameters(shape)


def dense_block_parameters(shape: ModelShape) -> int:
    """Return the parameters of a block without experts."""
    width = (shape.dense_ffn or shape.width) if shape.experts else shape.width
    biases = width + shape.hidden if shape.biases else 0
    return attention_parameters(shape) + shape.matrices * shape.hidden * width + biases


def common_parameters(shape: ModelShape) -> int:
    """Return the parameters of a block with experts that every token uses: attention, router, shared experts."""
    router = shape.hidden * shape.experts
    return attention_parameters(shape) + router + shape.matrices * shape.hidden * shape.shared_ffn


def expert_parameters(shape: ModelShape) -> int:
    """Return the parameters of all routed experts of a block."""
    return shape.experts * shape.matrices * shape.hidden * shape.width


def attention_parameters(shape: ModelShape) -> int:
    """Return the parameters of the attention and of both norms of a block."""
    hidden, head = shape.hidden, shape.head_size
    norms = (4 if shape.biases else 2) * hidden
    if shape.latent:
        return norms + sum(rows * columns for rows, columns in latent_matrices(shape, shape.latent))
    queries, keys = shape.heads * head, shape.groups * head
    biases = queries + 2 * keys + hidden if shape.biases else 0
    return norms + biases + hidden * (2 * queries + 2 * keys)


def latent_matrices(shape: ModelShape, latent: LatentAttention) -> list[tuple[int, int]]:
    """Return rows and columns of the matrices of latent attention (arXiv 2405.04434, section 2.1)."""
    queries = shape.heads * (latent.rope_size + latent.plain_size)
    compressed = latent.query_rank
    return [
        *([(shape.hidden, compressed), (compressed, queries)] if compressed else [(shape.hidden, queries)]),
        (shape.hidden, latent.key_value_rank + latent.rope_size),
        (latent.key_value_rank, shape.heads * (latent.plain_size + latent.value_size)),
        (shape.heads * latent.value_size, shape.hidden),
    ]


def embedding_parameters(shape: ModelShape) -> int:
    """Return the parameters of the word embedding, without positions: V·h (prequel of tr11, same section)."""
    return shape.vocabulary * shape.hidden


PUBLISHED = {name: _shape(dict(row)) for name, row in read_package_table("calc/models.toml").items()}
"""The presets of models.toml by name."""


HEAD_COLUMNS = 128
LLAMA_VOCABULARY = 128256
"""Of Llama 3."""
LLAMA: dict[str, Any] = {"gated": True, "biases": False, "positions": False, "tied": False}


def gated_width(hidden: int) -> int:
    """Return the width of three matrices with as many parameters as two of 4h: 8h/3, a multiple of 256 (Llama 2)."""
    return -(-8 * hidden // 3 // 256) * 256


def shape_of_size(count: float, *, sequence: int | None = None) -> ModelShape:
    """Return a Llama-like shape of about `count` parameters, with a hidden size of about 128 times the layers."""
    layers = max(1, round((count / (12 * HEAD_COLUMNS**2)) ** (1 / 3)))
    shapes = [shape_of_sizes(layers, HEAD_COLUMNS * heads, sequence=sequence)[0] for heads in range(8, 257, 8)]
    return min(shapes, key=lambda shape: abs(parameters(shape) - count))


def shape_of_sizes(layers: int, hidden: int, *, sequence: int | None = None) -> tuple[ModelShape, tuple[str, ...]]:
    """Return a Llama-like shape of `layers` and `hidden`, and the further sizes that were assumed."""
    heads = max(1, hidden // HEAD_COLUMNS)
    groups = 8 if heads % 8 == 0 else heads
    width, length = gated_width(hidden), sequence or 4096
    if groups < heads:  # Llama 2 and 3 give the parameters saved by grouped queries to the feed-forward part
        width = -(-int(1.3 * width) // 1024) * 1024
    shape = ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=groups,
        ffn=width,
        vocabulary=LLAMA_VOCABULARY,
        sequence=length,
        **LLAMA,
    )
    assumed = (
        f"{heads} heads, {groups} of keys and values (as Llama 3)",
        f"gated feed-forward part of {width}",
        f"vocabulary {LLAMA_VOCABULARY}, output layer not tied",
        *(() if sequence else (f"--sequence {length}",)),
    )
    return shape, assumed
