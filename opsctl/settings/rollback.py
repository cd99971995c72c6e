"""The `[rollback]` table of TRAIN.toml: words for a foreign trainer, and the values that `opsctl rollback` sets."""

import re
import shlex
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from opsctl.settings.field_types import SettingsTable
from opsctl.trainer.sample_order import check_range

PLACEHOLDER = re.compile(r"\{(\w*)\}", re.ASCII)
STEP_NAMES = ("step", "checkpoint", "name")
"""Placeholders of `step_argument` and `newest_text`: the step, the path of the checkpoint, the last part of it."""


def _check_template(text: str, names: tuple[str, ...]) -> str:
    if "\0" in text or "\n" in text:
        raise ValueError("a line break or a NUL byte")
    if unknown := set(PLACEHOLDER.findall(text)) - set(names):
        raise ValueError(f"unknown placeholder {{{sorted(unknown)[0]}}}; known: {', '.join(names)}")
    shlex.split(text)  # ValueError for a quotation without an end
    return text


def fill(template: str, values: Mapping[str, object]) -> list[str]:
    """Return the words of a template with its placeholders replaced; a value never becomes several words."""
    return [PLACEHOLDER.sub(lambda match: str(values[match[1]]), word) for word in shlex.split(template)]


StepTemplate = Annotated[str, AfterValidator(lambda text: _check_template(text, STEP_NAMES))]
RangeTemplate = Annotated[str, AfterValidator(lambda text: _check_template(text, ("first", "last")))]
ScaleTemplate = Annotated[str, AfterValidator(lambda text: _check_template(text, ("scale",)))]
SampleRange = Annotated[str, AfterValidator(check_range)]


class RollbackSettings(SettingsTable):
    """`[rollback]` of TRAIN.toml: words for a foreign trainer, and the values that `opsctl rollback` sets."""

    step_argument: StepTemplate = ""
    skip_samples_argument: RangeTemplate = ""
    lr_scale_argument: ScaleTemplate = ""
    newest_file: str = Field("", pattern=r"^[\w.-]*$")
    newest_text: StepTemplate = "{step}"
    step: int | None = Field(None, ge=0)
    checkpoint: str = ""
    skip_samples: tuple[SampleRange, ...] = ()
    lr_scale: float | None = Field(None, gt=0)

    @property
    def has_words(self) -> bool:
        """Whether a rollback can add words to the command."""
        return bool(self.step_argument or self.skip_samples_argument or self.lr_scale_argument)

    def step_values(self) -> dict[str, object]:
        """Return the values of the placeholders of `step_argument` and `newest_text`."""
        name = self.checkpoint.rstrip("/").rpartition("/")[2]
        return {"step": self.step, "checkpoint": self.checkpoint, "name": name}

    def lasting_words(self) -> list[str]:
        """Return the words that the command gets at every start: those for skipped samples and the rate."""
        words: list[str] = []
        for text in self.skip_samples:
            first, last = text.split("-")
            words += fill(self.skip_samples_argument, {"first": first, "last": last})
        if self.lr_scale is not None:
            words += fill(self.lr_scale_argument, {"scale": f"{self.lr_scale:g}"})
        return words

    def first_words(self) -> list[str]:
        """Return the words that the command gets until there is a newer checkpoint."""
        return [] if self.step is None else fill(self.step_argument, self.step_values())
