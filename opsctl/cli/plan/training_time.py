"""`opsctl plan throughput` and `opsctl plan network`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opsctl.base.units import format_duration, format_percent
from opsctl.calc import network as networks
from opsctl.calc import throughput as calc
from opsctl.calc.accelerators import accelerator, unknown
from opsctl.calc.argument_checks import drop_none, negative, not_positive, refuse
from opsctl.calc.gpt_size import ModelShape, parameters
from opsctl.cli.dependent_option import DependentOption
from opsctl.cli.output import complete_trains, json_option, print_json
from opsctl.cli.plan.eta import eta_of
from opsctl.cli.plan.options import (
    currency_option,
    needed,
    plot_option,
    recompute_option,
    size_options,
    takes_shape,
)
from opsctl.cli.plan.plots import PlotLine, draw, facts, listing

if TYPE_CHECKING:
    from opsctl.app import App

LABELS = {
    "step_s": "time of a step",
    "tflops": "TFLOP/s",
    "estimated_tflops": "estimated TFLOP/s",
    "mfu": "MFU",
    "hfu": "HFU",
    "tokens_per_s": "tokens/s",
    "gpu_hours": "GPU-hours",
}
"""Labels of figures whose JSON key is not readable."""
GPU_HELP = "GPU, such as H100, for figures against its peak."
run_option = partial(click.option, cls=DependentOption, only_with=("--train", "--log"))
"""An option for the time left of a run."""
model_option = partial(click.option, cls=DependentOption, only_with=("--model", "--layers"))
"""An option for the figures of a model; --train and --log need none."""


@click.command()
@takes_shape
@model_option("--gpus", type=int, help="Number of GPUs that train.")
@model_option("--gpu", help=GPU_HELP)
@model_option("--batch", type=int, help="Global batch size, in samples per step.")
@model_option("--seconds", type=float, help="Seconds per step; gives TFLOP/s.")
@model_option("--tflops", type=float, help="TFLOP/s per GPU; gives seconds per step.")
@recompute_option
@model_option("--tokens", type=float, help="Number of training tokens, in billions.")
@model_option("--price", type=float, help="Price of one GPU-hour; needs --currency.")
@currency_option
@click.option(
    "--train",
    shell_complete=complete_trains,
    help="Estimate when this train will finish.",
)
@click.option("--log", type=click.Path(path_type=Path), help="Estimate from this log instead of --train.")
@run_option("--task", type=float, help="Time limit of a task in hours, for --train and --log.")
@run_option("--start-up", type=float, default=5.0, show_default=True, help="Minutes until a task trains.")
@run_option("--wait", type=float, multiple=True, help="Hours that a task waited in the queue; repeatable.")
@plot_option
@json_option
@click.pass_obj
def throughput(
    app: App,
    shape: ModelShape | None,
    *,
    gpus: int | None,
    gpu: str | None,
    batch: int | None,
    seconds: float | None,
    tflops: float | None,
    recompute: bool,
    tokens: float | None,
    price: float | None,
    currency: str | None,
    train: str | None,
    log: Path | None,
    task: float | None,
    start_up: float,
    wait: tuple[float, ...],
    plot: str | None,
    as_json: bool,
) -> None:
    """Estimate TFLOP/s, days, GPU-hours and cost.

    Converts between step time and TFLOP/s. With --train or --log: estimates when a running train will finish.

    \b
    opsctl plan throughput --model bloom --gpus 384 --gpu A100 --batch 2048 --seconds 105 --tokens 366
    opsctl plan throughput --train tr11 --task 20
    """
    refuse(
        "throughput",
        [
            *(["give either --train or --log"] if train and log else []),
            *(unknown(gpu) if gpu else []),
            *not_positive(
                **drop_none(gpus=gpus, batch=batch, seconds=seconds, tflops=tflops, tokens=tokens, task=task)
            ),
            *negative(**drop_none(price=price), start_up=start_up, wait=min(wait, default=0)),
            *(f"--{name} needs --tokens" for name, value in (("price", price), ("plot", plot)) if value and not tokens),
            *(["--price needs --currency, such as USD"] if price and not currency else []),
            *([] if train or log else _missing(seconds, tflops, gpus, batch)),
        ],
    )
    figures: dict[str, Any] = {}
    if train or log:
        figures |= eta_of(app, train=train, log=log, task_h=task, start_up_min=start_up, waits_h=wait)
        seconds, batch = seconds or (None if tflops else figures["step_s"]), batch or figures["batch"]
    if shape or not figures:
        refuse("throughput", _missing(seconds, tflops, gpus, batch))
        assert gpus is not None
        assert batch is not None
        figures |= _speed(
            needed(shape),
            gpus=gpus,
            batch=batch,
            seconds=seconds,
            tflops=tflops,
            peak=accelerator(gpu).tflops if gpu else None,
            recompute=recompute,
        )
        if tokens:
            figures |= _training(
                needed(shape), gpus=gpus, tflops=figures["tflops"], tokens=tokens, price=price, recompute=recompute
            )
            figures |= {"currency": currency} if currency else {}
            if plot:
                _draw_days(plot, needed(shape), gpus, tokens, recompute=recompute)
    if as_json:
        print_json(figures)
    else:
        unit = f" {figures.pop('currency', '')}"
        facts(
            {
                _label(name): _format(name, value) + unit * (name == "cost")
                for name, value in figures.items()
                if value is not None
            }
        )


def _missing(seconds: float | None, tflops: float | None, gpus: int | None, batch: int | None) -> Iterator[str]:
    if (seconds is None) == (tflops is None):
        yield "give either --seconds or --tflops"
    yield from (f"--{name} is not given" for name, value in (("gpus", gpus), ("batch", batch)) if value is None)


def _speed(
    shape: ModelShape,
    *,
    gpus: int,
    batch: int,
    seconds: float | None,
    tflops: float | None,
    peak: float | None,
    recompute: bool,
) -> dict[str, Any]:
    if seconds is None:
        assert tflops is not None
        seconds = calc.seconds_per_step(shape, batch=batch, tflops=tflops, gpus=gpus, recompute=recompute)
    reached = calc.tflops(shape, batch=batch, seconds=seconds, gpus=gpus, recompute=recompute)
    used = None
    if peak is not None:
        used = calc.utilisation(shape, batch=batch, seconds=seconds, gpus=gpus, peak=peak, recompute=recompute)
    estimate = calc.estimated_tflops(
        billions=parameters(shape) / 1e9,
        sequence=shape.sequence,
        batch=batch,
        seconds=seconds,
        gpus=gpus,
        recompute=recompute,
    )
    tokens_s = batch * shape.sequence / seconds
    return {
        "step_s": seconds,
        "tflops": reached,
        "estimated_tflops": estimate,
        "mfu": used.mfu if used else None,
        "hfu": used.hfu if used else None,
        "tokens_per_s": tokens_s,
    }


def _training(
    shape: ModelShape, *, gpus: int, tflops: float, tokens: float, price: float | None, recompute: bool
) -> dict[str, Any]:
    size = parameters(shape) / 1e9
    hours = calc.gpu_hours(billions=size, tokens_billions=tokens, tflops=tflops, recompute=recompute)
    return {"days": hours / gpus / 24, "gpu_hours": hours, "cost": None if price is None else hours * price}


def _draw_days(path: str, shape: ModelShape, gpus: int, tokens: float, *, recompute: bool) -> None:
    size = parameters(shape) / 1e9

    def days(tflops: float) -> float:
        return calc.training_days(billions=size, tokens_billions=tokens, gpus=gpus, tflops=tflops, recompute=recompute)

    points = [(float(reached), days(reached)) for reached in range(20, 620, 10)]
    draw(
        path,
        title=f"{size:.0f}B, {tokens:g}B tokens, {gpus} GPUs",
        x="TFLOP/s of each GPU",
        y="days",
        curves=[PlotLine(name="without pauses", points=points)],
    )


def _label(name: str) -> str:
    return LABELS.get(name, name.replace("_", " "))


def _format(name: str, value: Any) -> str:
    if name in ("mfu", "hfu"):
        return format_percent(value)
    if name.endswith("_left") or name in ("step_s", "earliest", "latest", "likely", "mean_wait"):
        return format_duration(value)
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


@click.command()
@size_options
@click.option("--gpus", type=int, required=True, help="Number of GPUs that train.")
@click.option("--gpu", help=GPU_HELP)
@click.option("--batch", type=int, required=True, help="Global batch size, in samples per step.")
@click.option("--sequence", type=int, default=2048, show_default=True, help="Tokens per sample.")
@click.option("--gb-s", type=float, required=True, help="Measured network bandwidth of a node, in GB/s.")
@click.option(
    "--bytes", "bytes_per_parameter", type=float, default=2.0, show_default=True, help="Bytes sent per parameter."
)
@click.option("--accumulation", type=int, default=1, show_default=True, help="Gradient accumulation steps.")
@click.option(
    "--tflops",
    cls=DependentOption,
    not_with=("--gpu",),
    type=float,
    help="TFLOP/s of a GPU without waits (default: 75 % of --gpu).",
)
@recompute_option
@plot_option
@json_option
def network(
    *,
    billions: float,
    gpus: int,
    gpu: str | None,
    batch: int,
    sequence: int,
    gb_s: float,
    bytes_per_parameter: float,
    accumulation: int,
    tflops: float | None,
    recompute: bool,
    plot: str | None,
    as_json: bool,
) -> None:
    """Estimate the network bandwidth that a run needs.

    Compares the communication time of DDP and ZeRO-1, -2 and -3 with the compute time.

    \b
    opsctl plan network --billions 80 --gpus 512 --batch 3584 --sequence 1024 --gb-s 42.5 --tflops 250
    """
    required = drop_none(
        gpus=gpus,
        batch=batch,
        sequence=sequence,
        gb_s=gb_s,
        bytes=bytes_per_parameter,
        accumulation=accumulation,
        tflops=tflops,
    )
    no_speed = ["give --gpu or --tflops"] if gpu is None and tflops is None else []
    refuse("network", [*(unknown(gpu) if gpu else []), *no_speed, *not_positive(**required)])
    alone = 0.75 * accelerator(gpu or "").tflops if tflops is None else tflops
    traffics = {
        zero: networks.traffic(
            billions=billions,
            zero=zero,
            gb_s=gb_s,
            sequence=sequence,
            batch=batch,
            gpus=gpus,
            tflops=alone,
            bytes_per_parameter=bytes_per_parameter,
            accumulation=accumulation,
            recompute=recompute,
        )
        for zero in networks.TRANSMISSIONS
    }
    if plot:
        widths = [gb_s * 2 ** (k / 4 - 3) for k in range(25)]
        curves = [
            PlotLine(name=f"ZeRO-{zero}", points=[(w, traffic.sent_gb / w) for w in widths])
            for zero, traffic in traffics.items()
            if zero in (1, 3)
        ]
        curves.append(PlotLine(name="compute", points=[(w, traffics[0].compute_s) for w in widths]))
        draw(plot, title=f"{billions:.0f}B on {gpus} GPUs", x="GB/s", y="seconds a step", curves=curves)
    if as_json:
        print_json(
            [
                {"zero": zero, **asdict(traffic), "network_bound": traffic.network_bound}
                for zero, traffic in traffics.items()
            ]
        )
        return
    rows = [
        [
            f"ZeRO-{zero}" if zero else "DDP",
            f"{traffic.sent_gb:.0f}",
            f"{traffic.communication_s:.1f}",
            f"{traffic.compute_s:.1f}",
            f"{traffic.balance_gb_s:.1f}",
            "network" if traffic.network_bound else "compute",
        ]
        for zero, traffic in traffics.items()
    ]
    listing(("", "GB sent", "communication s", "compute s", "GB/s needed", "bound by"), rows, left=("", "bound by"))
