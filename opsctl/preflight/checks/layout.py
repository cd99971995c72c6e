"""The layout of model and batches over the ranks: which numbers must divide which."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest, Problem, error, note, warning
from opsctl.preflight.recipe import Recipe

BUBBLE = 0.15
"""tr1-13B at 128 nodes, 16 micro-batches for 4 stages, had a bubble of 16 % and judged it too large."""


def _divides(request: LaunchRequest) -> bool:
    return request.world % request.recipe.model_ranks == 0


def processes(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    recipe, world = request.recipe, request.world
    if not _divides(request):
        shared = f" x {recipe.context}" if recipe.context > 1 else ""
        yield request.refuse(
            f"{world} ranks ({request.spec.nodes} nodes x {request.ranks_per_node}) do not"
            " divide into replicas"
            f" of tensor {recipe.tensor} x pipeline {recipe.pipeline}{shared} = {recipe.model_ranks}",
            "change nodes: opsctl plan topology lists the layouts that fit",
        )


def heads(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    recipe = request.recipe
    if recipe.heads and recipe.heads % recipe.tensor:
        yield request.refuse(
            f"{recipe.name('heads')} is {recipe.heads}: not divisible by tensor = {recipe.tensor}, but each rank"
            " takes whole heads",
            "change tensor or heads",
        )
    if recipe.head_size:
        return
    if recipe.hidden and recipe.heads and recipe.hidden % recipe.heads:
        yield request.refuse(
            f"{recipe.name('hidden')} is {recipe.hidden}: not divisible by {recipe.heads} heads",
            "change hidden or heads",
        )
    elif recipe.hidden and recipe.heads and request.has_gpus and (size := recipe.hidden // recipe.heads) % 8:
        yield warning(
            f"{recipe.name('heads')} is {recipe.heads}: heads of {size} columns are not a multiple of 8, which tensor"
            " cores need; such layers took a third longer",
            f"choose hidden / heads = {-(-size // 8) * 8}",
        )
    yield from _softmax(recipe)


def _softmax(recipe: Recipe) -> Iterator[Problem]:
    """Megatron's fused softmax needs a multiple of 4 heads per rank times micro batch; flash attention does not."""
    if recipe.is_embedded or recipe.attention == "flash" or not (recipe.heads and recipe.micro_batch):
        return
    number, remainder = divmod(recipe.heads, recipe.tensor)
    if not remainder and number * recipe.micro_batch % 4:
        yield note(
            f"{recipe.name('heads')} is {recipe.heads}: {number} heads of a rank x micro batch {recipe.micro_batch} are"
            " not a multiple of 4, so the fused softmax is not used",
            "change the micro batch or heads, or use --use-flash-attn",
        )


