"""The alert rules, checked and tried by Prometheus's own promtool."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RULES = ROOT / "templates" / "prometheus" / "opsctl.yml"
DASHBOARD = ROOT / "templates" / "grafana" / "opsctl.json"
TESTS = ROOT / "tests" / "corpus" / "prometheus" / "rules_test.yml"
pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool: apt-get install prometheus")


def promtool(*words: str) -> str:
    done = subprocess.run(["promtool", *words], check=False, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_accepts_the_rules() -> None:
    assert "14 rules found" in promtool("check", "rules", str(RULES))


def test_rules_fire_when_they_should(tmp_path: Path) -> None:
    shutil.copy(RULES, tmp_path / "opsctl.yml")
    shutil.copy(TESTS, tmp_path / "tests.yml")
    assert "SUCCESS" in promtool("test", "rules", str(tmp_path / "tests.yml"))


def test_promtool_parses_every_query_of_the_dashboard(tmp_path: Path) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [annotation["expr"] for annotation in dashboard["annotations"]["list"]]
    for panel in dashboard["panels"]:
        queries += [target["expr"] for target in panel["targets"]]
    rules = [{"record": f"query_{number}", "expr": expr} for number, expr in enumerate(queries)]
    path = tmp_path / "dashboard.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # JSON is YAML
    assert f"{len(queries)} rules found" in promtool("check", "rules", str(path))
