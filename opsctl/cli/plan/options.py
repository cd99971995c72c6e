"""Options that several plan commands share."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import click

from opsctl.base.errors import InputError
from opsctl.calc.argument_checks import not_positive, refuse
from opsctl.calc.gpt_size import PUBLISHED, ModelShape, parameters
from opsctl.calc.gpu_memory import PRECISIONS
from opsctl.calc.parallel_layout import ATTENTIONS, KERNELS, RECOMPUTATIONS
from opsctl.cli.dependent_option import dependent_option

F = TypeVar("F", bound=Callable[..., Any])
MAX_HEAD_COLUMNS = 512
"""Models have heads of 64 to 256 columns."""

gpu_option: Callable[[F], F] = click.option(
    "--gpu", required=True, help="GPU, such as H100, or figures (tflops=989,…)."
)
currency_option: Callable[[F], F] = dependent_option(
    "--currency", only_with=("--price",), help="Currency of --price, such as USD."
)
batch_option: Callable[[F], F] = click.option(
    "--batch", type=int, required=True, help="Global batch size, in samples per step."
)
precision_option: Callable[[F], F] = click.option(
    "--precision",
    default="bf16",
    show_default=True,
    type=click.Choice(list(PRECISIONS)),
    help="Number format of weights and optimizer state.",
)
recompute_option: Callable[[F], F] = click.option(
    "--recompute/--no-recompute", default=True, show_default=True, help="Recompute activations in the backward pass."
)
kernels_option: Callable[[F], F] = click.option(
    "--kernels",
    type=click.Choice(KERNELS),
    default="fused",
    show_default=True,
    help="Kernels; eager is PyTorch without torch.compile.",
)
failures_option: Callable[[F], F] = click.option(
    "--failures", type=float, default=6.5, show_default=True, help="Failures per 1000 node-days."
)
_LAYOUT: tuple[Callable[[F], F], ...] = (
    click.option("--zero", type=click.IntRange(0, 3), default=1, show_default=True, help="ZeRO stage."),
    precision_option,
    click.option(
        "--recompute",
        type=click.Choice(list(RECOMPUTATIONS)),
        help="Recomputation of activations (default: the least that fits).",
    ),
    click.option(
        "--attention",
        type=click.Choice(ATTENTIONS),
        default="flash",
        show_default=True,
        help="Attention kernel; unfused stores the matrix.",
    ),
)
_SHAPE = (
    click.option("--model", "known", type=click.Choice(list(PUBLISHED)), help="Start from a published shape."),
    click.option("--layers", type=int, help="Number of transformer layers."),
    click.option("--hidden", type=int, help="Hidden size."),
    click.option("--heads", type=int, help="Number of attention heads."),
    click.option("--vocabulary", type=int, help="Vocabulary size, padding included."),
    click.option("--sequence", type=int, help="Tokens per sample (default: 2048)."),
)
_SIZE = (
    dependent_option("--billions", not_with=("--model",), type=float, help="Number of parameters, in billions."),
    click.option("--model", "known", type=click.Choice(list(PUBLISHED)), help="Published model to take the size of."),
)


def layout_options(function: F) -> F:
    """Add the options of a layout that hold for every topology."""
    for option in reversed(_LAYOUT):
        function = option(function)
    return function


def takes_shape(*, is_needed: bool) -> Callable[[F], F]:
    """Return a decorator that adds the options of a model shape.

    The function gets `shape`, which is None without any of the options if the shape is not needed.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, known: str | None, **options: Any) -> Any:
            fields = {name: options.pop(name) for name in ("layers", "hidden", "heads", "vocabulary", "sequence")}
            shape = _shape(known, {name: value for name, value in fields.items() if value is not None})
            return function(*args, shape=needed(shape) if is_needed else shape, **options)

        for option in reversed(_SHAPE):
            call = option(call)
        return call  # type: ignore[return-value]  # click's options wrap a function without its type

    return decorate


def _shape(known: str | None, fields: dict[str, Any]) -> ModelShape | None:
    if known:
        return replace(PUBLISHED[known], **fields)
    if not fields:
        return None
    fields.setdefault("heads", 1)
    missing = [name for name in ("layers", "hidden", "vocabulary") if name not in fields]
    refuse("model", [f"--{name} is not given" for name in missing])
    return ModelShape(**fields)


def needed(shape: ModelShape | None) -> ModelShape:
    """Return the shape. Raises InputError without one."""
    if shape is None:
        hint = "--model NAME, or --layers, --hidden, --heads and --vocabulary"
        raise InputError("model: 1 problem\n  the shape is not given", hint=hint)
    return shape


def one_head(shape: ModelShape) -> Iterator[str]:
    """Yield a problem if --heads was not given and the command needs the heads."""
    if shape.heads == 1 and shape.hidden > MAX_HEAD_COLUMNS:
        yield f"1 head of {shape.hidden} columns: give the number of heads with --heads"


def size_options(function: F) -> F:
    """Add the options of a model size; `function` gets `billions`."""

    @functools.wraps(function)
    def call(*args: Any, known: str | None, billions: float | None, **options: Any) -> Any:
        if known and billions is None:
            billions = parameters(PUBLISHED[known]) / 1e9
        refuse(
            "size", ["neither --model nor --billions is given"] if billions is None else not_positive(billions=billions)
        )
        return function(*args, billions=billions, **options)

    for option in _SIZE:
        call = option(call)
    return call  # type: ignore[return-value]  # click's options wrap a function without its type