def vocabulary(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    """Only for the embedded trainer: Megatron pads the vocabulary itself."""
    recipe = request.recipe
    rows, tensor = recipe.vocabulary, recipe.tensor
    if recipe.is_embedded and rows and rows % tensor:
        yield error(
            f"{recipe.name('vocabulary')} is {rows}: not divisible by tensor = {tensor}, but each rank holds as"
            " many rows of the embedding",
            f"pad the vocabulary to {-(-rows // tensor) * tensor}",
        )


def stages(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    recipe = request.recipe
    layers, pipeline = recipe.layers, recipe.pipeline
    if not layers or pipeline == 1:
        return
    counted = layers + 2 * recipe.embedding_slots
    count = f"{recipe.name('layers')} is {layers}" + (f", {counted} with embedding and output" * recipe.embedding_slots)
    most = counted - 1 if recipe.embedding_slots and recipe.is_embedded else counted
    if not recipe.is_embedded:
        most = layers + 2  # a stage may hold the embedding or the output alone
    if pipeline > most or (recipe.is_embedded and pipeline > layers):
        yield request.refuse(
            f"{count}: {pipeline} stages would leave a stage without a layer", f"set pipeline to at most {layers}"
        )
    elif counted % pipeline and not recipe.uneven:
        # Another trainer may cut unevenly: its version and its code decide.
        problem = error if recipe.is_embedded else warning
        fuller = -(-counted // pipeline)
        yield problem(
            f"{count}: not divisible by {recipe.name('pipeline')} = {pipeline}, so stages of {fuller - 1} wait for"
            f" those of {fuller}",
            f"change layers, such as to {layers - counted % pipeline}, or change pipeline",
        )


def tensor(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    """One node must hold whole groups of tensor ranks."""
    size, ranks = request.recipe.tensor, request.ranks_per_node
    if size > ranks or ranks % size:
        yield warning(
            f"{request.recipe.name('tensor')} is {size}, and a node has {ranks} ranks: its all-reduces of"
            " every layer go"
            " over the network",
            f"set a tensor size that divides {ranks}",
        )


def batch(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    recipe = request.recipe
    if recipe.global_batch is None or not _divides(request):
        return
    unit, formula = _unit(request)
    if recipe.global_batch % unit and not recipe.any_batch:
        yield request.refuse(
            f"{recipe.name('global_batch')} is {recipe.global_batch}: it is not a multiple of {formula}",
            f"set {_near(recipe.global_batch, unit)}, or change nodes",
        )


def ramp(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    recipe = request.recipe
    if recipe.rampup is None or recipe.global_batch is None or not _divides(request):
        return
    start, increment, _samples = recipe.rampup
    if recipe.trainer == "Megatron" and recipe.names.get("steps") == "--train-iters":
        yield request.refuse(
            f"{recipe.name('rampup')} beside --train-iters: Megatron refuses a ramp in a run that is counted in"
            " iterations",
            "use --train-samples, --lr-decay-samples and --lr-warmup-samples, or leave the ramp out",
        )
    if start > recipe.global_batch or (recipe.global_batch - start) % max(1, increment):
        yield request.refuse(
            f"{recipe.name('rampup')}: {start} does not reach {recipe.global_batch} in steps of {increment}",
            "change start or increment",
        )
        return
    unit, formula = _unit(request)
    sizes = recipe.sizes()
    wrong = [size for size in sizes if size % unit]
    if wrong and not recipe.global_batch % unit and not recipe.any_batch:
        yield request.refuse(
            f"{recipe.name('rampup')}: {len(wrong)} of its {len(sizes)} batches, {wrong[0]} the first, are not a"
            f" multiple of {formula}",
            f"set start and increment to multiples of {unit}, or use fewer nodes until the ramp ends",
        )


def pipeline(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    recipe = request.recipe
    if recipe.pipeline == 1 or not recipe.sizes() or not _divides(request):
        return
    unit, _of = _unit(request)
    first, full = recipe.sizes()[0] // unit, recipe.sizes()[-1] // unit
    if first < recipe.pipeline:
        yield warning(
            f"{_first(recipe)}: {first} micro-batches do not fill {recipe.pipeline} stages; the first batch that does"
            f" is {recipe.pipeline * unit}",
            f"start the ramp at {recipe.pipeline * unit}: most GPUs wait in smaller batches",
        )
    elif request.has_gpus and (bubble := (recipe.pipeline - 1) / (full + recipe.pipeline - 1)) > BUBBLE:
        yield note(
            f"{recipe.name('global_batch')} is {recipe.sizes()[-1]}: with {full} micro-batches for {recipe.pipeline}"
            f" stages, {bubble:.0%} of each step is bubble",
            "use fewer stages, fewer nodes, or a larger batch",
        )


def _first(recipe: Recipe) -> str:
    name = recipe.name("rampup" if recipe.rampup else "global_batch")
    return f"{name} begins with {recipe.sizes()[0]}" if recipe.rampup else f"{name} is {recipe.sizes()[0]}"


def _unit(request: LaunchRequest) -> tuple[int, str]:
    """Return the number of which every batch must be a multiple, and its formula in words."""
    micro, replicas = request.recipe.micro_batch or 1, request.recipe.replicas(request.world)
    return micro * replicas, f"micro batch {micro} x {replicas} replicas = {micro * replicas}"


def _near(size: int, unit: int) -> int:
    return max(unit, round(size / unit) * unit)
