"""The formats of trainers' log lines, read from log_formats.toml and compiled. Pure."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from opsctl.base.tables import read_package_table
from opsctl.settings.bounded_pattern import BoundedPattern, compile_bounded
from opsctl.telemetry.progress.iteration import Iteration

TABLE = "telemetry/progress/log_formats.toml"
MEGATRON = "megatron"
MAX_SEGMENT_CHARS = 4096
"""A longer line is cut: no trainer's step line is as long."""
MAX_STEP = 10**15

EPOCH_PARTS = 10_000
"""Steps as which an epoch counts where a log shows epochs and no steps. Trainers log at most four places."""
NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?(?:[eE][-+]?\d{1,3})?|\.\d+(?:[eE][-+]?\d{1,3})?|nan|inf)"
SUFFIXES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}

FIELDS: Mapping[str, tuple[str, float]] = {name: (name, 1) for name in Iteration.__dataclass_fields__} | {
    "total": ("last", 1),
    "epoch": ("step", EPOCH_PARTS),
    "epochs": ("last", EPOCH_PARTS),
    "samples": ("consumed_samples", 1),
    "batch": ("global_batch", 1),
    "step_ms": ("step_s", 1e-3),
    "steps_per_s": ("step_s", -1),
    "ktokens_per_s": ("tokens_per_s", 1e3),
}
"""For each field of log_formats.toml the field of Iteration, and the factor; -1: the value is turned round."""
WHOLE = frozenset({"step", "last", "consumed_samples", "tokens", "global_batch", "skipped", "skipped_total", "nans"})

