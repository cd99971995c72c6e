"""DeepSpeed's settings that a shell script writes into a file by a here-document, as BLOOM's scripts did."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

HERE = re.compile(r"<<-?\s*[\"']?(\w+)")
ASSIGNMENT = re.compile(r"^\s*(?:export\s+)?(\w+)=[\"']?([\w.+-]+)[\"']?\s*(?:#.*)?$", re.MULTILINE)
VARIABLE = re.compile(r"\$\{?(\w+)\}?")
KEYS = frozenset(
    {"train_batch_size", "train_micro_batch_size_per_gpu", "fp16", "bf16", "bfloat16", "zero_optimization"}
)


def find_deepspeed_settings(script: str) -> dict[str, Any]:
    """Return the settings; empty if the script writes none. A variable without a plain value counts as not set."""
    variables = dict(ASSIGNMENT.findall(script))
    for body in _list_documents(script):
        filled = VARIABLE.sub(lambda match: variables.get(match[1], "null"), body)
        try:
            settings = json.loads(filled)
        except (ValueError, RecursionError):
            continue
        if isinstance(settings, dict) and KEYS & settings.keys():
            return settings
    return {}


def _list_documents(script: str) -> Iterator[str]:
    """Yield the text of every here-document."""
    end, body = "", list[str]()
    for line in script.splitlines():
        if end and line.strip() == end:
            yield "\n".join(body)
            end, body = "", []
        elif end:
            body.append(line)
        elif match := HERE.search(line):
            end = match[1]
