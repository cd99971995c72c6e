"""Limits on the size of files and functions, and on names, suppressions and paths."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def list_modules(*folders: str) -> list[Path]:
    modules = []
    for folder in folders:
        modules += sorted((ROOT / folder).rglob("*.py"))
    return modules


CODE = list_modules("opsctl", "trainer", "watchdogs")
ALL_CODE = [*CODE, *list_modules("tests", "benchmarks")]


def count_lines(path: Path) -> int:
    return len(path.read_text().splitlines())


@pytest.mark.parametrize("path", ALL_CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_file_has_at_most_400_lines(path: Path) -> None:
    assert count_lines(path) <= 400


def list_functions() -> list[tuple[Path, ast.FunctionDef]]:
    pairs = []
    for path in CODE:
        pairs += [(path, node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    return pairs


def count_body_lines(function: ast.FunctionDef) -> int:
    """Count the lines below signature and docstring; the options and help of a command do not count."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_functions_fit_a_screen() -> None:
    long = [f"{path.name}:{function.name}" for path, function in list_functions() if count_body_lines(function) > 60]
    assert long == []


SUPPRESSION = re.compile(r"#\s*(noqa|type:\s*ignore)(?P<rest>.*)")


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_suppression_has_a_reason(path: Path) -> None:
    unexplained = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = SUPPRESSION.search(line)
        if match and not re.search(r"\(.{6,}|[-#] .{6,}", match["rest"]):
            unexplained.append(f"{path.name}:{number}: {line.strip()}")
    assert unexplained == []


def test_no_name_contains_manager_helper_utils_or_impl() -> None:
    names = {path.stem for path in CODE}
    for path in CODE:
        nodes = ast.walk(ast.parse(path.read_text()))
        names |= {node.name for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    assert [name for name in names if re.search(r"manager|helper|utils?$|impl$", name, re.IGNORECASE)] == []


def test_no_text_contains_a_home_directory() -> None:
    tracked = [path for path in ALL_CODE if path != Path(__file__)]
    texts = [*tracked, *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "templates").rglob("*.j2")]
    assert [str(path) for path in texts if re.search(r"/home/(?!me\b)\w+/|/root/", path.read_text())] == []
