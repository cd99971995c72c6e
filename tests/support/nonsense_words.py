"""A plugin of pytest that replaces opsctl's words by nonsense: what decides on words then decides otherwise.

Nonsense are the sentences and advice of the package's tables, the words of reasons, and, in the modules of opsctl, the
texts of exceptions, of arguments such as `why` and `hint`, and of functions that describe. Values in the texts stay.
"""

import ast
import codecs
import importlib.abc
import importlib.machinery
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.base import tables

TESTS_OF_WORDS = Path(__file__).with_name("tests_of_words.txt")
FIELDS = frozenset(
    ("advice", "detail", "doubt", "hint", "message", "note", "problem", "says", "summary", "text", "why")
)
TABLE_FIELDS = frozenset(("advice", "meaning", "once_excluded", "remedy", "says", "what", "why"))
DESCRIBES = re.compile(r"_?(describe|explain|name|why)_.*|.*_why")
ERROR = re.compile(r"\w*(Error|Busy|Unreachable|NotAllowed|Refused|TimedOut|Missing\w+|Damaged)")


def garble(text: str) -> str:
    """Return other words. One word alone may be a value."""
    return codecs.encode(text, "rot13") if " " in text.strip() else text


def garble_table(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: garble_table(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [garble_table(item, name) for item in value]
    return "floop at step 7" if name in TABLE_FIELDS and isinstance(value, str) and " " in value else value


class Garbler(ast.NodeTransformer):
    """Garbles the literals of expressions that make texts for people."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        for keyword in node.keywords:
            if keyword.arg in FIELDS:
                garble_literals(keyword.value)
        if ERROR.fullmatch(name):
            for argument in node.args:
                garble_literals(argument)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if DESCRIBES.match(node.name):
            for part in ast.walk(node):
                if isinstance(part, ast.Return | ast.Yield) and part.value is not None:
                    garble_literals(part.value)
        return self.generic_visit(node)


def garble_literals(expression: ast.expr) -> None:
    """Change the literals of an expression, but not those in which it looks something up."""
    for part in list_texts(expression):
        if isinstance(part, ast.JoinedStr):
            literals = [item for item in part.values if isinstance(item, ast.Constant)]
            for literal in literals:
                literal.value = codecs.encode(str(literal.value), "rot13")
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            part.value = garble(part.value)


def list_texts(expression: ast.expr) -> Iterator[ast.expr]:
    """Yield the texts of which an expression chooses or that it joins."""
    match expression:
        case ast.IfExp(body=body, orelse=other):
            yield from (*list_texts(body), *list_texts(other))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            yield from (*list_texts(left), *list_texts(right))
        case ast.BoolOp(values=values):
            for value in values:
                yield from list_texts(value)
        case ast.JoinedStr() | ast.Constant():
            yield expression


class Loader(importlib.machinery.SourceFileLoader):
    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> Any:
        tree = ast.fix_missing_locations(Garbler().visit(ast.parse(data)))
        return compile(tree, path, "exec", dont_inherit=True)

    def get_code(self, fullname: str) -> Any:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith("opsctl."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = Loader(fullname, str(spec.origin))
        return spec


_read_table = tables.read_package_table
tables.read_package_table = lambda name: garble_table(_read_table(name))
sys.meta_path.insert(0, Finder())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the tests that read the words themselves."""
    names = set(TESTS_OF_WORDS.read_text().split())
    collected = {item.nodeid.partition("[")[0] for item in items}
    files = {name.partition("::")[0] for name in collected}
    gone = [name for name in names - collected if name.partition("::")[0] in files]
    if gone:
        raise pytest.UsageError(f"{TESTS_OF_WORDS.name} names tests that are gone: {sorted(gone)}")
    items[:] = [item for item in items if item.nodeid.partition("[")[0] not in names]


@pytest.fixture(autouse=True)
def _speak_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let findings and reasons say nonsense, with a number that a reader of sentences could take for a step."""
    from opsctl.base import statements  # noqa: PLC0415 (behind the finder)
    from opsctl.state import reasons  # noqa: PLC0415 (as above)

    sentences = dict.fromkeys(statements.read_sentences(), "floop at step 7 {parts}")
    monkeypatch.setattr(statements, "read_sentences", lambda: {**sentences, statements.QUOTE: "{text}"})
    monkeypatch.setattr(reasons, "_WORDS", dict.fromkeys(reasons._WORDS, "quux without progress at step 7"))
    monkeypatch.setattr(reasons, "CHANGES", dict.fromkeys(reasons.CHANGES, ("snark", "")))
