"""The simulation of the largest published runs, compared with the closed form and the published figures.

python benchmarks/simulate.py            prints a table in some seconds
"""

from __future__ import annotations

import time
from dataclasses import replace
from math import ceil

from opsctl.calc.save_interval import renewal
from opsctl.calc.sensitivity import CLUSTER_KINDS, rank_knobs, run, run_uncertain, summary
from opsctl.calc.simulation import SimulationSetup

SEEDS = 200
LARGE = SimulationSetup(
    nodes=2048, days=90, per_1000_node_days=6.5, interval_h=1, save_h=0, start_up_h=5 / 60, hangs=0, broken=0
)
LLAMA = replace(LARGE, days=54, per_1000_node_days=419 / (2048 * 54) * 1000, interval_h=1 / 6, save_h=10 / 3600)
CASES: dict[str, tuple[SimulationSetup, str]] = {
    "Meta, 16,384 GPUs, a save every hour": (LARGE, "0.70"),
    "Meta, 16,384 GPUs, a save every 5 min": (replace(LARGE, interval_h=1 / 12), "0.93"),
    "Meta, 4,096 GPUs, a save every hour": (replace(LARGE, nodes=512), "> 0.90"),
    "Llama-3, 54 days, a save every 10 min": (LLAMA, "> 0.90"),
}
UNCERTAIN: dict[str, tuple[SimulationSetup, str]] = {
    "young-cloud": (SimulationSetup(nodes=124, days=60), "about 0.5 (OPT-175B)"),
    "mature-hpc": (SimulationSetup(nodes=48, days=118), "0.9 and more (BLOOM)"),
    "hyperscale": (SimulationSetup(nodes=2048, days=54), "> 0.90 (Llama 3), 0.97 (ByteRobust)"),
}


def main() -> None:
    print(f"{'':40} {'simulated':>16} {'closed form':>12} {'published':>10} {'failures':>9} {'seconds':>8}")
    for name, (setup, published) in CASES.items():
        started = time.perf_counter()
        result = summary(run(setup, SEEDS))
        took_s = time.perf_counter() - started
        exact = renewal(
            mtbf_h=setup.mtbf_h, interval_h=setup.interval_h, save_h=setup.save_h, restart_h=setup.start_up_h
        )
        mean = f"{result.mean:.4f} ± {result.error:.4f}"
        print(f"{name:40} {mean:>16} {exact:>12.4f} {published:>10} {result.failures:>9.1f} {took_s:>8.2f}")
    print()
    for name, (plain, published) in UNCERTAIN.items():
        kind = CLUSTER_KINDS[name]
        uncertain = replace(plain, guard=kind.guard, spares=ceil(kind.spare_share * plain.nodes))
        result = summary(run_uncertain(uncertain, kind.ranges, SEEDS))
        print(f"{name:40} {result.mean:.3f}, {result.low:.3f} to {result.high:.3f}; published {published}")
    rough = replace(LARGE, save_h=40 / 3600, hangs=0.1, flaky_nodes=20, spares=60, queue_h=0.1, broken=0.05)
    started = time.perf_counter()
    outcomes = run(rough, SEEDS)
    helps = rank_knobs(rough, outcomes)
    took_s = time.perf_counter() - started
    print(f"\nall knobs of a rough run: {took_s:.1f} s; best: {helps[0].change} {helps[0].gain:+.3f}")


if __name__ == "__main__":
    main()
