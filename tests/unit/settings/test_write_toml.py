"""Settings survive a round trip through TOML text."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.settings.write_toml import dump_toml, set_keys
from tests.support.cases import read_cases

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = st.one_of(
    TEXT,
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.sampled_from(["\x7f", "\0", "\\"]),
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))


@given(st.dictionaries(TEXT, VALUES, max_size=5))
def test_settings_survive(settings: dict[str, Any]) -> None:
    assert tomllib.loads(dump_toml(settings)) == settings


@pytest.mark.parametrize("value", [object(), b"bytes", "\ud800", {1: 2}])
def test_value_without_toml_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r".+"):
        dump_toml({"key": value})


def test_none_is_left_out() -> None:
    assert dump_toml({"a": None, "b": 1}) == "b = 1\n"


FILE = (
    'name = "x"  # the name\n[rollback]  # words\nstep_argument = "--s {step}"\nstep = 1\n[slurm]\nnodes = 1  # one\n'
)


def test_keys_of_a_table_are_set_and_removed() -> None:
    changed = set_keys(FILE, "rollback", {"step": None, "skip_samples": ("1-2",)})
    assert changed == FILE.replace("step = 1\n", 'skip_samples = ["1-2"]\n')


def test_missing_table_is_appended() -> None:
    assert set_keys("a = 1\n[b]\nc = 2\n", "rollback", {"step": 4}) == "a = 1\n[b]\nc = 2\n\n[rollback]\nstep = 4\n"


@pytest.mark.parametrize(*read_cases(__file__, "table_in_another_form_is_changed"))
def test_table_in_another_form_is_changed(text: str) -> None:
    changed = set_keys(text, "rollback", {"step": 2, "skip_samples": None})
    assert tomllib.loads(changed) == {**tomllib.loads(text), "rollback": {"step": 2}}
