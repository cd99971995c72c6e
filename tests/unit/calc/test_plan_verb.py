"""`opsctl plan` as a user types it. `pytest tests/unit/calc/test_plan_verb.py`"""

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from opsctl.cli import cli
from opsctl.errors import InputError, OpsctlError
from opsctl.journal import Event, History, Kind
from opsctl.progress.eta import waits_seen
from opsctl.rundir import RunDir

LOG = Path(__file__).parents[2] / "corpus/logs/tr11-176b.txt"
VERBS = {
    "model": ["--model", "bloom"],
    "memory": ["--model", "bloom", "--tp", "4", "--pp", "12", "--dp", "8", "--batch", "2048"],
    "topology": ["--model", "bloom", "--nodes", "48", "--batch", "2048", "--ramp", "192:16"],
    "throughput": ["--model", "bloom", "--gpus", "384", "--batch", "2048", "--seconds", "105", "--tokens", "366"],
    "network": ["--billions", "80", "--gpus", "512", "--batch", "3584", "--sequence", "1024", "--gb-s", "42.5"],
    "checkpoint": ["--model", "bloom", "--save", "40", "--nodes", "48", "--interval", "180"],
    "storage": ["--size", "2.3", "--interval", "180", "--free", "500"],
    "spares": ["--nodes", "48"],
    "simulate": ["--nodes", "48", "--seeds", "3", "--no-knobs"],
}
DRAWN = [verb for verb in VERBS if verb != "model"]


def plan(*words: str) -> Result:
    return CliRunner().invoke(cli, ["plan", *words])


def printed(*words: str) -> Any:
    return json.loads(plan(*words, "--json").output)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_prints_a_table(verb: str) -> None:
    result = plan(verb, *VERBS[verb])
    assert result.exit_code == 0, result.output
    assert len(result.output.splitlines()) >= 3


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_prints_json(verb: str) -> None:
    assert printed(verb, *VERBS[verb])


