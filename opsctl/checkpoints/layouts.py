"""The layouts of checkpoints, read from layouts.toml. Needs no torch."""

import re
from dataclasses import dataclass
from functools import cache, lru_cache

from opsctl.base.tables import read_package_table


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestFile:
    """The file beside the checkpoints that names the newest complete checkpoint."""

    file: str
    holds: str
    """`name`: the name of an entry; `step`: a step in decimal digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLayout:
    """One row of layouts.toml, which explains the fields."""

    name: str
    entry: re.Pattern[str]
    kind: str
    source: str
    known_by: tuple[str, ...] = ()
    known_beside: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    needs_beside: tuple[str, ...] = ()
    forbids: tuple[str, ...] = ()
    forbids_beside: tuple[str, ...] = ()
    ranks: tuple[re.Pattern[str], ...] = ()
    newest: NewestFile | None = None
    partial: bool = False
    evidence: str = ""

    @property
    def needs_evidence(self) -> bool:
        """Whether the name alone does not show the layout."""
        return bool(self.known_by or self.known_beside)

    def parse_name(self, name: str, *, is_directory: bool) -> re.Match[str] | None:
        """Return the match of an entry's name, None if the layout does not fit."""
        if self.kind != "any" and (self.kind == "directory") != is_directory:
            return None
        return self.entry.fullmatch(name)


@cache
def load_layouts() -> tuple[CheckpointLayout, ...]:
    """Return the layouts in the order of layouts.toml."""
    return tuple(_parse(fields) for fields in read_package_table("checkpoints/layouts.toml")["layout"])


@dataclass(frozen=True, slots=True)
class Fit:
    """A layout whose names an entry fits, and where the step stands in the name; an empty place without a step."""

    layout: CheckpointLayout
    begin: int
    end: int


def fit_name(name: str, *, is_directory: bool) -> tuple[Fit, ...]:
    """Return the layouts that the name of an entry fits. Names that differ in digits alone fit the same layouts."""
    shape = name.translate(_ZEROS) if not _DATE.fullmatch(name) else name
    return _fit_shape(shape, is_directory)


_ZEROS = str.maketrans("123456789", "000000000")
_DATE = re.compile(r"\d{8}")
"""A name such as 20240501 is a date, and not a step."""


@lru_cache(maxsize=4096)
def _fit_shape(shape: str, is_directory: bool) -> tuple[Fit, ...]:  # noqa: FBT001 (private, and cached by position)
    fits = []
    for layout in load_layouts():
        if match := layout.parse_name(shape, is_directory=is_directory):
            begin, end = match.span("step") if "step" in match.re.groupindex else (0, 0)
            fits.append(Fit(layout, max(begin, 0), max(end, 0)))
    return tuple(fits)


def fill_pattern(pattern: str, name: str, step_digits: str) -> str:
    """Return a pattern of files beside a checkpoint for the checkpoint of this name and step."""
    return pattern.replace("{name}", name).replace("{step}", step_digits)


@cache
def newest_files() -> frozenset[str]:
    """Return the names of the files that name the newest checkpoint."""
    return frozenset(layout.newest.file for layout in load_layouts() if layout.newest)


def _parse(fields: dict[str, object]) -> CheckpointLayout:
    parsed: dict[str, object] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()
    }
    parsed["entry"] = re.compile(str(fields["entry"]), re.ASCII)
    parsed["ranks"] = tuple(re.compile(pattern) for pattern in parsed.get("ranks", ()))  # type: ignore[attr-defined]  # a tuple, see above
    if isinstance(newest := fields.get("newest"), dict):
        parsed["newest"] = NewestFile(**newest)
    return CheckpointLayout(**parsed)  # type: ignore[arg-type]  # layouts.toml is ours, and read in every test
