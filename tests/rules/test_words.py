"""Identifiers and layout that shared vocabulary rules out, counted by package; words that prose has too often.

`words_baseline.json` holds the findings that are left. A count may only fall: a rise fails the test, and so does a
fall, until `python -m tests.rules.test_words` writes the table again.
"""

import ast
import json
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = [path for folder in ("opsctl", "trainer", "watchdogs") for path in sorted((ROOT / folder).rglob("*.py"))]
BASELINE_FILE = Path(__file__).with_name("words_baseline.json")

RETIRED = {"life", "lives", "told", "seen", "said", "each", "asked", "kept"}
PARALLEL_FOLDERS = {
    "opsctl/cli": "a module has the name of its command",
    "opsctl/cli/plan": "a module has the name of its command",
    "opsctl/settings": "a module has the name of its table in the settings file",
    "opsctl/preflight/checks": "a check has the name of the thing that it checks",
    "opsctl/nodes/health/checks": "a check has the name of the thing that it checks",
    "opsctl/cron/drivers": "a driver has the name of its value of `driver` in the settings file",
}
"""Folders whose modules may share a name with a module elsewhere, with the reason."""
PARALLEL_MODULES = {
    "__init__": "Python's name",
    "__main__": "Python's name",
    "errors": "the trainer knows nothing of opsctl and has its own error tree",
    "throughput": "the watchdog watches the quantity that calc computes",
}
"""Module names that any folders may share, with the reason."""

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
Trees = dict[Path, ast.Module]
Findings = Iterator[tuple[Path, str]]


def bound_names(node: ast.AST) -> list[str]:
    """Return the identifiers that `node` itself defines: a use of a name elsewhere counts nothing."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.arg(arg=name):
            return [name]
        case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name) | ast.alias(asname=name):
            return [name] if name else []
        case ast.MatchMapping(rest=name):
            return [name] if name else []
    return []


def split_words(identifier: str) -> set[str]:
    """Return the words of a snake_case or CamelCase identifier, in lower case."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", identifier)
    return set(spaced.lower().split("_"))


def find_retired_words(trees: Trees) -> Findings:
    for path, tree in trees.items():
        for node in ast.walk(tree):
            yield from ((path, name) for name in bound_names(node) if split_words(name) & RETIRED)


def find_repeated_classes(trees: Trees) -> Findings:
    places = defaultdict(list)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path)
    for name, paths in places.items():
        if len(paths) > 1:
            yield from ((path, f"class {name}") for path in paths)


def find_repeated_modules(trees: Trees) -> Findings:
    modules = [path for path in trees if str(path.parent.relative_to(ROOT)) not in PARALLEL_FOLDERS]
    stems = Counter(path.stem for path in modules)
    for path in modules:
        if stems[path.stem] > 1 and path.stem not in PARALLEL_MODULES:
            yield path, f"module {path.stem}"


def find_format_skips(trees: Trees) -> Findings:
    for path in trees:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(r"# fmt: (skip|off)", line):
                yield path, f"line {number}: {line.strip()[-40:]}"


def find_nested_conditionals(trees: Trees) -> Findings:
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.IfExp):
                continue
            inner = [child for part in (node.body, node.test, node.orelse) for child in ast.walk(part)]
            if any(isinstance(child, ast.IfExp) for child in inner):
                yield path, f"line {node.lineno}: a conditional expression inside another"


def find_double_comprehensions(trees: Trees) -> Findings:
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, COMPREHENSIONS) and len(node.generators) > 1:
                yield path, f"line {node.lineno}: a comprehension with {len(node.generators)} `for`"


RULES: dict[str, Callable[[Trees], Findings]] = {
    "retired words in identifiers": find_retired_words,
    "class names used twice": find_repeated_classes,
    "module names used twice": find_repeated_modules,
    "fmt: skip": find_format_skips,
    "nested conditional expressions": find_nested_conditionals,
    "comprehensions with more than one for": find_double_comprehensions,
}


