"""The measured rows of the prequel: consistency and misprints. `pytest tests/unit/calc/test_prequel.py`"""

import statistics
from dataclasses import replace

import pytest

from opsctl.calc import gpu_memory, throughput
from opsctl.calc.gpt_size import ModelShape, block_parameters, parameters
from opsctl.trainer import footprint
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.rank_layout import layout
from tests.support.prequel import Row, rows

TIMED = [row for row in rows() if row.seconds and row.tflops]
BY_LINE = {row.line: row for row in rows()}


def old_tflops(row: Row) -> float:
    """Return the TFLOPs by the old formula of the logs: 8 passes over the layers alone."""
    assert row.seconds
    size = row.shape.layers * block_parameters(row.shape) / 1e12
    return 8 * size * 2048 * row.batch / row.seconds / row.topology.gpus


def exact_tflops(row: Row) -> float:
    assert row.seconds
    return throughput.step_tflop(row.shape, batch=row.batch, gpus=row.topology.gpus) / row.seconds


def test_prequel_has_158_rows_and_143_have_a_time() -> None:
    assert (len(rows()), len({row.table for row in rows()}), len(TIMED)) == (158, 40, 143)


def billions(shape: ModelShape) -> tuple[int, int]:
    """Return the billions of all parameters (rounded) and of the layers alone (truncated), as printed."""
    return round(parameters(shape) / 1e9), int(shape.layers * 12 * shape.hidden**2 / 1e9)


@pytest.mark.parametrize("row", [row for row in rows() if row.line >= 583 and row.line != 660], ids=lambda r: r.line)
def test_shape_has_the_size_of_its_row(row: Row) -> None:
    assert billions(row.shape)[0] == row.billions


def test_sizes_up_to_line_582_count_layers_but_for_three() -> None:
    """The three sizes 205, 195 and 183 count the embedding too."""
    early = {row.line: row for row in rows() if row.line < 583}
    of_all = {line for line, row in early.items() if billions(row.shape)[0] == row.billions}
    of_layers = {line for line, row in early.items() if abs(billions(row.shape)[1] - row.billions) <= 1}
    assert {early[line].billions for line in of_all} == {205, 195, 183}
    assert of_all | of_layers == set(early)


def test_line_660_is_28b() -> None:
    """Line 660 has ten layers; the table repeats the 18B of the row with six layers."""
    assert (BY_LINE[660].shape.layers, BY_LINE[660].billions, billions(BY_LINE[660].shape)[0]) == (10, 18, 28)
    assert (BY_LINE[659].shape.layers, BY_LINE[659].billions, billions(BY_LINE[659].shape)[0]) == (6, 18, 18)


@pytest.mark.parametrize("row", TIMED, ids=lambda row: f"line {row.line}")
def test_step_time_gives_the_tflops_of_its_row(row: Row) -> None:
    computed = old_tflops(row) if row.formula == "estimate" else exact_tflops(row)
    assert computed == pytest.approx(row.tflops, rel=0.002)


@pytest.mark.parametrize("row", TIMED, ids=lambda row: f"line {row.line}")
def test_corrected_formula_gives_3_to_4_percent_more(row: Row) -> None:
    least, most = (1.03, 1.045) if row.shape.layers > 20 else (1.1, 1.25)  # the output layer weighs more on few layers
    assert least <= exact_tflops(row) / old_tflops(row) <= most


def test_step_time_is_recovered_from_tflops() -> None:
    row = BY_LINE[831]
    assert row.tflops
    seconds = throughput.step_tflop(row.shape, batch=row.batch, gpus=384) / row.tflops
    assert seconds == pytest.approx(103.51, abs=0.01)


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"line {row.line}")
def test_topology_of_a_row_uses_its_nodes_and_batch(row: Row) -> None:
    assert row.topology.gpus == row.cluster.gpus
    assert row.batch % (row.topology.dp * row.topology.micro_batch) == 0


def test_line_648_needs_more_than_its_40_nodes() -> None:
    row = BY_LINE[648]
    assert row.printed == "DP 8"
    assert replace(row.topology, dp=8).gpus == 640 > row.cluster.gpus
    assert row.topology.gpus == row.cluster.gpus


