"""Collect the secrets to strike out of published files: configured secrets and secrets in environments."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pydantic import SecretStr

from opsctl.alerts.channel_secrets import reveal
from opsctl.alerts.outbox import Undelivered
from opsctl.base.errors import OpsctlError
from opsctl.base.secret_formats import Secrets, all_forms, find_in_environment
from opsctl.settings.alerts import AlertSettings
from opsctl.settings.field_types import SettingsTable

_SETTING = re.compile(r"\s*(?:export\s+)?\w+=(.{4,})")
"""A line of a shell file: `export NAME=value`."""


class UnreadableSecret(OpsctlError):
    """A configured secret cannot be read, so no file can be checked for this secret."""


def gather_secrets(
    alerts: AlertSettings, files: Iterable[str], *, of_train: Mapping[str, str], of_process: Mapping[str, str]
) -> Secrets:
    """Collect the configured secrets, and the secrets in the environments of the train and of this process.

    Raises UnreadableSecret if a configured secret cannot be read. Nothing is published then.
    """
    known = [*_of_alerts(alerts), *_of_files(files), *find_in_environment(of_train)]
    return Secrets(all_forms(known), passing=all_forms(find_in_environment(of_process)))


def _of_alerts(alerts: AlertSettings) -> Iterator[str]:
    tables: list[SettingsTable] = [alerts, *alerts.channels.values()]
    for table in tables:
        for field in type(table).model_fields:
            if isinstance(getattr(table, field), SecretStr):
                try:
                    yield reveal(table, field)
                except Undelivered as error:
                    raise UnreadableSecret(
                        f"nothing is published: a configured secret cannot be read: {error.message}",
                        hint="opsctl must know a secret to strike it out of published files",
                    ) from error


def _of_files(files: Iterable[str]) -> Iterator[str]:
    for file in files:
        try:
            lines = Path(os.path.expandvars(file)).expanduser().read_text(errors="surrogateescape").splitlines()
        except OSError as error:
            raise UnreadableSecret(
                f"nothing is published: a configured secret cannot be read: {file}: {error.strerror}",
                hint="check [publish] secret_files",
            ) from error
        for line in lines:
            yield line
            if setting := _SETTING.fullmatch(line):
                yield setting[1].strip("\"'")
