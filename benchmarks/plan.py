"""The planner's model of steps and memory, judged on published measurements (tests/corpus/plan/published).

python benchmarks/plan.py                the tuning half, by table
python benchmarks/plan.py --rows         the tuning half, by row
python benchmarks/plan.py --half test    the test half, by table; its rows are never printed; held-out: the same
python benchmarks/plan.py --half tuning-2   the tuning half of the second collection
python benchmarks/plan.py --bars         the error bars of the tuning half
python benchmarks/plan.py --kinds        the judging halves together, by kind
python benchmarks/plan.py --totals       GPU-hours of whole runs, published and planned
python benchmarks/plan.py --fit          fits the figures of step_time.toml to the tuning half
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import correlation, median

sys.path.insert(0, str(Path(__file__).parents[1]))

from opsctl.calc import step_time
from opsctl.calc.error_bars import step_bar
from opsctl.calc.gpu_memory import fullest
from opsctl.calc.step_time import Efficiencies
from tests.support import prequel
from tests.support.published_rows import PublishedRow, predict_s, read_rows
from tests.support.published_totals import read_totals

SECOND_HALVES = ("tuning-2", "held-out", "tuning-3", "held-out-3", "tuning-4", "held-out-4")
"""Of the later collections: to find faults, and to judge once."""
MOST_EFFICIENT = 0.92
"""No share of a peak is fitted above."""


def read_prequel() -> Iterator[PublishedRow]:
    """Yield the rows of the prequel of BigScience's 176B training, which belong to no half."""
    for row in prequel.list_distinct_rows():
        yield PublishedRow(
            table="bigscience-prequel-a100-80gb",
            half="",
            name=f"line {row.line}",
            shape=row.shape,
            topology=row.topology,
            cluster=row.cluster,
            batch=row.batch,
            seconds=row.seconds,
            memory_gib=row.memory_gb,
            ran=row.note != "OOM",
        )


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Return Spearman's correlation; ties share their mean rank."""
    first, second = ([_rank(value, column) for value in column] for column in zip(*pairs, strict=True))
    if len(set(first)) == 1 or len(set(second)) == 1:
        return math.nan
    return correlation(first, second)


def _rank(value: float, column: Sequence[float]) -> float:
    return sum(other < value for other in column) + (sum(other == value for other in column) - 1) / 2


def tokens_per_gpu_s(row: PublishedRow, seconds: float) -> float:
    return row.batch * row.shape.sequence / row.topology.gpus / seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The quality of the predictions of one table, or of many."""

    rows: int
    median: float
    """Of |predicted / measured − 1|."""
    p90: float
    bias: float
    """Median of ln(predicted / measured)."""
    rank: float
    """Spearman's, of tokens/s of a GPU; nan below four rows."""
    right: int
    """Rows whose verdict, whether the GPUs have the memory, is right."""
    memory: float
    """Median error of the memory."""

    def cells(self) -> list[str]:
        shares = [self.median, self.p90, self.memory]
        median_text, p90_text, memory_text = ("" if math.isnan(share) else f"{share:.1%}" for share in shares)
        rank = "" if math.isnan(self.rank) else f"{self.rank:.2f}"
        bias = "" if math.isnan(self.bias) else f"{self.bias:+.2f}"
        return [str(self.rows), median_text, p90_text, bias, rank, f"{self.right} of {self.rows}", memory_text]


def score(rows: Sequence[PublishedRow]) -> Score:
    timed = [row for row in rows if row.seconds]
    errors = sorted(abs(predict_s(row) / (row.seconds or 1) - 1) for row in timed)
    sized = [abs(memory_gib(row) / row.memory_gib - 1) for row in rows if row.memory_gib]
    return Score(
        rows=len(rows),
        median=median(errors) if errors else math.nan,
        p90=errors[math.ceil(0.9 * len(errors)) - 1] if errors else math.nan,
        bias=median(math.log(predict_s(row) / (row.seconds or 1)) for row in timed) if timed else math.nan,
        rank=rank_of(timed) if len(timed) > 3 else math.nan,
        right=sum(row.ran == fits(row) for row in rows),
        memory=median(sized) if sized else math.nan,
    )


