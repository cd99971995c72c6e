"""Metrics: read by Prometheus's own parser, fetched over HTTP and used by the dashboard."""

import itertools
import json
import math
import re
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from opsctl.base.errors import InputError, OpsctlError
from opsctl.cli import cli
from opsctl.cli.metrics import MAX_LOG_BYTES
from opsctl.host.system import SystemClock
from opsctl.metrics.collect import effective, gather
from opsctl.metrics.prometheus import FAMILIES, FRESH_S, Fresh, MetricSample, exposition, listen, parse_address
from opsctl.state.journal import Journal
from opsctl.telemetry.progress.effective_time import Bucket
from tests.support.cases import read_table
from tests.support.made_events import make_diagnosed
from tests.unit.metrics.conftest import LINE, MetricsSite

DASHBOARD = Path(__file__).parents[3] / "templates" / "grafana" / "opsctl.json"
RULES = DASHBOARD.parents[1] / "prometheus" / "opsctl.yml"


def read(text: str) -> dict[tuple[str, ...], float]:
    """Return samples by name and label values, the train first, as Prometheus's own parser reads them."""
    values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = sorted(sample.labels, key="train".__ne__)
            values[sample.name, *(sample.labels[label] for label in labels)] = sample.value
    return values


def gather_all(metrics_site: MetricsSite) -> dict[tuple[str, ...], float]:
    return read(exposition([*gather(metrics_site.app), *effective(metrics_site.app)]))


def run_metrics(metrics_site: MetricsSite, *words: str) -> str:
    result = CliRunner().invoke(cli, ["metrics", *words], obj=metrics_site.app, standalone_mode=False)
    if result.exception:
        raise result.exception
    return result.output


def test_metrics_of_a_running_train(metrics_site: MetricsSite) -> None:
    samples = gather_all(metrics_site)
    expected = {tuple(name.split()): value for name, value in read_table(__file__, "samples").items()} | {
        ("opsctl_train_heartbeat_timestamp_seconds", "gpt"): metrics_site.now.timestamp(),
        ("opsctl_cron_last_tick_timestamp_seconds",): round(metrics_site.now.timestamp() - 60),
    }
    assert {key: samples.get(key) for key in expected} == expected


def test_open_alert_has_its_start_and_train(metrics_site: MetricsSite) -> None:
    samples = gather_all(metrics_site)
    started = samples["opsctl_alert_timestamp_seconds", "gpt", "hang/gpt", "critical"]
    assert started == pytest.approx(metrics_site.now.timestamp(), abs=60)


def test_unreadable_node_records_leave_the_rest(metrics_site: MetricsSite) -> None:
    (path,) = (metrics_site.app.site_dir.nodes / "node").glob("*.json")
    path.write_text("{")
    samples = gather_all(metrics_site)
    assert ("opsctl_nodes", "faulty") not in samples
    assert samples["opsctl_train_up", "gpt"] == 1


def test_excluded_node_has_its_reason_and_end(metrics_site: MetricsSite) -> None:
    samples = gather_all(metrics_site)
    until = samples["opsctl_node_excluded_until_timestamp_seconds", "node002", "GPU fell off the bus"]
    assert until == pytest.approx(metrics_site.now.timestamp() + 24 * 3600, abs=60)


def test_dashboard_has_annotations_and_thresholds() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    exprs = [annotation["expr"] for annotation in dashboard["annotations"]["list"]]
    assert set(re.findall(r"opsctl_\w+", " ".join(exprs))) == {
        "opsctl_train_ends_total",
        "opsctl_alert_timestamp_seconds",
    }
    with_limits = [p for p in dashboard["panels"] if p["fieldConfig"]["defaults"].get("thresholds")]
    assert len(with_limits) >= 8


def test_complete_train_has_every_metric(metrics_site: MetricsSite) -> None:
    assert {key[0] for key in gather_all(metrics_site)} == set(FAMILIES)


