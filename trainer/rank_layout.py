"""The layout: the cut of the model over stages and tensor ranks, and of the batch over data-parallel ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opsctl.trainer.config import TrainerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Sizes of the parallel axes. Tensor ranks, which communicate most, are neighbours; stages are furthest apart:

    rank = (stage x data + data-parallel rank) x tensor + tensor rank.
    """

    pipeline: int
    data: int
    tensor: int = 1

    @property
    def world(self) -> int:
        return self.pipeline * self.data * self.tensor

    def stage(self, rank: int) -> int:
        return rank // (self.data * self.tensor)

    def data_rank(self, rank: int) -> int:
        return rank // self.tensor % self.data

    def tensor_rank(self, rank: int) -> int:
        return rank % self.tensor

    def accumulation(self, *, micro_batch: int, global_batch: int) -> int:
        """Return the micro-batches that a rank processes in one step."""
        return global_batch // (micro_batch * self.data)


def layout(config: TrainerConfig, world_size: int) -> Layout:
    """Return the layout of `config` over `world_size` processes, which `check_layout` has accepted."""
    parallel = config.parallel
    return Layout(
        pipeline=parallel.pipeline,
        data=world_size // (parallel.pipeline * parallel.tensor),
        tensor=parallel.tensor,
    )


def describe_topology(config: TrainerConfig, layout: Layout) -> dict[str, int | str]:
    """Return how the state of a run is cut, as its checkpoints record it."""
    return {
        "pipeline": layout.pipeline,
        "tensor": layout.tensor,
        "data": layout.data,
        "balance": config.parallel.division,
    }


def check_layout(config: TrainerConfig, world_size: int) -> list[str]:
    """Return the problems of `config` on `world_size` processes, one sentence per problem."""
    parallel = config.parallel
    model_ranks = parallel.pipeline * parallel.tensor
    if world_size < 1 or world_size % model_ranks:
        tensor = f" x tensor = {parallel.tensor}" if parallel.tensor > 1 else ""
        return [
            f"pipeline = {parallel.pipeline}{tensor} does not divide the {world_size} processes "
            "(nodes x processes per node)"
        ]
    return [
        *_stage_problems(config),
        *_tensor_problems(config),
        *_batch_problems(config, world_size // model_ranks),
    ]


def _tensor_problems(config: TrainerConfig) -> list[str]:
    tensor, model = config.parallel.tensor, config.model
    problems = []
    if model.heads % tensor:
        problems.append(f"tensor = {tensor} does not divide heads = {model.heads}: each rank takes whole heads")
    elif model.group_count % tensor:
        problems.append(
            f"tensor = {tensor} does not divide kv_heads = {model.group_count}: each rank takes whole groups of heads, "
            f"and keys and values are not copied; use tensor = {math.gcd(tensor, model.group_count)}"
        )
    if model.width_of_ffn % tensor:
        problems.append(f"tensor = {tensor} does not divide ffn = {model.width_of_ffn}")
    if model.vocabulary % tensor:
        padded = -(-model.vocabulary // tensor) * tensor
        problems.append(
            f"tensor = {tensor} does not divide vocabulary = {model.vocabulary}: each rank holds as many rows of the "
            f"embedding; pad it to {padded}"
        )
    return problems


def _stage_problems(config: TrainerConfig) -> list[str]:
    stages, layers, blocks = config.parallel.pipeline, config.model.layers, config.parallel.blocks
    if blocks:
        counts = f"blocks = {blocks}"
        wrong = [f"{counts} names {len(blocks)} stages, and pipeline = {stages}"] if len(blocks) != stages else []
        return wrong + ([f"{counts} has {sum(blocks)} blocks, and layers = {layers}"] if sum(blocks) != layers else [])
    embeddings = config.parallel.balance == "blocks-and-embeddings"
    counted = layers + 2 if embeddings else layers
    if embeddings and stages == counted:
        return [
            f"pipeline = {stages} leaves stages with nothing but the embedding (layers + 2 = {counted}): they hold no "
            "norms or biases, and without any DeepSpeed waits for ever or fails when it adds up the gradient's norm"
        ]
    if stages == 1 or counted % stages == 0:
        return []
    total = (
        f"layers + 2 = {counted} (embedding and output count as a layer each)" if embeddings else f"layers = {counted}"
    )
    return [
        f"pipeline = {stages} does not divide {total}: some stages would wait for the longest one; parallel.blocks"
        " names the blocks of every stage all the same"
    ]


def first_layers(config: TrainerConfig) -> list[int] | None:
    """Return the number of the first layer of every stage and of the end, if `parallel.blocks` names the stages.

    The layers are embedding, positions or norm, blocks, norm, output.
    """
    blocks = config.parallel.blocks
    if blocks is None:
        return None
    _, *later = accumulate(blocks[:-1], initial=2)
    return [0, *later, config.model.layers + 4]


def _batch_problems(config: TrainerConfig, data: int) -> list[str]:
    micro, total = config.batch.micro_batch, config.batch.global_batch
    if total % (micro * data):
        return [
            f"global_batch = {total} is not a multiple of micro_batch x data-parallel ranks = {micro} x {data} = "
            f"{micro * data}"
        ]
    wrong = [size for size in config.batch.sizes() if size % (micro * data)]
    if wrong:
        shown = ", ".join(map(str, wrong[:5])) + (f" and {len(wrong) - 5} more" if len(wrong) > 5 else "")
        return [
            f"rampup = {config.batch.rampup} has batches of {shown}, which are not multiples of micro_batch x "
            f"data-parallel ranks = {micro} x {data} = {micro * data}"
        ]
    return []
