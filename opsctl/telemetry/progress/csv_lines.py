"""Steps in tables: Lightning's CSV logger writes `epoch,step,train_loss` and one row for each step. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from opsctl.telemetry.progress.log_formats import FIELDS, WHOLE, Values, parse_number

_HEADER = re.compile(r"[A-Za-z][\w/. ()-]{0,60}(?:,[A-Za-z][\w/. ()-]{0,60}){1,40}")
_ROW = re.compile(r"[-+.\deEnaif]{0,24}(?:,[-+.\deEnaif]{0,24}){1,40}")

STEPS = ("step", "global_step", "trainer/global_step", "iteration", "iter", "num_updates")
COLUMNS = {
    "train_loss": "loss",
    "train_loss_step": "loss",
    "train/loss": "loss",
    "loss": "loss",
    "lr": "lr",
    "learning_rate": "lr",
    "grad_norm": "grad_norm",
    "tokens_per_s": "tokens_per_s",
    "tokens_per_second": "tokens_per_s",
    "step_time": "step_s",
}


@dataclass(slots=True)
class CsvLines:
    """A table within a log: the columns of the last header."""

    columns: tuple[str, ...] = ()
    """The field of every column, empty for a column that says nothing of progress."""

    def parse(self, text: str) -> Values | None:
        """Return the values of a row with a step, None for any other line. A header begins another table."""
        if "," not in text:
            return None
        if _HEADER.fullmatch(text):
            self._take_header(text.split(","))
            return None
        if not self.columns or not _ROW.fullmatch(text):
            return None
        cells = text.split(",")
        return self._row(cells) if len(cells) == len(self.columns) else None

    def _take_header(self, names: list[str]) -> None:
        has_step = any(name in STEPS for name in names)
        fields = ["step" if name in STEPS else COLUMNS.get(name, "") for name in names]
        self.columns = tuple(fields) if has_step else ()

    def _row(self, cells: list[str]) -> Values | None:
        values: Values = {}
        for field, cell in zip(self.columns, cells, strict=True):
            number = parse_number(cell) if field and cell else None
            if number is not None and field not in values:
                name = FIELDS.get(field, (field, 1))[0]
                values[name] = int(number) if name in WHOLE and number >= 0 else number
        # The rows of evaluations have a step and none of these values.
        return values if values.keys() - {"step"} and "step" in values else None
