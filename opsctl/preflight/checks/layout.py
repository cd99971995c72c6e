"""The layout of model and batches over the ranks: which numbers must divide which, and the GPU memory needed."""

from collections.abc import Iterator

from opsctl.base.errors import InputError
from opsctl.calc import gpu_memory
from opsctl.calc.accelerators import accelerator
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import Fact, LaunchRequest, Problem, error, error_if, note, warning
from opsctl.preflight.recipe import Recipe
from opsctl.preflight.recipe_memory import memory_model
from opsctl.trainer.rank_layout import check_layout

BUBBLE = 0.15
"""tr1-13B at 128 nodes, 16 micro-batches for 4 stages, had a bubble of 16 % and judged it too large."""
TOLERANCE = 0.084
"""Nine of ten of the prequel's measurements are this close to the estimate (docs/explanation/planning-model.md)."""


def _divides(request: LaunchRequest) -> bool:
    return request.world % request.recipe.model_ranks == 0


def processes(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    recipe = request.recipe
    if not _divides(request):
        yield request.refuse(
            "processes.do_not_divide",
            world=request.world,
            nodes=request.spec.nodes,
            ranks=request.ranks_per_node,
            tensor=recipe.tensor,
            pipeline=recipe.pipeline,
            context=recipe.context if recipe.context > 1 else None,
            model_ranks=recipe.model_ranks,
        )


def heads(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    recipe = request.recipe
    heads, hidden, name = recipe.heads, recipe.hidden, recipe.name("heads")
    if heads and heads % recipe.tensor:
        yield request.refuse("heads.tensor", name=name, heads=heads, tensor=recipe.tensor)
    if recipe.head_size:
        return
    if hidden and heads and hidden % heads:
        yield request.refuse("heads.hidden", name=recipe.name("hidden"), hidden=hidden, heads=heads)
    elif hidden and heads and request.has_gpus and (size := hidden // heads) % 8:
        yield warning("heads.columns", name=name, heads=heads, size=size, better=-(-size // 8) * 8)
    yield from _softmax(recipe)


def _softmax(recipe: Recipe) -> Iterator[Problem]:
    """Megatron's fused softmax needs a multiple of 4 heads per rank times micro batch; flash attention does not."""
    heads, micro_batch = recipe.heads, recipe.micro_batch
    if recipe.is_embedded or recipe.attention == "flash" or not (heads and micro_batch):
        return
    number, remainder = divmod(heads, recipe.tensor)
    if not remainder and number * micro_batch % 4:
        name = recipe.name("heads")
        yield note("heads.softmax", name=name, heads=heads, number=number, micro_batch=micro_batch)


def vocabulary(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    """Only for the embedded trainer: Megatron pads the vocabulary itself."""
    recipe = request.recipe
    rows, tensor = recipe.vocabulary, recipe.tensor
    if recipe.is_embedded and rows and rows % tensor:
        better = -(-rows // tensor) * tensor
        yield error("vocabulary.tensor", name=recipe.name("vocabulary"), rows=rows, tensor=tensor, better=better)


def stages(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    recipe = request.recipe
    layers, pipeline = recipe.layers, recipe.pipeline
    if not layers or pipeline == 1:
        return
    counted = layers + 2 * recipe.embedding_slots
    facts: dict[str, Fact] = {"name": recipe.name("layers"), "layers": layers, "pipeline": pipeline}
    facts["counted"] = counted if recipe.embedding_slots else None
    most = counted - 1 if recipe.embedding_slots and recipe.is_embedded else counted
    if not recipe.is_embedded:
        most = layers + 2  # a stage may hold the embedding or the output alone
    if pipeline > most or (recipe.is_embedded and pipeline > layers):
        yield request.refuse("stages.too_many", **facts)
    elif counted % pipeline and not recipe.uneven:
        fuller = -(-counted // pipeline)
        yield error_if(
            recipe.is_embedded,  # another trainer may cut unevenly: its version and its code decide
            "stages.uneven",
            **facts,
            pipeline_name=recipe.name("pipeline"),
            fuller=fuller,
            emptier=fuller - 1,
            better=layers - counted % pipeline,
        )


def tensor(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    """One node must hold whole groups of tensor ranks."""
    size, ranks = request.recipe.tensor, request.ranks_per_node
    if size > ranks or ranks % size:
        yield warning("tensor.over_network", name=request.recipe.name("tensor"), tensor=size, ranks=ranks)


def batch(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    recipe = request.recipe
    size = recipe.global_batch
    if size is None or not _divides(request):
        return
    unit, formula = _unit(request)
    if size % unit and not recipe.any_batch:
        better = max(unit, round(size / unit) * unit)
        yield request.refuse(
            "batch.no_multiple", name=recipe.name("global_batch"), batch=size, formula=formula, better=better
        )


def ramp(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    recipe = request.recipe
    if recipe.rampup is None or recipe.global_batch is None or not _divides(request):
        return
    start, increment, _samples = recipe.rampup
    name = recipe.name("rampup")
    if recipe.trainer == "Megatron" and recipe.names.get("steps") == "--train-iters":
        yield request.refuse("ramp.by_iterations", name=name)
    if start > recipe.global_batch or (recipe.global_batch - start) % max(1, increment):
        yield request.refuse("ramp.never_full", name=name, start=start, batch=recipe.global_batch, increment=increment)
        return
    unit, formula = _unit(request)
    sizes = recipe.sizes()
    wrong = [size for size in sizes if size % unit]
    if wrong and not recipe.global_batch % unit and not recipe.any_batch:
        yield request.refuse(
            "ramp.no_multiple",
            name=name,
            wrong=len(wrong),
            sizes=len(sizes),
            first=wrong[0],
            formula=formula,
            unit=unit,
        )


def pipeline(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    recipe = request.recipe
    sizes, stages = recipe.sizes(), recipe.pipeline
    if stages == 1 or not sizes or not _divides(request):
        return
    unit, _of = _unit(request)
    first, full = sizes[0] // unit, sizes[-1] // unit
    if first < stages:
        yield warning(
            "pipeline.not_filled_first" if recipe.rampup else "pipeline.not_filled",
            name=recipe.name("rampup" if recipe.rampup else "global_batch"),
            batch=sizes[0],
            micro_batches=first,
            pipeline=stages,
            better=stages * unit,
        )
    elif request.has_gpus and (bubble := (stages - 1) / (full + stages - 1)) > BUBBLE:
        name = recipe.name("global_batch")
        yield note("pipeline.bubble", name=name, batch=sizes[-1], micro_batches=full, pipeline=stages, bubble=bubble)


def _unit(request: LaunchRequest) -> tuple[int, str]:
    """Return the number of which every batch must be a multiple, and its formula in words."""
    micro, replicas = request.recipe.micro_batch or 1, request.recipe.replicas(request.world)
    return micro * replicas, f"micro batch {micro} x {replicas} replicas = {micro * replicas}"


def memory(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Judge the GPU memory that the model needs."""
    fullest = _find_fullest_stage(request) if facts.gpu else None
    if fullest is None:
        return
    stage, gib = fullest
    available = accelerator(facts.gpu).memory_gb
    needs: dict[str, Fact] = {"stage": stage, "gib": gib, "gpu": facts.gpu, "available": available}
    if request.recipe.is_embedded:
        if gib > available * (1 - TOLERANCE):
            yield error_if(gib > available * (1 + TOLERANCE), "memory.too_small", **needs)
    elif gib > available:  # an estimate, whose error is large, of a trainer that may do otherwise: never an error
        problem = warning if gpu_memory.is_too_large(gib, available) else note
        yield problem("memory.too_small_by_estimate", **needs)


def _find_fullest_stage(request: LaunchRequest) -> tuple[int, float] | None:
    """Return the stage that needs most memory, and its GiB; None if the layout is impossible or unknown."""
    recipe = request.recipe
    world, shape = request.world, recipe.shape()
    if recipe.embedded and check_layout(recipe.embedded, world):
        return None
    if shape is None or recipe.global_batch is None or recipe.pipeline > shape.layers or world % recipe.model_ranks:
        return None
    try:
        stage_memory = memory_model(recipe)(shape, recipe.topology(world), batch=recipe.global_batch)
    except InputError:  # such as --zero-stage 4
        return None
    return stage_memory.stage, stage_memory.gib
