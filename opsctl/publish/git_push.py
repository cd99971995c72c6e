"""To a branch of a git remote: one commit on top of whatever is there, and none where nothing has changed.

Each call begins from what the remote has, with an index of its own: one that was killed leaves nothing to repair.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from opsctl.errors import OpsctlError
from opsctl.ports import Completed, Runner, TimedOut
from opsctl.publish.redaction import Secrets
from opsctl.publish.staging import DeadlinePassed, TimeLimit

ROUNDS = 3
"""Somebody else may push at the same time: then it is done again on top of theirs."""
_HERE = "refs/opsctl/there"


class NotPushed(OpsctlError):
    """git refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Git:
    """One train's directory in a branch."""

    runner: Runner
    secrets: Secrets
    deadline: TimeLimit
    home: Path
    """Where what git needs is kept between calls."""
    remote: str
    branch: str
    author: str

    def push(self, directory: Path, train: str, names: Iterable[str], gone: Iterable[str]) -> str:
        """Have the files `names` of `directory` below `train` in the branch, and those `gone` not; the new commit, or
        empty if it has all that already. Raises NotPushed, Late, MissingProgram."""
        self._begin()
        names, gone = list(names), list(gone)
        blobs = self._blobs([directory / name for name in names])
        rows = [f"100644 {blob}\t{train}/{name}" for name, blob in zip(names, blobs, strict=True)]
        rows += [f"0 {'0' * 40}\t{train}/{name}" for name in gone]
        for _ in range(ROUNDS):
            there = self._fetch()
            tree = self._tree(there, rows)
            if there and tree == self._git("rev-parse", f"{there}^{{tree}}").out.strip():
                return ""
            parents = ["-p", there] if there else []
            commit = self._git("commit-tree", tree, *parents, "-m", f"{train}: {len(names)} files").out.strip()
            self._git("update-ref", _HERE, commit)  # what others pushed instead, the next fetch puts there
            if self._pushed(commit):
                return commit
        raise NotPushed(
            f"{self.remote}: others pushed to {self.branch} {ROUNDS} times meanwhile; the next call tries again"
        )

    def _begin(self) -> None:
        if not (self.home / "HEAD").exists():
            self._git("init", "--quiet", "--bare", str(self.home))
        # Of a git that was killed; nobody else works here.
        for path in (*self.home.glob("*.lock"), *self.home.glob("refs/opsctl/*.lock"), self.home / "opsctl-index"):
            path.unlink(missing_ok=True)

    def _fetch(self) -> str:
        """The commit that the branch is at, here too now; empty if there is no such branch."""
        completed = self._git("ls-remote", "--exit-code", self.remote, f"refs/heads/{self.branch}", ok={0, 2})
        if completed.code == 2:
            return ""
        there = completed.out.split()[0]
        if not re.fullmatch(r"[0-9a-f]{40,64}", there):
            raise NotPushed(f"{self.remote}: what git says of {self.branch} cannot be understood")
        if self._git("cat-file", "-e", f"{there}^{{tree}}", ok={0, 1, 128}).code:
            wanted = f"+refs/heads/{self.branch}:{_HERE}"
            self._git("fetch", "--quiet", "--no-tags", "--depth=1", self.remote, wanted)
        return there

    def _blobs(self, paths: list[Path]) -> list[str]:
        given = "".join(f"{path}\n" for path in paths)
        return self._git("hash-object", "-w", "--no-filters", "--stdin-paths", stdin=given).out.split()

    def _tree(self, there: str, rows: list[str]) -> str:
        self._git("read-tree", *([there] if there else ["--empty"]))
        self._git("update-index", "--index-info", stdin="".join(f"{row}\n" for row in rows))
        return self._git("write-tree").out.strip()

    def _pushed(self, commit: str) -> bool:
        """Whether it was taken; False if somebody else was faster."""
        done = self._git(
            "push", "--quiet", "--porcelain", self.remote, f"{commit}:refs/heads/{self.branch}", ok={0, 1, 128}
        )
        if done.code == 0:
            return True
        text = done.out + done.err
        if any(word in text for word in ("non-fast-forward", "fetch first", "cannot lock ref", "stale info")):
            return False
        raise self._refused("push", done)

    def _git(self, *words: str, stdin: str = "", ok: Iterable[int] = (0,)) -> Completed:
        argv = ("git", f"--git-dir={self.home}", *words)
        try:
            done = self.runner.run(argv, timeout=self.deadline.left(), stdin=stdin, env=self._env())
        except TimedOut as error:
            raise DeadlinePassed(
                f"git {words[0]} did not end within what was left of {self.deadline.seconds:g} s"
            ) from error
        if done.code not in ok:
            raise self._refused(words[0], done)
        return done

    def _refused(self, verb: str, done: Completed) -> NotPushed:
        lines = [line for line in (done.err or done.out).splitlines() if line.strip()]
        text = self.secrets.strike_text(" / ".join(lines[:3]))
        return NotPushed(f"git {verb} ended with {done.code}: {text}", hint="[publish] remote")

    def _env(self) -> Mapping[str, str]:
        """It asks nobody, and never waits for a password."""
        return {
            "GIT_INDEX_FILE": str(self.home / "opsctl-index"), "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C",
            **{f"GIT_{who}_{what}": self.author for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }  # fmt: skip