@pytest.mark.parametrize("line", [658, 659, 660])
def test_single_node_rows_had_a_batch_of_512(line: int) -> None:
    """The text says 512, the table 2048."""
    row = BY_LINE[line]
    assert row.printed == "GBS 2048"
    assert exact_tflops(replace(row, batch=2048)) == pytest.approx(4 * (row.tflops or 0), rel=0.002)
    assert exact_tflops(replace(row, batch=2048)) > 312


def test_line_669_swaps_time_and_tflops() -> None:
    row = BY_LINE[669]
    assert row.printed == "Sec/it 120.29, TFLOPs 134.02"
    assert (row.seconds, row.tflops) == (134.02, 120.29)
    assert (BY_LINE[608].seconds, BY_LINE[608].tflops) == (134.02, 120.29)  # the same row, two tables earlier


def test_line_670_used_the_old_formula() -> None:
    """The remark of the row names the branch with the old formula."""
    row = BY_LINE[670]
    assert old_tflops(row) == pytest.approx(row.tflops, rel=0.002)
    assert exact_tflops(row) != pytest.approx(row.tflops, rel=0.03)


def test_median_memory_error_is_below_7_percent() -> None:
    errors = [
        gpu_memory.fullest(r.shape, r.topology, batch=r.batch).gib / r.memory_gb - 1 for r in rows() if r.memory_gb
    ]
    assert len(errors) == 103
    assert statistics.median(map(abs, errors)) < 0.07
    assert sorted(map(abs, errors))[92] < 0.12


def test_formulas_of_the_own_trainer_fit_the_prequel() -> None:
    errors = [
        abs(estimate_with_footprint(row) / row.memory_gb - 1) for row in rows() if row.memory_gb and row.topology.zero
    ]
    assert len(errors) == 102
    assert statistics.median(errors) < 0.045
    assert sorted(errors)[91] < 0.085


def estimate_with_footprint(row: Row) -> float:
    """Return the GiB of the fullest stage, with the states and attention matrix of Megatron-DeepSpeed."""
    shape, cut = row.shape, row.topology
    model = {name: getattr(shape, name) for name in ("layers", "hidden", "heads", "sequence", "vocabulary")}
    slots = "blocks-and-embeddings" if cut.embedding_slots else "blocks"
    parallel = {"tensor": cut.tp, "pipeline": cut.pp, "balance": slots}
    batch = {"micro_batch": cut.micro_batch, "global_batch": row.batch}
    table = {"steps": 1, "precision": "bf16", "recompute": cut.recompute == "full"}
    config = TrainerConfig.model_validate(table | {"model": model, "parallel": parallel, "batch": batch})
    matrix = 5 * shape.heads * shape.sequence**2 * cut.micro_batch / cut.tp
    kept = sum(gpu_memory.states_bytes(cut)) - (2 + 4 + 12 / cut.dp)
    totals = [
        stage.total + 1.25 * (matrix + kept * stage.parameters)
        for stage in footprint.stages(config, layout(config, cut.gpus))
    ]
    return max(totals) / footprint.GIB


def test_line_634_is_a_misprint() -> None:
    """Line 634 has more memory than line 635, with half the micro batch."""
    assert (BY_LINE[634].memory_gb, BY_LINE[635].memory_gb) == (65, 56)
    assert BY_LINE[634].topology.micro_batch < BY_LINE[635].topology.micro_batch


def test_five_of_six_out_of_memory_rows_are_predicted() -> None:
    predicted = {
        row.line: gpu_memory.fullest(row.shape, row.topology, batch=row.batch).gib > 80
        for row in rows()
        if row.note == "OOM"
    }
    assert predicted == {793: True, 806: True, 807: True, 917: True, 918: True, 957: False}


def test_row_that_filled_its_gpu_is_predicted_not_to_fit() -> None:
    wrong = {
        row.line: row.memory_gb
        for row in rows()
        if row.memory_gb and gpu_memory.fullest(row.shape, row.topology, batch=row.batch).gib > 80
    }
    assert wrong == {660: 80}
