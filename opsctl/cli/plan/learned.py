"""What a finished run, a drill, or an earlier plan of the same cluster measured, in place of what a plan assumes."""

import math
import operator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from opsctl.base.errors import InputError
from opsctl.base.nodesets import expand_if_list
from opsctl.base.tables import read_package_table
from opsctl.calc.error_bars import CALIBRATED_BAR, OTHER_BAR
from opsctl.calc.gpt_size import parameters
from opsctl.calc.parallel_layout import Topology
from opsctl.calc.run_plan import RunInputs, RunPlan, find_factor, plan_run
from opsctl.calc.save_interval import size_bytes
from opsctl.cli.plan.estimate import listing
from opsctl.cli.plan.failures import MAX_CARD_BYTES, read_drill
from opsctl.cli.plan.training_time import log_step_s
from opsctl.report.formats import find_end_group
from opsctl.state.files import read_json
from opsctl.telemetry.progress.effective_time import Bucket

LABELS: dict[str, str] = read_package_table("cli/plan/learned.toml")
"""The fields of RunInputs that a plan learns, in the order in which they are shown."""
STOPPED = (Bucket.START_UP, Bucket.HANG, Bucket.RESTART)
UNPLANNED = (Bucket.SLOW, Bucket.EVALUATION, Bucket.HELD, Bucket.NOT_QUEUED)
"""Time that no failure explains."""
MAX_LEARNED = 1e12
FAILURES = frozenset({"hardware", "storage", "software", "hang", "unknown"})


def learn(source: str, inputs: RunInputs, ran: Topology | None, *, stated: frozenset[str]) -> RunInputs:
    """Return the inputs with what a source measured: seconds, a report, a score card, a plan (all --json), or a log.

    `ran` is the layout of the run; without it, the time of a step cannot be compared. `stated` fields stay. Raises
    InputError for any other source, and if there is nothing to learn.
    """
    data, bar = _read(source), CALIBRATED_BAR
    try:
        if isinstance(data, list):
            hours = read_drill(Path(source), {"start_up_h", "save_h"})
            learned = _name_times(inputs, *(3600 * hours.get(name, 0.0) for name in ("start_up_h", "save_h")))
        elif isinstance(data, float):
            learned = {"factor": find_factor(inputs, ran, data)} if ran else {}
        elif "learned" in data:
            bar = OTHER_BAR
            learned = {name: float(value) for name, value in data["learned"].items() if name in LABELS}
            if not all(0 < value < MAX_LEARNED for value in learned.values()):
                raise ValueError("a figure that is not above 0")
        else:
            learned = _read_report(data, inputs, ran)
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
        raise InputError(f"{source}: neither a report, a score card nor a plan that learned: {error!r}") from error
    if not learned:
        raise InputError(f"{source}: nothing to learn", hint=f"name the layout that ran: '{source} for TP8 PP4'")
    fields: dict[str, Any] = {name: value for name, value in learned.items() if name not in stated}
    return replace(inputs, bar=bar if "factor" in learned else inputs.bar, **fields)


def _read(source: str) -> Any:
    """Return seconds, of a number or a log, or the JSON of an object with figures or of a list."""
    with suppress(ValueError):
        if math.isfinite(measured_s := float(source.removesuffix("s"))) and measured_s > 0:
            return measured_s
    with suppress(OSError, ValueError):
        data = read_json(Path(source), MAX_CARD_BYTES)
        if isinstance(data, list) or {"learned", "buckets"} & {*data}:
            return data
    return log_step_s(Path(source))


def _read_report(report: dict[str, Any], inputs: RunInputs, ran: Topology | None) -> dict[str, float]:
    learned = {"factor": find_factor(inputs, ran, report["step_s"])} if ran and report["step_s"] else {}
    save_s = report["save_s"] if ran else None  # without its layout, the run may be of a model of another size
    if not report["is_timed"]:
        return learned | _name_times(inputs, 0.0, save_s)
    attempts, buckets = report["attempts"], report["buckets"]
    lengths = [sum(attempt["buckets"].values()) / 86400 for attempt in attempts]
    counts = [len(expand_if_list(attempt["nodes"])) or inputs.cluster.nodes for attempt in attempts]
    trained = [attempt for attempt in attempts if attempt["first_step"] is not None]  # others had wrong settings
    failed = sum(find_end_group("", attempt["outcome"]) in FAILURES for attempt in trained)
    # As if the published rate had been seen for the time of one failure: a short run says little.
    node_days = 1000 / inputs.per_1000_node_days + sum(map(operator.mul, counts, lengths))
    learned["per_1000_node_days"] = 1000 * (1 + failed) / node_days
    learned["unplanned"] = min(0.9, sum(buckets[name] for name in UNPLANNED) / report["wall_s"])
    if report["mean_queue_s"]:
        learned["queue_h"] = report["mean_queue_s"] / 3600
    stopped_s = sum(buckets[name] for name in STOPPED) / len(attempts)
    return learned | _name_times(inputs, stopped_s, save_s)


def _name_times(inputs: RunInputs, restart_s: float, save_s: float | None) -> dict[str, float]:
    named = {"restart_s": restart_s} if restart_s else {}
    size_gb = size_bytes(parameters(inputs.shape)) / 1e9
    return named | ({"save_gb_s": size_gb / save_s / inputs.cluster.nodes} if save_s else {})


def compare(inputs: RunInputs, assumed: RunInputs, plan: RunPlan) -> list[str | Table]:
    """Show what was learned, and how it changes the plan."""
    pairs = {label: (getattr(assumed, name), getattr(inputs, name)) for name, label in LABELS.items()}
    without = plan_run(assumed)
    pairs |= {"days": (without.days, plan.days), "GPU-hours": (without.gpu_hours, plan.gpu_hours)}
    rows = [
        [name, digits(before), digits(now), f"× {now / before:.2f}" if before else ""]
        for name, (before, now) in pairs.items()
        if before != now
    ]
    return ["", listing(("learned", "assumed", "now", "change"), rows, left=("learned",))]


def digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
