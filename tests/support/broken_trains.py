"""Broken trains of tests/corpus/preflight: an example, changes to the example and to the facts, expected problems.

A file holds `[[case]]` tables: `name`, `of` (the example, by default gpt-176b), `finds` (level, check, part of the
message), `after`, and changes by dotted path: `[case.set]` to the train's TOML, `[case.flags]` to its command (""
removes a flag), `[case.facts]`, and `[case.nodes]`: nodes and their state.
"""

from __future__ import annotations

import itertools
import tomllib
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from opsctl.launch.launch_plan import job_spec
from opsctl.nodesets import expand
from opsctl.preflight.checks import CHECKS
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest, Problem, judge
from opsctl.preflight.recipe import read_recipe
from opsctl.settings.loader import SiteSettings, TrainSettings, find_trainer_problems, parse

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests" / "corpus" / "preflight"
BASE = tomllib.loads((CORPUS / "facts.toml").read_text())
FACTS = TypeAdapter(Facts)


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    given: dict[str, Any]

    @property
    def finds(self) -> list[tuple[str, str, str]]:
        return [tuple(finding) for finding in self.given["finds"]]

    def order(self) -> LaunchRequest:
        fields = tomllib.loads((ROOT / "examples" / f"{self.given.get('of', 'gpt-176b')}.toml").read_text())
        for path, value in self.given.get("set", {}).items():
            put(fields, path, value)
        if "command" in fields:
            fields["command"] = change_flags(fields["command"], self.given.get("flags", {}))
        train = parse(TrainSettings, fields, self.name, extra=find_trainer_problems(fields, layout=False))
        spec = job_spec(train, SiteSettings(root="/trains"), after=self.given.get("after", ""))
        return LaunchRequest(train=train, spec=spec, recipe=read_recipe(train))

    def findings(self) -> list[Problem]:
        fields = deepcopy(BASE)
        for path, value in self.given.get("facts", {}).items():
            put(fields, path, value)
        return judge(CHECKS.items(), self.order(), facts(fields, self.given.get("nodes", {})))


def facts(fields: dict[str, Any], states: dict[str, str]) -> Facts:
    """Return the facts, with the folded node lists of the file expanded."""
    cluster = fields.get("cluster")
    if cluster:
        cluster["members"] = expand_all(cluster["members"])
        names = expand_all(cluster["nodes"])
        cluster["nodes"] = [{"name": name, "state": "IDLE", "address": name} for name in names]
        for nodes, state in states.items():
            for node in cluster["nodes"]:
                node["state"] = state if node["name"] in expand(nodes) else node["state"]
    return FACTS.validate_python(fields)


def expand_all(node_lists: list[str]) -> list[str]:
    return list(itertools.chain.from_iterable(expand(nodes) for nodes in node_lists))


def put(fields: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at the dotted path; "none" removes the key."""
    *tables, key = path.split(".")
    for table in tables:
        fields = fields.setdefault(table, {})
    if value == "none":
        fields.pop(key, None)
    else:
        fields[key] = value


def change_flags(command: list[str], flags: dict[str, str]) -> list[str]:
    """Replace flags of a command; the value of a flag extends to the next flag."""
    words = list(command)
    for flag, value in flags.items():
        if flag in words:
            start = words.index(flag)
            end = next((n for n in range(start + 1, len(words)) if words[n].startswith("--")), len(words))
            del words[start:end]
        words += [flag, *value.split()] if value else []
    return words


def cases() -> list[Case]:
    results = []
    for path in sorted(CORPUS.glob("*.toml")):
        if path.name != "facts.toml":
            tables = tomllib.loads(path.read_text())["case"]
            results += [Case(name=table["name"], given=table) for table in tables]
    return results
