"""A checkpoint on disk: its completeness, its files and their hashes, removal and protection.

    checkpoints/
      step-0001000/
        …              the files of DeepSpeed and one `rank-….pt` per rank
        manifest.json  name, size and SHA-256 of every file; step, samples, topology, model
        COMPLETE       SHA-256 of manifest.json; written last; this file alone makes the directory a checkpoint
      damaged-step-0000500/   set aside: the checkpoint was complete and failed verification
      .saving-step-…/         a save in progress or interrupted
      .reshaped-step-…/       a copy for any topology, from which a run with another one resumes; until its next save

There is no `latest` file: the newest checkpoint is derived from the directory. In addition to the files in the
manifest, a checkpoint may hold KEEP (the reason never to prune the checkpoint) and OFFLOADED (where its copies lie).
"""

import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias

from opsctl.trainer.atomic_files import fsync_directory, write_atomic
from opsctl.trainer.bounded_files import open_regular, read_bounded

if TYPE_CHECKING:
    from opsctl.trainer.config import TrainerConfig

MANIFEST = "manifest.json"
COMPLETE = "COMPLETE"
KEEP = "KEEP"
_REMOVING = ".removing-"
OFFLOADED = "OFFLOADED"
_NAME = re.compile(r"step-(\d{7,})")
_FORMAT = 1
MAX_MARK_BYTES = 4096
MAX_MANIFEST_BYTES = 64 << 20
"""Some 200 bytes for each of the files, of which a large run has some ten thousand."""
NATIVE, UNIVERSAL = "native", "universal"
_FREE = ("dropout", "init_std")
"""Keys of the model table that may differ between the checkpoint and the run."""
_ACCEPTABLE = ("sequence", "rope_theta", "rope_scaling")
"""Keys that may differ with `accept`, unless positions are learnt: no weight depends on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """One file of a checkpoint: size in bytes, and SHA-256 in hex."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOrder:
    """What determines, with the seed, in which order samples are read. Paths are left out, because corpora may move."""

    sizes: tuple[tuple[int, int], ...]
    """Tokens and samples of every corpus."""
    weights: tuple[tuple[int, tuple[float, ...]], ...]
    """The first sample of every stage, and the weights of the corpora from there on."""

    def __str__(self) -> str:
        sizes = [f"{tokens} tokens, {samples} samples" for tokens, samples in self.sizes]
        if len(self.sizes) == len(self.weights) == 1:
            return f"{sizes[0]} x {sum(self.weights[0][1]):g}"
        shares = (f"x {':'.join(f'{w:g}' for w in weights)} from sample {start}" for start, weights in self.weights)
        return "; ".join([*sizes, *shares])


def _read_data_order(data: Any) -> DataOrder | None:
    if data is None:
        return None
    weights = tuple((int(start), tuple(map(float, shares))) for start, shares in data["weights"])
    return DataOrder(sizes=tuple((int(tokens), int(samples)) for tokens, samples in data["sizes"]), weights=weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The description of a checkpoint, as in manifest.json."""

    step: int
    consumed_samples: int
    topology: Mapping[str, int | str]
    """How the state is cut: sizes of the parallel axes, balance of the stages."""
    model: Mapping[str, Any]
    """The config's model table; a run with another model refuses the checkpoint."""
    precision: str
    kind: str = NATIVE
    """NATIVE: files are cut by the topology; UNIVERSAL: any topology and precision can resume."""
    seed: int | None = None
    """Seed of the run."""
    data: DataOrder | None = None
    """A run with other data reads samples in another order."""
    positions: Mapping[str, int] = field(default_factory=dict)
    """Samples that were taken from every corpus, by prefix."""
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    """The config's optimizer table."""
    rate: float | None = None
    """Learning rate at this checkpoint by its schedule."""
    earlier_tokens: int = 0
    """Tokens besides samples x sequence, of attempts whose samples were longer; below 0 if they were shorter."""
    slowest_step_s: float = 0.0
    save_s: float = 0.0
    """Seconds of this save up to the manifest; the next attempt plans its end with this and the slowest step."""
    files: Mapping[str, FileRecord] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, order=True)
class Checkpoint:
    """A complete checkpoint, not necessarily an undamaged one."""

    step: int
    path: Path


def directory_name(step: int) -> str:
    return f"step-{step:07d}"


def list_checkpoints(directory: Path, *, with_unreadable: bool = False) -> list[Checkpoint]:
    """Return the complete checkpoints in `directory`, oldest first; none if the directory does not exist.

    An unreadable checkpoint raises OSError, or is included if `with_unreadable` is set.
    """
    try:
        paths = list(directory.iterdir())
    except FileNotFoundError:
        return []
    named = ((_NAME.fullmatch(path.name), path) for path in paths)
    return sorted(
        Checkpoint(int(m[1]), path) for m, path in named if m and _is_complete(path, if_unreadable=with_unreadable)
    )


def _is_complete(checkpoint: Path, *, if_unreadable: bool) -> bool:
    try:
        return stat.S_ISREG((checkpoint / COMPLETE).stat().st_mode)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        if if_unreadable:
            return True
        raise


