"""`python -m opsctl.trainer.prepare --input PATH… --output PREFIX`: text to a corpus in Megatron's indexed format.

Each file is a document; of a file that ends in `.jsonl`, each line is, by its key `text`. Tokens are bytes, and 256 at
the end of a document, or those of a `tokenizer.json`. Files come in the order of their paths, so that the same input
gives the same corpus, byte for byte, however many processes share the work. `PREFIX.idx` is written last: without it
there is no corpus.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy.typing as npt

from opsctl.trainer.errors import Refused
from opsctl.trainer.indexed_corpus import write_corpus
from opsctl.trainer.tokens import END_OF_DOCUMENT, Encode, Tokenizer, byte_level

_CHUNK = 64
"""Documents that a process takes at a time."""
_SHOWN = 10
"""Of the lines that are wrong."""
_BYTES = END_OF_DOCUMENT + 1


def text_files(inputs: Sequence[Path], *, suffix: str) -> Iterator[Path]:
    """The files among `inputs`, and those ending in `suffix` below its directories, by path; links are not followed.

    Raises Refused if some of `inputs` are not there.
    """
    if missing := [str(path) for path in inputs if not path.exists()]:
        raise Refused(f"No such file or directory: {', '.join(missing)}")
    for input in inputs:
        if not input.is_dir():
            yield input
            continue
        paths = (Path(top) / name for top, _, names in os.walk(input) for name in names if name.endswith(suffix))
        yield from sorted((path for path in paths if path.is_file() and not path.is_symlink()), key=os.fsencode)


def documents(paths: Iterable[Path], *, key: str, limit: int | None) -> Iterator[bytes]:
    """The documents in the files, without empty ones, until `limit` bytes are reached.

    Raises OSError, and Refused with every line that is not what it should be: behind the first of them there are no
    more documents.
    """
    total, wrong = 0, list[str]()
    each = (_lines(path, key, wrong) if path.suffix == ".jsonl" else (path.read_bytes(),) for path in paths)
    for text in chain.from_iterable(each):
        total += len(text)
        if limit is not None and total > limit:
            break
        if text and not wrong:
            yield text
    if wrong:
        rest = [f"and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
        raise Refused(f"not JSON objects with a text under {key!r}: {'; '.join(wrong[:_SHOWN] + rest)}")


def _lines(path: Path, key: str, wrong: list[str]) -> Iterator[bytes]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)[key].encode(errors="replace")
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                wrong.append(f"{path}:{number} ({error!r})")


class _Progress:
    """A line on stderr, no more than each `every` seconds."""

    def __init__(self, *, every: float) -> None:
        self._every, self._started, self._told = every, time.monotonic(), time.monotonic()
        self._documents, self._tokens = 0, 0

    def watch(self, encoded: Iterable[npt.NDArray[Any]]) -> Iterator[npt.NDArray[Any]]:
        """`encoded`, counted on its way. Raises Refused if there was nothing."""
        for tokens in encoded:
            self._documents, self._tokens = self._documents + 1, self._tokens + len(tokens)
            now = time.monotonic()
            if now - self._told >= self._every:
                self._told = now
                speed = self._tokens / (now - self._started)
                sys.stderr.write(f"prepare: {self._documents} documents, {self._tokens} tokens, {speed:.0f} tokens/s\n")
            yield tokens
        if not self._documents:
            raise Refused("no text in what is to be read")


_encode: Encode = byte_level


def _start_worker(tokenizer: Path | None, end: str | None) -> None:
    global _encode  # noqa: PLW0603 - a pool's processes keep what they were started with
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # processes are parallel already
    _encode = Tokenizer(tokenizer, end=end) if tokenizer else byte_level


def _encode_chunk(texts: list[bytes]) -> list[npt.NDArray[Any]]:
    return [_encode(text) for text in texts]


def encoded(
    texts: Iterable[bytes], *, tokenizer: Path | None, end: str | None, processes: int
) -> Iterator[npt.NDArray[Any]]:
    """The tokens of each document, in order; `processes` share the work."""
    rest = iter(texts)
    chunks = iter(lambda: list(islice(rest, _CHUNK)), [])
    with ExitStack() as stack:
        if processes > 1:
            context = multiprocessing.get_context("spawn")  # forked, a tokenizer's threads could hang
            pool = stack.enter_context(context.Pool(processes, _start_worker, (tokenizer, end)))
            done = _bounded(pool, chunks, ahead=4 * processes)
        else:
            _start_worker(tokenizer, end)
            done = map(_encode_chunk, chunks)
        for ndarrays in done:
            yield from ndarrays


def _bounded(pool: Any, chunks: Iterator[list[bytes]], *, ahead: int) -> Iterator[list[npt.NDArray[Any]]]:
    """Results in order, with so many chunks under way: Pool.imap would read all input into memory."""
    waiting = [pool.apply_async(_encode_chunk, (chunk,)) for chunk in islice(chunks, ahead)]
    while waiting:
        yield waiting.pop(0).get()
        waiting.extend(pool.apply_async(_encode_chunk, (chunk,)) for chunk in islice(chunks, 1))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m opsctl.trainer.prepare", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--input", nargs="+", type=Path, required=True, metavar="PATH", help="files and directories")
    parser.add_argument("--output", type=Path, required=True, metavar="PREFIX", help="path without .bin and .idx")
    parser.add_argument("--suffix", default="", help="of the files taken from directories, such as .py; all if absent")
    parser.add_argument("--json-key", default="text", metavar="KEY", help="of the text in lines of .jsonl files")
    parser.add_argument("--max-bytes", type=_count, metavar="N", help="take whole documents until this many bytes")
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help="a tokenizer.json; bytes if absent")
    parser.add_argument("--end-token", metavar="TOKEN", help="what ends a document, such as <|endoftext|>")
    parser.add_argument("--processes", type=_count, default=1, metavar="N", help="that share the work; 1 if absent")
    parser.add_argument("--progress-s", type=float, default=10, metavar="S", help="seconds between two progress lines")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0, or 2 where there is nothing to write or it cannot be read or written."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.end_token and not arguments.tokenizer:
        parser.error("--end-token is of a --tokenizer; bytes end a document with 256")
    try:
        known = Tokenizer(arguments.tokenizer, end=arguments.end_token) if arguments.tokenizer else None
        paths = text_files(arguments.input, suffix=arguments.suffix)
        texts = documents(paths, key=arguments.json_key, limit=arguments.max_bytes)
        tokens = encoded(texts, tokenizer=arguments.tokenizer, end=arguments.end_token, processes=arguments.processes)
        count, total = write_corpus(
            _Progress(every=arguments.progress_s).watch(tokens),
            arguments.output,
            vocabulary=known.vocabulary if known else _BYTES,
            facts={"tokenizer": f"sha256:{known.sha256}" if known else "bytes"},
        )
    except (OSError, Refused) as error:
        parser.exit(2, f"prepare: {error}\n")
    sys.stdout.write(f"{arguments.output}: {count} documents, {total} tokens\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
