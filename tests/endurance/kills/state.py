"""What a run of opsctl has left: files, journals, the queue, the nodes; without what differs each time."""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from opsctl.slurm.commands import Slurm

State = dict[str, Any]
LEFTOVER = re.compile(r"\.lease(\.[0-9a-f]{32}(\.broken)?)?|\..+\.[a-z0-9_]{8}|\.[0-9a-f]{32}")
"""What a killed writer may leave, and every reader passes over."""
VOLATILE = set(Path(__file__).with_name("volatile_keys.txt").read_text().split())
"""Keys whose values are times, processes, or how often something was seen."""
PLAIN = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?([+-]\d\d:\d\d|Z)?( UTC)?"), "<time>"),
    (re.compile(r"\b20\d{6}T\d{6}\b"), "<time>"),
    (re.compile(r"\b1[6-9]\d{8}(\.\d+)?\b"), "<time>"),
    (re.compile(r"\b[0-9a-f]{12,64}\b"), "<hex>"),
    (re.compile(r"@(\S+?):\d+"), r"@\1"),
)


def tree(root: Path, names: Mapping[str, str]) -> State:
    """Every file below `root` by its path, with what is in it; directories too."""
    state: State = {}
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if (".site", "logs") in pairwise(parts):
            continue  # the debug log records every run of a command
        if not any(LEFTOVER.fullmatch(part) for part in parts):
            name = plain("/".join(parts), names)
            state[name] = "directory" if path.is_dir() else contents(path, names)
    return state


def leftovers(root: Path) -> list[str]:
    return [str(path) for path in root.rglob(".*") if LEFTOVER.fullmatch(path.name)]


def contents(path: Path, names: Mapping[str, str]) -> Any:
    text = path.read_bytes().decode(errors="replace")
    if path.suffix == ".jsonl":
        return list(dict.fromkeys(json.dumps(row, sort_keys=True) for row in _rows(text, names)))
    if path.suffix == ".json":
        try:
            return quiet(json.loads(text), names)
        except ValueError:
            return f"broken: {text}"
    return plain(text, names)


def _rows(text: str, names: Mapping[str, str]) -> Iterator[Any]:
    """What is said twice counts once: what is done again is journalled again."""
    for line in text.splitlines():
        try:
            yield quiet(json.loads(line), names)
        except ValueError:
            yield f"torn: {line}"


def quiet(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {
            plain(key, names): "~" if key in VOLATILE and child else quiet(child, names) for key, child in value.items()
        }
    if isinstance(value, list):
        return [quiet(child, names) for child in value]
    if isinstance(value, float):
        return round(value) if value < 1e6 else "<time>"
    return plain(value, names) if isinstance(value, str) else value


def plain(text: str, names: Mapping[str, str]) -> str:
    """`names` has the words that are another one in each run, such as a train's name or an array's id."""
    for word, instead in names.items():
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", instead, text)
    for pattern, instead in PLAIN:
        text = pattern.sub(instead, text)
    return text


def queue(slurm: Slurm, train: str) -> list[str]:
    """What is queued or runs of a train: how many tasks, how they stand, which nodes they are kept from."""
    rows = [job for job in slurm.jobs() if job.name == train and not job.state.is_final]
    return sorted(
        f"{job.state.name} tasks {job.tasks} {'held' if job.is_held else ''} not {slurm.excluded(job.array)}"
        for job in rows
    )


def nodes(slurm: Slurm) -> dict[str, str]:
    return {node.name: f"{node.state} {node.reason}" for node in slurm.nodes()}


def differences(expected: Any, found: Any, at: str = "") -> Iterator[str]:
    """Where two states differ, in words."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted({*expected, *found}):
            yield from differences(expected.get(key, "nothing"), found.get(key, "nothing"), f"{at}/{key}")
    elif expected != found:
        yield f"{at}: expected {str(expected)[:240]}\n{' ' * 8}found {str(found)[:240]}"
