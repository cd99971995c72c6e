"""Parse the output of the small programs that run on nodes: one JSON object a line."""

from __future__ import annotations

import json


def merge_objects(text: str) -> dict[str, object]:
    """Merge the JSON objects that a program printed. Other lines are ignored."""
    fields: dict[str, object] = {}
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            fields |= value
    return fields
