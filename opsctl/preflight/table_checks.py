"""Checks whose conditions stand in checks.toml and startup.toml, and what the names in the conditions mean.

A name is a fact of the train (`list_facts`), a field of the recipe, or an option of the trainer with _ instead of -.
`given.NAME` tells whether an option or a field was set at all, `known.NAME` whether a field is neither empty nor 0,
`env.NAME` is a variable, `setting.NAME` the name of a field as the user knows it, `text.NAME` all values of an option
as one text, and `of_NAME` whether a program reads them.

None is a value that is not known. What depends on it is not known either, and a problem is reported only if its
condition certainly holds. `like(text, "pattern")` is the one function; nothing else of Python can be called.
"""

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from posixpath import normpath
from string import Formatter
from typing import Any

from opsctl.base.tables import read_package_table
from opsctl.calc.accelerators import accelerator
from opsctl.checkpoints.trainer_command.shell import split_command
from opsctl.preflight.estimates import estimate_step, least_step_s
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest, Problem, ProblemSeverity, read_table
from opsctl.preflight.recipe import RECIPE_FIELDS, Recipe
from opsctl.preflight.trainer_settings import find_launcher, parse_whole, spell
from opsctl.trainer.precision import SLOWDOWN_FROM_BF16

Value = bool | int | float | str | tuple[str, ...] | None
LookUp = Callable[[str], Value]
"""Returns the value of a name, which may have dots."""
DEFAULTS: Mapping[str, Mapping[str, Value]] = read_package_table("preflight/startup_defaults.toml")
"""By trainer: what its options are if they are not given."""
UNKNOWN = re.compile(r"\$|\{\{|`")
"""Signs of a value that the shell or opsctl makes when the task starts."""


