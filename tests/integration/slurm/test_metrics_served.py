"""Metrics of trains in a real queue, fetched by HTTP from an opsctl process."""

import re
import subprocess
import sys
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from tests.support.trains import Trains


def test_metrics_of_a_queue_are_served(trains: Trains) -> None:
    trains.opsctl("launch", trains.toml(tasks=3))
    argv = [sys.executable, "-P", "-m", "opsctl", "--site", str(trains.site), "metrics", "--listen", "127.0.0.1:0"]
    with subprocess.Popen([*argv], stdout=subprocess.PIPE, text=True, env=None) as process:
        try:
            assert process.stdout is not None
            match = re.fullmatch(r"serving (http://127\.0\.0\.1:\d+/metrics) until Ctrl-C\n", process.stdout.readline())
            assert match is not None
            with urllib.request.urlopen(match[1], timeout=250) as answer:
                text = answer.read().decode()
        finally:
            process.terminate()
    values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values[sample.name, sample.labels.get("state") or sample.labels.get("reason")] = sample.value
    assert values["opsctl_slurm_up", None] == 1
    assert values["opsctl_train_state", "held"] == 1
    assert values["opsctl_train_tasks", "waiting"] == 3
    assert values["opsctl_train_waiting_tasks", "JobHeldUser"] == 3
