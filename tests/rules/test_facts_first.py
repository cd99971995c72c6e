"""Code decides on values: no operation on text looks into a sentence that opsctl made.

Followed are the fields and parameters that hold such sentences, the functions that make them, and the names to which a
function binds either. What a program, a person or Slurm wrote is no such sentence, and stands below with its reason.
"""

import ast
import re
from collections.abc import Iterator

import pytest
from jinja2 import Environment, nodes

from tests.rules.import_map import PRODUCT, ROOT, list_modules
from tests.support.cases import read_table

FIELDS = frozenset(
    re.findall(
        r"\w+",
        """
advice brief checkpoint_doubt checkpoint_note concession detail details doubt evidence exit_why found_instead
headline hint in_place keep_reason lack meaning message note notes once_excluded problem problems refusal remarks remedy
repair says short subject summary title what why why_ended why_excluded why_no_train why_out
""",
    )
)
MAKERS = re.compile(r"say|say_below|format_reason|render_reason|_?(describe|explain)(_\w+)?")
KEEPERS = re.compile(r"str|sorted|list|tuple|set|lower|upper|strip|casefold|join")
"""Functions and methods whose result is as much a sentence as what they get."""
READS = frozenset(
    re.findall(
        r"\w+",
        """
count endswith find index partition removeprefix removesuffix replace rfind rindex rpartition rsplit split
splitlines startswith translate
""",
    )
)
SEARCHES = frozenset(("findall", "finditer", "fullmatch", "match", "search", "split", "sub", "subn"))
ALLOWED = read_table(__file__, "allowed")
"""By file and function: whose text it is, or why nothing is decided."""


def name_function(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def is_made(node: ast.AST, names: frozenset[str]) -> bool:
    """Return whether an expression is, or contains, a sentence of opsctl."""
    match node:
        case ast.Attribute(attr=name):
            return name in FIELDS
        case ast.Name(id=name):
            return name in names
        case ast.Call() if MAKERS.fullmatch(name_function(node)):
            return True
    return any(is_made(part, names) for part in list_parts(node))


def list_parts(node: ast.AST) -> list[ast.expr]:
    """Return the expressions of which one consists, or to one of which it leads."""
    match node:
        case ast.Call(func=func, args=arguments) if KEEPERS.fullmatch(name_function(node)):
            return [*arguments, *([func.value] if isinstance(func, ast.Attribute) else [])]
        case ast.BinOp(left=left, right=right) | ast.IfExp(body=left, orelse=right):
            return [left, right]
        case ast.BoolOp(values=parts) | ast.JoinedStr(values=parts) | ast.Tuple(elts=parts) | ast.List(elts=parts):
            return parts
        case ast.Subscript(value=part) | ast.Starred(value=part) | ast.NamedExpr(value=part):
            return [part]
        case ast.FormattedValue(value=part) | ast.GeneratorExp(elt=part) | ast.ListComp(elt=part):
            return [part]
    return []


def list_bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            yield from zip(targets, values, strict=False)
        case ast.Assign(targets=targets, value=value):
            yield from ((target, value) for target in targets)
        case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
            yield target, value
        case ast.NamedExpr(target=target, value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
            yield target, value


def find_names(function: ast.AST) -> frozenset[str]:
    """Return the names that hold sentences: of parameters, and of what the function binds to them."""
    names: set[str] = set()
    if isinstance(function, ast.FunctionDef):
        names |= {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)} & FIELDS
    bindings = [binding for node in ast.walk(function) for binding in list_bindings(node)]
    for target, value in bindings * 3:  # a name may be bound from another that stands deeper in the tree
        if is_made(value, frozenset(names)):
            names |= {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
    return frozenset(names)


def reads(node: ast.AST, names: frozenset[str]) -> bool:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=others):
            is_text = any(isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for op in ops)
            return is_text and any(is_made(side, names) for side in (left, *others))
        case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in READS and is_made(inner, names):
            return True
        case ast.Call(func=ast.Attribute(attr=name), args=arguments) if name in SEARCHES:
            return any(is_made(argument, names) for argument in arguments)
        case ast.Match(subject=subject):
            return is_made(subject, names)
    return False


def find_readings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        names = find_names(function)
        yield from ((function.name, node.lineno) for node in ast.walk(function) if reads(node, names))


def test_no_code_reads_a_sentence_of_opsctl() -> None:
    found: dict[str, list[int]] = {}
    for path in list_modules(*PRODUCT):
        for function, line in find_readings(ast.parse(path.read_text())):
            found.setdefault(f"{path.relative_to(ROOT)}:{function}", []).append(line)
    assert {place: lines for place, lines in found.items() if place not in ALLOWED} == {}
    assert [place for place in ALLOWED if ".py:" in place and place not in found] == []


def is_text(node: nodes.Node) -> bool:
    """Return whether an expression of a template is a sentence, or a part of one."""
    if isinstance(node, nodes.Filter | nodes.Getitem):
        return node.node is not None and getattr(node, "name", "") != "length" and is_text(node.node)
    return isinstance(node, nodes.Getattr) and node.attr in FIELDS | {"text", "value"}


def reads_in_template(node: nodes.Node) -> bool:
    match node:
        case nodes.Compare(expr=left, ops=ops):
            return any(map(is_text, (left, *(operand.expr for operand in ops))))
        case nodes.Call(node=nodes.Getattr(node=inner, attr=name)):
            return name in READS and is_text(inner)
    return False


def find_template_readings(source: str) -> list[int]:
    return [node.lineno for node in Environment().parse(source).find_all(nodes.Expr) if reads_in_template(node)]


def test_no_template_reads_a_sentence_of_opsctl() -> None:
    templates = [path for top in ("opsctl/dash", "templates") for path in (ROOT / top).rglob("*.j2")]
    found = {str(path.relative_to(ROOT)): find_template_readings(path.read_text()) for path in templates}
    assert {place: lines for place, lines in found.items() if lines and place not in ALLOWED} == {}


@pytest.mark.parametrize(
    "source", ["{% if a.brief|lower != b.text %}{% endif %}", "{{ x.value[:2].isupper() if x.value[:2] in y }}"]
)
def test_reading_in_a_template_is_found(source: str) -> None:
    assert find_template_readings(source)


@pytest.mark.parametrize(
    "source",
    [
        "finding.summary.startswith('tr11')",
        "'not finite' in str(alert.summary)",
        "text = say(finding.says)\n    pattern.search(text)",
        "for line in finding.evidence:\n        re.match('step', line)",
        "f'{alert.why}!'.partition(': ')",
        "[one for one in problems if one == 'gone']",
        "title, brief = describe_failure(alert)\n    text = f'{brief}.'\n    'held' in text",
    ],
)
def test_reading_is_found(source: str) -> None:
    assert list(find_readings(ast.parse(f"def f(problems):\n    {source}\n")))