@dataclass(frozen=True, slots=True)
class TableCheck:
    """The check of one name: reports its problems whose `when` holds, for the programs in `of`."""

    name: str

    def __call__(self, request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
        values = list_facts(request, facts)
        programs = frozenset(list_programs(request, str(values["launcher"])))
        names = RunNames(recipe=request.recipe, facts=values, programs=programs)
        for problem, row in read_table()[self.name].items():
            has_condition = isinstance(row, dict) and "when" in row
            if has_condition and programs & set(row.get("of", programs)) and evaluate(row["when"], names.look_up):
                severity = _find_severity(request, row)
                yield Problem(severity=severity, kind=f"{self.name}.{problem}", facts=names.fill(row))


def list_programs(request: LaunchRequest, launcher: str) -> Iterator[str]:
    """Yield the programs that read the settings, and the launcher."""
    recipe = request.recipe
    yield "opsctl" if recipe.is_embedded else recipe.trainer
    if recipe.trainer == "Megatron":
        yield "Megatron-DeepSpeed" if "deepspeed" in recipe.options else "Megatron-LM"
    if any(name.startswith("ds.") for name in recipe.options):
        yield "DeepSpeed"
    yield launcher


def _find_severity(request: LaunchRequest, row: Mapping[str, Any]) -> ProblemSeverity:
    """Return the severity of a problem. What a trainer refuses is an error if its settings are certain."""
    if "severity" in row:
        return ProblemSeverity(row["severity"])
    recipe = request.recipe
    options = {spell(name) for name in list_names(row["when"])} & recipe.options.keys()
    is_certain = request.is_certain and (recipe.is_embedded or options <= recipe.flags.keys())
    return ProblemSeverity.ERROR if is_certain else ProblemSeverity.WARNING


def list_facts(request: LaunchRequest, facts: Facts) -> dict[str, Value | Callable[[], Value]]:
    """Return the facts of a train by name; a function where the value costs time."""
    spec, recipe, train, world = request.spec, request.recipe, request.train, request.world
    gpu = accelerator(facts.gpu) if facts.gpu else None
    unit = (recipe.micro_batch or 1) * recipe.replicas(world)
    limits = sorted(list_collective_limits(recipe))
    wrong = [size for size in recipe.sizes() if size % unit]
    has_grace = "stop_grace_seconds" in train.guard.model_fields_set
    return {
        "name": spec.name,
        "nodes": spec.nodes,
        "tasks": spec.tasks,
        "time_limit": spec.time_limit,
        "limit_s": request.limit_s,
        "signal_s": spec.signal_seconds,
        "processes": spec.processes_per_node,
        "cpus": spec.cpus_per_process,
        "ranks": request.ranks_per_node,
        "world": world,
        "gpus": request.gpus_per_node,
        "has_gpus": request.has_gpus,
        "is_embedded": recipe.is_embedded,
        "scripts": len(facts.scripts),
        "setup": " ".join(train.setup.lines),
        "program": Path(train.command[0]).name if train.command else "",
        "precisions": tuple(f"{name} ({kind})" for name, kind in recipe.precisions.items()),
        "precision_kinds": len(set(recipe.precisions.values())),
        "own_launcher": find_launcher(split_command(train.command)),
        "launcher": "torchrun"
        if recipe.launcher.startswith("torch.")
        else Path(recipe.launcher).name.partition(".")[0],
        "replicas": recipe.replicas(world),
        "unit": unit,
        "model_ranks": recipe.model_ranks,
        "divides": world % recipe.model_ranks == 0,
        "ramp_start": recipe.rampup[0] if recipe.rampup else None,
        "ramp_increment": recipe.rampup[1] if recipe.rampup else None,
        "ramp_sizes": len(recipe.sizes()),
        "ramp_wrong": len(wrong),
        "ramp_first": wrong[0] if wrong else None,
        "load_path": normpath(recipe.load or "/"),
        "save_path": normpath(recipe.save or "/"),
        "gpu": facts.gpu or None,
        "generation": gpu.generation if gpu else None,
        "has_fp8": gpu.has("fp8") if gpu else None,
        "processor": facts.processor_without_bf16,
        "bf16_slowdown": SLOWDOWN_FROM_BF16,
        "has_saved": facts.saved is not None,
        "saved_step": facts.saved.step if facts.saved else None,
        "text_of_saves": " ".join(recipe.options.get("job.dump-folder", ())) or recipe.save,
        "weights_problem": facts.weights_problem,
        "max_tasks": facts.cluster.limits.max_array_size - 1 if facts.cluster else None,
        "hang_minutes": train.watch.hang_minutes,
        "grace_s": train.guard.stop_grace_seconds if has_grace else None,
        "collective_s": limits[0][0] if limits else None,
        "collective_limit": limits[0][1] if limits else None,
        **_list_estimates(request, facts),
        **flatten(facts.deepspeed, "ds"),
        **(flatten(recipe.embedded.model_dump(), "own") if recipe.embedded else {}),
    }


def _list_estimates(request: LaunchRequest, facts: Facts) -> dict[str, Value | Callable[[], Value]]:
    """Return how long the parts of a task take, and the steps that are left."""
    steps, saved, embedded = request.recipe.steps, facts.saved, request.recipe.embedded
    return {
        "after": request.spec.after,
        "margin_s": embedded.limits.margin_s if embedded else 0.0,
        "left_steps": steps and max(0, steps - (saved.step if saved else 0)),
        "stop_s": lambda: estimate_step(request, facts).stop_s,
        "step_s": lambda: estimate_step(request, facts).step_s,
        "save_s": lambda: estimate_step(request, facts).save_s,
        "least_step_s": lambda: least_step_s(request, facts),
    }


def flatten(table: Mapping[str, Any], prefix: str) -> dict[str, Value]:
    """Return the values of nested tables by their names, joined by dots."""
    values: dict[str, Value] = {}
    for name, value in table.items():
        values |= flatten(value, f"{prefix}.{name}") if isinstance(value, dict) else {f"{prefix}.{name}": value}
    return values


def list_collective_limits(recipe: Recipe) -> Iterator[tuple[int, str]]:
    """Yield the time limits of collectives in seconds, with their options or variables."""
    for name, unit_s in read_table()["timeouts"]["limits"].items():
        value = parse_whole((recipe.options.get(name) or (recipe.variables.get(name, ""),))[0])
        if value is not None:
            yield value * unit_s, name if name.isupper() else f"--{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNames:
    """The names of one run."""

    recipe: Recipe
    facts: Mapping[str, Value | Callable[[], Value]]
    programs: frozenset[str]

    def look_up(self, name: str) -> Value:
        """Return the value of a name; None if it is not known."""
        prefix, _, rest = name.partition(".")
        if prefix in PREFIXES:
            return PREFIXES[prefix](self.recipe, rest)
        if name in self.facts:
            fact = self.facts[name]
            return fact() if callable(fact) else fact
        if name.startswith("of_"):
            return name[3:] in {spell(program).replace("-", "_") for program in self.programs}
        if name not in RECIPE_FIELDS:
            return self._read_option(name)
        value: Value = getattr(self.recipe, name)
        return value if self.recipe.is_complete or name in self.recipe.names else None

    def _read_option(self, name: str) -> Value:
        if spell(name) in self.recipe.alternatives:
            return None
        texts = self.recipe.options.get(spell(name))
        if texts is None or texts[:1] in {("none",), ("null",), ("None",)}:
            return DEFAULTS.get(self.recipe.trainer, {}).get(name) if self.recipe.is_complete else None
        return _read_text(texts[0]) if texts else True  # of several values the others may be the trainer's own words

    def fill(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the sentences of a problem."""
        names = [name for _, name, _, _ in Formatter().parse(row["what"] + row["remedy"]) if name]
        return {name: evaluate(row.get("values", {}).get(name, name), self.look_up) for name in names}


def _is_given(recipe: Recipe, name: str) -> Value:
    if spell(name) in recipe.alternatives:
        return None
    is_set = spell(name) in recipe.options or name in recipe.names
    return is_set if is_set or recipe.is_complete else None


PREFIXES: Mapping[str, Callable[[Recipe, str], Value]] = {
    "given": _is_given,
    "known": lambda recipe, name: bool(getattr(recipe, name)),
    "env": lambda recipe, name: _read_text(recipe.variables.get(name, "")),
    "setting": Recipe.name,
    "text": lambda recipe, name: " ".join(recipe.options.get(spell(name), ())),
}


def _read_text(text: str) -> Value:
    """Return a number, a truth or a text; None for a value that is made when the task starts."""
    word = text.strip("\"'")
    if UNKNOWN.search(word):
        return None
    if word.lower() in {"true", "false"}:
        return word.lower() == "true"
    for read in (int, float):
        try:
            return read(word)
        except ValueError:
            continue
    return word


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