def rank_of(timed: Sequence[PublishedRow]) -> float:
    return rank_correlation(
        [(tokens_per_gpu_s(row, predict_s(row)), tokens_per_gpu_s(row, row.seconds or 1)) for row in timed]
    )


def memory_gib(row: PublishedRow) -> float:
    return fullest(row.shape, row.topology, batch=row.batch).gib


def fit_probability(row: PublishedRow) -> float:
    return fullest(row.shape, row.topology, batch=row.batch).fit_probability(row.cluster.gpu.memory_gb)


def fits(row: PublishedRow) -> bool:
    return fit_probability(row) >= 0.5


def print_reliability(rows: Sequence[PublishedRow]) -> None:
    """Print how many rows ran, by the probability that they fit."""
    print("\n| fits with | rows | mean | ran |\n|---|---|---|---|")
    for low in (0.0, 0.2, 0.4, 0.6, 0.8):
        chances = [
            (fit_probability(row), row.ran) for row in rows if low <= min(0.999, fit_probability(row)) < low + 0.2
        ]
        if chances:
            mean, ran = (sum(column) / len(chances) for column in zip(*chances, strict=True))
            print(f"| {low:.0%} to {low + 0.2:.0%} | {len(chances)} | {mean:.0%} | {ran:.0%} |")


def is_inside(row: PublishedRow) -> bool:
    bar = step_bar(row.shape, row.cluster.gpu, row.topology)
    return bar.low <= (row.seconds or 0.0) / predict_s(row) <= bar.high


def list_lines(rows: Sequence[PublishedRow]) -> list[str]:
    """Return the lines of a Markdown table: one for every table of measurements, and one for all."""
    lines = []
    for table in sorted({row.table for row in rows}):
        lines.append(f"| {table} | {' | '.join(score([row for row in rows if row.table == table]).cells())} |")
    lines.append(f"| **all** | {' | '.join(score(rows).cells())} |")
    return lines


def print_tables(rows: Sequence[PublishedRow]) -> None:
    print("| table | rows | median error | 9 of 10 within | bias | rank | verdict right | memory |")
    print("|---|---|---|---|---|---|---|---|")
    print("\n".join(list_lines(rows)))
    tables = [[row for row in rows if row.seconds and row.table == table] for table in {row.table for row in rows}]
    ranks = [(rank_of(timed), len(timed)) for timed in tables if len(timed) > 3]
    weighted = sum(rank * count for rank, count in ranks) / sum(count for _, count in ranks)
    print(f"\nrank correlation within tables: median {median(rank for rank, _ in ranks):.2f}, by rows {weighted:.2f}")
    timed = [row for row in rows if row.seconds]
    print(f"inside the error bar: {sum(map(is_inside, timed))} of {len(timed)}")
    calibrated = [abs(ratio - 1) for _, ratio in calibrated_ratios(rows)]
    print(f"calibrated by one row: median error {median(calibrated):.1%} of {len(calibrated)} rows")
    short, ran = [row for row in rows if not row.ran], [row for row in rows if row.ran]
    refused, found = sum(not fits(row) for row in ran), sum(not fits(row) for row in short)
    print(f"out of memory: {found} of {len(short)} found; {refused} of {len(ran)} that ran refused")
    print_reliability(rows)


