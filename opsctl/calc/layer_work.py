"""The work and the stored activations of one transformer block, per token and GPU."""

from collections.abc import Iterator
from dataclasses import dataclass

from opsctl.calc.gpt_size import ModelShape, latent_matrices
from opsctl.calc.parallel_layout import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixProduct:
    """A product of the tokens with a matrix. `ranks` split the matrix; `copies` matrices share the tokens."""

    rows: int
    columns: int
    ranks: int
    tokens: float = 1.0
    """Rows of the token matrix per token of the micro batch: more than 1 if a token goes to several experts."""
    copies: float = 1.0
    """Matrices of this form on a GPU: its experts."""

    @property
    def flops(self) -> float:
        """Operations of a token, forward."""
        return 2.0 * self.tokens * self.rows * self.columns / self.ranks

    def bytes(self, tokens: float) -> float:
        """Return the bytes read and written for `tokens` tokens in 16 bits, forward."""
        moved = self.tokens * (self.rows + self.columns / self.ranks) * tokens
        return 2.0 * (moved + self.copies * self.rows * self.columns / self.ranks)


def products(shape: ModelShape, topology: Topology, *, with_experts: bool) -> list[MatrixProduct]:
    return [*_attention_products(shape, topology), *_ffn_products(shape, topology, with_experts=with_experts)]


def _attention_products(shape: ModelShape, topology: Topology) -> Iterator[MatrixProduct]:
    if shape.latent:
        for rows, columns in latent_matrices(shape, shape.latent):
            yield MatrixProduct(rows=rows, columns=columns, ranks=topology.tp)
        return
    columns = (shape.heads + 2 * shape.groups) * shape.head_size
    yield MatrixProduct(rows=shape.hidden, columns=columns, ranks=topology.tp)
    yield MatrixProduct(rows=shape.heads * shape.head_size, columns=shape.hidden, ranks=topology.tp)


def _ffn_products(shape: ModelShape, topology: Topology, *, with_experts: bool) -> Iterator[MatrixProduct]:
    hidden, up = shape.hidden, shape.matrices - 1
    if not with_experts:
        width = (shape.dense_ffn or shape.width) if shape.experts else shape.width
        yield MatrixProduct(rows=hidden, columns=up * width, ranks=topology.tp)
        yield MatrixProduct(rows=width, columns=hidden, ranks=topology.tp)
        return
    local = shape.experts / topology.ep
    tokens, width = float(shape.active_experts), shape.width
    yield MatrixProduct(rows=hidden, columns=up * width, ranks=topology.tp, tokens=tokens, copies=local)
    yield MatrixProduct(rows=width, columns=hidden, ranks=topology.tp, tokens=tokens, copies=local)
    if shape.shared_ffn:
        yield MatrixProduct(rows=hidden, columns=up * shape.shared_ffn, ranks=topology.tp)
        yield MatrixProduct(rows=shape.shared_ffn, columns=hidden, ranks=topology.tp)


def attention_flops(shape: ModelShape, topology: Topology) -> float:
    """Return the operations of a token in the attention matrix, forward: 4·s·a·d, half with a causal kernel.

    Narayanan et al. 2021, appendix; FlashAttention (Dao et al. 2022) skips the masked half. The mean over the layers
    with and without a sliding window.
    """
    sizes = shape.latent.rope_size + shape.latent.plain_size + shape.latent.value_size if shape.latent else 0
    columns = shape.heads * (sizes or 2 * shape.head_size)
    if topology.attention == "unfused":
        return 2.0 * columns * shape.sequence / topology.tp
    return 2.0 * columns * mean_context(shape) / topology.tp


def forward_flops(shape: ModelShape) -> tuple[float, float]:
    """Return the operations of a token in all layers and in the output layer, forward, the masked half included."""
    alone = Topology(tp=1, pp=1, dp=1, attention="unfused")
    layers = shape.layers * attention_flops(shape, alone)
    for with_experts, count in ((True, shape.expert_layers), (False, shape.layers - shape.expert_layers)):
        if count:
            layers += count * sum(product.flops for product in products(shape, alone, with_experts=with_experts))
    return layers, 2.0 * shape.vocabulary * shape.hidden


def mean_context(shape: ModelShape) -> float:
    """Return the tokens that a token attends to, mean over positions and layers."""
    full = shape.sequence / 2
    if not 0 < shape.window < shape.sequence:
        return full
    windowed = shape.window - shape.window**2 / (2 * shape.sequence)
    return shape.windowed * windowed + (1 - shape.windowed) * full


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBytes:
    """Bytes that a block stores for its backward pass, per token."""

    common: float
    """Inputs of the block, norms and dropout: split by sequence parallelism alone."""
    split: float
    """Inside attention and feed-forward part: split by tensor parallelism."""
    matrix: float
    """The attention matrix: 5·a·s, split by tensor parallelism; 0 with flash attention."""

    def of(self, topology: Topology) -> float:
        """Return the bytes of a token on one GPU."""
        return self.common / topology.norm_split + (self.split + self.matrix) / topology.tp


def stored_bytes(shape: ModelShape, topology: Topology, *, with_experts: bool) -> StoredBytes:
    """Return the bytes stored without recomputation (Korthikanti et al. 2022, section 4.1, term by term).

    A GPT stores 34h + 5as: 10h in norms, dropout and the inputs of layers, 24h in attention and feed-forward part.
    Grouped queries, gated parts and experts change the 24h. fp8 stores the inputs of products in one byte. Recipes with
    flash attention have no dropout, and so no masks.
    """
    hidden, width = shape.hidden, shape.width
    size = 1 if topology.precision in ("fp8", "fp4") else 2
    masks = 2 if topology.attention == "unfused" else 0
    columns = _attention_columns(shape)
    routed = shape.active_experts if with_experts else 1
    if not with_experts and shape.experts:
        width = shape.dense_ffn or width
    feed_forward = routed * width * (2 * (shape.matrices - 1) + size)
    if with_experts:
        up = 2 * (shape.matrices - 1) + size
        feed_forward += shape.shared_ffn * up + routed * hidden * (size + 2)  # the tokens sorted by expert, and results
    norms = 2 * 4 * hidden if topology.kernels == "eager" else 0  # in 32 bits, by single operations
    return StoredBytes(
        common=(2 + 2) * hidden + 2 * size * hidden + masks * hidden + norms,
        split=2 * columns + feed_forward,
        matrix=5.0 * shape.heads * shape.sequence if topology.attention == "unfused" else 0.0,
    )


def _attention_columns(shape: ModelShape) -> int:
    """Return the columns of queries, keys, values and the attention's result."""
    if not shape.latent:
        return (2 * shape.heads + 2 * shape.groups) * shape.head_size
    latent = shape.latent
    keys = latent.rope_size + latent.plain_size
    return shape.heads * (2 * keys + 2 * latent.value_size) + latent.query_rank + latent.key_value_rank
