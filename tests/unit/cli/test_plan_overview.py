"""`opsctl plan MODEL` through the command line."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from opsctl.base.errors import InputError, OpsctlError
from opsctl.calc.gpu_memory import GIB
from opsctl.cli import cli
from opsctl.launch.launch_plan import job_spec
from opsctl.preflight.checks.nodes import memory
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest
from opsctl.preflight.recipe import read_recipe
from opsctl.report import formats
from opsctl.settings.loader import SiteSettings, load_train
from opsctl.telemetry.progress.iteration_lines import recent_iterations
from opsctl.telemetry.progress.step_pace import median_step_s
from opsctl.trainer import dry_run, footprint
from opsctl.trainer.rank_layout import layout
from tests.support.made_reports import make_rough_train

EXAMPLES = Path(__file__).parents[3] / "examples"
LOG = Path(__file__).parents[2] / "corpus/logs/tr11-176b.txt"
LLAMA = ("llama-3-8b", "--gpus", "8", "--gpu", "H100")


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site.toml").write_text(f'root = "{tmp_path}/trains"\n')
    monkeypatch.setenv("OPSCTL_SITE", str(tmp_path / "site.toml"))


def plan(*words: str) -> Result:
    return CliRunner().invoke(cli, ["plan", *words])


def run_json(*words: str) -> Any:
    return json.loads(plan(*words, "--json").output, parse_constant=pytest.fail)


def test_model_in_place_of_a_command_is_planned() -> None:
    text = plan(*LLAMA).output
    for name in (
        "time of a step",
        "tokens a day",
        "energy",
        "checkpoint",
        "failures",
        "spare nodes",
        "opsctl itself",
        "if started today",
    ):
        assert name in text


def test_cost_of_opsctl_grows_with_ranks_and_starts() -> None:
    words = ("llama-3-8b", "--gpu", "H100", "--batch-tokens", "8388608", "--tokens", "15000")
    small, large = (run_json(*words, "--gpus", gpus)["opsctl"] for gpus in ("64", "512"))
    assert large["file_operations_per_start"] == 8 * small["file_operations_per_start"] == 512 * 6
    assert large["files"] == large["starts"] * (8 + 2 * 64)
    assert large["starts"] < small["starts"], "the same failures, and fewer tasks"
    assert large["slurm_calls_per_hour"] == small["slurm_calls_per_hour"] == 24


def test_wait_in_the_queue_proposes_spare_nodes_with_cost_and_gain() -> None:
    words = ("llama-3-70b", "--gpus", "512", "--gpu", "H100", "--tokens", "15000")
    free, busy = run_json(*words), run_json(*words, "--queue", "8h")
    assert (free["in_task"]["count"], free["effective"]) == (0, free["effective_without_spares"])
    count = busy["in_task"]["count"]
    assert count > 0
    assert busy["effective_without_spares"] < busy["effective"] < free["effective"]
    share = (64 + count) / 64 * free["effective"] / busy["effective"]
    assert busy["gpu_hours"] == pytest.approx(free["gpu_hours"] * share)
    assert f"{count} in each task" in plan(*words, "--queue", "8h").output
    assert "queue is -1" in str(plan(*words, "--queue", "-1").exception)


def test_every_assumption_is_listed() -> None:
    assumed = run_json(*LLAMA)["assumed"]
    assert [line.split()[0] for line in assumed] == ["--batch", "--tokens", "--failures", "a"]


def test_stated_figures_are_not_assumed() -> None:
    words = (*LLAMA, "--batch-tokens", "1048576", "--tokens", "10", "--save", "30")
    result = run_json(*words)
    assert (result["batch"], result["tokens"]) == (128, 1e10)
    assert [line.split()[0] for line in result["assumed"]] == ["--failures"]


def test_batch_in_tokens_is_rounded_to_what_gpus_share() -> None:
    result = run_json("llama-3-8b", "--gpus", "64", "--gpu", "H100", "--batch-tokens", "4000000")
    assert result["batch"] == 512
    assert "--batch 512 (4.19M tokens), which the GPUs can share" in result["assumed"]


def test_sizes_are_proposed_without_a_model() -> None:
    sizes = run_json("--gpus", "64", "--gpu", "H100", "--tokens", "2000")
    assert [size["purpose"].split()[0] for size in sizes] == ["compute-optimal", "cheaper", "small", "as"]
    assert all(size["layout"]["fit_probability"] >= 0.7 for size in sizes)
    days = [size["days"] for size in sizes]
    assert days == sorted(days, reverse=True)
    assert "none of the sizes fits" in str(plan("--gpus", "1", "--gpu", "V100", "--tokens", "9e6").exception)


def test_cost_has_its_currency() -> None:
    assert "EUR" in plan(*LLAMA, "--price", "2.5", "--currency", "EUR").output
    error = plan(*LLAMA, "--price", "2.5").exception
    assert isinstance(error, InputError)
    assert "--price needs --currency, such as USD" in error.message


def test_range_of_the_memory_agrees_with_the_probability_that_it_fits() -> None:
    for size in (8, 70):
        result = run_json(f"llama-3-{size}b", "--gpus", "64", "--gpu", "H100")
        memory_gib, bar = sum(result["memory_bytes"].values()) / GIB, result["memory_error_bar"]
        fits = result["layouts"][0]["fit_probability"]
        assert (fits > 0.9, fits > 0.1) == (memory_gib * bar["high"] < 80, memory_gib * bar["low"] < 80)


def test_measured_step_replaces_the_prediction() -> None:
    result = run_json(*LLAMA, "--batch", "128", "--topology", "TP2 MB1", "--measured", "20 for TP2 MB1")
    assert result["step_s"] == pytest.approx(20)


def test_log_calibrates_the_stated_layout() -> None:
    words = ("bloom", "--gpus", "384", "--gpu", "A100", "--batch", "2048", "--topology", "TP4 PP12 MB2 full")
    plain, calibrated = run_json(*words), run_json(*words, "--from-log", str(LOG))
    assert (plain["calibrated"], plain["learned"]) == (None, {})
    assert calibrated["step_s"] == pytest.approx(median_step_s(recent_iterations(LOG, 20)))


def test_finished_run_teaches_the_next_plan_of_its_cluster(tmp_path: Path) -> None:
    """Its report replaces what a plan assumes, and the plan that learned teaches the plan of another model."""
    (tmp_path / "run").mkdir()
    made = formats.to_json(make_rough_train(tmp_path / "run").report(3320))
    report, learned = tmp_path / "report.json", tmp_path / "plan.json"
    report.write_text(json.dumps(made, default=str))
    words = (*LLAMA, "--batch", "128", "--learn", f"{report} for TP2 MB1 none")
    result = run_json(*words)
    learned.write_text(json.dumps(result))
    node_days = 2 * 2660 / 86400
    assert result["learned"] == {
        "factor": pytest.approx(10 / run_json(*LLAMA, "--batch", "128", "--topology", "TP2 MB1 none")["step_s"]),
        "per_1000_node_days": pytest.approx(2 / (1 / 6.5 + node_days / 1000)),
        "restart_s": pytest.approx((240 + 300) / 2),
        "save_gb_s": pytest.approx(result["checkpoint_bytes"] / 35 / 1e9),
        "queue_h": pytest.approx(60 / 3600),
        "unplanned": pytest.approx(50 / 3320),
    }
    shown = plan(*words).output
    assert ["failures", "per", "1000", "node-days", "6.5", "13", "×", "2.00"] in map(str.split, shown.splitlines())
    assert "assumed: --failures" not in shown
    unnamed = run_json(*words[:-1], str(report))["learned"]
    assert result["learned"].keys() - unnamed.keys() == {"factor", "save_gb_s"}, "perhaps of another model"
    other = run_json("llama-3-70b", "--gpus", "64", "--gpu", "H100", "--learn", str(learned), "--queue", "3")
    assert "queue_h" not in other["learned"], "an option counts more than a file"
    assert other["learned"]["factor"] == result["learned"]["factor"]
    assert other["error_bar"]["high"] > result["error_bar"]["high"], "of another model"


def test_drill_teaches_restarts_and_saves(tmp_path: Path) -> None:
    drill = {"fault": "rank-killed", "noticed_s": 6, "cause": "signal", "action": "continue", "back_s": 96, "save_s": 8}
    (tmp_path / "card.json").write_text(json.dumps([drill]))
    result = run_json(*LLAMA, "--learn", str(tmp_path / "card.json"))
    assert (result["learned"]["restart_s"], result["save_s"]) == (pytest.approx(90), pytest.approx(8))
    assert result["calibrated"] is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("12", "nothing to learn"),
        ("{}", "no iteration line"),
        ('{"buckets": 1}', "neither a report"),
        ('{"learned": {"factor": 0}}', "not above 0"),
    ],
)
def test_unreadable_lesson_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text)
    error = plan(*LLAMA, "--learn", text if text == "12" else str(tmp_path / "file")).exception
    assert isinstance(error, OpsctlError)
    assert message in error.message


def test_configuration_file_is_planned(tmp_path: Path) -> None:
    config = {
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "vocab_size": 32000,
        "hidden_act": "silu",
        "intermediate_size": 11008,
        "model_type": "llama",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    result = run_json(str(tmp_path), "--gpus", "8", "--gpu", "H100")
    assert round(result["parameters"] / 1e8) == 67
    assert result["assumed"][0].startswith("sequence 2048")


def test_broken_configuration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[1")
    error = plan(str(tmp_path / "config.json"), "--gpus", "8", "--gpu", "H100").exception
    assert isinstance(error, InputError)


def test_layers_and_hidden_say_what_is_assumed() -> None:
    result = run_json("overview", "--layers", "80", "--hidden", "8192", "--gpus", "512", "--gpu", "H100")
    assert round(result["parameters"] / 1e9, 1) == 70.6
    assert "gated feed-forward part of 28672" in result["assumed"]


def test_unknown_model_suggests_near_ones() -> None:
    error = plan("llama3-8b", "--gpus", "8", "--gpu", "H100").exception
    assert isinstance(error, InputError)
    assert "llama-3-8b" in (error.hint or "")


def test_page_has_plots_and_no_outside_references(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    shown = plan(*LLAMA, "--html", str(page)).output
    text = page.read_text()
    assert text.count("<svg") == 3
    for name in ("days", "GPU-hours", "memory"):
        [(value, least, most)] = re.findall(rf"^{name} +([\d.,]+)(?: GiB)?, ([\d.,]+) to ([\d.,]+\d)", shown, re.M)
        assert f"<td>{value}</td><td>{least} to {most}</td>" in text
    assert re.findall(r"fits with \d+%", shown) == re.findall(r"fits with \d+%", text)
    assert "http" not in text


def test_train_file_states_its_layout() -> None:
    result = run_json(str(EXAMPLES / "gpt-13b.toml"), "--gpus", "64", "--gpu", "A100")
    assert len(result["layouts"]) == 1


@pytest.mark.parametrize("name", ["gpt-1.3b", "gpt-13b", "gpt-104b", "gpt-176b"])
def test_plan_preflight_and_trainer_estimate_the_same_memory(name: str) -> None:
    path = EXAMPLES / f"{name}.toml"
    train = load_train(path, layout=False)
    recipe = read_recipe(train)
    request = LaunchRequest(train=train, spec=job_spec(train, SiteSettings(root="/t")), recipe=recipe)
    config, processes = dry_run.read(path)
    of_trainer = max(stage.total for stage in footprint.stages(config, layout(config, processes))) / GIB
    planned = run_json(str(path), "--gpus", str(processes), "--gpu", "A100")
    (problem,) = memory(request, Facts(now=datetime.now(UTC), user="anna", gpu="V100-16"))
    assert planned["layouts"][0]["memory_gib"] == pytest.approx(of_trainer)
    assert f" needs {of_trainer:.0f} GiB " in problem.what
