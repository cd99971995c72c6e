"""Steps of the guard whose errors do not end the train."""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from opsctl.base.errors import OpsctlError

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Tolerated:
    """Reports an error of a named step and goes on. A repeated error is reported once."""

    _errors: dict[str, str] = field(default_factory=dict)
    """By step, the error of its last run. A step that succeeded has no entry."""

    @contextlib.contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        try:
            yield
        except OpsctlError as error:
            self._report(step, error.message)
        except Exception as error:  # noqa: BLE001 (a bug of the guard must not end the train)
            self._report(step, f"a bug of the guard: {error!r}", error)
        else:
            self._errors.pop(step, None)

    def _report(self, step: str, message: str, bug: Exception | None = None) -> None:
        if self._errors.get(step) != message:
            self._errors[step] = message
            log.warning("%s: %s", step, message, exc_info=bug)
