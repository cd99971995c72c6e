"""Code freeze: a copy of the trainer's code below the run directory, so that later changes reach no queued task.

A copy has the name of its content: `code/<hash>/`. body.sh starts the trainer in the copy, and code.json records the
origin. `opsctl edit`, and a launch, take a new copy.
"""

import ast
import hashlib
import json
import os
import shutil
import stat
import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO

from opsctl.base.errors import InputError, OpsctlError, cannot_read, cannot_write
from opsctl.base.ports import Runner, TimedOut
from opsctl.base.tables import read_package_table
from opsctl.base.units import format_size
from opsctl.launch.git_checkout import PlainGit, find_checkout, open_git
from opsctl.settings.setup import ShellSetup
from opsctl.state.files import MAX_SETTINGS_BYTES, read_json
from opsctl.state.run_dir import RunDir

GIT_TIMEOUT_S = 60.0
EXCLUDED = frozenset(read_package_table("launch/code_freeze.toml")["excluded"])
"""Names that `copy` leaves out, besides virtual environments."""
MAX_FILES = 100_000
HASH_CHARS = 16
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenCode:
    """A copy that a launch or an edit will make, or has made."""

    how: str
    """`git` or `copy`."""
    source: Path
    """The directory that is copied: with `git`, the top of the checkout."""
    start: str
    """The working directory of the trainer, relative to `source`."""
    files: tuple[str, ...]
    """Files and links, relative to `source`, sorted."""
    hash: str
    """Of names, contents, executable bits and links."""
    commit: str
    """With `git`, the commit of the checkout, and `+N` for N changed or new files."""

    def directory(self, run: RunDir) -> Path:
        """Return the working directory of the trainer inside the copy."""
        return directory_of(run, self.hash) / self.start

    def record(self) -> str:
        """Return the text of code.json."""
        fields = {"hash": self.hash, "freeze": self.how, "source": str(self.source), "commit": self.commit}
        return json.dumps({**fields, "files": len(self.files)}, indent=1) + "\n"


def directory_of(run: RunDir, hash_: str) -> Path:
    return run.path / "code" / hash_[:HASH_CHARS]


def read_record(run: RunDir) -> dict[str, Any]:
    """Return the content of code.json; empty if the train's code is not frozen."""
    try:
        record = read_json(run.path / "code.json", MAX_SETTINGS_BYTES)
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def plan_freeze(setup: ShellSetup, runner: Runner, *, root: Path) -> FrozenCode | None:
    """Read the code that `[setup] freeze` names; None without a freeze. Writes nothing.

    `root`, the directory of all trains, is never part of a copy. Raises InputError.
    """
    if setup.freeze == "none":
        return None
    start = _resolve(setup.directory)
    source, commit = start, ""
    if setup.freeze == "git":
        source, commit, found = _read_checkout(runner, start)
    else:
        found = set(_list_by_walk(source, root))
    files = tuple(sorted(name for name in found if not _is_excluded(name, setup.freeze_exclude)))
    _check_size(source, files, setup.freeze_max_size)
    return FrozenCode(
        how=setup.freeze,
        source=source,
        start=os.path.relpath(start, source),
        files=files,
        hash=_digest(source, files, None),
        commit=commit,
    )


