"""Three real users of one shared root: the owner of a train, a member of the site's group, and a stranger."""

import grp
import os
import pwd
from collections.abc import Callable
from dataclasses import dataclass

from opsctl.base.errors import OpsctlError

TEAM = "users"
"""A group that Debian, Ubuntu and RHEL have."""


@dataclass(frozen=True)
class User:
    """A user of this machine, with the groups that the user has in tests."""

    name: str
    groups: tuple[str, ...] = ()

    @property
    def uid(self) -> int:
        return pwd.getpwnam(self.name).pw_uid

    def run(self, do: Callable[[], object]) -> str:
        """Run `do` as this user in another process; return the text of its result, or the error that it raised."""
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            text = ""
            try:
                self._become()
                text = str(do())
            except OpsctlError as error:
                text = f"{type(error).__name__}: {error.message}"
            except BaseException as error:  # noqa: BLE001 (a child of a test must not go on as a second test)
                text = f"{type(error).__name__}: {error}"
            finally:
                os.write(writing, text.encode(errors="replace")[:60_000])
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        return text

    def _become(self) -> None:
        entry = pwd.getpwnam(self.name)
        os.setgroups([grp.getgrnam(group).gr_gid for group in self.groups])
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
        os.environ["HOME"] = "/nonexistent"


OWNER = User("nobody", (TEAM,))
MEMBER = User("daemon", (TEAM,))
STRANGER = User("bin")
