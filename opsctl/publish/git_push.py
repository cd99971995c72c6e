"""Publish to a branch of a git remote: one commit on top of the branch, and no commit without changes.

Every call begins from the remote's state, with its own index. A killed call leaves nothing to repair.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from opsctl.base.errors import OpsctlError
from opsctl.base.ports import Completed, Runner
from opsctl.base.secret_formats import Secrets
from opsctl.publish.staging import TimeLimit
from opsctl.state.files import write_atomic

MAX_PUSHES = 3
"""Another push at the same time wins the race; the commit is then made again on top of that push."""
MAX_HOME_BYTES = 1 << 30
"""Of the local repository, beyond which it forgets what was published before."""
NO_HOOKS = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false")
"""The user's own hooks are for checkouts, and must not run in every publication."""
_FETCHED_REF = "refs/opsctl/there"


class NotPushed(OpsctlError):
    """git failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Git:
    """One train's directory in a branch."""

    runner: Runner
    secrets: Secrets
    deadline: TimeLimit
    home: Path
    """A bare repository, reused by the next call."""
    remote: str
    branch: str
    author: str

    def push(self, directory: Path, train: str, names: Iterable[str], removed: Iterable[str]) -> str:
        """Push the files `names` of `directory` to `train` in the branch, without the files `removed`.

        Return the new commit, or an empty string if the branch has the same files already.
        Raises NotPushed, DeadlinePassed, MissingProgram.
        """
        self._prepare()
        names = list(names)
        blobs = self._write_blobs([directory / name for name in names])
        rows = [f"100644 {blob}\t{train}/{name}" for name, blob in zip(names, blobs, strict=True)]
        rows += [f"0 {'0' * 40}\t{train}/{name}" for name in removed if name.isprintable()]  # no other was published
        for _ in range(MAX_PUSHES):
            head = self._fetch()
            tree = self._write_tree(head, rows)
            if head and tree == self._git("rev-parse", f"{head}^{{tree}}").out.strip():
                return ""
            parents = ["-p", head] if head else []
            commit = self._git("commit-tree", tree, *parents, "-m", f"{train}: {len(names)} files").out.strip()
            self._git("update-ref", _FETCHED_REF, commit)  # the next fetch moves this ref
            if self._try_push(commit):
                with suppress(OpsctlError):  # the files are published; a later push tries again
                    self._forget(commit)
                return commit
        raise NotPushed(
            f"{self.remote}: {self.branch} changed during all {MAX_PUSHES} pushes; the next call tries again"
        )

    def _prepare(self) -> None:
        if not (self.home / "HEAD").exists():
            self._git("init", "--quiet", "--bare", str(self.home))
        # Left by a killed git. The lease keeps other calls out of this repository.
        for path in (*self.home.glob("*.lock"), *self.home.glob("refs/opsctl/*.lock"), self.home / "opsctl-index"):
            path.unlink(missing_ok=True)

    def _fetch(self) -> str:
        """Fetch the branch and return its commit; empty if the branch does not exist."""
        completed = self._git("ls-remote", "--exit-code", self.remote, f"refs/heads/{self.branch}", ok={0, 2})
        if completed.code == 2:
            return ""
        head = completed.out.split()[0]
        if not re.fullmatch(r"[0-9a-f]{40,64}", head):
            raise NotPushed(f"{self.remote}: git ls-remote returned no commit id for {self.branch}")
        if self._git("cat-file", "-e", f"{head}^{{tree}}", ok={0, 1, 128}).code:
            refspec = f"+refs/heads/{self.branch}:{_FETCHED_REF}"
            self._git("fetch", "--quiet", "--no-tags", "--depth=1", self.remote, refspec)
        return head

    def _write_blobs(self, paths: list[Path]) -> list[str]:
        lines = "".join(f"{path}\n" for path in paths)
        return self._git("hash-object", "-w", "--no-filters", "--stdin-paths", stdin=lines).out.split()

    def _write_tree(self, head: str, rows: list[str]) -> str:
        self._git("read-tree", *([head] if head else ["--empty"]))
        self._git("update-index", "--index-info", stdin="".join(f"{row}\n" for row in rows))
        return self._git("write-tree").out.strip()

    def _try_push(self, commit: str) -> bool:
        """Push; return False if another push was faster."""
        completed = self._git(
            "push", "--quiet", "--porcelain", self.remote, f"{commit}:refs/heads/{self.branch}", ok={0, 1, 128}
        )
        if completed.code == 0:
            return True
        text = completed.out + completed.err
        if any(word in text for word in ("non-fast-forward", "fetch first", "cannot lock ref", "stale info")):
            return False
        raise self._failed("push", completed)

    def _forget(self, commit: str) -> None:
        """Remove what the repository holds besides the last commit, if it is large: the remote has the history."""
        counts = dict(line.split(": ") for line in self._git("count-objects", "-v").out.splitlines())
        if 1024 * (int(counts["size"]) + int(counts["size-pack"])) > MAX_HOME_BYTES:
            write_atomic(self.home / "shallow", f"{commit}\n")
            self._git("gc", "--quiet", "--prune=now")

    def _git(self, *words: str, stdin: str = "", ok: Iterable[int] = (0,)) -> Completed:
        argv = ("git", *NO_HOOKS, f"--git-dir={self.home}", *words)
        completed = self.deadline.run(self.runner, argv, f"git {words[0]}", stdin=stdin, env=self._env())
        if completed.code not in ok:
            raise self._failed(words[0], completed)
        return completed

    def _failed(self, command: str, completed: Completed) -> NotPushed:
        lines = [line for line in (completed.err or completed.out).splitlines() if line.strip()]
        text = self.secrets.strike_text(" / ".join(lines[:3]))
        return NotPushed(f"git {command} failed with exit code {completed.code}: {text}", hint="check [publish] remote")

    def _env(self) -> Mapping[str, str]:
        """Return the environment of git, which never asks for a password."""
        return {
            "GIT_INDEX_FILE": str(self.home / "opsctl-index"),
            "GIT_TERMINAL_PROMPT": "0",
            "LC_ALL": "C",
            "GIT_AUTHOR_NAME": self.author,
            "GIT_AUTHOR_EMAIL": self.author,
            "GIT_COMMITTER_NAME": self.author,
            "GIT_COMMITTER_EMAIL": self.author,
        }