@pytest.mark.parametrize("verb", DRAWN)
def test_every_verb_that_has_a_curve_draws_it(verb: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "curve.svg"
    assert plan(verb, *VERBS[verb], "--plot", str(picture)).exit_code == 0
    assert "<svg" in picture.read_text()


def test_a_png_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plan("spares", "--nodes", "48", "--plot", str(tmp_path / "a.png"))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_is_png_or_svg() -> None:
    error = plan("spares", "--nodes", "48", "--plot", "a.gif").exception
    assert isinstance(error, InputError)
    assert error.message == "--plot a.gif: needs to end in .png or .svg"


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # as if it were not installed
    error = plan("spares", "--nodes", "48", "--plot", "a.png").exception
    assert isinstance(error, OpsctlError)
    assert (error.message, error.hint) == ("--plot needs matplotlib", "pip install 'opsctl[plot]'")


def test_a_picture_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    error = plan("spares", "--nodes", "48", "--plot", str(tmp_path / "no/a.png")).exception
    assert isinstance(error, OpsctlError)
    assert "cannot be written: No such file or directory" in error.message


def test_the_206b_of_the_prequel() -> None:
    found = printed("model", "--layers", "96", "--hidden", "13312", "--vocabulary", "150257")
    assert round(found["parameters"] / 1e9) == 206


def test_a_published_shape_can_be_changed() -> None:
    assert printed("model", "--model", "bloom", "--layers", "72")["shape"]["layers"] == 72


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model"], "model: 1 problem\n  its shape is not given"),
        (["model", "--layers", "3"], "model: 2 problems\n  --hidden is not given\n  --vocabulary is not given"),
        (
            ["throughput", "--model", "bloom"],
            "throughput: 3 problems\n  give either --seconds or --tflops\n  --gpus is not given\n"
            "  --batch is not given",
        ),
        (
            ["checkpoint", "--billions", "1", "--save", "1", "--gb-s", "1"],
            "checkpoints: 1 problem\n  give either --save or --gb-s",
        ),
        (["checkpoint", "--save", "1"], "size: 1 problem\n  neither --model nor --billions is given"),
        (
            ["topology", "--model", "bloom", "--nodes", "48", "--batch", "2048", "--ramp", "fast"],
            "--ramp 'fast': needs to be START:INCREMENT, such as 192:16",
        ),
        (["throughput", "--train", "x", "--log", "y"], "throughput: 1 problem\n  give either --train or --log"),
        (["simulate", "--nodes", "0", "--hangs", "3"],
         "simulation: 2 problems\n  nodes is 0, needs to be above 0\n  hangs is 3, needs to be between 0 and 1"),
        (["memory", "--model", "bloom", "--tp", "0", "--batch", "1"],
         "topology: 1 problem\n  tp is 0, needs to be above 0"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_in_one_error(words: list[str], said: str) -> None:
    error = plan(*words).exception
    assert isinstance(error, InputError)
    assert error.message == said


def test_memory_says_which_stage_is_the_fullest_and_whether_it_fits() -> None:
    found = printed("memory", *VERBS["memory"])
    assert (found["fullest"], found["fits"], found["least_gpus"]) == (0, True, 50)


def test_topology_counts_what_rules_the_others_out() -> None:
    said = plan("topology", *VERBS["topology"]).output.splitlines()[-1]
    assert "of 292 can run. Ruled out: " in said
    assert "56 by heads" in said
    assert "44 by ramp" in said


def test_topology_shows_what_is_ruled_out_when_asked() -> None:
    shown = plan("topology", *VERBS["topology"], "--all").output
    assert "NO: node: TP 16 crosses nodes of 8 GPUs" in shown


def test_the_end_of_a_train_is_reckoned_from_its_log_and_the_waits_given() -> None:
    found = printed("throughput", "--log", str(LOG), "--task", "20", "--wait", "1", "--wait", "3")
    assert (found["step"], found["last_step"]) == (2, 95367)
    assert found["mean_wait"] == 2 * 3600
    assert found["earliest"] < found["likely"] < found["latest"]
    assert found["likely"] > found["training_left"] == 95365 * found["step_s"]


def test_waits_are_those_between_lives_and_a_life_settled_by_the_next_one_tells_none() -> None:
    def at(hour: float) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=hour)

    def settled(life: str, hour: float) -> Event:
        data = {"life": life, "outcome": "finished", "action": "go-on", "why": ""}
        return Event(number=1, at=at(hour).isoformat(), actor="me", kind=Kind.LIFE_SETTLED, data=data)

    history = History(
        started={"7_1.0": at(0), "7_2.0": at(22), "7_3.0": at(45), "7_4.0": at(66)},
        settled={"7_1.0": settled("7_1.0", 20), "7_2.0": settled("7_2.0", 45.001), "7_3.0": settled("7_3.0", 65)},
    )
    assert waits_seen(history) == [2 * 3600, 3600]


def test_a_train_is_found_with_its_own_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site.toml").write_text(f'root = "{tmp_path}/trains"\n')
    monkeypatch.setenv("OPSCTL_SITE", str(tmp_path / "site.toml"))
    run = RunDir(tmp_path / "trains/tr11")
    run.create()
    run.config.write_text("")
    run.main_log.write_text(LOG.read_text())
    assert printed("throughput", "--train", "tr11")["last_step"] == 95367


def test_a_log_without_iterations_is_told(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("nothing yet\n")
    error = plan("throughput", "--log", str(tmp_path / "log")).exception
    assert isinstance(error, OpsctlError)
    assert "no iteration line that tells its time and the last step" in error.message


def test_the_simulation_says_the_closed_form_where_there_is_one() -> None:
    plain = ["--nodes", "48", "--seeds", "2", "--no-knobs", "--broken", "0"]
    assert printed("simulate", *plain)["closed_form"] == pytest.approx(0.98, abs=0.02)
    assert printed("simulate", *plain, "--task", "20")["closed_form"] is None
