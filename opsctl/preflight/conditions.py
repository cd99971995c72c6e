"""The conditions of checks.toml and startup.toml: expressions over names that somebody else explains.

None is a value that is not known. What depends on it is not known either, and a problem is reported only if its
condition certainly holds. `like(text, "pattern")` is the one function; nothing else of Python can be called.
"""

import ast
import operator
import re
from collections.abc import Callable, Iterator
from functools import cache

Value = bool | int | float | str | tuple[str, ...] | None
LookUp = Callable[[str], Value]
"""Returns the value of a name, which may have dots."""

_OPERATIONS: dict[type[ast.AST], Callable[..., Value]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda value, words: str(value) in words,
    ast.Call: lambda text, pattern: re.fullmatch(pattern, str(text)) is not None,
    ast.Not: operator.not_,
    ast.USub: operator.neg,
}


def evaluate(expression: str, look_up: LookUp) -> Value:
    """Return the value of an expression; None if a name that it depends on is not known, or of another type."""
    return _evaluate(parse(expression), look_up)


@cache
def parse(expression: str) -> ast.expr:
    return ast.parse(" ".join(expression.split()), mode="eval").body


def list_names(expression: str) -> Iterator[str]:
    """Yield the names of an expression that have no dots."""
    nodes = list(ast.walk(parse(expression)))
    prefixes = [node.value for node in nodes if isinstance(node, ast.Attribute)]
    functions = [node.func for node in nodes if isinstance(node, ast.Call)]
    for node in nodes:
        if isinstance(node, ast.Name) and node not in [*prefixes, *functions]:
            yield node.id


def _evaluate(node: ast.expr, look_up: LookUp) -> Value:
    value: Value = None
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as constant):
            value = constant
        case ast.Name() | ast.Attribute():
            value = look_up(ast.unparse(node))
        case ast.Tuple(elts=elements):
            value = tuple(str(_evaluate(element, look_up)) for element in elements)
        case ast.BoolOp(op=junction, values=parts):
            values = [_evaluate(part, look_up) for part in parts]
            value = _combine(
                values, is_or=isinstance(junction, ast.Or), has_default=isinstance(parts[-1], ast.Constant)
            )
        case ast.Call(func=ast.Name(id="like"), args=[text, pattern]):
            value = _apply(node, _evaluate(text, look_up), _evaluate(pattern, look_up))
        case _:
            operation, operands = _list_operands(node)
            value = _apply(operation, *(_evaluate(operand, look_up) for operand in operands))
    return value


def _list_operands(node: ast.expr) -> tuple[ast.AST, list[ast.expr]]:
    match node:
        case ast.UnaryOp(op=operation, operand=operand):
            return operation, [operand]
        case ast.BinOp(left=left, op=operation, right=right):
            return operation, [left, right]
        case ast.Compare(left=left, ops=[comparison], comparators=[right]):
            return comparison, [left, right]
    raise ValueError(f"a condition cannot have {ast.unparse(node)}")


def _apply(operation: ast.AST, *values: Value) -> Value:
    if None in values:
        return None
    try:
        return _OPERATIONS[type(operation)](*values)
    except (TypeError, ZeroDivisionError):  # a text where a number is needed
        return None


def _combine(values: list[Value], *, is_or: bool, has_default: bool) -> Value:
    """Return the value that decides; else None if one is not known, unless the last is a constant; else the last."""
    deciding = (value for value in values if value is not None and bool(value) is is_or)
    is_unknown = None in values and not (is_or and has_default)
    return next(deciding, None if is_unknown else values[-1])
