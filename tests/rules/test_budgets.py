"""How the code should read, as far as it can be counted. `pytest tests/rules`"""

import ast
import re
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = [path for package in ("opsctl", "trainer", "watchdogs") for path in sorted((ROOT / package).rglob("*.py"))]
EVERYTHING = [*CODE, *sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "benchmarks").rglob("*.py"))]


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_the_median_file_has_at_most_a_hundred_lines() -> None:
    assert statistics.median(n for path in CODE if (n := lines(path)) > 5) <= 100


@pytest.mark.parametrize("path", EVERYTHING, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_has_more_than_four_hundred_lines(path: Path) -> None:
    assert lines(path) <= 400


def functions() -> list[tuple[Path, ast.FunctionDef]]:
    found = []
    for path in CODE:
        found += [(path, node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    return found


def test_the_median_function_has_at_most_eight_lines() -> None:
    assert statistics.median((node.end_lineno or 0) - node.lineno + 1 for _, node in functions()) <= 10


def test_functions_fit_a_screen() -> None:
    long = [f"{path.name}:{node.name}" for path, node in functions() if (node.end_lineno or 0) - node.lineno >= 60]
    assert long == []


SUPPRESSION = re.compile(r"#\s*(noqa|type:\s*ignore)(?P<rest>.*)")


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_suppression_says_why(path: Path) -> None:
    silent = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = SUPPRESSION.search(line)
        if match and not re.search(r"\(.{6,}|[-#] .{6,}", match["rest"]):
            silent.append(f"{path.name}:{number}: {line.strip()}")
    assert silent == []


def test_no_name_says_manager_helper_utils_or_impl() -> None:
    names = {node.name for path in CODE for node in ast.walk(ast.parse(path.read_text()))
             if isinstance(node, ast.ClassDef | ast.FunctionDef)} | {path.stem for path in CODE}  # fmt: skip
    assert [name for name in names if re.search(r"manager|helper|utils?$|impl$", name, re.IGNORECASE)] == []


def test_nothing_names_a_path_of_somebodys_machine() -> None:
    tracked = [path for path in EVERYTHING if path != Path(__file__)]
    texts = [*tracked, *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "templates").rglob("*.j2")]
    assert [str(path) for path in texts if re.search(r"/home/(?!me\b)\w+/|/root/", path.read_text())] == []