def find_newest_complete(directory: Path) -> Checkpoint | None:
    """Return the newest complete checkpoint in `directory`, if there is one."""
    return max(list_checkpoints(directory), default=None)


def read_manifest(checkpoint: Path) -> Manifest:
    """Return the manifest of `checkpoint`. Raises OSError, or ValueError if the manifest is invalid."""
    text = read_bounded(checkpoint / MANIFEST, MAX_MANIFEST_BYTES, follow=True)
    try:
        fields = json.loads(text)
        if fields.pop("format") != _FORMAT:
            raise ValueError(f"{checkpoint}: this is not a manifest of format {_FORMAT}")
        files = {_inside(name): _file_record(record) for name, record in fields.pop("files").items()}
        manifest = Manifest(**fields | {"data": _read_data_order(fields.get("data"))}, files=files)
        if type(manifest.step) is not int or not isinstance(manifest.topology, dict):
            raise ValueError(f"{checkpoint}: the manifest has values of wrong types")
        return manifest
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{checkpoint}: the manifest cannot be understood: {error}") from error


def _inside(name: str) -> str:
    """Return the name of a file. Raises ValueError for a name that leads out of the checkpoint."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ValueError(f"the manifest names {name!r:.80}, which is not inside the checkpoint")
    return name


def _file_record(fields: Mapping[str, Any]) -> FileRecord:
    record = FileRecord(**fields)
    if type(record.size) is not int or record.size < 0 or not isinstance(record.sha256, str):
        raise ValueError("the manifest has values of wrong types")
    return record


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest, then COMPLETE, into `directory`. Raises OSError."""
    text = json.dumps({"format": _FORMAT, **asdict(manifest)}, indent=1, sort_keys=True) + "\n"
    write_atomic(directory / MANIFEST, text)
    write_atomic(directory / COMPLETE, hashlib.sha256(text.encode()).hexdigest() + "\n")


def verify(checkpoint: Path, *, mine: Callable[[int], bool] = lambda _: True, hashes: bool = True) -> list[str]:
    """Return the damage of a checkpoint, one sentence per file; look only at files whose number `mine` accepts.

    Without `hashes`, only the sizes of the files are compared, and no file is read.

    Raises OSError if a file cannot be read (permission, I/O error) or the manifest has another version: then the
    damage is unknown.
    """
    try:
        marked = read_bounded(checkpoint / COMPLETE, MAX_MARK_BYTES, follow=True).decode().strip()
        text = read_bounded(checkpoint / MANIFEST, MAX_MANIFEST_BYTES, follow=True)
    except (FileNotFoundError, UnicodeDecodeError) as error:
        return [f"{checkpoint.name}: not complete ({error})"]
    if hashlib.sha256(text).hexdigest() != marked:
        return [f"{checkpoint.name}: {MANIFEST} is not the one that COMPLETE was written for"]
    try:
        manifest = read_manifest(checkpoint)
    except ValueError as error:
        raise OSError(str(error)) from error
    if is_misnamed(checkpoint, manifest):
        return [f"{checkpoint.name}: the manifest is that of step {manifest.step}; the directory is a renamed copy"]
    problems = (
        _find_damage(name, checkpoint / name, record, hashes=hashes)
        for number, (name, record) in enumerate(sorted(manifest.files.items()))
        if mine(number)
    )
    return [f"{checkpoint.name}: {problem}" for problem in problems if problem]


Differences: TypeAlias = dict[str, tuple[Any, Any]]
"""By key, the values of a checkpoint and of the run."""


def find_differences(saved: Manifest, config: "TrainerConfig") -> Differences:
    """Return what a run must not change when it resumes. Any precision can resume a checkpoint that is not NATIVE."""
    model = config.model.model_dump(mode="json")
    here = {key: value for key, value in model.items() if key not in _FREE}
    if saved.kind == NATIVE and config.precision != "auto":
        here = {"precision": config.precision, **here}
    unset = {key: field.default for key, field in type(config.model).model_fields.items()}
    there = {"precision": saved.precision, **unset, **saved.model}
    return {key: (there.get(key), value) for key, value in here.items() if there.get(key) != value}


def find_other_cuts(saved: Manifest, topology: Mapping[str, int | str]) -> Differences:
    """Return how a NATIVE checkpoint is cut otherwise than `topology`: a run resumes from a universal copy of it."""
    there = saved.topology if saved.kind == NATIVE else topology
    return {key: (there.get(key), value) for key, value in topology.items() if there.get(key) != value}


def can_accept(differences: Iterable[str], config: "TrainerConfig") -> bool:
    """Return whether `accept` lets a run with these differences resume."""
    return config.model.kind.positions != "learnt" and set(differences) <= set(_ACCEPTABLE)


def is_misnamed(checkpoint: Path, manifest: Manifest) -> bool:
    """Return whether the name of the directory promises another step than its manifest, as that of a copy does."""
    named = _NAME.fullmatch(checkpoint.name)
    return named is not None and int(named[1]) != manifest.step


