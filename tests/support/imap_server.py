"""A private IMAP server on loopback: dovecot, with one user and an empty mailbox."""

import contextlib
import imaplib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.cases import read_table

PASSWORD = "hunter22"
USER = "opsctl"
DOVECOT = shutil.which("dovecot", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
START_LIMIT_S = 60.0
VERSION = "2.3"
"""The configuration below is for this version; the next one renamed its settings."""
CONFIG = read_table(__file__, "config")


def find_problem() -> str:
    """Return why no IMAP server can be started; empty if one can."""
    if DOVECOT is None or os.geteuid() != 0:
        return "needs dovecot and root"
    version = subprocess.run([DOVECOT, "--version"], capture_output=True, text=True, check=False).stdout
    return "" if version.startswith(VERSION) else f"the configuration is for dovecot {VERSION}, not {version[:10]}"


@contextlib.contextmanager
def serve_imap(port: int) -> Iterator[None]:
    """Run dovecot on `port`. Needs root, because dovecot changes users."""
    assert DOVECOT is not None
    owner = pwd.getpwnam("nobody")
    with tempfile.TemporaryDirectory(prefix="opsctl-imap-") as directory:
        place = Path(directory)
        place.chmod(0o755)
        (place / "mail").mkdir()
        os.chown(place / "mail", owner.pw_uid, owner.pw_gid)
        config = place / "dovecot.conf"
        config.write_text(CONFIG.format(place=place, port=port, password=PASSWORD, uid=owner.pw_uid, gid=owner.pw_gid))
        process = subprocess.Popen([DOVECOT, "-F", "-c", str(config)], stderr=subprocess.DEVNULL)
        try:
            _wait(port, place / "log")
            yield
        finally:
            process.terminate()
            process.wait(250)


def _wait(port: int, log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, imaplib.IMAP4.error), connect(port):
            return
        time.sleep(0.1)
    raise AssertionError(log.read_text() if log.exists() else "dovecot did not start")


def connect(port: int) -> imaplib.IMAP4:
    """Return a connection that is logged in."""
    connection = imaplib.IMAP4("127.0.0.1", port, timeout=250)
    connection.login(USER, PASSWORD)
    return connection


def append_mail(port: int, text: str) -> None:
    """Put a mail into the mailbox."""
    with connect(port) as connection:
        connection.append("INBOX", "", imaplib.Time2Internaldate(time.time()), text.encode())


def empty_mailbox(port: int) -> None:
    """Remove every mail."""
    with connect(port) as connection:
        _, count = connection.select("INBOX")
        if int(count[0] or b"0"):
            connection.store("1:*", "+FLAGS", "\\Deleted")
            connection.expunge()
