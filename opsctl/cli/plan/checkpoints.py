"""`opsctl plan checkpoint`."""

from dataclasses import asdict
from functools import partial

import click
from rich.table import Table

from opsctl.base.units import format_duration, format_percent
from opsctl.calc import save_interval as calc
from opsctl.calc.argument_checks import negative, not_positive, refuse
from opsctl.calc.spares import mtbf_hours
from opsctl.cli.dependent_option import dependent_option
from opsctl.cli.options import HOURS, MINUTES, SECONDS
from opsctl.cli.plan.estimate import Estimate, listing, prints_estimate
from opsctl.cli.plan.options import failures_option, size_options


@click.command()
@size_options
@click.option("--save", type=SECONDS, help="Duration of a save.")
@click.option("--gb-s", type=float, help="Write speed of all ranks in GB/s, instead of --save.")
@click.option("--nodes", type=int, default=1, show_default=True, help="Number of nodes of the train.")
@failures_option
@dependent_option(
    "--mtbf",
    not_with=("--nodes", "--failures"),
    type=HOURS,
    help="Time between failures, instead of --nodes, --failures.",
)
@click.option("--restart", type=MINUTES, default=5.0, show_default=True, help="Time from a failure to new steps.")
@click.option("--detect", type=MINUTES, default=0.0, show_default=True, help="Time until a failure is noticed.")
@click.option("--interval", type=MINUTES, help="Time between saves, to compare.")
@click.option("--step", type=SECONDS, help="Time of a step, to show intervals in steps.")
@click.option("--free", type=float, help="Free space in TB, to show when it is full.")
@prints_estimate
def checkpoint(
    *,
    billions: float,
    save: float | None,
    gb_s: float | None,
    nodes: int,
    failures: float,
    mtbf: float | None,
    restart: float,
    detect: float,
    interval: float | None,
    step: float | None,
    free: float | None,
) -> Estimate:
    """Find the best interval between checkpoints.

    Shows checkpoint size, proposed intervals, and the cost of saves and failures.

    \b
    opsctl plan checkpoint --model bloom --save 40 --nodes 48 --interval 180
    """
    size = calc.size_bytes(round(billions * 1e9))
    between = {"nodes": nodes, "failures": failures} if mtbf is None else {"mtbf": mtbf}
    refuse(
        "checkpoints",
        [
            *([] if (save is None) != (gb_s is None) else ["give either --save or --gb-s"]),
            *not_positive(save=save, gb_s=gb_s, interval=interval, step=step, free=free),
            *negative(restart=restart, detect=detect),
            *not_positive(**between),
        ],
    )
    save_s = size / 1e9 / gb_s if gb_s else save
    assert save_s is not None
    mtbf_s = 3600 * (mtbf_hours(nodes, failures) if mtbf is None else mtbf)
    intervals = {
        "Young": calc.young(save_s, mtbf_s),
        "Daly": calc.daly(save_s, mtbf_s),
        "with restart": calc.with_restart(save_s, mtbf_s, restart * 60),
    } | ({} if interval is None else {"yours": interval * 60})
    cost_at = partial(calc.cost, save_s=save_s, mtbf_s=mtbf_s, restart_s=restart * 60, detect_s=detect * 60)
    costs = {name: cost_at(interval_s=seconds) for name, seconds in intervals.items()}
    return Estimate(
        data={
            "size_bytes": size,
            "save_s": save_s,
            "mtbf_s": mtbf_s,
            "intervals": {
                name: asdict(cost) | {"total": cost.total, "days_until_full": _fill_days(free, size, cost)}
                for name, cost in costs.items()
            },
        },
        shown=[
            f"{size / 1e12:.2f} TB, saved in {format_duration(save_s)}; a failure every {format_duration(mtbf_s)}\n",
            _list_costs(costs, size, step, free),
        ],
    )


def _list_costs(costs: dict[str, calc.Cost], size: float, step: float | None, free: float | None) -> Table:
    rows = [
        [
            name,
            format_duration(cost.interval_s),
            f"{calc.in_steps(cost.interval_s, step)}" if step else "-",
            format_percent(cost.saving),
            format_duration(cost.lost_per_failure_s),
            format_percent(cost.total),
            f"{calc.per_day(size, cost.interval_s) / 1e12:.1f}",
            f"{days:.1f} days" if (days := _fill_days(free, size, cost)) else "-",
        ]
        for name, cost in costs.items()
    ]
    columns = ("", "every", "steps", "saving", "a failure costs", "lost in all", "TB a day", "full after")
    return listing(columns, rows, left=("",))


def _fill_days(free: float | None, size: float, cost: calc.Cost) -> float | None:
    return free * 1e12 / calc.per_day(size, cost.interval_s) if free else None
