"""What the next attempt will read: kept, compared and swapped, so that whatever starts in between finds a whole set."""

from __future__ import annotations

import difflib
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opsctl.errors import cannot_read, cannot_write
from opsctl.ports import Runner
from opsctl.settings.loader import TrainSettings
from opsctl.state.journal import EventKind, Journal
from opsctl.state.run_dir import RunDir

SYNTAX_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """What an attempt is made of, word for word."""

    config: str
    """train.toml"""
    trainer: str
    """trainer.json; empty where the embedded trainer is not used."""
    body: str
    """body.sh"""

    def named(self) -> Iterator[tuple[str, str]]:
        """By file name, in the order in which they are written.

        The body goes after what it reads, and train.toml last: a run directory without one is no train yet.
        """
        yield from (("trainer.json", self.trainer), ("body.sh", self.body), ("train.toml", self.config))


def read_files(run: RunDir) -> Files | None:
    """What is there now, or None where nothing was launched yet. Raises RunDirError."""
    if not run.exists:
        return None
    texts = {}
    for name in ("train.toml", "trainer.json", "body.sh"):
        try:
            texts[name] = (run.path / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            texts[name] = ""
        except OSError as error:
            raise cannot_read(run.path / name, error) from error
    return Files(config=texts["train.toml"], trainer=texts["trainer.json"], body=texts["body.sh"])


def swap(run: RunDir, files: Files) -> str:
    """Put `files` in place of what is there, which is kept; the revision that keeps it, or empty if nothing changed.

    Each file is replaced atomically, and a set that is only half replaced runs too. Idempotent. Raises RunDirError.
    """
    before = read_files(run)
    if before == files:
        return ""
    revision = _keep(run, before, files) if before else ""
    for name, text in files.named():
        if text:
            run.write(run.path / name, text, mode=0o755 if name == "body.sh" else 0o644)
    if not files.trainer:
        run.trainer_config.unlink(missing_ok=True)
    return revision


def _keep(run: RunDir, files: Files, new: Files) -> str:
    """Copy what is there to `revisions/<number>/`, unless the newest revision has it; its number."""
    paths = revisions(run)
    if paths and (newest := read_files(RunDir(paths[-1]))) and _is_between(newest, files, new):
        return paths[-1].name
    number = f"{int(paths[-1].name) + 1 if paths else 1:04}"
    fresh = run.revisions / f".{uuid.uuid4().hex}"
    try:
        fresh.mkdir(mode=0o755)
        for name, text in files.named():
            if text:
                run.write(fresh / name, text)
        fresh.rename(run.revisions / number)
    except OSError as error:
        raise cannot_write(fresh, error) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return number


def _is_between(old: Files, now: Files, new: Files) -> bool:
    """Each file is the old or the new one: nothing was changed since, or a swap was cut off half-way."""
    each = zip(old.named(), now.named(), new.named(), strict=True)
    return all(text in (before, after) for (_, before), (_, text), (_, after) in each)


def revisions(run: RunDir) -> list[Path]:
    """Every earlier set of files, the oldest first."""
    paths = (path for path in run.revisions.glob("[0-9]*") if path.name.isdigit())
    return sorted(paths, key=lambda path: int(path.name))


def note_edit(run: RunDir, journal: Journal, revision: str) -> None:
    """Journal the edit that kept `revision`; after one that was cut off before it was journalled, that one."""
    newest = revision or (revisions(run)[-1].name if revisions(run) else "")
    noted = {str(event.data["revision"]) for event in journal.events() if event.kind is EventKind.EDITED}
    if newest and newest not in noted:
        journal.append(EventKind.EDITED, revision=newest)


def frozen_changes(old: TrainSettings, new: TrainSettings) -> list[str]:
    """What sbatch has frozen for the queued tasks and `new` would have otherwise, one line each."""
    before, after = old.slurm.model_dump(), new.slurm.model_dump()
    return [
        f"[slurm] {key}: {before[key]!r} -> {after[key]!r}: frozen when the tasks were queued"
        for key in after
        if before[key] != after[key]
    ]


def diff(old: Files, new: Files) -> str:
    """What changes, as a unified diff."""
    before, after = dict(old.named()), dict(new.named())
    lines: list[str] = []
    for name, text in after.items():
        pair = (before[name].splitlines(keepends=True), text.splitlines(keepends=True))
        lines += difflib.unified_diff(*pair, fromfile=f"now/{name}", tofile=f"next/{name}")
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


def syntax_problems(body: str, runner: Runner) -> list[str]:
    """What bash cannot read in the body, one line each; only [setup] lines can be the cause."""
    done = runner.run(("bash", "-n"), timeout=SYNTAX_TIMEOUT, stdin=body)
    return [] if done.code == 0 else [f"[setup] lines: {line}" for line in done.err.splitlines() if line]
