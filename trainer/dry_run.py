"""`python -m opsctl.trainer CONFIG --dry-run`: describe a run and its problems, without a GPU or torch."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from opsctl.trainer import blend, footprint
from opsctl.trainer.checkpoint.transformers_config import refuse_other_model
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.config_paths import change_paths, find_path, is_there
from opsctl.trainer.errors import Refused
from opsctl.trainer.footprint import GIB
from opsctl.trainer.model_size import model_parameters
from opsctl.trainer.rank_layout import Layout, check_layout, layout
from opsctl.trainer.rank_process import number

_WIDTHS = (30, 12, 9, 11, 11, 13, 12)


def read(path: Path) -> tuple[TrainerConfig, int]:
    """Return the config of a trainer.json or a TRAIN.toml, and the number of processes that the file asks for.

    The number is 0 if the file does not specify it. Raises Refused, or pydantic's ValidationError with every problem.
    """
    try:
        text = path.read_text()
        fields: dict[str, Any] = tomllib.loads(text) if path.suffix == ".toml" else {"trainer": json.loads(text)}
    except (OSError, ValueError) as error:
        raise Refused(f"config {path} cannot be read: {error}") from error
    config = TrainerConfig.model_validate_json(json.dumps(fields.get("trainer", {}), default=str))
    if path.suffix == ".toml":
        here = path.absolute().parent
        absolute = change_paths(fields.get("trainer", {}), lambda text: find_path(text, here))
        config = TrainerConfig.model_validate_json(json.dumps(absolute, default=str))
    slurm = fields.get("slurm", {})
    try:
        return config, int(slurm.get("nodes", 0)) * int(slurm.get("processes_per_node", 1))
    except (AttributeError, TypeError, ValueError) as error:
        raise Refused(f"{path}: nodes and processes_per_node of [slurm] should be numbers ({error})") from error


def report(config: TrainerConfig, processes: int) -> tuple[list[str], list[str]]:
    """Return the lines to print, and the problems, one sentence per problem."""
    problems = check_layout(config, processes)
    lines = [*_model(config), *_steps(config)]
    if not problems:
        lines += _layout(config, layout(config, processes))
    for more, wrong in (_weights(config), _data(config)):
        lines, problems = lines + more, problems + wrong
    return lines, problems


def _row(name: str, text: str) -> str:
    return f"{name:<11}{text}"


def _model(config: TrainerConfig) -> Iterator[str]:
    model = config.model
    count, heads = model_parameters(model), f"{model.heads} heads"
    if model.group_count != model.heads:
        heads += f" in {model.group_count} groups"
    yield _row(
        "model",
        f"{model.family}: {_short(count)} parameters, {model.layers} layers x {model.hidden}, {heads}, "
        f"sequence {model.sequence}, vocabulary {model.vocabulary}, {config.precision}"
        + (", recomputed" if config.recompute else ""),
    )
    yield _row(
        "checkpoint", f"{_short(footprint.checkpoint_bytes(config))}B each, every {config.checkpoint.every} steps"
    )


def _steps(config: TrainerConfig) -> Iterator[str]:
    samples, batch = config.samples(), config.batch
    tokens = samples * config.model.sequence
    yield _row("steps", f"{config.steps} on {samples} samples, {_short(tokens)} tokens")
    if batch.rampup:
        sizes, over = batch.sizes(), batch.rampup[2]
        yield _row("ramp-up", f"{sizes[0]}, {sizes[1]} ... {sizes[-1]} samples, {len(sizes)} sizes over {over} samples")
    optimizer, rate = config.optimizer, config.rate()
    decay = f"{optimizer.decay}, to {rate.at(rate.end):.3g} at {rate.end}"
    yield _row("rate", f"{optimizer.lr:g} after {optimizer.warmup_samples} samples, {decay}")


def _layout(config: TrainerConfig, cut: Layout) -> Iterator[str]:
    batch = config.batch
    turns = cut.accumulation(micro_batch=batch.micro_batch, global_batch=batch.global_batch)
    cut_sequence = ", the sequence cut over the tensor ranks" if config.parallel.sequence_parallel else ""
    axes = f"pipeline {cut.pipeline} x tensor {cut.tensor} x data {cut.data}"
    yield _row("layout", f"{cut.world} processes = {axes}{cut_sequence}")
    yield _row(
        "batch",
        f"{batch.global_batch} = {cut.data} replicas x {turns} micro-batches of {batch.micro_batch}; "
        f"the pipeline's bubble is {(cut.pipeline - 1) / (turns + cut.pipeline - 1):.1%}",
    )
    yield from _memory(config, cut)


def _memory(config: TrainerConfig, cut: Layout) -> Iterator[str]:
    """Yield a table of three stages: the first, the largest in between, the last."""
    heads = ("holds", "parameters", "weights", "gradients", "optimizer", "activations", "GiB in all")
    yield _row("memory", "".join(f"{head:>{width}}" for head, width in zip(heads, _WIDTHS, strict=True)))
    stages = footprint.stages(config, cut)
    between = max(stages[1:-1], key=lambda stage: stage.total, default=None)
    shown = dict.fromkeys((stages[0], between, stages[-1]))
    for stage in filter(None, shown):
        parts = (stage.weights, stage.gradients, stage.optimizer, stage.activations + stage.output, stage.total)
        held = f"{stage.layers} blocks" + (f" + {stage.holds}" if stage.holds else "")
        cells = [held, _short(stage.parameters), *(f"{part / GIB:.1f}" for part in parts)]
        yield _row(
            f"stage {stage.stage}", "".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True))
        )
    yield _row(
        "",
        "GiB in all includes the allocator's overhead and CUDA's context; compare this estimate with a real start",
    )


def _short(count: float) -> str:
    for unit, size in ((" T", 1e12), (" B", 1e9), (" M", 1e6), (" k", 1e3)):
        if count >= size:
            return f"{count / size:.4g}{unit}"
    return f"{count:g}"


def _weights(config: TrainerConfig) -> tuple[list[str], list[str]]:
    if config.weights is None:
        return [], []
    directory, text, problems = Path(config.weights), "not on this machine, not checked", list[str]()
    try:
        if directory.exists():
            refuse_other_model(directory, config.model)
            text = "of this model"
    except (OSError, Refused) as error:
        text, problems = "refused", [str(error)]
    return [_row("weights", f"{directory}: {text}")], problems


def _data(config: TrainerConfig) -> tuple[list[str], list[str]]:
    prefixes = config.data.corpora()
    here = [prefix for prefix in prefixes if is_there(Path(prefix))]
    parts, problems = blend.open_parts(config, here)
    if len(parts) == len(prefixes):
        problems += blend.held_out_problems(config, parts)
    opened = {trained.corpus.prefix: trained for trained, _ in parts}
    requested, realised = _requested_samples(config), blend.Turns(config.data).counts(config.samples())
    lines = []
    for prefix, requested_samples, samples in zip(prefixes, requested, realised, strict=True):
        text = "refused" if prefix in here else "not on this machine, not checked"
        if part := opened.get(prefix):
            text = f"{_short(len(part.corpus.tokens))} tokens, {samples / part.samples:.3g} epochs"
        if len(prefixes) > 1:
            text += f", {samples} samples, {requested_samples:.1f} requested"
        lines.append(_row("data", f"{prefix}: {text}"))
    sets, set_problems = _evaluation_sets(config)
    return lines + sets, problems + set_problems


def _evaluation_sets(config: TrainerConfig) -> tuple[list[str], list[str]]:
    tables = config.evaluation.sets
    here = [table for table in tables if is_there(Path(table.prefix))]
    opened, problems = blend.open_sets(config, here)
    lines = []
    for table in tables:
        text = "refused" if table in here else "not on this machine, not checked"
        if part := opened.get(table.name):
            text = f"{part.samples} samples"
        lines.append(_row("evaluation", f"{table.name}, {table.prefix}: {text}"))
    return lines, problems


def _requested_samples(config: TrainerConfig) -> list[float]:
    """Return the samples of every corpus in the whole run by its weights, not in whole numbers."""
    requested = dict.fromkeys(config.data.corpora(), 0.0)
    blends = config.data.blends()
    ends = [*(start for start, _ in blends[1:]), config.samples()]
    for (start, weights), end in zip(blends, ends, strict=True):
        samples = max(0, min(end, config.samples()) - start)
        for prefix, weight in weights.items():
            requested[prefix] += samples * weight / sum(weights.values())
    return list(requested.values())


def main(path: Path, *, processes: int | None, environ: Mapping[str, str]) -> int:
    """Print the report; return 0, or 2 if there are problems. Raises the exceptions of `read`."""
    config, config_processes = read(path)
    world = processes or number(environ, "WORLD_SIZE", default=0) or config_processes
    world = world or config.parallel.pipeline * config.parallel.tensor
    lines, problems = report(config, world)
    for line in lines:
        print(line)  # noqa: T201 - the report is the output of this command
    for problem in problems:
        print(_row("wrong", problem))  # noqa: T201 - likewise
    if not problems:
        print(_row("checks", "passed"))  # noqa: T201 - likewise
    return 2 if problems else 0
