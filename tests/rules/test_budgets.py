"""Limits on the size of the code, its files and functions, and on names, suppressions and paths.

A limit that is reached is answered by merging and removing, not by denser lines.
"""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

from tests.rules.import_map import PRODUCT, ROOT, count_floors, find_circles, list_modules, read_imports, read_rooms

MAX_PRODUCT_LINES = 76_000
MAX_TEST_LINES = 66_000
MAX_FILE_LINES = 400
MAX_LINES_OF_COPIED_FILE = 420
"""opsctl_contract.py is one file, because users copy it beside their trainer."""
MAX_BODY_LINES = 60
MAX_LOOSE_MODULES = 8
MAX_ROOMS = 34
MAX_ARROWS = 228
MAX_FLOORS = 14
MAX_CIRCLES = 1
MAX_FILES_NAMING_SLURM_PROGRAMS = 30

CODE = list_modules(*PRODUCT)
ALL_CODE = [*CODE, *list_modules("tests", "benchmarks")]
SLURM_PROGRAM = re.compile(
    r"\b(?:sbatch|srun|salloc|scancel|squeue|sinfo|sacct|sacctmgr|scontrol|sprio|sstat|sdiag|sbcast|sattach)\b"
    r"|\b(?:SLURMD?|SBATCH|SRUN|SCANCEL|SQUEUE|SINFO)_[A-Z]"
)


def count_lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def test_code_stays_below_its_ceiling() -> None:
    assert count_lines(CODE) <= MAX_PRODUCT_LINES
    assert count_lines(list_modules("tests")) <= MAX_TEST_LINES


def test_files_are_short() -> None:
    copied = ROOT / "opsctl" / "integrations" / "opsctl_contract.py"
    assert [str(path) for path in ALL_CODE if path != copied and count_lines([path]) > MAX_FILE_LINES] == []
    assert count_lines([copied]) <= MAX_LINES_OF_COPIED_FILE


def test_rooms_stay_few_and_loosely_coupled() -> None:
    rooms = read_rooms()
    assert len([room for room in rooms if room.endswith(".py")]) <= MAX_LOOSE_MODULES
    assert len(rooms) <= MAX_ROOMS
    assert sum(map(len, rooms.values())) <= MAX_ARROWS
    assert count_floors(rooms) <= MAX_FLOORS
    assert len(find_circles(read_imports())) <= MAX_CIRCLES


def test_slurm_programs_are_named_behind_the_adapter() -> None:
    inside = (ROOT / "opsctl" / "slurm", ROOT / "opsctl" / "sandbox")
    outside = [path for path in CODE if not path.is_relative_to(inside[0]) and not path.is_relative_to(inside[1])]
    naming = [str(path.relative_to(ROOT)) for path in outside if SLURM_PROGRAM.search(path.read_text())]
    assert len(naming) <= MAX_FILES_NAMING_SLURM_PROGRAMS, naming


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
    long = [
        f"{path.name}:{function.name}"
        for path, function in list_functions()
        if count_body_lines(function) > MAX_BODY_LINES
    ]
    assert long == []


SUPPRESSION = re.compile(r"#\s*(noqa|type:\s*ignore)(?P<rest>.*)")


def test_suppressions_have_reasons() -> None:
    unexplained = []
    for path in CODE:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = SUPPRESSION.search(line)
            if match and not re.search(r"\(.{6,}|[-#] .{6,}", match["rest"]):
                unexplained.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
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
