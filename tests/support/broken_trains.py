"""Broken trains of tests/corpus/preflight: an example, changes to it and to the facts, and the expected problems.

A file holds `[[case]]` tables: `name`, `of` (the example; default gpt-176b), `finds` (severity, check, part of the
message), `after`, and changes by dotted path: `[case.set]` to the train's TOML, `[case.flags]` to its command (""
removes a flag), `[case.facts]`, and `[case.nodes]`: nodes and their state.
"""

import tomllib
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from opsctl.base.nodesets import expand
from opsctl.launch.launch_plan import job_spec
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
        return judge(CHECKS.values(), self.make_request(), make_facts(fields, self.table.get("nodes", {})))


def make_facts(table: dict[str, Any], states: dict[str, str]) -> Facts:
    """Return the facts of a table, whose nodes are folded lists, with the states of some nodes replaced."""
    cluster = table.get("cluster")
    if cluster:
        cluster["members"] = expand_all(cluster["members"])
        names = expand_all(cluster["nodes"])
        cluster["nodes"] = [{"name": name, "state": "IDLE", "address": name} for name in names]
        for nodes, state in states.items():
            for node in cluster["nodes"]:
                node["state"] = state if node["name"] in expand(nodes) else node["state"]
    if "saved" in table:
        saved = dict(table["saved"])
        count, size = saved.pop("file_count"), saved.pop("size")
        files = {str(number): {"size": size // count, "sha256": ""} for number in range(count)}
        table |= {"saved": {**saved, "files": files, "consumed_samples": 0}, "saved_count": 1}
    return FACTS.validate_python(table)


def expand_all(folded: list[str]) -> list[str]:
    """Return the names of all nodes of several folded lists."""
    names: list[str] = []
    for nodes in folded:
        names += expand(nodes)
    return names


def set_path(fields: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at the dotted path; the value "none" removes the key."""
    *tables, key = path.split(".")
    for table in tables:
        fields = fields.setdefault(table, {})
    if value == "none":
        fields.pop(key, None)
    else:
        fields[key] = value


def change_flags(command: list[str], flags: dict[str, str]) -> list[str]:
    """Return the command with these flags replaced. The value of a flag extends to the next flag."""
    words = list(command)
    for flag, value in flags.items():
        if flag in words:
            start = words.index(flag)
            end = next((n for n in range(start + 1, len(words)) if words[n].startswith("--")), len(words))
            del words[start:end]
        words += [flag, *value.split()] if value else []
    return words


def read_cases() -> list[Case]:
    cases = []
    for path in sorted(CORPUS.glob("*.toml")):
        if path.name != "facts.toml":
            cases += [Case(name=table["name"], table=table) for table in tomllib.loads(path.read_text())["case"]]
    return cases
