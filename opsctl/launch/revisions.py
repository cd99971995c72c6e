"""The files that the next attempt reads, and their earlier revisions.

An attempt that starts while files are replaced still finds a set that runs.
"""

import difflib
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opsctl.base.errors import RunDirError, cannot_read, cannot_write
from opsctl.base.ports import Runner
from opsctl.settings.loader import TrainSettings
from opsctl.state.events import Edited
from opsctl.state.files import MAX_SETTINGS_BYTES, read_text
from opsctl.state.journal import Journal
from opsctl.state.run_dir import RunDir

SYNTAX_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The text of every file that an attempt reads."""

    config: str
    """train.toml"""
    trainer: str
    """trainer.json; empty unless the train uses the embedded trainer."""
    body: str
    """body.sh"""
    code: str = ""
    """code.json; empty unless the train's code is frozen."""

    def named(self) -> Iterator[tuple[str, str]]:
        """Yield file names and texts in the order in which they are written.

        The body follows the files that it reads. train.toml comes last: it makes the directory a train.
        """
        yield from (("trainer.json", self.trainer), ("code.json", self.code))
        yield from (("body.sh", self.body), ("train.toml", self.config))


def read_files(run: RunDir) -> Files | None:
    """Return the current files, or None before the first launch. Raises RunDirError."""
    if not run.exists:
        return None
    texts = {}
    for name in ("train.toml", "trainer.json", "code.json", "body.sh"):
        try:
            texts[name] = read_text(run.path / name, MAX_SETTINGS_BYTES)
        except FileNotFoundError:
            texts[name] = ""
        except OSError as error:
            raise cannot_read(run.path / name, error) from error
        except UnicodeDecodeError as error:
            raise RunDirError(f"{run.path / name}: {error}") from error
    return Files(
        config=texts["train.toml"], trainer=texts["trainer.json"], body=texts["body.sh"], code=texts["code.json"]
    )


def swap(run: RunDir, files: Files) -> str:
    """Save the current files as a revision and write `files`. Return the revision; empty if nothing changed.

    Each file is replaced atomically, and a half-replaced set runs too. Idempotent. Raises RunDirError.
    """
    current = read_files(run)
    if current == files:
        return ""
    revision = _save_revision(run, current, files) if current else ""
    for name, text in files.named():
        if text:
            run.write(run.path / name, text, mode=0o755 if name == "body.sh" else 0o644)
    if not files.trainer:
        run.trainer_config.unlink(missing_ok=True)
    if not files.code:
        (run.path / "code.json").unlink(missing_ok=True)
    return revision


def _save_revision(run: RunDir, current: Files, new: Files) -> str:
    """Copy `current` to `revisions/<number>/`, unless the newest revision holds it. Return the number."""
    paths = revisions(run)
    newest = read_files(RunDir(paths[-1])) if paths else None
    if newest and _is_between(newest, current, new):
        return paths[-1].name
    number = f"{int(paths[-1].name) + 1 if paths else 1:04}"
    temporary = run.revisions / f".{uuid.uuid4().hex}"
    try:
        temporary.mkdir(mode=0o755)
        for name, text in current.named():
            if text:
                run.write(temporary / name, text)
        temporary.rename(run.revisions / number)
    except OSError as error:
        raise cannot_write(temporary, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return number


def _is_between(old: Files, current: Files, new: Files) -> bool:
    """Return whether every current file is the old or the new one, as after an interrupted swap."""
    rows = zip(old.named(), current.named(), new.named(), strict=True)
    return all(text in (before, after) for (_, before), (_, text), (_, after) in rows)


def revisions(run: RunDir) -> list[Path]:
    """Return the directories of all revisions, oldest first."""
    paths = (path for path in run.revisions.glob("[0-9]*") if path.name.isdigit())
    return sorted(paths, key=lambda path: int(path.name))


def note_edit(run: RunDir, journal: Journal, revision: str, why: str = "") -> None:
    """Journal the edit that saved `revision`; if empty, the newest revision, whose edit may have been interrupted."""
    paths = revisions(run)
    newest = revision or (paths[-1].name if paths else "")
    journalled = {event.revision for event in journal.events() if isinstance(event, Edited)}
    if newest and newest not in journalled:
        journal.append(Edited(revision=newest, why=why))


def frozen_changes(old: TrainSettings, new: TrainSettings) -> list[str]:
    """Return one line for each [slurm] setting that differs: Slurm froze these settings for queued tasks."""
    before, after = old.slurm.model_dump(), new.slurm.model_dump()
    return [
        f"[slurm] {key}: {before[key]!r} -> {after[key]!r}: frozen when the tasks were queued"
        for key in after
        if before[key] != after[key]
    ]


def diff(old: Files, new: Files) -> str:
    """Return the changes as a unified diff."""
    before, after = dict(old.named()), dict(new.named())
    lines: list[str] = []
    for name, text in after.items():
        old_lines = before[name].splitlines(keepends=True)
        new_lines = text.splitlines(keepends=True)
        lines += difflib.unified_diff(old_lines, new_lines, fromfile=f"now/{name}", tofile=f"next/{name}")
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


def syntax_problems(body: str, runner: Runner) -> list[str]:
    """Return the syntax errors that bash reports, one line each. Only [setup] lines can cause them."""
    completed = runner.run(("bash", "-n"), timeout=SYNTAX_TIMEOUT_S, stdin=body)
    if completed.code == 0:
        return []
    return [f"[setup] lines: {line}" for line in completed.err.splitlines() if line]
