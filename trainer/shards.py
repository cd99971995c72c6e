"""A corpus prepared in shards, by the tasks of an array, and merged: the same bytes as if prepared at once.

A shard takes files that follow each other, about the same number of bytes as every other. Its facts record its input,
so that a task that runs again does nothing if its shard exists, and a shard of other files is never taken for it.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opsctl.trainer.errors import Refused
from opsctl.trainer.indexed_corpus import Corpus, read_facts, write_corpus

_COMMON = ("vocabulary", "tokenizer", "begin", "template", "sequence")
"""Facts that all shards of a corpus have in common."""


def shard_prefix(prefix: Path, number: int, count: int) -> Path:
    """Return the prefix of shard `number`, counted from 0, of `count`."""
    return prefix.with_name(f"{prefix.name}-{number:05d}-of-{count:05d}")


def files_of_shard(paths: Sequence[Path], number: int, count: int) -> list[Path]:
    """Return the files whose middle byte lies in part `number` of `count` equal parts of all bytes. Raises OSError."""
    sizes = [path.stat().st_size for path in paths]
    total, before, files = sum(sizes), 0, list[Path]()
    for path, size in zip(paths, sizes, strict=True):
        if min(count - 1, (2 * before + size) * count // (2 * max(1, total))) == number:
            files.append(path)
        before += size
    return files


def describe_input(paths: Iterable[Path], options: Mapping[str, Any]) -> str:
    """Return a hash of the files (path, size, time of the last change) and of the options that shape the tokens."""
    files = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return hashlib.sha256(json.dumps([files, sorted(options.items())], default=str).encode()).hexdigest()


def is_prepared(prefix: Path, described: str) -> bool:
    """Return whether the corpus at `prefix` is complete and of this input."""
    if read_facts(prefix).get("input") != described:
        return False
    try:
        Corpus(str(prefix))
    except Refused:
        return False
    return True


def merge(prefix: Path, count: int) -> tuple[int, int]:
    """Write the corpus at `prefix` from its `count` shards; return the numbers of documents and tokens.

    Raises OSError. Raises Refused with every shard that is missing or incomplete, or was made with another tokenizer,
    and if all shards are empty.
    """
    shards, problems = list[Corpus](), list[str]()
    for number in range(count):
        try:
            shards.append(Corpus(str(shard_prefix(prefix, number, count))))
        except Refused as error:
            problems.append(str(error))
    if problems:
        raise Refused("; ".join(problems))
    kinds = {json.dumps({key: shard.facts.get(key) for key in _COMMON}) for shard in shards}
    if len(kinds) > 1:
        what = "tokenizers, vocabularies, first tokens, chat templates or sequences"
        raise Refused(f"the shards have {len(kinds)} {what}: {', '.join(sorted(kinds))}")
    if not any(len(shard.tokens) for shard in shards):
        raise Refused(f"the {count} shards hold no document")
    common = json.loads(kinds.pop())
    vocabulary = common.pop("vocabulary")
    if not isinstance(vocabulary, int):
        raise Refused(f"{shards[0].prefix}.json does not state the vocabulary")
    facts = {key: value for key, value in common.items() if value is not None or key == "tokenizer"}
    return write_corpus(_documents(shards), prefix, vocabulary=vocabulary, facts=facts, is_packed="sequence" in facts)


def _documents(shards: Iterable[Corpus]) -> Iterator[npt.NDArray[Any]]:
    for shard in shards:
        start = 0
        for length in shard.lengths().tolist():
            part = slice(start, start + length)
            yield shard.tokens[part] if shard.learnt is None else np.stack((shard.tokens[part], shard.learnt[part]))
            start += length