def _find_damage(name: str, path: Path, record: FileRecord, *, hashes: bool) -> str:
    try:
        with os.fdopen(open_regular(path, follow=True), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != record.size:
                return f"{name} has {size} bytes instead of {record.size}"
            digest = hashlib.file_digest(file, "sha256").hexdigest() if hashes else record.sha256
    except FileNotFoundError:
        return f"{name} is missing"
    return "" if digest == record.sha256 else f"{name} has changed since it was written (SHA-256 differs)"


def set_aside(checkpoint: Path) -> Path:
    """Rename a damaged checkpoint so that no run resumes from it; return its new path. Raises OSError."""
    return _rename(checkpoint, "damaged-")


def _rename(path: Path, prefix: str) -> Path:
    """Put `prefix` before a name, and a number behind it if that is taken; return the new path. Raises OSError."""
    for number in range(1000):
        renamed = path.with_name(f"{prefix}{path.name}" + (f".{number}" if number else ""))
        if not renamed.exists():
            path.rename(renamed)
            fsync_directory(path.parent)
            return renamed
    raise FileExistsError(f"{path} was set aside a thousand times; remove its {prefix}* copies")


def is_sound(checkpoint: Path) -> bool:
    """Return whether every file exists with its size. Reads only the manifest, so a changed byte is not detected."""
    try:
        return not verify(checkpoint, hashes=False)
    except OSError:
        return False


def keep(checkpoint: Path, reason: str, *, by: str) -> None:
    """Protect a checkpoint from pruning; `by` names the program's part that may end the protection. Raises OSError."""
    write_atomic(checkpoint / KEEP, json.dumps({"reason": reason.strip(), "by": by}, ensure_ascii=False) + "\n")


def unprotect(checkpoints: Iterable[Checkpoint], *, by: str, newest: int) -> None:
    """Drop the protection of all but the `newest` checkpoints that are kept `by` this part. Raises OSError."""
    newest_first = sorted(checkpoints, reverse=True)
    protected = [checkpoint for checkpoint in newest_first if read_keep(checkpoint.path)["by"] == by]
    for checkpoint in protected[newest:]:
        (checkpoint.path / KEEP).unlink(missing_ok=True)


def read_keep(checkpoint: Path) -> dict[str, str]:
    """Return why a checkpoint is kept, `reason`, and `by` what part of the program; empty if it is not kept.

    A person writes plain text, and so did earlier versions: what stands before its first colon named the part.
    """
    try:
        text = read_bounded(checkpoint / KEEP, MAX_MARK_BYTES).decode(errors="replace").strip()
    except OSError:
        text = ""
    try:
        fields = json.loads(text)
        return {"reason": str(fields["reason"]), "by": str(fields["by"])}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {"reason": text, "by": text.partition(":")[0]}


def find_superfluous(
    checkpoints: Iterable[Checkpoint],
    *,
    keep_last: int,
    keep_every: int = 0,
    is_good: Callable[[Path], bool] = is_sound,
) -> list[Checkpoint]:
    """Return the checkpoints that may be removed, oldest first.

    The following stay: the newest `keep_last` (0 keeps all), steps that are a multiple of `keep_every`, checkpoints
    with a KEEP file, and always the newest two good checkpoints.
    """
    if not keep_last:
        return []
    newest_first = sorted(checkpoints, reverse=True)
    older = newest_first[max(2, keep_last) :]
    missing = 2
    for checkpoint in newest_first:
        if not missing or not older:
            break
        if is_good(checkpoint.path):
            missing -= 1
            older = [other for other in older if other != checkpoint]
    # With fewer than two good checkpoints, any other may turn out to be needed.
    return [] if missing else sorted(checkpoint for checkpoint in older if not _is_protected(checkpoint, keep_every))


def _is_protected(checkpoint: Checkpoint, keep_every: int) -> bool:
    try:
        return (checkpoint.path / KEEP).exists() or bool(keep_every and checkpoint.step % keep_every == 0)
    except OSError:  # unknown: assume protection
        return True


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint, and the remains of its interrupted removal. Raises OSError.

    The rename comes first, so that an interruption leaves no checkpoint with missing files.
    """
    interrupted = checkpoint.with_name(f"{_REMOVING}{checkpoint.name}")
    if interrupted.exists():
        shutil.rmtree(interrupted)
    shutil.rmtree(retire(checkpoint))


def retire(path: Path) -> Path:
    """Rename a checkpoint, or the remains of a save, for `sweep` to delete; return the new path. Raises OSError."""
    return _rename(path, _REMOVING)


def sweep(directory: Path) -> None:
    """Finish interrupted removals in `directory`. Raises the OSError of the last failed removal."""
    failure: OSError | None = None
    for leftover in directory.glob(f"{_REMOVING}*"):
        try:
            shutil.rmtree(leftover)
        except FileNotFoundError:  # another process removes the same directory
            continue
        except OSError as error:
            failure = error
    if failure:
        raise failure