Values = dict[str, float]
"""Values by the fields of Iteration."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LineFormat:
    """One row of log_formats.toml, which explains the fields."""

    name: str
    ranks: Mapping[str, tuple[str, int]]
    """For each group of the scanner its field and the rank of the name: the lowest rank counts."""
    words: tuple[str, ...] = ()
    step: re.Pattern[str] | None = None
    more: re.Pattern[str] | None = None
    without: re.Pattern[str] | None = None
    labels: re.Pattern[str] | None = None
    needs: frozenset[str] = frozenset()
    epochs: re.Pattern[str] | None = None
    scanner: re.Pattern[str] | None = None
    """Finds every value of a line: one named group for each name, in it the number and the number after a slash."""
    has_suffixes: bool = False
    pattern: BoundedPattern | None = None
    """The pattern of TRAIN.toml, instead of everything above."""

    def parse(self, text: str) -> Values | None:
        """Return the values of a line without prefix, colours and carriage returns; None for any other line."""
        if self.pattern is not None:
            return self._parse_pattern(self.pattern, text)
        if not any(word in text for word in self.words):
            return None
        head = self.step.search(text) if self.step else None
        if head is None and not (self.more and self.more.search(text)):
            return None
        if self._is_no_training(text, head):
            return None
        values: Values = {}
        for field, number in (head.groupdict() if head else {}).items():
            if number is not None and field in FIELDS:
                self._store(values, field, number)
        return self._scan(text, values, is_step=head is not None)

    def _is_no_training(self, text: str, head: re.Match[str] | None) -> bool:
        if self.without and self.without.search(text):
            return True
        return bool(self.labels and head) and not self._is_training_bar(text, head)

    def _parse_pattern(self, pattern: BoundedPattern, text: str) -> Values | None:
        values: Values = {}
        for field, number in (pattern.search(text) or {}).items():
            self._store(values, field, number)
        return values if "step" in values else None

    def _scan(self, text: str, values: Values, *, is_step: bool) -> Values | None:
        fields = set(values)
        best: dict[str, tuple[int, str, str]] = {}
        for match in self.scanner.finditer(text) if self.scanner else ():
            field, rank = self.ranks[match.lastgroup or ""]
            inner = (match.lastindex or 0) + 1
            if field not in best or rank < best[field][0]:
                best[field] = (rank, match[inner], match[inner + 1] or "")
        for field, (_, number, of) in sorted(best.items(), key=lambda item: FIELDS[item[0]][1]):
            self._store(values, field, number)
            fields.add(field)
            if field == "step" and of:
                values["last"] = int(of)
        has_total = "total" in self.needs and "last" in values
        if is_step and self.needs and not (has_total or self.needs & set(fields)):
            return None
        if "last" in values and self.epochs and self.epochs.search(text):
            values = {name: value for name, value in values.items() if name not in {"step", "last"}}
        return values or None

    def _is_training_bar(self, text: str, head: re.Match[str] | None) -> bool:
        """Whether a progress bar shows training. The bar of an evaluation is nested: the cursor goes up behind it."""
        label = head["label"] if head else ""
        if head is None or self.labels is None or not self.labels.search(label):
            return False
        return bool(label.strip(" :\t")) or "\x1b[A" not in text[head.end() :]

    def _store(self, values: Values, field: str, text: str) -> None:
        name, factor = FIELDS[field]
        number = parse_number(text, has_suffix=self.has_suffixes)
        if number is None:
            return
        if factor < 0:
            if not number > 0:
                return
            number = 1 / number
        else:
            number *= factor
        if name in WHOLE and not 0 <= number < MAX_STEP:
            return
        values[name] = round(number) if name in WHOLE else number


def parse_number(text: str, *, has_suffix: bool = False) -> float | None:
    """Parse a number with thousands separators and, with `has_suffix`, with K, M, G or T; None for any other text."""
    factor = 1.0
    if has_suffix and text[-1:] in SUFFIXES:
        text, factor = text[:-1], SUFFIXES[text[-1]]
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        return None
    return number if factor == 1 else round(number * factor, 6)


def to_iteration(values: Values) -> Iteration | None:
    """Return the values as an iteration; None without a step."""
    if not math.isfinite(values.get("step", math.nan)):
        return None
    return Iteration(**values)  # type: ignore[arg-type]  # WHOLE and FIELDS give each value its type


def parse_megatron(line: str) -> Iteration | None:
    """Parse a step line of Megatron with any prefix; return None for any other line. Never raises."""
    megatron = next(line_format for line_format in load_formats() if line_format.name == MEGATRON)
    values = megatron.parse(line)
    return to_iteration(values) if values else None


@cache
def formats_for(pattern: str) -> tuple[LineFormat, ...]:
    """Return the formats of a train: the pattern of its TRAIN.toml alone, or every known format."""
    if not pattern:
        return load_formats()
    name = "the pattern of TRAIN.toml"
    return (LineFormat(name=name, ranks={}, pattern=compile_bounded(pattern)),)


@cache
def load_formats() -> tuple[LineFormat, ...]:
    """Return the formats in the order of log_formats.toml."""
    return tuple(_parse(fields) for fields in read_package_table(TABLE)["format"])


@cache
def load_epochs() -> LineFormat:
    """Return the format of lines that name an epoch, for a log without steps."""
    return _parse(read_package_table(TABLE)["epochs"])


@cache
def load_columns() -> dict[str, str]:
    """Return the field of every known name of a column."""
    fields: dict[str, str] = {}
    for field, names in read_package_table(TABLE)["columns"].items():
        fields |= dict.fromkeys(names, field)
    return fields


def _parse(row: Mapping[str, object]) -> LineFormat:
    values = row.get("values", {})
    assert isinstance(values, dict)
    has_suffixes = bool(row.get("suffixes"))
    scanner, ranks = _compile_scanner(values, has_suffixes=has_suffixes)
    return LineFormat(
        name=str(row["name"]),
        words=tuple(row["words"]),  # type: ignore[arg-type]  # as above
        step=_compile(row.get("step")),
        more=_compile(row.get("more")),
        without=_compile(row.get("without")),
        labels=_compile(row.get("labels")),
        needs=frozenset(row.get("needs", ())),  # type: ignore[call-overload]  # as above
        epochs=_compile(row.get("epochs")),
        scanner=scanner,
        ranks=ranks,
        has_suffixes=has_suffixes,
    )


def _compile(pattern: object) -> re.Pattern[str] | None:
    return re.compile(str(pattern)) if pattern else None


def _compile_scanner(
    values: Mapping[str, list[str]], *, has_suffixes: bool
) -> tuple[re.Pattern[str] | None, dict[str, tuple[str, int]]]:
    """Return one pattern for all names of values, and what each of its groups stands for."""
    ranks: dict[str, tuple[str, int]] = {}
    names: list[tuple[str, str]] = []
    for field, patterns in values.items():
        for rank, pattern in enumerate(patterns):
            group = f"{field}_{rank}"
            ranks[group] = (field, rank)
            names.append((group, pattern))
    if not names:
        return None, ranks
    # Of two names at one place, the longer one is meant: `lm loss` before `lm`.
    names.sort(key=lambda name: -len(name[1]))
    number = rf"({NUMBER}{'[KMGTk]?' if has_suffixes else ''})(?:/(\d{{1,15}}))?"
    between = r"(?:['\"]?\s{0,4}[:=]\s{0,16}['\"\[(]?|\s{1,16})"
    alternatives = "|".join(f"(?P<{group}>(?:{pattern}){between}{number})" for group, pattern in names)
    return re.compile(rf"(?<![\w/.-])(?:{alternatives})", re.IGNORECASE), ranks