def package(path: Path) -> str:
    """Return the folder that a count belongs to, such as `opsctl/guard` or `trainer`."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[: 2 if parts[0] == "opsctl" and len(parts) > 2 else 1])


def read_trees() -> Trees:
    return {path: ast.parse(path.read_text()) for path in CODE}


def collect(rule: str, trees: Trees) -> dict[str, list[str]]:
    """Return the findings of one rule, by package."""
    findings = defaultdict(list)
    for path, text in RULES[rule](trees):
        findings[package(path)].append(f"{path.relative_to(ROOT)}: {text}")
    return dict(findings)


@pytest.fixture(scope="module")
def trees() -> Trees:
    return read_trees()


@pytest.mark.parametrize("rule", RULES)
def test_no_count_rises(rule: str, trees: Trees) -> None:
    allowed = json.loads(BASELINE_FILE.read_text()).get(rule, {})
    risen = {name: texts for name, texts in collect(rule, trees).items() if len(texts) > allowed.get(name, 0)}
    assert risen == {}, f"{rule}: more than words_baseline.json allows"


@pytest.mark.parametrize("rule", RULES)
def test_baseline_is_current(rule: str, trees: Trees) -> None:
    findings = collect(rule, trees)
    allowed = json.loads(BASELINE_FILE.read_text()).get(rule, {})
    fallen = {name: (count, len(findings.get(name, []))) for name, count in allowed.items()}
    fallen = {name: (before, now) for name, (before, now) in fallen.items() if now < before}
    assert fallen == {}, "fewer findings: write the table with `python -m tests.rules.test_words`"


VIOLATIONS = [
    ("retired words in identifiers", "def f(node_seen): pass"),
    ("retired words in identifiers", "for each in (): pass"),
    ("retired words in identifiers", "class Kept: said = 1"),
    ("retired words in identifiers", "def f(self): self._told = 1"),
    ("nested conditional expressions", "x = 1 if a else (2 if b else 3)"),
    ("comprehensions with more than one for", "x = [b for a in c for b in a]"),
    ("class names used twice", "class A: pass\nclass A: pass"),
]


@pytest.mark.parametrize(("rule", "source"), VIOLATIONS)
def test_violation_is_found(rule: str, source: str) -> None:
    assert list(RULES[rule]({CODE[0]: ast.parse(source)}))


def test_part_of_a_word_is_no_violation() -> None:
    source = "def f(unseen, foreach, lifetime, keptness): return each"
    assert list(find_retired_words({CODE[0]: ast.parse(source)})) == []


TICS = tomllib.loads(Path(__file__).with_name("tics.toml").read_text())
MAX_TICS = 10
"""Of one kind, in 100,000 words. Well-known documentation has 0 to 4."""


def read_prose() -> str:
    """Return the pages without decision records and blocks of code, the help, and the sentences of messages."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    prose = "\n".join(path.read_text() for path in pages if "adr" not in path.parts and path.name != "CHANGELOG.md")
    prose = re.sub(r"^ *```.*?^ *```", "", prose, flags=re.MULTILINE | re.DOTALL)
    for name in TICS["messages"]:
        prose += "".join(path.read_text() for path in ROOT.glob(name))
    return prose


def count_tics(prose: str) -> dict[str, float]:
    """Return how often each kind of tic stands in 100,000 words."""
    words = len(re.findall(r"[A-Za-z']+", prose))
    return {name: 1e5 * len(re.findall(tic, prose, re.IGNORECASE)) / words for name, tic in TICS["tics"].items()}


def test_prose_has_few_tics() -> None:
    assert {name: count for name, count in count_tics(read_prose()).items() if count > MAX_TICS} == {}


def test_tic_is_found() -> None:
    found = count_tics("The train goes on. A job of its own lies beside it, and nobody is told.")
    assert list(found) == list(TICS["tics"]) and all(found.values())


def write_baseline() -> None:
    """Count every finding and write the table."""
    trees = read_trees()
    table = {}
    for rule in RULES:
        table[rule] = {name: len(texts) for name, texts in sorted(collect(rule, trees).items())}
    BASELINE_FILE.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    write_baseline()
