"""Files below the shared root are opened, read, written and listed by opsctl/state/files.py alone.

Every entry there may be another user's: a pipe, a link, a file without an end. The functions of that module refuse
those, and bound what they read.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cases import read_cases, read_table

ROOT = Path(__file__).parents[2]
PACKAGES = read_table(__file__, "packages")
METHODS = {"open", "read_text", "read_bytes", "write_text", "write_bytes", "chmod", "lchmod", "touch"}
"""Methods of Path; `os.open`, `os.chmod` and `gzip.open` have the same names."""
NO_FILES = {"ledger", "spare", "stage", "self", "Sandbox", "place"}
"""Objects of opsctl with an `open` or a `touch` of their own, which opens no file."""
ALLOWED = read_table(__file__, "allowed")


def accesses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of each call that opens, reads, writes or touches a file, or sets a mode by path."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id == "open":
            yield node.lineno, ast.unparse(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            of = ast.unparse(node.func.value).rpartition(".")[2].partition("(")[0]
            if of not in NO_FILES:
                yield node.lineno, ast.unparse(node)


def modules() -> Iterator[Path]:
    for package in PACKAGES:
        yield from (ROOT / "opsctl" / package).rglob("*.py")
    yield from (ROOT / "watchdogs").rglob("*.py")


def test_files_are_accessed_by_one_module():
    places = []
    for path in modules():
        name = str(path.relative_to(ROOT))
        if name not in ALLOWED:
            places += [f"{name}:{line}: {text}" for line, text in accesses(ast.parse(path.read_text()))]
    assert places == [], "use opsctl/state/files.py"


def test_exceptions_are_still_needed():
    idle = [name for name in ALLOWED if not list(accesses(ast.parse((ROOT / name).read_text())))]
    assert idle == [], "accesses no file any more: take it off the list"


@pytest.mark.parametrize(*read_cases(__file__, "rule_finds_an_access"))
def test_rule_finds_an_access(text):
    assert len(list(accesses(ast.parse(text)))) == 1