def test_wall_clock_by_cause(metrics_site: MetricsSite) -> None:
    samples = gather_all(metrics_site)
    spent = {key[2]: value for key, value in samples.items() if key[0] == "opsctl_train_spent_seconds"}
    assert set(spent) == {bucket.value for bucket in Bucket}
    wall = sum(spent.values())
    assert samples["opsctl_train_effective_ratio", "gpt", "with"] == pytest.approx(spent["training"] / wall)
    assert "opsctl_train_spent_seconds" not in run_metrics(metrics_site, "--quick")
    assert "opsctl_train_spent_seconds" in run_metrics(metrics_site)


def test_without_slurm_only_file_metrics(metrics_site: MetricsSite) -> None:
    metrics_site.queue.rows = None
    samples = gather_all(metrics_site)
    assert samples["opsctl_slurm_up",] == 0
    assert not [key for key in samples if key[0] in {"opsctl_train_state", "opsctl_train_tasks"}]
    assert samples["opsctl_train_step", "gpt"] == 200


def test_unreadable_train_does_not_hide_the_others(metrics_site: MetricsSite) -> None:
    broken = metrics_site.run.path.with_name("broken")
    broken.mkdir()
    (broken / "train.toml").write_text("")
    (broken / "logs").mkdir()
    (broken / "journal").mkdir()
    (broken / "journal" / "here.jsonl").mkdir()
    samples = gather_all(metrics_site)
    assert (samples["opsctl_train_up", "broken"], samples["opsctl_train_up", "gpt"]) == (0, 1)


def test_train_that_never_ran_has_a_state_and_no_step(metrics_site: MetricsSite) -> None:
    metrics_site.run.main_log.unlink()
    (metrics_site.run.heartbeat / "train.json").unlink()
    shutil.rmtree(metrics_site.run.checkpoints)
    samples = gather_all(metrics_site)
    assert ("opsctl_train_step", "gpt") not in samples
    assert samples["opsctl_train_state", "gpt", "running"] == 1


def test_nan_loss_is_exported(metrics_site: MetricsSite) -> None:
    with metrics_site.run.main_log.open("a") as log:
        log.write(LINE.format(201, 1, "nan"))
    assert math.isnan(gather_all(metrics_site)["opsctl_train_loss", "gpt"])


@pytest.mark.parametrize("name", ['a"b\\c\nd', "é", "\udcff"])
def test_label_may_hold_any_text(name: str) -> None:
    samples = read(exposition([MetricSample("opsctl_train_up", 1, {"train": name})]))
    assert list(samples.values()) == [1]


def test_textfile_is_whole_and_readable(metrics_site: MetricsSite, tmp_path: Path) -> None:
    path = tmp_path / "opsctl.prom"
    path.write_text("old\n")
    run_metrics(metrics_site, "--textfile", str(path))
    assert read(path.read_text())["opsctl_train_step", "gpt"] == 200
    assert path.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in tmp_path.glob("*.prom*")] == ["opsctl.prom"]


def test_textfile_needs_the_suffix_prom(metrics_site: MetricsSite) -> None:
    with pytest.raises(InputError, match="reads only names that end in"):
        run_metrics(metrics_site, "--textfile", "opsctl.txt")


def test_metrics_are_printed_by_default(metrics_site: MetricsSite) -> None:
    assert read(run_metrics(metrics_site))["opsctl_train_step", "gpt"] == 200
    assert {sample["name"] for sample in json.loads(run_metrics(metrics_site, "--json"))} >= {"opsctl_train_loss"}


def test_effective_time_of_a_large_log_is_left_to_the_server(metrics_site: MetricsSite) -> None:
    assert ("opsctl_train_effective_ratio", "gpt", "with") in read(run_metrics(metrics_site))
    with next(metrics_site.app.root.glob("gpt/logs/main_log.txt")).open("r+") as log:
        log.truncate(MAX_LOG_BYTES + 1)
    assert not [name for name in read(run_metrics(metrics_site)) if "effective" in name[0]]


