"""Who may see the pages and who may act: a secret token, exchanged for a cookie; checks of Host, Origin and CSRF token.

Every user of the machine can reach a port on loopback, and every page in a browser can send requests there.
"""

import base64
import hashlib
import hmac
import os
import secrets
import stat
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from opsctl.base.errors import RunDirError, writing
from opsctl.state.files import create, make_directory, read_bounded

SECRET_BYTES = 32
COOKIE_DAYS = 30
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


class Role(StrEnum):
    """What the holder of a token may do."""

    VIEW = "view"
    ACT = "act"


def load_secret(directory: Path, *, renew: bool = False) -> bytes:
    """Return the secret of this user's pages, from a file that only the user can read. Raises RunDirError.

    The same links work after a restart. `renew` makes a new secret, with which all earlier links and cookies end.
    """
    path = directory / "secret"
    with writing(path):
        directory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        make_directory(directory, 0o700)
        if renew:
            path.unlink(missing_ok=True)
        if not path.exists():
            create(path, secrets.token_bytes(SECRET_BYTES), mode=0o600)
        secret = read_bounded(path, SECRET_BYTES)
        status = path.lstat()
    is_private = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
    if len(secret) != SECRET_BYTES or not is_private:
        raise RunDirError(
            f"{path}: not a whole secret that only you can read, so that others may know the links",
            hint="opsctl dash --new-token makes a new one",
        )
    return secret


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAccess:
    """The tokens, cookies and names of one server."""

    secret: bytes
    acts: bool
    """Whether actions are allowed at all."""
    hosts: frozenset[str] = frozenset()
    """Names under which the server is reached, besides those of loopback."""

    @property
    def cookie_name(self) -> str:
        """A name of its own, because browsers send a cookie to every port of a host."""
        return f"opsctl-dash-{self._sign('cookie name')[:8]}"

    def token(self, role: Role) -> str:
        return self._sign(f"token {role}")

    def find_role(self, token: str) -> Role | None:
        """Return the role of a token; None for a wrong one, and for a token to act while actions are off."""
        roles = [role for role in Role if hmac.compare_digest(token.encode(), self.token(role).encode())]
        return roles[0] if roles and (roles[0] is Role.VIEW or self.acts) else None

    def make_cookie(self, role: Role, now: datetime) -> str:
        expiry = int((now + timedelta(days=COOKIE_DAYS)).timestamp())
        session = f"{role}.{expiry}.{secrets.token_hex(8)}"
        return f"{session}.{self._sign(f'cookie {session}')}"

    def read_cookie(self, cookie: str, now: datetime) -> Role | None:
        """Return the role of a valid cookie; a cookie to act only shows pages while actions are off."""
        session, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(f"cookie {session}").encode()):
            return None
        role, expiry, _ = session.split(".")
        if now.timestamp() > int(expiry):
            return None
        return Role(role) if self.acts else Role.VIEW

    def csrf_token(self, cookie: str) -> str:
        return self._sign(f"csrf {cookie}")

    def is_csrf_token(self, token: str, cookie: str) -> bool:
        return hmac.compare_digest(token.encode(), self.csrf_token(cookie).encode())

    def is_host(self, header: str) -> bool:
        """Whether a Host header names this server. Another name comes from a page that has rebound its own name."""
        return _host_of(f"//{header}") in LOOPBACK_HOSTS | self.hosts

    def is_origin(self, header: str) -> bool:
        """Whether an Origin header is of this server's pages."""
        return _host_of(header) in LOOPBACK_HOSTS | self.hosts

    def _sign(self, text: str) -> str:
        digest = hmac.new(self.secret, text.encode(errors="replace"), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _host_of(address: str) -> str:
    try:
        return (urlsplit(address).hostname or "").lower()
    except ValueError:
        return ""
