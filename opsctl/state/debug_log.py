"""The debug log: every record of every command, in `<root>/.site/logs/<host>-<uid>.log`.

The processes of one user on one host share a file. Every record is one write() in append mode, so that no lock is
needed; a file that is full is renamed to `.old` under a lease. Hosts have files of their own, because shared file
systems do not append atomically for several hosts.
"""

import logging
import os

from opsctl.base.nodesets import hostname
from opsctl.base.ports import Clock
from opsctl.host.log_config import ROOT, RecordHandler
from opsctl.state.files import closing, make_directory, open_append
from opsctl.state.site_dir import SiteDir

MAX_BYTES = 4 << 20
"""A fuller file is renamed, so that host and user hold little more than twice this."""


def attach(site: SiteDir, clock: Clock) -> None:
    """Write the records of this process to the debug log of the site."""
    logging.getLogger(ROOT).addHandler(DebugLog(site, clock))


class DebugLog(RecordHandler):
    """Appends records. Writes only into a site directory that exists and belongs to this user."""

    def __init__(self, site: SiteDir, clock: Clock) -> None:
        super().__init__(logging.DEBUG, with_pid=True)
        self._site = site
        self._clock = clock
        self._path = site.logs / f"{hostname()}-{os.geteuid()}.log"

    def write(self, text: str) -> None:
        if self._site.path.lstat().st_uid != os.geteuid():
            return
        with closing(self._open()) as handle:
            status = os.fstat(handle)
            is_own_file = status.st_uid == os.geteuid() and status.st_nlink == 1
            if is_own_file and status.st_size < 2 * MAX_BYTES:  # a log that cannot be renamed stays bounded
                os.write(handle, text.encode(errors="backslashreplace"))
        if is_own_file and status.st_size > MAX_BYTES:
            self._rename_full_log()

    def _open(self) -> int:
        try:
            return open_append(self._path, mode=0o640)
        except FileNotFoundError:
            make_directory(self._site.logs, 0o755)
            return open_append(self._path, mode=0o640)

    def _rename_full_log(self) -> None:
        from opsctl.state.lease import lease  # noqa: PLC0415 (slow import: psutil; needed once in 4 MiB)

        with lease(self._site.logs, self._clock, wait=0):
            if self._path.lstat().st_size > MAX_BYTES:  # else another process has renamed the file meanwhile
                self._path.replace(self._path.with_suffix(".old"))
