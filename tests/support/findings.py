"""Findings with texts of the test's own."""

import re
from dataclasses import replace
from typing import Any

from opsctl.base.findings import Finding, Severity
from opsctl.base.statements import QUOTE, Remedy, Statement, quote


def make_finding(key: str, severity: str, summary: str = "", **fields: Any) -> Finding:
    """Return a finding that says `summary`; `remedy`, `rollback` and `done` are texts as well."""
    train = fields.get("train", "")
    names = {"train": train} if train in re.split(r"[^\w-]+", summary) else {}
    says = Statement(kind=QUOTE, facts={"text": summary, **names})
    fields |= {"says": says, "actions": tuple(map(quote, fields.pop("done", ())))}
    if remedy := fields.pop("remedy", ""):
        fields["fix"] = Remedy(advice=quote(remedy))
    if rollback := fields.pop("rollback", ""):
        fields["roll_back"] = quote(rollback)
    return replace(Finding(key=key, severity=Severity(severity), says=quote("")), **fields)
