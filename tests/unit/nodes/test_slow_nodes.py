"""Slow nodes, by the ranks' own step times: files of real attempts' shape, the statistic, and what is stored."""

import random
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.nodes.history import NodeHistory, NodeRecord
from opsctl.nodes.node_score import node_score
from opsctl.nodes.slow_nodes import StepTimeRatio, compare_nodes, judge_speed, read_times
from opsctl.state.site_dir import SiteDir
from opsctl.trainer.contract import RankStepTimes, to_json
from tests.support.cases import read_cases
from tests.support.clocks import FakeClock
from tests.support.made_nodes import NOW

DAYS = 28.0


def make_times(seconds: dict[str, list[float]], *, work: str = "", steps: int = 500) -> list[RankStepTimes]:
    """Return the records of the nodes' ranks, by the seconds of each rank."""
    records = []
    for node, ranks in seconds.items():
        for local_rank, compute_s in enumerate(ranks):
            rank = RankStepTimes(
                node=node, rank=len(records), local_rank=local_rank, steps=steps, compute_s=compute_s, work=work
            )
            records.append(rank)
    return records


def test_node_counts_as_its_slowest_rank() -> None:
    ratios = compare_nodes(make_times({"a": [1.0] * 8, "b": [1.0] * 7 + [1.3], "c": [1.0] * 8}), NOW)
    assert {node: (ratio.ratio, ratio.nodes) for node, ratio in ratios.items()} == {
        "a": (1.0, 3),
        "b": (1.3, 3),
        "c": (1.0, 3),
    }
    assert ratios["b"].local_rank == 7


def test_two_nodes_are_not_compared() -> None:
    assert compare_nodes(make_times({"a": [1.0], "b": [2.0]}), NOW) == {}


def test_first_steps_are_not_compared() -> None:
    assert compare_nodes(make_times({"a": [1.0], "b": [2.0], "c": [1.0]}, steps=19), NOW) == {}


def test_only_the_same_work_is_compared() -> None:
    stages = [
        *make_times({"a": [1.0], "b": [1.0], "c": [1.0]}, work="stage 0 on A100"),
        *make_times({"d": [2.0], "e": [2.0], "f": [2.0]}, work="stage 1 on A100"),
        *make_times({"g": [9.0]}, work="stage 1 on V100"),
    ]
    assert {node: ratio.ratio for node, ratio in compare_nodes(stages, NOW).items()} == dict.fromkeys("abcdef", 1.0)


def make_ratio(ratio: float, partners: str, *, days_ago: float = 1, local_rank: int = 0) -> StepTimeRatio:
    at = (NOW - timedelta(days=days_ago)).timestamp()
    return StepTimeRatio(at=at, ratio=ratio, local_rank=local_rank, nodes=4, partners=partners)


@pytest.mark.parametrize(*read_cases(__file__, "slow_needs_different_partners"))
def test_slow_needs_different_partners(ratios: list[tuple[float, str]], is_slow: bool) -> None:
    speed = judge_speed([make_ratio(ratio, partners) for ratio, partners in ratios], NOW, DAYS)
    assert speed and speed.is_slow is is_slow


def test_node_without_step_times_has_no_speed() -> None:
    assert judge_speed([], NOW, DAYS) is None
    assert judge_speed([make_ratio(1.2, "x", days_ago=29)], NOW, DAYS) is None


def test_rank_that_is_mostly_the_slowest_is_named() -> None:
    ranks = [make_ratio(1.2, partners, local_rank=5) for partners in "xyz"]
    speed = judge_speed([*ranks, make_ratio(1.2, "w", local_rank=1)], NOW, DAYS)
    assert str(speed) == "1.20x slow (local rank 5)"


