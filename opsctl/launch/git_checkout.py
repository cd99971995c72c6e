"""Read a checkout with git, so that nothing runs that its repository names.

git runs programs that settings of a repository name: filters, hooks, text conversions, diff programs, monitors of
files, checkers of signatures, pagers, and git in every submodule. Here git gets a directory of its own, with objects,
index, references and ignored names of the checkout, and of its settings only values about files. The user's and the
machine's settings are left out as well, because the repository says which of their filters apply.
"""

import contextlib
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from opsctl.base.errors import OpsctlError
from opsctl.base.ports import Completed, Runner, TimedOut
from opsctl.state.files import create, read_bounded, read_text

MAX_REF_BYTES = 1 << 20
MAX_PARENTS = 64
CONFIG_TIMEOUT_S = 10.0
FILE_SETTINGS = frozenset({"core.filemode", "core.symlinks", "core.ignorecase", "core.autocrlf", "core.eol"})
"""Settings of the user and of the repository that say how files are compared. None of them names a program."""
LINKED = ("refs", "packed-refs", "info", "shallow")
"""Of the directory that the worktrees of a repository share."""
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """A checkout: its top, the directory of its own files, and the directory that it shares with other worktrees."""

    top: Path
    own: Path
    shared: Path

    def read_commit(self) -> str:
        """Return the commit that is checked out, from files; empty if unknown. Raises OSError, ValueError."""
        head = read_text(self.own / "HEAD", MAX_REF_BYTES).strip()
        if not head.startswith("ref:"):
            return head if _COMMIT.fullmatch(head) else ""
        name = head.removeprefix("ref:").strip()
        try:
            commit = read_text(self.shared / name, MAX_REF_BYTES).strip()
        except FileNotFoundError:
            rows = (row.split() for row in read_text(self.shared / "packed-refs", MAX_REF_BYTES).splitlines())
            commit = next((row[0] for row in rows if row[1:] == [name]), "")
        return commit if _COMMIT.fullmatch(commit) else ""


def find_checkout(directory: Path) -> Checkout | None:
    """Return the checkout that has `directory`, or None. Raises OSError, ValueError for a broken one."""
    for place in islice((directory, *directory.parents), MAX_PARENTS):
        own = place / ".git"
        if not own.exists():
            continue
        if not own.is_dir():  # a worktree or a submodule: a file that names the directory
            own = place / read_text(own, MAX_REF_BYTES).removeprefix("gitdir:").strip()
        shared = own
        if (own / "commondir").exists():
            shared = own / read_text(own / "commondir", MAX_REF_BYTES).strip()
        return Checkout(top=place, own=own, shared=shared)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainGit:
    """git in one checkout, without what its repository configures."""

    runner: Runner
    checkout: Checkout
    directory: Path
    """The directory that git takes for that of the repository."""

    def run(self, *words: str, timeout_s: float) -> Completed:
        """Run a command of git that only reads, from the top of the checkout. Raises MissingProgram, TimedOut."""
        checkout = self.checkout
        env: Mapping[str, str | None] = {
            "GIT_DIR": str(self.directory),
            "GIT_WORK_TREE": str(checkout.top),
            "GIT_INDEX_FILE": str(checkout.own / "index"),
            "GIT_OBJECT_DIRECTORY": str(checkout.shared / "objects"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_ATTR_NOSYSTEM": "1",
            "HOME": str(self.directory),  # for versions before 2.32, which know no GIT_CONFIG_GLOBAL
            "XDG_CONFIG_HOME": str(self.directory),
            "GIT_OPTIONAL_LOCKS": "0",
            **dict.fromkeys(("GIT_CONFIG_COUNT", "GIT_CONFIG_PARAMETERS", "GIT_EXTERNAL_DIFF", "GIT_COMMON_DIR")),
        }
        return self.runner.run(("git", "--no-pager", "-C", str(checkout.top), *words), timeout=timeout_s, env=env)


@contextlib.contextmanager
def open_git(runner: Runner, checkout: Checkout) -> Iterator[PlainGit]:
    """Yield git for `checkout`. Raises OSError, ValueError, MissingProgram, TimedOut."""
    with tempfile.TemporaryDirectory(prefix="opsctl-git-") as name:
        directory = Path(name)
        create(directory / "HEAD", read_bounded(checkout.own / "HEAD", MAX_REF_BYTES), mode=0o600)
        create(directory / "config", _render_config(_read_settings(runner, checkout)).encode(), mode=0o600)
        for linked in LINKED:
            if (checkout.shared / linked).exists():
                (directory / linked).symlink_to((checkout.shared / linked).absolute())
        for part in checkout.own.glob("sharedindex.*"):
            (directory / part.name).symlink_to(part.absolute())
        yield PlainGit(runner=runner, checkout=checkout, directory=directory)


def _read_settings(runner: Runner, checkout: Checkout) -> dict[str, str]:
    """Return all settings of the checkout. Listing settings runs none of the programs that they name."""
    done = runner.run(
        ("git", "--no-pager", "-C", str(checkout.top), "config", "--list", "-z"), timeout=CONFIG_TIMEOUT_S
    )
    pairs = (entry.partition("\n") for entry in done.out.split("\0"))
    return {key.lower(): value if separator else "true" for key, separator, value in pairs}


def _render_config(settings: Mapping[str, str]) -> str:
    """Return a config with the settings about files: of the allowed ones, only values without special characters."""
    is_sha256 = settings.get("extensions.objectformat") == "sha256"
    core = {key.partition(".")[2]: value for key, value in settings.items() if key in FILE_SETTINGS and value.isalnum()}
    core |= {"bare": "false", "repositoryformatversion": str(int(is_sha256)), "quotePath": "true"}
    if ignored := _find_ignored(settings.get("core.excludesfile", "")):
        core["excludesFile"] = ignored
    lines = ["[core]", *(f"{key} = {value}" for key, value in core.items()), "[diff]", "autoRefreshIndex = false"]
    lines += ["[extensions]", "objectFormat = sha256"] if is_sha256 else []
    return "\n".join([*lines, ""])


def _find_ignored(setting: str) -> str:
    """Return the user's own file of ignored names, quoted for a config; empty if there is none."""
    try:
        path = Path(setting or "~/.config/git/ignore").expanduser()
    except RuntimeError:  # no home
        return ""
    if not path.is_absolute() or not path.is_file() or not str(path).isprintable():
        return ""
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'


def read_lines(git: PlainGit, *words: str, timeout_s: float) -> str:
    """Return what a command of git prints; empty if it fails or git is missing."""
    with contextlib.suppress(OpsctlError, TimedOut):
        done = git.run(*words, timeout_s=timeout_s)
        return done.out if done.code == 0 else ""
    return ""
