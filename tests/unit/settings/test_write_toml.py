"""Settings survive a round trip through TOML text."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.settings.write_toml import dump_toml

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