def store(code: FrozenCode, run: RunDir) -> None:
    """Make the copy, unless an earlier launch or edit has made it.

    Raises InputError if the code has changed since `plan_freeze`, RunDirError.
    """
    final = directory_of(run, code.hash)
    if final.is_dir():
        return
    temporary = final.with_name(f".{uuid.uuid4().hex}")
    try:
        final.parent.mkdir(exist_ok=True, mode=0o700)  # the code may be readable by its owner only
        (temporary / code.start).mkdir(parents=True)
        if _digest(code.source, code.files, temporary) != code.hash:
            raise InputError(f"{code.source}: a file has changed meanwhile", hint="try again when nobody is editing")
        temporary.rename(final)
    except OSError as error:
        raise cannot_write(temporary, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def find_unfrozen(code: FrozenCode, texts: Sequence[str]) -> list[str]:
    """Return the texts of command, environment and setup lines that name the original code by its path."""
    return [text for text in texts if str(code.source) in text]


# --- which files


def _resolve(directory: str) -> Path:
    path = Path(directory)
    if not path.is_dir():
        raise InputError(f"[setup] directory: {directory} is not a directory here, so its code cannot be copied")
    return path.resolve()


def _read_checkout(runner: Runner, directory: Path) -> tuple[Path, str, set[str]]:
    """Return the top of the checkout, its commit with the number of changed and new files, and its files."""
    try:
        checkout = find_checkout(directory)
        if checkout is None:
            raise _refuse_git(directory, "not a git repository")
        with open_git(runner, checkout) as git:
            head = _git(git, "rev-parse", "--verify", "--quiet", "HEAD", may_fail=True).strip()
            words = ("status", "--porcelain", "--untracked-files=all", "--ignore-submodules=dirty")
            changed = len(_git(git, *words).splitlines())
            files = set(_list_by_git(git))
    except TimedOut as error:
        raise OpsctlError(f"[setup] freeze: {error}") from error
    except (OSError, ValueError) as error:
        raise _refuse_git(directory, str(error)) from error
    return checkout.top, (head or "no commit") + (f"+{changed}" if changed else ""), files


def _list_by_git(git: PlainGit) -> Iterator[str]:
    """Yield every file that git tracks or does not ignore, also inside submodules."""
    listed = _git(git, "ls-files", "--cached", "--others", "--exclude-standard")
    for line in dict.fromkeys(listed.splitlines()):
        # git prints a name that is not plain ASCII in quotes, with the escapes of C.
        name = os.fsdecode(ast.literal_eval(f"b{line}")) if line.startswith('"') else line
        path = git.checkout.top / name
        if path.is_dir() and not path.is_symlink():
            yield from (f"{name.rstrip('/')}/{inner}" for inner in _list_by_git_inside(git.runner, path))
        elif _is_copied(path):
            yield name


def _list_by_git_inside(runner: Runner, directory: Path) -> Iterator[str]:
    """Yield the files of a submodule, or of another repository in `directory`; none without a checkout."""
    checkout = find_checkout(directory)
    if checkout and checkout.top == directory:
        with open_git(runner, checkout) as git:
            yield from _list_by_git(git)


def _list_by_walk(source: Path, root: Path) -> Iterator[str]:
    """Yield every file below `source` except caches, virtual environments, repositories' data and the trains."""
    for directory, names, files in os.walk(source):
        here = Path(directory)
        links = [name for name in names if (here / name).is_symlink()]
        names[:] = sorted(name for name in names if name not in links and _is_entered(here / name, root))
        for name in (*links, *files):
            if name not in EXCLUDED and _is_copied(here / name):
                yield str((here / name).relative_to(source))


def _is_entered(directory: Path, root: Path) -> bool:
    if directory.name in EXCLUDED or (directory / "pyvenv.cfg").exists():
        return False
    return directory.resolve() != root.resolve()


def _is_copied(path: Path) -> bool:
    """Return whether the path is a file or a link. Pipes, sockets and devices are left out."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:  # deleted, though git still tracks the file
        return False
    except OSError as error:
        raise cannot_read(path, error) from error
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def _is_excluded(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a pattern matches the file or a directory above it."""
    parts = name.split("/")
    above = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return any(any(fnmatchcase(path, pattern.rstrip("/")) for path in above) for pattern in patterns)


def _check_size(source: Path, files: Sequence[str], max_bytes: int) -> None:
    """Raise InputError for too many files or bytes, with the largest entries."""
    sizes: Counter[str] = Counter()
    for name in files:
        sizes[name.partition("/")[0]] += (source / name).lstat().st_size
    total = sum(sizes.values())
    if total <= max_bytes and len(files) <= MAX_FILES:
        return
    largest = ", ".join(f"{name} {format_size(size)}" for name, size in sizes.most_common(3))
    raise InputError(
        f"[setup] freeze: {source} has {len(files):,} files and {format_size(total)}; at most {MAX_FILES:,} files and"
        f" {format_size(max_bytes)} are copied; the largest: {largest}",
        hint='name what the trainer does not need in freeze_exclude, use freeze = "git" with a .gitignore, or raise'
        " freeze_max_size",
    )


def _git(git: PlainGit, *words: str, may_fail: bool = False) -> str:
    done = git.run(*words, timeout_s=GIT_TIMEOUT_S)
    if done.code and not may_fail:
        problem = done.err.strip().splitlines() or [f"exit code {done.code}"]
        raise _refuse_git(git.checkout.top, problem[-1])
    return done.out


def _refuse_git(directory: Path, problem: str) -> InputError:
    return InputError(f"[setup] freeze: git in {directory}: {problem}", hint='freeze = "copy" needs no git repository')


# --- reading and copying


def _digest(source: Path, files: Sequence[str], target: Path | None) -> str:
    """Return the hash of the files, and copy them below `target` on the way. Raises InputError, OSError."""
    total = hashlib.sha256()
    copied = _with_parents(files)
    for name in files:
        path = source / name
        copy = target / name if target else None
        if copy:
            copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            part = _digest_link(source, path, copied, copy) if path.is_symlink() else _digest_file(path, copy)
        except FileNotFoundError as error:
            raise InputError(f"{path}: has vanished meanwhile", hint="try again when nobody is editing") from error
        total.update(hashlib.sha256(os.fsencode(name)).digest() + part)
    return total.hexdigest()


def _with_parents(files: Sequence[str]) -> set[str]:
    """Return the files and every directory above them."""
    copied = set(files)
    for name in files:
        while (name := name.rpartition("/")[0]) and name not in copied:
            copied.add(name)
    return copied


def _digest_link(source: Path, path: Path, copied: Collection[str], copy: Path | None) -> bytes:
    """Hash a link as the copy has it: within the copy if its target is copied too, else to the absolute target."""
    target = Path(os.path.abspath(path.parent / path.readlink()))  # noqa: PTH100 (resolve() would follow further links)
    is_inside = target == source or os.path.relpath(target, source) in copied
    text = os.path.relpath(target, path.parent) if is_inside else str(target)
    if copy:
        copy.symlink_to(text)
    return hashlib.sha256(b"link" + os.fsencode(text)).digest()


def _digest_file(path: Path, copy: Path | None) -> bytes:
    digest = hashlib.sha256()
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError as error:
        raise cannot_read(path, error) from error
    with os.fdopen(handle, "rb") as file:
        is_executable = bool(os.fstat(handle).st_mode & stat.S_IXUSR)
        digest.update(b"executable" if is_executable else b"file")
        if copy is None:
            _pass_through(file, digest, None)
        else:
            with copy.open("xb") as out:
                _pass_through(file, digest, out)
            copy.chmod(0o755 if is_executable else 0o644)
    return digest.digest()


def _pass_through(file: BinaryIO, digest: Any, out: BinaryIO | None) -> None:
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
        if out:
            out.write(chunk)