KINDS: dict[str, Callable[[PublishedRow], bool]] = {
    "all": lambda _: True,
    "FSDP and ZeRO-3": lambda row: row.topology.zero == 3,
    "one node": lambda row: row.cluster.nodes == 1,
    "sequences of 16k and more": lambda row: row.shape.sequence >= 16384,
    "fp8 and fp4": lambda row: row.topology.precision in ("fp8", "fp4"),
    "PyTorch's single operations": lambda row: row.topology.kernels == "eager",
    "pipeline": lambda row: row.topology.pp > 1,
    "pipeline with micro batches of 1": lambda row: row.topology.pp > 1 and row.topology.micro_batch == 1,
    "256 GPUs and more": lambda row: row.cluster.gpus >= 256,
    "mixture of experts": lambda row: row.shape.experts > 0,
    "tensor parallelism across nodes": lambda row: row.topology.tp > row.cluster.domain,
    "ranks that share a sequence": lambda row: row.topology.cp > 1,
    "stored attention matrix": lambda row: row.topology.attention == "unfused",
    "PCIe": lambda row: row.cluster.gpu.link_gb_s <= PCIE_GB_S,
    "V100": lambda row: row.cluster.gpu.generation == "volta",
    "Blackwell": lambda row: row.cluster.gpu.generation == "blackwell",
    "AMD": lambda row: row.cluster.gpu.generation == "cdna",
}
PCIE_GB_S = 64


def print_kinds() -> None:
    """Print the judging halves by kind; a row can belong to several kinds."""
    judging = [row for row in read_rows() if not row.half.startswith("tuning")]
    print("| kind | rows | with a time | median error | 9 of 10 within | ran out | of these below 50 % | ", end="")
    print("rows that ran below 50 % |\n|---|---|---|---|---|---|---|---|")
    for kind, belongs in KINDS.items():
        rows = [row for row in judging if belongs(row)]
        if rows:
            timed, scored = sum(row.seconds is not None for row in rows), score(rows)
            short, ran = ([row for row in rows if row.ran is has_run] for has_run in (False, True))
            wrong = [sum(not fits(row) for row in part) for part in (short, ran)]
            error = f"{scored.median:.1%} | {scored.p90:.1%}" if timed else " | "
            print(f"| {kind} | {len(rows)} | {timed} | {error} | {len(short)} | {wrong[0]} | {wrong[1]} |")


def print_totals() -> None:
    print("| run | half | GPUs assumed | published GPU-hours | planned | ratio |\n|---|---|---|---|---|---|")
    for total in read_totals():
        row = total.row
        hours = f"{row['gpu_hours']:,} | {total.planned_gpu_hours:,.0f} | {total.ratio:.2f}"
        print(f"| {row['name']} ({row['source']}) | {row['half']} | {row['gpus']:,} {row['gpu']} | {hours} |")


def print_rows(rows: Sequence[PublishedRow]) -> None:
    for row in rows:
        parts = step_time.predict(row.shape, row.topology, row.cluster, batch=row.batch)
        total = sum(parts.values())
        shares = " ".join(f"{name[:4]} {100 * part / total:.0f}" for name, part in parts.items() if part > 0.02 * total)
        ratio = total / row.seconds if row.seconds else math.nan
        memory = f"{memory_gib(row):.0f}/{row.memory_gib or 0:.0f}/{row.cluster.gpu.memory_gb:g}"
        print(f"{row.table[:30]:30} {row.name[:60]:60} {ratio:5.2f} {memory:>12} {'' if row.ran else 'OOM'} {shares}")


def fitted_figures(fitted: Efficiencies, names: Sequence[str] = ()) -> Iterator[tuple[dict[str, float], str]]:
    """Yield the table and the key of every figure."""
    for table in (*fitted["generations"].values(), fitted["shared"]):
        for name in table:
            is_known = table is not fitted["generations"]["cdna"] and name not in ("fp4_products", "softmax", "hop")
            if is_known and (not names or name in names):
                yield table, name


