"""`import opsctl` is light, because every rank and every command does it."""

import subprocess
import sys

import pytest

import opsctl


def list_modules(statement: str) -> set[str]:
    program = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    argv = [sys.executable, "-P", "-c", program]
    return set(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split())


def test_import_loads_nothing_else() -> None:
    assert list_modules("import opsctl") <= {"opsctl", "__future__"}


def test_public_names_are_listed_and_exist() -> None:
    assert {"Train", "errors"} <= set(dir(opsctl))
    assert all(getattr(opsctl, name) for name in opsctl.__all__)
    with pytest.raises(AttributeError):
        _ = opsctl.train_of_thought
