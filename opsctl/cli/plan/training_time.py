"""`opsctl plan throughput`, also of a running train, and `opsctl plan network`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from opsctl.base.errors import InputError, OpsctlError
from opsctl.base.tables import read_package_table
from opsctl.base.units import format_duration, format_percent
from opsctl.calc import throughput as calc
from opsctl.calc.accelerators import accelerator, unknown
from opsctl.calc.argument_checks import negative, not_positive, refuse
from opsctl.calc.gpt_size import ModelShape, parameters
from opsctl.calc.time_left import time_left
from opsctl.cli.dependent_option import dependent_option
from opsctl.cli.options import HOURS, MINUTES, SECONDS
from opsctl.cli.output import complete_trains
from opsctl.cli.plan.estimate import Estimate, facts, listing, prints_estimate
from opsctl.cli.plan.options import currency_option, needed, recompute_option, size_options, takes_shape
from opsctl.state.journal import replay
from opsctl.telemetry.progress.iteration import Iteration
from opsctl.telemetry.progress.iteration_lines import recent_iterations
from opsctl.telemetry.progress.step_pace import measure_waits, median_step_s

if TYPE_CHECKING:
    from opsctl.app import App

LABELS: dict[str, str] = read_package_table("cli/plan/labels.toml")
RECENT_ITERATIONS = 200
GPU_HELP = "GPU, such as H100, for figures against its peak."
run_option = partial(dependent_option, only_with=("--train", "--log"))
"""An option for the time left of a run."""
model_option = partial(dependent_option, only_with=("--model", "--layers"))
"""An option for the figures of a model; --train and --log need none."""


@click.command()
@takes_shape(is_needed=False)
@model_option("--gpus", type=int, help="Number of GPUs that train.")
@model_option("--gpu", help=GPU_HELP)
@model_option("--batch", type=int, help="Global batch size, in samples per step.")
@model_option("--seconds", type=SECONDS, help="Time of a step; gives TFLOP/s.")
@model_option("--tflops", type=float, help="TFLOP/s per GPU; gives seconds per step.")
@recompute_option
@model_option("--tokens", type=float, help="Number of training tokens, in billions.")
@model_option("--price", type=float, help="Price of one GPU-hour; needs --currency.")
@currency_option
@click.option("--train", shell_complete=complete_trains, help="Estimate when this train will finish.")
@click.option("--log", type=click.Path(path_type=Path), help="Estimate from this log instead of --train.")
@run_option("--task", "task_h", type=HOURS, help="Time limit of a task, for --train and --log.")
@run_option(
    "--start-up", "start_up_min", type=MINUTES, default=5.0, show_default=True, help="Time until a task trains."
)
@run_option("--wait", "waits_h", type=HOURS, multiple=True, help="Time that a task waited in the queue; repeatable.")
@prints_estimate
@click.pass_obj
def throughput(app: App, /, shape: ModelShape | None, **given: Any) -> Estimate:
    """Estimate TFLOP/s, days, GPU-hours and cost.

    Converts between step time and TFLOP/s. With --train or --log: estimates when a running train will finish.

    \b
    opsctl plan throughput --model bloom --gpus 384 --gpu A100 --batch 2048 --seconds 105 --tokens 366
    opsctl plan throughput --train tr11 --task 20
    """
    _check(given)
    figures: dict[str, Any] = {}
    if given["train"] or given["log"]:
        figures |= eta_of(app, given)
        given["batch"] = given["batch"] or figures["batch"]
        if not given["tflops"]:
            given["seconds"] = given["seconds"] or figures["step_s"]
    if shape or not figures:
        refuse("throughput", _missing(given))
        peak = accelerator(given["gpu"]).tflops if given["gpu"] else None
        step = {name: given[name] for name in ("gpus", "batch", "seconds", "tflops", "recompute")}
        figures |= asdict(calc.speed(needed(shape), peak=peak, **step))
        if given["tokens"]:
            training = {
                "billions": parameters(needed(shape)) / 1e9,
                "tokens_billions": given["tokens"],
                "recompute": given["recompute"],
            }
            hours = calc.gpu_hours(tflops=figures["tflops"], **training)
            cost = None if given["price"] is None else hours * given["price"]
            figures |= {"days": hours / given["gpus"] / 24, "gpu_hours": hours, "cost": cost}
            figures |= {"currency": given["currency"]} if given["currency"] else {}
    return Estimate(data=figures, shown=[_list_figures(figures)])


def _check(given: dict[str, Any]) -> None:
    names = ("gpus", "batch", "seconds", "tflops", "tokens")
    refuse(
        "throughput",
        [
            *(["give either --train or --log"] if given["train"] and given["log"] else []),
            *(unknown(given["gpu"]) if given["gpu"] else []),
            *not_positive(**{name: given[name] for name in names}, task=given["task_h"]),
            *negative(price=given["price"], start_up=given["start_up_min"], wait=min(given["waits_h"], default=0)),
            *(["--price needs --tokens"] if given["price"] and not given["tokens"] else []),
            *(["--price needs --currency, such as USD"] if given["price"] and not given["currency"] else []),
            *([] if given["train"] or given["log"] else _missing(given)),
        ],
    )


def _missing(given: dict[str, Any]) -> Iterator[str]:
    if (given["seconds"] is None) == (given["tflops"] is None):
        yield "give either --seconds or --tflops"
    yield from (f"--{name} is not given" for name in ("gpus", "batch") if given[name] is None)


def log_step_s(log: Path) -> float:
    step_s = median_step_s(_read_recent(log))
    if step_s is None:
        raise OpsctlError(f"{log}: no iteration line has a step time")
    return step_s


def _read_recent(log: Path) -> Sequence[Iteration]:
    if not log.is_file():
        raise InputError(f"{log}: {'no file' if log.exists() else 'no such file'}")
    return recent_iterations(log, RECENT_ITERATIONS)


def eta_of(app: App, given: dict[str, Any]) -> dict[str, Any]:
    """Return the time left in seconds, from the newest iterations of a log and the queue waits so far."""
    log, waits = given["log"], [hours * 3600 for hours in given["waits_h"]]
    if given["train"]:
        run = app.find(given["train"])
        log = run.main_log
        waits = waits or measure_waits(replay(app.journal(run).all_events()))
    recent = _read_recent(log)
    step_s = median_step_s(recent)
    if not recent or step_s is None or not recent[-1].last:
        raise OpsctlError(f"{log}: no iteration line has a step time and the last step")
    newest, last = recent[-1], recent[-1].last
    left = time_left(
        steps=max(0, last - newest.step),
        step_s=step_s,
        attempt_s=math.inf if given["task_h"] is None else given["task_h"] * 3600,
        start_up_s=given["start_up_min"] * 60,
        waits_s=waits,
    )
    return {
        "step": newest.step,
        "last_step": last,
        "step_s": step_s,
        "batch": newest.global_batch,
        "training_left": left.training,
        "tasks_to_come": left.attempts,
        "mean_wait": fmean(waits) if waits else None,
        "likely": left.likely,
        "earliest": left.early,
        "latest": left.late,
    }


def _list_figures(figures: dict[str, Any]) -> Table:
    rows = {
        LABELS.get(name, name.replace("_", " ")): _format(name, value)
        for name, value in figures.items()
        if value is not None and name != "currency"
    }
    if "currency" in figures:
        rows["cost"] += f" {figures['currency']}"
    return facts(rows)


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
@click.option("--sequence", default=2048, show_default=True, help="Tokens per sample.")
@click.option("--gb-s", type=float, required=True, help="Measured network bandwidth of a node, in GB/s.")
@click.option("--bytes", "bytes_per_parameter", default=2.0, show_default=True, help="Bytes sent per parameter.")
@click.option("--accumulation", default=1, show_default=True, help="Gradient accumulation steps.")
@dependent_option(
    "--tflops",
    not_with=("--gpu",),
    type=float,
    help="TFLOP/s of a GPU without waits (default: 75 % of --gpu).",
)
@recompute_option
@prints_estimate
def network(
    *, billions: float, gpu: str | None, tflops: float | None, recompute: bool, gb_s: float, **figures: Any
) -> Estimate:
    """Estimate the network bandwidth that a run needs.

    Compares the communication time of DDP and ZeRO-1, -2 and -3 with the compute time.

    \b
    opsctl plan network --billions 80 --gpus 512 --batch 3584 --sequence 1024 --gb-s 42.5 --tflops 250
    """
    no_speed = ["give --gpu or --tflops"] if gpu is None and tflops is None else []
    bad = not_positive(**figures, gb_s=gb_s, tflops=tflops)
    refuse("network", [*(unknown(gpu) if gpu else []), *no_speed, *bad])
    alone = 0.75 * accelerator(gpu or "").tflops if tflops is None else tflops
    traffic_of = partial(calc.traffic, billions=billions, gb_s=gb_s, tflops=alone, recompute=recompute, **figures)
    traffics = {zero: traffic_of(zero=zero) for zero in range(4)}
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
    columns = ("", "GB sent", "communication s", "compute s", "GB/s needed", "bound by")
    return Estimate(
        data=[
            {"zero": zero, **asdict(traffic), "network_bound": traffic.network_bound}
            for zero, traffic in traffics.items()
        ],
        shown=[listing(columns, rows, left=("", "bound by"))],
    )
