"""docs/reference/preflight-checks.md lists every check with its levels in the corpus and its source."""

from collections import defaultdict

from opsctl.preflight.checks import CHECKS
from opsctl.preflight.problem import ProblemLevel, read_table
from tests.support.broken_trains import ROOT, read_cases

TEXT = (ROOT / "docs" / "reference" / "preflight-checks.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("| `")]


def test_rows_have_the_order_of_the_checks():
    assert [row[0].strip("`") for row in ROWS] == list(CHECKS)


def test_rows_have_the_levels_of_the_corpus():
    levels = defaultdict(set)
    for case in read_cases():
        for level, name, _ in case.expected:
            levels[name].add(level)
    shown = {name: ", ".join(level for level in ProblemLevel if level in levels[name]) for name in CHECKS}
    assert {row[0].strip("`"): row[1] for row in ROWS} == shown


def test_rows_have_source_and_remedy():
    assert {row[0].strip("`"): row[2] for row in ROWS} == {name: read_table()[name]["source"] for name in CHECKS}
    assert [row[0] for row in ROWS if not row[3]] == []
