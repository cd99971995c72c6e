"""The values of a configuration file in YAML, JSON, TOML or Python, as texts by dotted keys.

Other people write such files. None is executed: a YAML tag that would construct an object, and an anchor within
itself, have no value. Bytes, depth, parts of YAML and values are bounded, and so are memory and time: an alias is one
object however often it is named, and a file that exceeds a bound has no values.
"""

import re
import stat
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from opsctl.base.tables import parse_toml
from opsctl.state.files import parse_json, read_bounded

MAX_CONFIG_BYTES = 1 << 20
MAX_VALUES = 4000
MAX_DEPTH = 16
MAX_YAML_PARTS = 40_000
"""Scalars, beginnings and ends of lists and tables, and keys taken over by `<<`."""
SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".py")

_PYTHON_LINE = re.compile(
    r"(?<![\w.])([A-Za-z_][\w.]*)\s*(?::\s*\w+\s*)?=\s*[\"']([^\"']+)[\"']\s*(?:#.*)?$", re.MULTILINE
)
_YAML_WORDS = dict.fromkeys(("yes", "true", "on"), "true") | dict.fromkeys(("no", "false", "off"), "false")
_YAML_WORDS |= dict.fromkeys(("null", "~", ""), "none")
"""The plain words of YAML 1.1 for true, false and null, which it knows as `yes`, `Yes` and `YES`."""
_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "str", "int", "float", "bool", "null"))
_NO_VALUE = object()

Values = Mapping[str, tuple[str, ...]]
"""By key, tables joined by dots: the value, or the values of a list. Tables in a list count as one; true, false and
null are `true`, `false` and `none`."""


def is_config(path: Path) -> bool:
    """Return whether `path` is a regular file of a size that is read."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size <= MAX_CONFIG_BYTES


def read_values(path: Path) -> Values:
    """Return the values of a configuration file; empty if the file cannot be read. A link is followed."""
    try:
        return load_values(path)
    except (OSError, ValueError):
        return {}


def load_values(path: Path) -> Values:
    """Return what `read_values` returns. Raises OSError, and ValueError for an invalid or too large file."""
    status = path.stat()
    return _read_version(path, (status.st_ino, status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=64)  # watch and guard ask again in every cycle
def _read_version(path: Path, _: tuple[int, int, int]) -> Values:
    text = read_bounded(path, MAX_CONFIG_BYTES, follow=True).decode(errors="replace")
    match path.suffix:
        case ".py":
            return {found[1]: (found[2],) for found in _PYTHON_LINE.finditer(text)}
        case ".json":
            return _flatten(parse_json(text))
        case ".toml":
            return _flatten(parse_toml(text))
        case _:
            return _flatten(_parse_yaml(text))


def _flatten(content: object) -> Values:
    """Return the values of nested tables. Raises ValueError for too many, or too deep a table."""
    values: dict[str, tuple[str, ...]] = {}
    waiting: list[tuple[str, int, object]] = [("", 0, content)]
    visits = 0
    while waiting:
        visits += 1
        key, depth, value = waiting.pop()
        below: list[tuple[str, int, object]] = []
        match value:
            case dict():
                below = [(f"{key}.{name}" if key else str(name), depth + 1, item) for name, item in value.items()]
            case list() if any(isinstance(item, dict | list) for item in value):
                below = [(key, depth + 1, item) for item in value]
            case list():
                values.setdefault(key, tuple(_to_text(item) for item in value if item is not _NO_VALUE))
            case str() | int() | float() | None:
                values.setdefault(key, (_to_text(value),))
        if depth > MAX_DEPTH or visits + len(waiting) + len(below) > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES} values, or nested too deeply")
        waiting += reversed(below)
    return values


def _to_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _parse_yaml(text: str) -> object:
    """Return the first document. Raises ValueError for invalid YAML, and beyond the bounds.

    Only the parser's events are used. PyYAML's loaders would recurse, and copy what `<<` takes over.
    """
    import yaml  # noqa: PLC0415 (13 ms, which a train without a YAML file does not pay)

    tree = _YamlTree()
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            match event:
                case yaml.DocumentEndEvent():
                    break
                case yaml.CollectionStartEvent():
                    tree.begin(event)
                case yaml.CollectionEndEvent():
                    tree.end()
                case yaml.AliasEvent():
                    tree.add(tree.anchors.get(str(event.anchor), _NO_VALUE))
                case yaml.ScalarEvent():
                    tree.add(_read_scalar(event), event.anchor)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise ValueError(f"no YAML in line {mark.line + 1}" if mark else "no YAML") from error
    return tree.items[0][0] if tree.items[0] else None


def _read_scalar(event: Any) -> object:
    """Return the text of a scalar; the key `<<` is _MERGE, and a scalar of an unknown tag has no value."""
    if event.implicit[0]:  # a plain scalar without a tag
        return _MERGE if event.value == "<<" else _to_plain_text(event.value)
    return event.value if event.tag in {None, "!", *_TAGS} else _NO_VALUE


def _to_plain_text(word: str) -> str:
    is_word = word in {word.lower(), word.upper(), word.capitalize()}
    return _YAML_WORDS.get(word.lower(), word) if is_word else word


_MERGE = object()


class _YamlTree:
    """The tables and lists that are open, the outermost first, and what anchors name."""

    def __init__(self) -> None:
        self.items: list[list[object]] = [[]]
        self.begun: list[Any] = []
        self.anchors: dict[str, object] = {}
        self.parts = 0

    def begin(self, event: Any) -> None:
        self._count(1)
        self.items.append([])
        self.begun.append(event)
        if len(self.begun) > MAX_DEPTH:
            raise ValueError("nested too deeply")

    def add(self, node: object, anchor: str | None = None) -> None:
        self._count(1)
        self.items[-1].append(node)
        if anchor:
            self.anchors[anchor] = node

    def end(self) -> None:
        items, event = self.items.pop(), self.begun.pop()
        node: object = items if event.__class__.__name__ == "SequenceStartEvent" else self._merge(items)
        self.add(node if event.tag in {None, "!", *_TAGS} else _NO_VALUE, event.anchor)

    def _merge(self, items: list[object]) -> dict[str, object]:
        """Return a table of keys and values in turn. Its own keys replace those that `<<` takes over."""
        table: dict[str, object] = {}
        pairs = list(zip(items[::2], items[1::2], strict=True))
        for key, value in pairs:
            sources = value if isinstance(value, list) else [value]
            for source in reversed(sources) if key is _MERGE else ():
                if isinstance(source, dict):
                    self._count(len(source))
                    table |= source
        return table | {key: value for key, value in pairs if isinstance(key, str)}

    def _count(self, parts: int) -> None:
        self.parts += parts
        if self.parts > MAX_YAML_PARTS:
            raise ValueError(f"more than {MAX_YAML_PARTS} parts")
