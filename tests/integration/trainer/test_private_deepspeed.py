"""Private parts of DeepSpeed: used by one module, and there in the installed release."""

import re
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.integration.trainer.conftest import ROOT
from tests.support.cases import read_table


def test_private_parts_are_used_by_one_module_and_exist():
    pytest.importorskip("deepspeed")
    private, run_with = read_table(__file__, "private"), read_table(__file__, "run_with")
    place, names = Path(find_spec("deepspeed").origin).parent, {f".{name}" for row in private.values() for name in row}
    trainer = {path.name: path.read_text() for path in (ROOT / "trainer").rglob("*.py")}
    assert [file for file, text in trainer.items() if any(map(text.__contains__, names))] == ["deepspeed_private.py"]
    missing = [
        name
        for file, row in private.items()
        for name in row
        if not re.search(rf"\b{name}\b", (place / file).read_text())
    ]
    pins = (ROOT / "Makefile").read_text()
    assert all(f"\n{name.upper()} ?= {release}\n" in pins for name, release in run_with.items())
    assert missing == [], f"the trainer was run with {run_with}, and this is deepspeed {version('deepspeed')}"
