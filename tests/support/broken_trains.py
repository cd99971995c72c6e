"""Broken trains of tests/corpus/preflight: an example, what is changed of it and of the facts, and what must be found.

A file holds `[[case]]` tables: `name`, `of` (the example; gpt-176b if absent), `finds` (level, check, part of what is
said), `after`, and the changes by dotted path: `[case.set]` of the train's TOML, `[case.flags]` of its command (""
takes one out), `[case.facts]`, and `[case.nodes]`: nodes and their state.
"""

from __future__ import annotations

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
    table: dict[str, Any]

    @property
    def expected(self) -> list[tuple[str, str, str]]:
        return [tuple(finding) for finding in self.table["finds"]]

    def make_request(self) -> LaunchRequest:
        fields = tomllib.loads((ROOT / "examples" / f"{self.table.get('of', 'gpt-176b')}.toml").read_text())
        for path, value in self.table.get("set", {}).items():
            set_path(fields, path, value)
        if "command" in fields:
            fields["command"] = change_flags(fields["command"], self.table.get("flags", {}))
        train = parse(TrainSettings, fields, self.name, extra=find_trainer_problems(fields, layout=False))
        spec = job_spec(train, SiteSettings(root="/trains"), after=self.table.get("after", ""))
        return LaunchRequest(train=train, spec=spec, recipe=read_recipe(train))

    def find_problems(self) -> list[Problem]:
        fields = deepcopy(BASE)
        for path, value in self.table.get("facts", {}).items():
            set_path(fields, path, value)
        return judge(CHECKS.items(), self.make_request(), make_facts(fields, self.table.get("nodes", {})))


def make_facts(given: dict[str, Any], states: dict[str, str]) -> Facts:
    """Nodes stand folded in the files."""
    if cluster := given.get("cluster"):
        cluster["members"] = [node for nodes in cluster["members"] for node in expand(nodes)]
        cluster["nodes"] = [
            {"name": node, "state": "IDLE", "address": node} for nodes in cluster["nodes"] for node in expand(nodes)
        ]
        for nodes, state in states.items():
            for node in cluster["nodes"]:
                node["state"] = state if node["name"] in expand(nodes) else node["state"]
    return FACTS.validate_python(given)


def set_path(fields: dict[str, Any], path: str, value: Any) -> None:
    """Set what lies at the dotted path; none there, where the value is "none"."""
    *tables, key = path.split(".")
    for table in tables:
        fields = fields.setdefault(table, {})
    if value == "none":
        fields.pop(key, None)
    else:
        fields[key] = value


def change_flags(command: list[str], flags: dict[str, str]) -> list[str]:
    """A flag's value is all that stands up to the next flag."""
    words = list(command)
    for flag, value in flags.items():
        if flag in words:
            start = words.index(flag)
            end = next((n for n in range(start + 1, len(words)) if words[n].startswith("--")), len(words))
            del words[start:end]
        words += [flag, *value.split()] if value else []
    return words


def read_cases() -> list[Case]:
    found = []
    for path in sorted(CORPUS.glob("*.toml")):
        if path.name != "facts.toml":
            found += [Case(name=load["name"], table=load) for load in tomllib.loads(path.read_text())["case"]]
    return found
