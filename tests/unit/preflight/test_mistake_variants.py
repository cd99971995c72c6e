"""The mistakes of the chronicles in the spellings of other trainers and launchers: tests/corpus/preflight/variants."""

import pytest

from opsctl.preflight.problem import read_table
from tests.support.variant_trains import read_variants

VARIANTS = read_variants()


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_variant_is_found_or_spared(variant, tmp_path):
    problems = variant.find_problems(tmp_path)
    reported = [f"{problem.kind}: {problem.what}" for problem in problems if problem.severity != "note"]
    for expected in variant.table.get("finds", []):
        check, _, part = expected.partition(":")
        assert any(line.startswith((f"{check}:", f"{check}.")) and part.strip() in line for line in reported), reported
    for check in variant.table.get("spares", []):
        assert not [line for line in reported if line.startswith((f"{check}:", f"{check}."))]


def test_variant_names_are_unique():
    names = [variant.name for variant in VARIANTS]
    assert len(names) == len(set(names)) >= 100


KEYS = {"when", "what", "remedy", "source", "of", "severity", "values"}


@pytest.mark.parametrize("check", ["startup", "chain"])
def test_every_problem_of_a_start_has_a_variant(check):
    rows = {name: row for name, row in read_table()[check].items() if isinstance(row, dict)}
    assert {f"{check}.{name}" for name in rows} <= {variant.name for variant in VARIANTS}
    assert set().union(*rows.values()) <= KEYS
