"""docs/reference/json.md holds the keys of `status --json` and of findings, as the code declares them.

`python -m tests.rules.test_json_reference` writes the page again. Keys are only added: a line that a change
removes from the page breaks somebody's program.
"""

import ast
import inspect
import json
import re
import typing
from dataclasses import fields
from enum import Enum
from pathlib import Path

from opsctl.alerts.ledger_files import OpenAlert
from opsctl.base.findings import Finding, Severity
from opsctl.base.statements import Remedy, Statement, state
from opsctl.calc.time_left import Eta
from opsctl.cli.output import to_json
from opsctl.monitor.status import LastAttempt, Running, Shortage, StartedAttempt, TrainStatus, Waiting
from opsctl.state.requests import Request
from opsctl.state.switches import Armed
from opsctl.telemetry.progress.run_progress import Progress

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "json.md"
OF_STATUS = (TrainStatus, Running, Waiting, StartedAttempt, LastAttempt)
OF_PROGRESS = (Progress, Eta, Shortage, Armed, Request, OpenAlert)
OF_FINDING = (Finding, Statement, Remedy)
TEXTS = ("summary", "done", "remedy", "rollback")
"""Keys of a finding that are rendered from its values."""


def read_meanings(record: type) -> dict[str, str]:
    """Return the docstrings of fields and properties."""
    (body,) = ast.parse(inspect.cleandoc(inspect.getsource(record)).lstrip()).body
    assert isinstance(body, ast.ClassDef)
    meanings = {}
    for line, following in zip(body.body, [*body.body[1:], ast.Pass()], strict=True):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and isinstance(following, ast.Expr):
            meanings[line.target.id] = ast.literal_eval(following.value)
        if isinstance(line, ast.FunctionDef):
            meanings[line.name] = ast.get_docstring(line) or ""
    return {name: " ".join(text.split()).replace("|", "\\|") for name, text in meanings.items()}


def name_type(hint: object) -> str:
    if isinstance(hint, type) and issubclass(hint, Enum):
        return ", ".join(f"`{value}`" for value in hint)
    text = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    text = re.sub(r"(?:\w+\.)+(\w+)", r"\1", text)
    return (
        re.sub(r"(tuple|frozenset)\[(\w+)(?:, \.\.\.)?\]", r"list of \2", text)
        .replace("None", "null")
        .replace("|", "or")
    )


def render_table(record: type) -> str:
    meanings, hints = read_meanings(record), typing.get_type_hints(record)
    rows = [
        f"| `{field.name}` | {name_type(hints[field.name])} | {meanings.get(field.name, '')} |"
        for field in fields(record)
    ]
    rows += [f"| `{name}` | str | {meanings[name]} |" for name in TEXTS if record is Finding]
    head = inspect.getdoc(record) or ""
    intro = "" if head.startswith(f"{record.__name__}(") else f"{head.partition(chr(10))[0]}\n\n"
    return f"### {record.__name__}\n\n{intro}| key | type | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def render_page() -> str:
    parts = {
        "## opsctl status": "One object for each train.",
        **dict.fromkeys(map(render_table, (*OF_STATUS, *OF_PROGRESS)), ""),
        "## Findings": "In `findings` of `opsctl watch --json`, and as `finding` in `opsctl alerts show --json`.",
        **dict.fromkeys(map(render_table, OF_FINDING), ""),
    }
    return (
        INTRO
        + "".join(f"{part}\n" + (f"\n{text}\n\n" if text else "\n") for part, text in parts.items()).rstrip()
        + "\n"
    )


INTRO = """# Keys of --json

Programs decide on the values; the texts (`summary`, `why`, `notes`, ...) are for people, and their words change. Within
a major version keys and kinds are only added. An unknown value is null or empty. Times are ISO 8601 with a time zone,
durations are seconds. [Diagnosis](diagnosis.md) lists the keys of `opsctl why --json`.

"""


def test_page_holds_the_keys() -> None:
    assert PAGE.read_text() == render_page()


def test_finding_prints_the_keys() -> None:
    finding = Finding(key="loss/gpt", severity=Severity.OK, says=state("loss.none_yet", train="gpt"), train="gpt")
    printed = json.loads(to_json(finding))
    assert [name for name in printed if f"| `{name}` |" not in PAGE.read_text()] == []
    assert printed["says"] == {"kind": "loss.none_yet", "facts": {"train": "gpt"}, "parts": []}


if __name__ == "__main__":
    PAGE.write_text(render_page())