def simulate(rng: random.Random, *, noise: float, slower: float) -> list[str]:
    """Return the nodes called slow of 200, after 60 attempts of 16: one GPU of node007, in six attempts, is slower.

    Ranks differ by `noise` from attempt to attempt, and attempts by their batch.
    """
    names = [f"node{number:03}" for number in range(200) if number != 7]
    stored: dict[str, list[StepTimeRatio]] = {}
    for attempt in range(60):
        usual_s = rng.uniform(0.2, 5)
        nodes = rng.sample(names, 15) + ["node007"] * (attempt % 10 == 0)
        times = {node: [usual_s * rng.gauss(1, noise) for _ in range(8)] for node in nodes}
        if "node007" in times:
            times["node007"][3] *= 1 + slower
        for node, ratio in compare_nodes(make_times(times), NOW - timedelta(hours=attempt)).items():
            stored.setdefault(node, []).append(ratio)
    speeds = {node: judge_speed(ratios, NOW, DAYS) for node, ratios in stored.items()}
    return [node for node, speed in speeds.items() if speed and speed.is_slow]


def test_weeks_of_attempts_show_the_slow_node_alone() -> None:
    assert simulate(random.Random(5), noise=0.02, slower=0.2) == ["node007"]


def test_weeks_of_healthy_nodes_show_none() -> None:
    assert simulate(random.Random(6), noise=0.05, slower=0) == []


@pytest.fixture
def history(tmp_path: Path) -> NodeHistory:
    return NodeHistory(site=SiteDir(tmp_path / ".site"), clock=FakeClock(NOW))


def test_ratios_are_stored_once_per_attempt(history: NodeHistory) -> None:
    ratios = compare_nodes(make_times({"a": [1.0], "b": [1.5], "c": [1.0]}), NOW)
    for _ in range(2):
        history.note_step_times("gpt/12_1.0", ratios)
    assert history.read("b").step_times == {"gpt/12_1.0": ratios["b"]}
    history.forget_baseline(["b"])
    assert history.read("b").step_times == {"gpt/12_1.0": ratios["b"]}


def test_newest_attempts_are_kept(history: NodeHistory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opsctl.nodes.history.MAX_STEP_TIMES", 3)
    for number in range(5):
        history.note_step_times(f"gpt/12_{number}.0", {"a": make_ratio(1.0, "x", days_ago=20 - number)})
    assert list(history.read("a").step_times) == ["gpt/12_2.0", "gpt/12_3.0", "gpt/12_4.0"]


def test_slow_node_has_no_score(history: NodeHistory) -> None:
    for number, partners in enumerate("xyz"):
        history.note_step_times(f"gpt/12_{number}.0", {"a": make_ratio(3.0, partners)})
    assert node_score(history.read("a"), {}, NOW, DAYS) == 0


@pytest.mark.parametrize("field", ['"ratio": "x"', '"ratio": NaN', '"local_rank": null', '"at": 1e400'])
def test_record_with_odd_step_times_is_empty(history: NodeHistory, field: str) -> None:
    history.note_step_times("gpt/12_1.0", {"a": make_ratio(1.0, "x")})
    path = history.site.nodes / "node" / "a.json"
    path.write_text(path.read_text().replace('"local_rank":0', f'"local_rank":0,{field}'))
    assert history.read("a") == NodeRecord(node="a")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"rank": 1}', to_json(make_times({"n": [1.0]})[0]).replace("1.0", "-1")]
)
def test_files_that_are_no_step_times_are_left_out(tmp_path: Path, text: str) -> None:
    (good,) = make_times({"a": [0.5]})
    (tmp_path / "0.json").write_text(to_json(good))
    (tmp_path / "1.json").write_text(text)
    (tmp_path / "2.json").write_text(to_json(make_times({"elsewhere": [0.5]})[0]))
    (tmp_path / "3.json").symlink_to(tmp_path / "0.json")
    assert read_times(tmp_path, {"a", "n"}) == [good]
    assert read_times(tmp_path / "gone", {"a"}) == []


if __name__ == "__main__":
    for noise in (0.01, 0.02, 0.05):
        for slower in (0.0, 0.1, 0.15, 0.2, 0.3):
            called = [simulate(random.Random(seed), noise=noise, slower=slower) for seed in range(100)]
            found = sum("node007" in nodes for nodes in called)
            wrong = sum(len(set(nodes) - {"node007"}) for nodes in called)
            text = f"noise {noise:.0%}, slower by {slower:.0%}: found {found} %, wrong {wrong}"
            print(text)  # noqa: T201 (a script)
