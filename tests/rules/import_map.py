"""The rooms of the code, and the imports between them.

A room is a folder of opsctl, trainer, watchdogs, benchmarks, or a loose module of opsctl. An arrow leads from a room to
another of which a module imports anything, at any place in its file, for type checkers as well.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("opsctl", "trainer", "watchdogs")


def list_modules(*folders: str) -> list[Path]:
    modules: list[Path] = []
    for folder in folders:
        modules += sorted((ROOT / folder).rglob("*.py"))
    return modules


def name_module(path: Path) -> str:
    """Return the import path; trainer and watchdogs are imported as parts of opsctl, benchmarks as loose files."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] in {"trainer", "watchdogs"}:
        parts = ("opsctl", *parts)
    if parts[0] == "benchmarks" and len(parts) == 2:
        return parts[1]
    return ".".join(parts).removesuffix(".__init__")


def name_room(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:2]) if parts[0] == "opsctl" else parts[0]


def list_imports(tree: ast.AST) -> Iterator[str]:
    """Yield the imported modules, and each imported name as if it were a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            assert node.level == 0, "imports name the whole path"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def read_imports() -> Mapping[Path, frozenset[Path]]:
    """Return the files that each file imports; for the root of the package none, whose names load at first use."""
    modules = {name_module(path): path for path in list_modules(*PRODUCT, "benchmarks")}
    imports: dict[Path, frozenset[Path]] = {modules["opsctl"]: frozenset()}
    for path in set(modules.values()) - set(imports):
        targets = {find_module(name, modules) for name in list_imports(ast.parse(path.read_text()))}
        imports[path] = frozenset(target for target in targets if target and target != path)
    return imports


def find_module(name: str, modules: Mapping[str, Path]) -> Path | None:
    """Return the file of an imported name: a module, or the module that holds the name."""
    return modules.get(name) or modules.get(name.rpartition(".")[0])


@cache
def read_rooms() -> Mapping[str, frozenset[str]]:
    """Return the rooms that each room imports."""
    rooms: dict[str, set[str]] = {}
    for path, targets in read_imports().items():
        rooms.setdefault(name_room(path), set()).update(name_room(target) for target in targets)
    return {room: frozenset(targets - {room}) for room, targets in rooms.items()}


def find_circles(graph: Mapping[Path, frozenset[Path]]) -> list[list[str]]:
    """Return circles of files, as many as have to be broken one after another until none is left."""
    edges = {path: set(targets) for path, targets in graph.items()}
    circles = []
    while True:
        try:
            TopologicalSorter(edges).prepare()
        except CycleError as error:
            circle = error.args[1]
            circles.append([str(path.relative_to(ROOT)) for path in circle])
            edges[circle[1]].discard(circle[0])  # each entry is imported by the one after it
        else:
            return circles


def count_floors(rooms: Mapping[str, frozenset[str]]) -> int:
    """Return the length of the longest chain of arrows, in rooms. Raises CycleError for rooms in a circle."""
    floors: dict[str, int] = {}
    for room in TopologicalSorter(rooms).static_order():
        floors[room] = 1 + max((floors[target] for target in rooms[room]), default=0)
    return max(floors.values())
