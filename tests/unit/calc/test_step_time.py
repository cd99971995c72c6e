"""Accuracy of the predicted step time, on rows that the model was not fitted on.

`pytest tests/unit/calc/test_step_time.py`
"""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from opsctl.calc import step_time
from opsctl.calc.gpt_size import PUBLISHED
from opsctl.calc.least_squares import fit
from opsctl.calc.parallel_layout import Topology
from tests.support.prequel import Row, list_distinct_rows

DOCS = Path(__file__).parents[3] / "docs/explanation/planning-model.md"
ODD = [row for row in list_distinct_rows() if row.table % 2]
EVEN = [row for row in list_distinct_rows() if row.table % 2 == 0]
A100S = next(row.cluster for row in ODD if row.cluster.host_tuned and row.cluster.nodes == 48)
BLOOM = Topology(tp=4, pp=12, dp=8, micro_batch=2, precision="bf16-optimizer", embedding_slots=True)


def fit_to(rows: Sequence[Row]) -> dict[str, float]:
    parts = [step_time.parts(row.shape, row.topology, row.cluster, batch=row.batch) for row in rows]
    factors = fit([list(part.values()) for part in parts], [row.seconds or 0.0 for row in rows])
    return dict(zip(parts[0], factors, strict=True))


def predict_row(row: Row, coefficients: dict[str, float]) -> float:
    return sum(
        step_time.predict(row.shape, row.topology, row.cluster, batch=row.batch, coefficients=coefficients).values()
    )


def ranks(values: Sequence[float]) -> list[float]:
    """Return the ranks of the values; equal values share their mean rank."""
    order = sorted(values)
    return [order.index(value) + (order.count(value) - 1) / 2 for value in values]


def measure_errors(rows: Sequence[Row], coefficients: dict[str, float]) -> dict[str, float]:
    times = [predict_row(row, coefficients) for row in rows]
    measured = [row.seconds or 0.0 for row in rows]
    errors = sorted(abs(time / real - 1) for time, real in zip(times, measured, strict=True))
    return {
        "rows": len(rows),
        "rank": statistics.correlation(ranks(times), ranks(measured)),
        "median": statistics.median(errors),
        "nine of ten": errors[int(0.9 * len(errors))],
        "worst": errors[-1],
    }


def table_line(name: str, good: dict[str, float]) -> str:
    return (
        f"| {name} | {good['rows']} | {good['rank']:.2f} | {good['median']:.1%} | {good['nine of ten']:.1%} "
        f"| {good['worst']:.0%} |"
    )


def test_coefficients_are_fitted_to_the_odd_tables() -> None:
    assert fit_to(ODD) == pytest.approx(step_time.COEFFICIENTS, rel=0.001)


def test_other_rows_are_predicted_within_3_percent() -> None:
    good = measure_errors(EVEN, step_time.COEFFICIENTS)
    assert good["rank"] > 0.95
    assert good["median"] < 0.03


def test_fit_to_even_tables_predicts_the_odd_ones() -> None:
    good = measure_errors(ODD, fit_to(EVEN))
    assert good["rank"] > 0.85
    assert good["median"] < 0.03


def topologies(row: Row) -> tuple[object, ...]:
    return (row.shape, row.topology, row.batch)


def is_full(row: Row) -> bool:
    return row.cluster.nodes == 48 and row.batch == 2048


def test_figures_in_the_documentation_are_current() -> None:
    known = {topologies(row) for row in ODD}
    lines = [
        table_line("even tables, fitted on the odd ones (what ships)", measure_errors(EVEN, step_time.COEFFICIENTS)),
        table_line(
            "of these, configurations that no odd table has",
            measure_errors([row for row in EVEN if topologies(row) not in known], step_time.COEFFICIENTS),
        ),
        table_line(
            "of these, 48 nodes with a batch of 2048",
            measure_errors([row for row in EVEN if is_full(row)], step_time.COEFFICIENTS),
        ),
        table_line("odd tables, fitted on the even ones", measure_errors(ODD, fit_to(EVEN))),
    ]
    missing = [line for line in lines if line not in DOCS.read_text()]
    assert missing == []


def test_bloom_topology_is_predicted_at_150_tflops() -> None:
    seconds = sum(step_time.predict(PUBLISHED["bloom"], BLOOM, A100S, batch=2048).values())
    assert seconds == pytest.approx(105, rel=0.03)


def test_head_size_not_divisible_by_8_costs_a_third() -> None:
    good, bad = (replace(PUBLISHED["bloom"], hidden=13824, heads=heads) for heads in (64, 128))
    times = [sum(step_time.predict(shape, BLOOM, A100S, batch=2048).values()) for shape in (good, bad)]
    assert times[1] / times[0] > 1.3


def test_fit_recovers_the_factors() -> None:
    pairs = list(itertools.product(range(1, 6), repeat=2))
    parts = [[float(a), float(b), 1.0] for a, b in pairs]
    assert fit(parts, [2 * a + 0.5 * b + 3 for a, b in pairs]) == pytest.approx([2, 0.5, 3])


def test_fit_sets_negative_factors_to_zero() -> None:
    parts = [[float(a), float(a * a)] for a in range(1, 9)]
    floats = fit(parts, [5 * a - 0.01 * a * a for a, _ in parts])
    assert floats[1] == 0
    assert floats[0] == pytest.approx(5, rel=0.02)


def test_outlier_does_not_bend_the_fit() -> None:
    parts = [[float(a), 1.0] for a in range(1, 30)]
    times = [2 * a + 1 for a, _ in parts]
    times[10] *= 3
    assert fit(parts, times) == pytest.approx([2, 1], rel=0.02)