@pytest.fixture
def server(metrics_site: MetricsSite) -> Iterator[str]:
    server, url = listen(("127.0.0.1", 0), Fresh(lambda: gather(metrics_site.app), SystemClock()))
    yield url
    server.shutdown()
    server.server_close()


def test_metrics_are_served_over_http(server: str) -> None:
    with urllib.request.urlopen(server, timeout=250) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        assert read(answer.read().decode())["opsctl_train_step", "gpt"] == 200


def test_requests_share_a_fresh_result(metrics_site: MetricsSite) -> None:
    collections = []

    class FakeClock(SystemClock):
        time = 0.0

        def monotonic(self) -> float:
            return self.time

    clock = FakeClock()
    fresh = Fresh(lambda: collections.append(1) or [], clock)  # type: ignore[func-returns-value]  # append returns None
    for clock.time in (0, 1, FRESH_S, FRESH_S + 1):
        list(fresh.collect())
    assert len(collections) == 2


@pytest.mark.parametrize(
    "text", ["0.0.0.0:9400", "9400", "192.168.1.1:9400", "127.0.0.1:x", "127.0.0.1:70000", ":9400"]
)
def test_server_listens_on_loopback_only(text: str) -> None:
    with pytest.raises(InputError, match="needs a loopback address and a port"):
        parse_address(text)


def test_loopback_addresses_are_parsed() -> None:
    addresses = [parse_address(text) for text in ("127.0.0.1:1", "localhost:2", "[::1]:3")]
    assert addresses == [("127.0.0.1", 1), ("127.0.0.1", 2), ("::1", 3)]


def test_used_port_is_reported(server: str) -> None:
    port = int(server.split(":")[2].partition("/")[0])
    with pytest.raises(OpsctlError, match="Address already in use"):
        listen(("127.0.0.1", port), Fresh(list, SystemClock()))


def read_queries() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    targets = itertools.chain.from_iterable(panel["targets"] for panel in panels)
    return [target["expr"] for target in targets]


def test_dashboard_shows_every_metric() -> None:
    assert [name for name in FAMILIES if not any(re.search(rf"{name}\b", expr) for expr in read_queries())] == []


def test_dashboard_panels_do_not_overlap() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = []
    for panel in panels:
        position = panel["gridPos"]
        columns = range(position["x"], position["x"] + position["w"])
        rows = range(position["y"], position["y"] + position["h"])
        cells += itertools.product(columns, rows)
    assert len(set(cells)) == len(cells)
    assert max(column for column, _ in cells) < 24


def test_ends_and_losses_have_their_cause(metrics_site: MetricsSite) -> None:
    diagnosed = make_diagnosed(attempt="12_1.0", cause_kind="node", cause="gpu-fell-off")
    Journal(metrics_site.run, SystemClock()).append(diagnosed)
    samples = gather_all(metrics_site)
    ends = {key[2]: value for key, value in samples.items() if key[0] == "opsctl_train_ends_total"}
    assert ends == {"gpu-fell-off": 1, "deadline": 2}
    lost = sum(value for key, value in samples.items() if key[0] == "opsctl_train_lost_seconds")
    spent = {key[2]: value for key, value in samples.items() if key[0] == "opsctl_train_spent_seconds"}
    assert lost == pytest.approx(sum(spent.values()) - spent["training"])


def read_rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def test_dashboard_and_rules_use_existing_metrics_and_labels() -> None:
    for expr in [*read_queries(), *(rule["expr"] for rule in read_rules())]:
        assert set(re.findall(r"opsctl_\w+", expr)) <= set(FAMILIES), expr
        for name, labels in re.findall(r"(opsctl_\w+)\{([^}]*)\}", expr):
            assert set(re.findall(r"(\w+)[=!]", labels)) <= set(FAMILIES[name].labels), expr


def test_rules_name_severity_and_next_step() -> None:
    for rule in read_rules():
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert {"summary", "description"} == set(rule["annotations"])
