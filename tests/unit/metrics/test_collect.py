"""Metrics: read back by Prometheus's own parser, fetched over real HTTP, and all that the dashboard asks for."""

import json
import math
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from opsctl.cli import cli
from opsctl.errors import InputError, OpsctlError
from opsctl.host.system import SystemClock
from opsctl.metrics.collect import effective, gather
from opsctl.metrics.families import FAMILIES, MetricSample, exposition
from opsctl.metrics.serve import FRESH_S, Fresh, listen, parse_address
from opsctl.telemetry.progress.effective_time import Bucket
from tests.unit.metrics.conftest import LINE, Place

DASHBOARD = Path(__file__).parents[3] / "templates" / "grafana" / "opsctl.json"


def read(text: str) -> dict[tuple[str, ...], float]:
    """Each sample by its name and the values of its labels, the train first, as Prometheus's own parser reads it."""
    return {
        (sample.name, *(sample.labels[label] for label in sorted(sample.labels, key="train".__ne__))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def told(place: Place) -> dict[tuple[str, ...], float]:
    return read(exposition([*gather(place.app), *effective(place.app)]))


def verb(place: Place, *words: str) -> str:
    done = CliRunner().invoke(cli, ["metrics", *words], obj=place.app, standalone_mode=False)
    if done.exception:
        raise done.exception
    return done.output


def test_what_is_known_of_a_running_train(place: Place) -> None:
    found = told(place)
    expected = {
        ("opsctl_slurm_up",): 1,
        ("opsctl_train_up", "gpt"): 1,
        ("opsctl_train_state", "gpt", "running"): 1,
        ("opsctl_train_state", "gpt", "held"): 0,
        ("opsctl_train_tasks", "gpt", "running"): 1,
        ("opsctl_train_tasks", "gpt", "waiting"): 2,
        ("opsctl_train_waiting_tasks", "gpt", "JobArrayTaskLimit"): 2,
        ("opsctl_train_attempts_total", "gpt", "crashed"): 1,
        ("opsctl_train_attempts_total", "gpt", "deadline"): 2,
        ("opsctl_train_step", "gpt"): 200,
        ("opsctl_train_last_step", "gpt"): 1000,
        ("opsctl_train_loss", "gpt"): 8,
        ("opsctl_train_tokens", "gpt"): 200 * 2048,
        ("opsctl_train_step_seconds", "gpt"): 2,
        ("opsctl_train_usual_step_seconds", "gpt"): 2,
        ("opsctl_train_tflops", "gpt"): 150,
        ("opsctl_train_usual_tflops", "gpt"): 150,
        ("opsctl_train_left_seconds", "gpt", "likely"): 1600,
        ("opsctl_train_heartbeat_timestamp_seconds", "gpt"): place.now.timestamp(),
        ("opsctl_train_checkpoint_step", "gpt"): 150,
        ("opsctl_train_next_checkpoint_step", "gpt"): 250,
        ("opsctl_alerts_open", "critical"): 1,
        ("opsctl_alerts_open", "warning"): 0,
        ("opsctl_cron_last_tick_timestamp_seconds",): round(place.now.timestamp() - 60),
    }
    assert {key: found.get(key) for key in expected} == expected


def test_complete_train_has_every_metric(place: Place) -> None:
    assert {key[0] for key in told(place)} == set(FAMILIES)


def test_wall_clock_by_cause(place: Place) -> None:
    found = told(place)
    spent = {key[2]: value for key, value in found.items() if key[0] == "opsctl_train_spent_seconds"}
    assert set(spent) == {bucket.value for bucket in Bucket}
    wall = sum(spent.values())
    assert found["opsctl_train_effective_ratio", "gpt", "with"] == pytest.approx(spent["training"] / wall)
    assert "opsctl_train_spent_seconds" not in verb(place, "--quick")
    assert "opsctl_train_spent_seconds" in verb(place)


def test_without_slurm_only_file_metrics(place: Place) -> None:
    place.queue.rows = None
    found = told(place)
    assert found["opsctl_slurm_up",] == 0
    assert not [key for key in found if key[0] in {"opsctl_train_state", "opsctl_train_tasks"}]
    assert found["opsctl_train_step", "gpt"] == 200


def test_a_train_that_cannot_be_read_hides_no_other(place: Place) -> None:
    broken = place.run.path.with_name("broken")
    broken.mkdir()
    (broken / "train.toml").write_text("")
    (broken / "logs").mkdir()
    (broken / "journal").mkdir()
    (broken / "journal" / "here.jsonl").mkdir()
    found = told(place)
    assert (found["opsctl_train_up", "broken"], found["opsctl_train_up", "gpt"]) == (0, 1)


def test_a_train_that_never_ran_has_a_state_and_no_step(place: Place) -> None:
    place.run.main_log.unlink()
    (place.run.heartbeat / "train.json").unlink()
    found = told(place)
    assert ("opsctl_train_step", "gpt") not in found
    assert found["opsctl_train_state", "gpt", "running"] == 1


def test_a_loss_that_is_no_number_is_told_as_such(place: Place) -> None:
    with place.run.main_log.open("a") as log:
        log.write(LINE.format(201, 1, "nan"))
    assert math.isnan(told(place)["opsctl_train_loss", "gpt"])


@pytest.mark.parametrize("name", ['a"b\\c\nd', "é", "\udcff"])
def test_a_label_may_be_anything(name: str) -> None:
    found = read(exposition([MetricSample("opsctl_train_up", 1, {"train": name})]))
    assert list(found.values()) == [1]


def test_a_textfile_is_whole_and_for_node_exporter_to_read(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "opsctl.prom"
    path.write_text("old\n")
    verb(place, "--textfile", str(path))
    assert read(path.read_text())["opsctl_train_step", "gpt"] == 200
    assert path.stat().st_mode & 0o777 == 0o644
    assert [each.name for each in tmp_path.glob("*.prom*")] == ["opsctl.prom"]


def test_a_textfile_that_node_exporter_would_not_read_is_refused(place: Place) -> None:
    with pytest.raises(InputError, match="reads only names that end in"):
        verb(place, "--textfile", "opsctl.txt")


def test_without_a_place_they_are_printed(place: Place) -> None:
    assert read(verb(place))["opsctl_train_step", "gpt"] == 200
    assert {load["name"] for load in json.loads(verb(place, "--json"))} >= {"opsctl_train_loss"}
    assert "opsctl_train_loss{train}" in verb(place, "--list")


@pytest.fixture
def server(place: Place) -> Iterator[str]:
    server, url = listen(("127.0.0.1", 0), Fresh(lambda: gather(place.app), SystemClock()))
    yield url
    server.shutdown()
    server.server_close()


def test_they_are_fetched_over_http(server: str) -> None:
    with urllib.request.urlopen(server, timeout=100) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        assert read(answer.read().decode())["opsctl_train_step", "gpt"] == 200


def test_many_who_ask_are_one_look(place: Place) -> None:
    looks = []

    class Hands(SystemClock):
        time = 0.0

        def monotonic(self) -> float:
            return self.time

    clock = Hands()
    fresh = Fresh(lambda: looks.append(1) or [], clock)  # type: ignore[func-returns-value]  # append's None is the point
    for clock.time in (0, 1, FRESH_S, FRESH_S + 1):
        list(fresh.collect())
    assert len(looks) == 2


@pytest.mark.parametrize(
    "text", ["0.0.0.0:9400", "9400", "192.168.1.1:9400", "127.0.0.1:x", "127.0.0.1:70000", ":9400"]
)
def test_only_this_machine_is_listened_to(text: str) -> None:
    with pytest.raises(InputError, match="needs a loopback address and a port"):
        parse_address(text)


def test_addresses_of_this_machine() -> None:
    found = [parse_address(text) for text in ("127.0.0.1:1", "localhost:2", "[::1]:3")]
    assert found == [("127.0.0.1", 1), ("127.0.0.1", 2), ("::1", 3)]


def test_a_port_that_is_taken_is_said(server: str) -> None:
    port = int(server.split(":")[2].partition("/")[0])
    with pytest.raises(OpsctlError, match="Address already in use"):
        listen(("127.0.0.1", port), Fresh(list, SystemClock()))


def asked() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_dashboard_queries_existing_metrics() -> None:
    names = {name for expr in asked() for name in re.findall(r"opsctl_\w+", expr)}
    assert names - set(FAMILIES) == set()


def test_the_dashboard_shows_everything_that_there_is() -> None:
    assert [name for name in FAMILIES if not any(re.search(rf"{name}\b", expr) for expr in asked())] == []


def test_the_dashboard_picks_labels_that_there_are() -> None:
    for expr in asked():
        for name, labels in re.findall(r"(opsctl_\w+)\{([^}]*)\}", expr):
            used = {each.partition("=")[0].rstrip("~!") for each in labels.split(",")}
            assert used <= set(FAMILIES[name].labels), expr


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [(x, y) for p in panels for g in [p["gridPos"]]
             for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])]  # fmt: skip
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24
