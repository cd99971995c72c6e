"""How well the time of a step is foreseen, on rows that the model was not fitted on.

`pytest tests/unit/calc/test_step_time.py`
"""

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


def fitted_on(seen: Sequence[Row]) -> dict[str, float]:
    parts = [step_time.parts(row.shape, row.topology, row.cluster, batch=row.batch) for row in seen]
    factors = fit([list(part.values()) for part in parts], [row.seconds or 0.0 for row in seen])
    return dict(zip(parts[0], factors, strict=True))


def foreseen(row: Row, coefficients: dict[str, float]) -> float:
    return sum(
        step_time.predict(row.shape, row.topology, row.cluster, batch=row.batch, coefficients=coefficients).values()
    )


def ranks(values: Sequence[float]) -> list[float]:
    """Equal values share their mean rank."""
    order = sorted(values)
    return [order.index(value) + (order.count(value) - 1) / 2 for value in values]


def goodness(unseen: Sequence[Row], coefficients: dict[str, float]) -> dict[str, float]:
    times = [foreseen(row, coefficients) for row in unseen]
    measured = [row.seconds or 0.0 for row in unseen]
    errors = sorted(abs(time / real - 1) for time, real in zip(times, measured, strict=True))
    return {
        "rows": len(unseen),
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


def test_the_coefficients_are_those_that_the_odd_tables_give() -> None:
    assert fitted_on(ODD) == pytest.approx(step_time.COEFFICIENTS, rel=0.001)


def test_unseen_rows_are_foreseen_within_3_percent_in_the_median_and_in_the_right_order() -> None:
    good = goodness(EVEN, step_time.COEFFICIENTS)
    assert good["rank"] > 0.95
    assert good["median"] < 0.03


def test_the_other_way_round_it_holds_too() -> None:
    good = goodness(ODD, fitted_on(EVEN))
    assert good["rank"] > 0.85
    assert good["median"] < 0.03


def topologies(row: Row) -> tuple[object, ...]:
    return (row.shape, row.topology, row.batch)


def is_full(row: Row) -> bool:
    return row.cluster.nodes == 48 and row.batch == 2048


def test_the_figures_in_the_documentation_are_those_of_today() -> None:
    known = {topologies(row) for row in ODD}
    lines = [
        table_line("even tables, fitted on the odd ones (what ships)", goodness(EVEN, step_time.COEFFICIENTS)),
        table_line(
            "of these, configurations that no odd table has",
            goodness([row for row in EVEN if topologies(row) not in known], step_time.COEFFICIENTS),
        ),
        table_line(
            "of these, 48 nodes with a batch of 2048",
            goodness([row for row in EVEN if is_full(row)], step_time.COEFFICIENTS),
        ),
        table_line("odd tables, fitted on the even ones", goodness(ODD, fitted_on(EVEN))),
    ]
    missing = [line for line in lines if line not in DOCS.read_text()]
    assert missing == []


def test_blooms_own_topology_is_foreseen_at_its_150_tflops() -> None:
    seconds = sum(step_time.predict(PUBLISHED["bloom"], BLOOM, A100S, batch=2048).values())
    assert seconds == pytest.approx(105, rel=0.03)


def test_a_head_size_that_is_no_multiple_of_8_costs_a_third() -> None:
    good, bad = (replace(PUBLISHED["bloom"], hidden=13824, heads=heads) for heads in (64, 128))
    times = [sum(step_time.predict(shape, BLOOM, A100S, batch=2048).values()) for shape in (good, bad)]
    assert times[1] / times[0] > 1.3


def test_a_fit_finds_the_factors_that_the_times_were_made_with() -> None:
    parts = [[float(a), float(b), 1.0] for a in range(1, 6) for b in range(1, 6)]
    assert fit(parts, [2 * a + 0.5 * b + 3 for a, b, _ in parts]) == pytest.approx([2, 0.5, 3])


def test_a_fit_gives_up_what_would_be_negative() -> None:
    parts = [[float(a), float(a * a)] for a in range(1, 9)]
    floats = fit(parts, [5 * a - 0.01 * a * a for a, _ in parts])
    assert floats[1] == 0
    assert floats[0] == pytest.approx(5, rel=0.02)


def test_one_row_that_nothing_explains_does_not_bend_the_fit() -> None:
    parts = [[float(a), 1.0] for a in range(1, 30)]
    times = [2 * a + 1 for a, _ in parts]
    times[10] *= 3
    assert fit(parts, times) == pytest.approx([2, 1], rel=0.02)
