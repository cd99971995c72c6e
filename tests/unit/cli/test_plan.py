"""`opsctl plan` through the command line."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from opsctl.base.errors import InputError, OpsctlError
from opsctl.cli import cli
from opsctl.cli.plan import plan as group
from opsctl.state.events import AttemptFinalized
from opsctl.state.journal import TrainHistory
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.step_pace import measure_waits
from tests.support.cases import read_cases, read_table

LOG = Path(__file__).parents[2] / "corpus/logs/tr11-176b.txt"
COMMANDS = read_table(__file__, "commands")


def plan(*words: str) -> Result:
    return CliRunner().invoke(cli, ["plan", *words])


def run_json(*words: str) -> Any:
    return json.loads(plan(*words, "--json").output, parse_constant=pytest.fail)


@pytest.mark.parametrize("command", COMMANDS)
def test_command_prints_a_table(command: str) -> None:
    result = plan(command, *COMMANDS[command])
    assert result.exit_code == 0, result.output
    assert len(result.output.splitlines()) >= 3


@pytest.mark.parametrize("command", COMMANDS)
def test_command_prints_json(command: str) -> None:
    assert run_json(command, *COMMANDS[command])


def test_prequel_has_206b_parameters() -> None:
    result = run_json("model", "--layers", "96", "--hidden", "13312", "--vocabulary", "150257")
    assert round(result["parameters"] / 1e9) == 206


def test_rows_have_the_usual_units() -> None:
    words = "throughput --model bloom --gpus 512 --gpu A100 --batch 3584 --seconds 300 --tokens 300"
    names = [line.split("  ")[0] for line in plan(*words.split()).stdout.splitlines()]
    assert names == ["time of a step", "TFLOP/s", "MFU", "HFU", "tokens/s", "days", "GPU-hours"]


def test_published_shape_can_be_changed() -> None:
    assert run_json("model", "--model", "bloom", "--layers", "72")["shape"]["layers"] == 72


@pytest.mark.parametrize(*read_cases(__file__, "all_problems_are_in_one_error"))
def test_all_problems_are_in_one_error(words: str, message: str) -> None:
    error = plan(*words.split()).exception
    assert isinstance(error, InputError)
    assert error.message == message


def test_throughput_prints_the_cost_in_its_currency() -> None:
    output = plan("throughput", *COMMANDS["throughput"], "--price", "2", "--currency", "EUR").output
    assert re.search(r"cost +[\d,.]+ EUR$", output, re.MULTILINE)
    assert "currency" not in output


BAD = ("0", "-1", "nan", "inf", "-inf", "1e308", "1e-320", "1e30", "1e-30", "1000000000")


@pytest.mark.parametrize("command", COMMANDS)
def test_no_number_breaks_a_command(command: str) -> None:
    named = [(param.opts[0], param.type.name) for param in group.commands[command].params]
    numbers = [name for name, kind in named if kind not in ("choice", "text", "boolean", "path")]
    for name in numbers:
        for value in BAD:
            error = plan(command, *COMMANDS[command], name, value).exception
            assert error is None or isinstance(error, InputError | SystemExit), (name, value, error)


@pytest.mark.parametrize("words", ["--queue 8h --task 1200m", "--queue 480m --task 20", "--queue 8 --task 20h"])
def test_durations_of_options_have_units_or_the_documented_one(words: str) -> None:
    expected = plan("spares", "--nodes", "64", "--queue", "8", "--task", "20").output
    assert plan("spares", "--nodes", "64", *words.split()).output == expected


@pytest.mark.parametrize("value", BAD)
def test_no_time_between_failures_breaks_the_plan(value: str) -> None:
    error = plan("checkpoint", "--model", "bloom", "--save", "40", "--mtbf", value).exception
    assert error is None or isinstance(error, InputError), error


def test_memory_shows_fullest_stage_and_fit() -> None:
    result = run_json("memory", *COMMANDS["memory"])
    assert (result["fullest"], result["fits"]) == (0, True)


def test_topology_counts_reasons_for_exclusion() -> None:
    text = plan("topology", *COMMANDS["topology"]).output.splitlines()[-2]
    assert "of 292 can run. Ruled out: " in text
    assert "56 by heads" in text
    assert "44 by ramp" in text


def test_topology_all_shows_excluded_layouts() -> None:
    shown = plan("topology", *COMMANDS["topology"], "--all").output
    assert "NO: node: TP 16 crosses nodes of 8 GPUs" in shown


def test_end_of_train_uses_log_and_waits() -> None:
    result = run_json("throughput", "--log", str(LOG), "--task", "20", "--wait", "1", "--wait", "3")
    assert (result["step"], result["last_step"]) == (2, 95367)
    assert result["mean_wait"] == 2 * 3600
    assert result["earliest"] < result["likely"] < result["latest"]
    assert result["likely"] > result["training_left"] == 95365 * result["step_s"]


def test_waits_are_between_attempts() -> None:
    def at(hour: float) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=hour)

    def finalized(attempt: str, hour: float) -> AttemptFinalized:
        return AttemptFinalized(at=at(hour).isoformat(), attempt=attempt, outcome="finished", action="go-on", why="")

    history = TrainHistory(
        started={"7_1.0": at(0), "7_2.0": at(22), "7_3.1": at(60.5), "7_3.0": at(45), "7_4.0": at(66)},
        finalized={
            "7_1.0": finalized("7_1.0", 20),
            "7_2.0": finalized("7_2.0", 45.001),
            "7_3.0": finalized("7_3.0", 60),
            "7_3.1": finalized("7_3.1", 65),
        },
    )
    assert measure_waits(history) == [2 * 3600, 3600]


def test_train_option_reads_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site.toml").write_text(f'root = "{tmp_path}/trains"\n')
    monkeypatch.setenv("OPSCTL_SITE", str(tmp_path / "site.toml"))
    run = RunDir(tmp_path / "trains/tr11")
    run.create()
    run.config.write_text("")
    run.main_log.write_text(LOG.read_text())
    assert run_json("throughput", "--train", "tr11")["last_step"] == 95367


def test_log_without_iterations_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("nothing yet\n")
    error = plan("throughput", "--log", str(tmp_path / "log")).exception
    assert isinstance(error, OpsctlError)
    assert "no iteration line has a step time and the last step" in error.message


def test_simulation_prints_closed_form_if_it_exists() -> None:
    plain = ["--nodes", "48", "--seeds", "2", "--no-knobs", "--broken", "0"]
    assert run_json("simulate", *plain)["closed_form"] == pytest.approx(0.98, abs=0.02)
    assert run_json("simulate", *plain, "--task", "20")["closed_form"] is None


def test_stated_input_is_not_drawn() -> None:
    words = ["simulate", "--nodes", "124", "--seeds", "5", "--cluster", "young-cloud"]
    names = [influence["name"] for influence in run_json(*words)["influences"]]
    assert len(names) == 9
    stated = run_json(*words, "--failures", "3")
    assert stated["setup"]["per_1000_node_days"] == 3
    assert "per_1000_node_days" not in [influence["name"] for influence in stated["influences"]]
    assert stated["setup"]["guard"] is False


@pytest.mark.parametrize(*read_cases(__file__, "card_of_a_drill_is_refused"))
def test_card_of_a_drill_is_refused(card: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text(card)
    error = plan("simulate", "--nodes", "64", "--seeds", "2", "--from-drill", str(tmp_path / "card.json")).exception
    assert isinstance(error, InputError)
    assert message in error.message


def test_times_of_a_drill_replace_guesses_but_not_what_is_stated(tmp_path: Path) -> None:
    hang = {"fault": "rank-stopped", "noticed_s": 36, "cause": "hang", "action": "continue", "back_s": 54, "save_s": 72}
    (tmp_path / "card.json").write_text(json.dumps([hang]))
    words = ["simulate", "--nodes", "64", "--seeds", "5", "--no-knobs", "--from-drill", str(tmp_path / "card.json")]
    setup = run_json(*words, "--save", "18")["setup"]
    assert (setup["notice_h"], setup["start_up_h"], setup["save_h"]) == (0.01, 0.005, 0.005)
    said = plan(*words).output.splitlines()[-1]
    assert re.fullmatch(
        r"With .* Meta's 6.5 .* 64 nodes will be effective \S+% ± .*; with 2 more spare nodes .*%\.", said
    )