def loss(rows: Sequence[PublishedRow], fitted: Efficiencies) -> float:
    """Return the mean over rows of the logarithmic error; every table weighs the same."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.table] = counts.get(row.table, 0) + 1
    weights = [1 / counts[row.table] for row in rows]
    errors = []
    for row in rows:
        error = abs(math.log(predict_s(row, fitted) / (row.seconds or 1)))
        errors.append(min(error, 0.7) + 0.1 * error)
    return sum(w * e for w, e in zip(weights, errors, strict=True)) / sum(weights)


def fit(rows: Sequence[PublishedRow], names: Sequence[str]) -> Efficiencies:
    """Return the figures that predict `rows` best, by descent along one figure after the other."""
    fitted = copy.deepcopy(step_time.EFFICIENCIES)
    start = copy.deepcopy(fitted)
    best = loss(rows, fitted)
    print(f"start {best:.4f}")
    step = 1.25
    while step > 1.02:
        gained = False
        for (table, name), (origin, _) in zip(fitted_figures(fitted, names), fitted_figures(start, names), strict=True):
            for factor in (step, 1 / step):
                old = table[name]
                table[name] = min(max(old * factor, origin[name] / 4), origin[name] * 4)
                if name not in ("traffic", "launch", "sharded_launch", "expert_launch", "hop", "misaligned"):
                    table[name] = min(table[name], MOST_EFFICIENT)
                now = loss(rows, fitted)
                if now < best - 1e-5:
                    best, gained = now, True
                    break
                table[name] = old
        if not gained:
            step = step**0.5
        print(f"step {step:.3f}: {best:.4f}")
    return fitted


def print_bars(rows: Sequence[PublishedRow]) -> None:
    """Print measured over predicted, 10th and 90th percentile, for error_bars.toml. All tables weigh the same."""
    groups: dict[str, list[tuple[str, float]]] = {"all": []}
    for row in rows:
        if row.seconds:
            ratio = row.seconds / predict_s(row)
            name = "experts" if row.shape.experts else row.cluster.gpu.generation
            groups.setdefault(name, []).append((row.table, ratio))
            groups["all"].append((row.table, ratio))
    groups["memory"] = [(row.table, row.memory_gib / memory_gib(row)) for row in rows if row.memory_gib]
    groups["calibrated"] = list(calibrated_ratios(rows))
    for name, ratios in groups.items():
        low, high = weighted_quantile(ratios, 0.1), weighted_quantile(ratios, 0.9)
        error = median(abs(ratio - 1) for _, ratio in ratios)
        print(f"{name} = {{ low = {low:.2f}, high = {high:.2f} }}  # {len(ratios)} rows, median error {error:.1%}")


def weighted_quantile(ratios: Sequence[tuple[str, float]], share: float) -> float:
    """Return the quantile where the rows of a table weigh one table together."""
    counts: dict[str, int] = {}
    for table, _ in ratios:
        counts[table] = counts.get(table, 0) + 1
    passed = 0.0
    for table, ratio in sorted(ratios, key=lambda pair: pair[1]):
        passed += 1 / counts[table]
        if passed >= share * len(counts):
            return ratio
    return math.nan


def calibrated_ratios(rows: Sequence[PublishedRow]) -> Iterator[tuple[str, float]]:
    """Yield measured over predicted, calibrated by the first row of the same table, model, GPU and precision."""
    factors: dict[tuple[str, str, str, str], float] = {}
    for row in rows:
        if not row.seconds:
            continue
        key = (row.table, row.name.split()[0], row.cluster.gpu.name, row.topology.precision)
        ratio = row.seconds / predict_s(row)
        if key in factors:
            yield row.table, ratio / factors[key]
        else:
            factors[key] = ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=("tuning", "test", *SECOND_HALVES), default="tuning")
    parser.add_argument("--bars", action="store_true")
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--kinds", action="store_true")
    parser.add_argument("--totals", action="store_true")
    parser.add_argument("--fit", nargs="*", metavar="FIGURE", help="all figures, or those named")
    arguments = parser.parse_args()
    rows = [row for row in read_rows() if row.half == arguments.half]
    if arguments.half == "tuning":
        rows.extend(read_prequel())
    if arguments.fit is not None and arguments.half == "tuning":
        for table, name in fitted_figures(fit([row for row in rows if row.seconds], arguments.fit), arguments.fit):
            print(f"{name} = {table[name]:.2g}")
    elif arguments.kinds:
        print_kinds()
    elif arguments.totals:
        print_totals()
    elif arguments.bars and arguments.half == "tuning":
        print_bars(rows)
    elif arguments.rows and arguments.half.startswith("tuning"):
        print_rows(rows)
    else:
        print_tables(rows)


if __name__ == "__main__":
    main()
