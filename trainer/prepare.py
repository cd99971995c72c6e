"""`python -m opsctl.trainer.prepare --input PATH… --output PREFIX`: convert text to a corpus in Megatron's format.

A file of text is one document. JSON Lines, JSON and Parquet hold many, by their key `text`; gzip, bzip2, xz and zstd
are decompressed, and binary files are refused. Tokens are bytes with 256 at the end of a document, or the tokens of a
`tokenizer.json`. With `--chat`, the input is conversations, packed into sequences. Files are read in the order of their
paths, so that the same input gives the same corpus, byte for byte, for any number of processes. `PREFIX.idx` is written
last: without the index there is no corpus.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opsctl.trainer.chat import ConversationEncoder, Packing, find_template
from opsctl.trainer.errors import Refused, whole_number
from opsctl.trainer.indexed_corpus import Corpus, read_facts, write_corpus
from opsctl.trainer.text_sources import NoDocument, read_documents
from opsctl.trainer.tokens import ByteLevel, Encode, Tokenizer

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


_CHUNK_DOCUMENTS = 64
"""Documents that a process encodes at a time."""
_MAX_SHOWN_LINES = 10
"""Invalid lines that the error message shows."""


def text_files(inputs: Sequence[Path], *, suffix: str) -> Iterator[Path]:
    """Yield the files in `inputs`, and the files with `suffix` below directories in `inputs`, sorted by path.

    Symbolic links below directories are skipped. Raises Refused if an input does not exist.
    """
    if missing := [str(path) for path in inputs if not path.exists()]:
        raise Refused(f"No such file or directory: {', '.join(missing)}")
    for path in inputs:
        if path.is_dir():
            yield from _files_below(path, suffix)
        else:
            yield path


def _files_below(directory: Path, suffix: str) -> list[Path]:
    files: list[Path] = []
    for top, _, names in os.walk(directory):
        paths = (Path(top) / name for name in names if name.endswith(suffix))
        files.extend(path for path in paths if path.is_file() and not path.is_symlink())
    return sorted(files, key=os.fsencode)


def documents(paths: Iterable[Path], *, key: str | None, limit: int | None) -> Iterator[bytes]:
    """Yield the non-empty documents in the files, up to `limit` bytes; without a key, whole objects as JSON.

    Raises OSError. Raises Refused with every invalid file and line at the end; after the first of them no document is
    yielded.
    """
    total, wrong = 0, list[str]()
    for text in chain.from_iterable(_documents_or_refusal(path, key) for path in paths):
        if not isinstance(text, bytes):
            wrong.append(str(text))
            continue
        if limit is not None and total + len(text) > limit:
            if not (total or wrong):
                raise Refused(f"the first document has more than --max-bytes {limit}: {len(text)} bytes")
            break
        total += len(text)
        if text and not wrong:
            yield text
    if wrong:
        rest = [f"and {len(wrong) - _MAX_SHOWN_LINES} more"] if len(wrong) > _MAX_SHOWN_LINES else []
        what = "no JSON object" if key is None else f"no text under {key!r}"
        raise Refused(f"{what}: {'; '.join(wrong[:_MAX_SHOWN_LINES] + rest)}")


def _documents_or_refusal(path: Path, key: str | None) -> Iterator[bytes | NoDocument | Refused]:
    """Yield the documents of one file; a refused file is named among the wrong places, and the others are read."""
    try:
        yield from read_documents(path, key)
    except Refused as error:
        yield error


class _Progress:
    """Prints progress to stderr, at most one line per `every` seconds."""

    def __init__(self, *, every: float, may_be_empty: bool) -> None:
        self._may_be_empty = may_be_empty
        self._every, self._started, self._printed_at = every, time.monotonic(), time.monotonic()
        self._documents, self._tokens = 0, 0

    def watch(self, encoded: Iterable[npt.NDArray[Any]]) -> Iterator[npt.NDArray[Any]]:
        """Count and yield the documents in `encoded`. Raises Refused if there are none, unless there may be none."""
        for tokens in encoded:
            self._documents, self._tokens = self._documents + 1, self._tokens + tokens.shape[-1]
            now = time.monotonic()
            if now - self._printed_at >= self._every:
                self._printed_at = now
                speed = self._tokens / (now - self._started)
                sys.stderr.write(f"prepare: {self._documents} documents, {self._tokens} tokens, {speed:.0f} tokens/s\n")
            yield tokens
        if not self._documents and not self._may_be_empty:
            raise Refused("the input has no text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """How documents become tokens. The processes that share the work make an encoder each."""

    tokenizer: Path | None = None
    end: str | None = None
    """The end-of-document token."""
    begin: str | None = None
    """The token before every document."""
    chat: bool = False
    """Documents are conversations."""
    template: Path | None = None

    def make(self) -> Encode:
        """Raises OSError. Raises Refused if the tokenizer or the chat template is unusable."""
        tokenizer = self.open_tokenizer()
        if not self.chat:
            return tokenizer
        return ConversationEncoder(tokenizer, find_template(self.tokenizer, self.template))

    def open_tokenizer(self) -> ByteLevel | Tokenizer:
        return Tokenizer(self.tokenizer, end=self.end, begin=self.begin) if self.tokenizer else ByteLevel()


_encode: Encode = ByteLevel()


def _start_worker(encoding: Encoding) -> None:
    global _encode  # noqa: PLW0603 - the initializer of a pool can pass state only by a global
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are parallel already
    _encode = encoding.make()


def _encode_chunk(texts: list[bytes]) -> list[npt.NDArray[Any]]:
    return [_encode(text) for text in texts]


def encoded(texts: Iterable[bytes], encoding: Encoding, *, processes: int) -> Iterator[npt.NDArray[Any]]:
    """Yield the tokens of the documents, in order; `processes` share the work."""
    rest = iter(texts)
    chunks = iter(lambda: list(islice(rest, _CHUNK_DOCUMENTS)), [])
    with ExitStack() as stack:
        if processes > 1:
            context = multiprocessing.get_context("spawn")  # a tokenizer's threads could hang after a fork
            pool = stack.enter_context(context.Pool(processes, _start_worker, (encoding,)))
            done = _bounded(pool, chunks, ahead=4 * processes)
        else:
            _start_worker(encoding)
            done = map(_encode_chunk, chunks)
        for ndarrays in done:
            yield from ndarrays


def _bounded(pool: Any, chunks: Iterator[list[bytes]], *, ahead: int) -> Iterator[list[npt.NDArray[Any]]]:
    """Yield results in order, with at most `ahead` chunks in flight: Pool.imap would read all input into memory."""
    waiting = [pool.apply_async(_encode_chunk, (chunk,)) for chunk in islice(chunks, ahead)]
    while waiting:
        yield waiting.pop(0).get()
        waiting.extend(pool.apply_async(_encode_chunk, (chunk,)) for chunk in islice(chunks, 1))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m opsctl.trainer.prepare", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--input", nargs="+", type=Path, metavar="PATH", help="files and directories to read")
    parser.add_argument(
        "--output", type=Path, required=True, metavar="PREFIX", help="path of the corpus without .bin and .idx"
    )
    parser.add_argument(
        "--suffix", default="", help="suffix of files to read below directories, such as .py (default: all files)"
    )
    parser.add_argument(
        "--json-key", metavar="KEY", help="key or column of the text in JSON and Parquet (default: text)"
    )
    parser.add_argument(
        "--max-bytes", type=whole_number, metavar="N", help="stop before the document that exceeds this total"
    )
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help="a tokenizer.json (default: tokens are bytes)")
    parser.add_argument("--end-token", metavar="TOKEN", help="token at the end of a document, such as <|endoftext|>")
    parser.add_argument("--begin-token", metavar="TOKEN", help="token before every document, such as <s>")
    parser.add_argument(
        "--chat",
        type=whole_number,
        metavar="TOKENS",
        help="pack conversations into sequences of TOKENS tokens, the model's sequence",
    )
    parser.add_argument(
        "--chat-template", type=Path, metavar="FILE", help="a Jinja template (default: the one beside the tokenizer)"
    )
    parser.add_argument("--processes", type=whole_number, default=1, metavar="N", help="processes (default: 1)")
    shares = parser.add_mutually_exclusive_group()
    shares.add_argument(
        "--shard",
        type=_shard,
        metavar="I/N",
        help="prepare part I, from 0, of N parts of the input, as PREFIX-I-of-N; does nothing if it is there already",
    )
    shares.add_argument("--merge", type=whole_number, metavar="N", help="join N shards of PREFIX; needs only --output")
    parser.add_argument("--progress-s", type=float, default=10, metavar="S", help="seconds between progress lines")
    return parser


def _shard(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is not I/N with I from 0 to N - 1")
    return int(number), int(count)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 2 if the input is empty or a file cannot be read or written."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        if misuse := _find_misuse(parser, arguments):
            parser.error(misuse)
        line = _merge(arguments) if arguments.merge else _prepare(arguments)
    except (OSError, Refused) as error:
        parser.exit(2, f"prepare: {error}\n")
    sys.stdout.write(f"{line}\n")
    return 0


def _find_misuse(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> str:
    """Return which option is missing, or has no effect beside another; empty if all is well. Raises OSError."""
    given = [key for key, value in vars(arguments).items() if value != parser.get_default(key)]
    beside_merge = ", ".join(f"--{key.replace('_', '-')}" for key in given if key not in ("output", "merge"))
    inputs = arguments.input or []
    misuses = {
        "--end-token needs --tokenizer; byte-level documents end with token 256": arguments.end_token
        and not arguments.tokenizer,
        "--begin-token needs --tokenizer": arguments.begin_token and not arguments.tokenizer,
        "--begin-token has no effect with --chat, whose template writes it": arguments.begin_token and arguments.chat,
        "--input is missing": not inputs and not arguments.merge,
        "--chat-template needs --chat": arguments.chat_template and not arguments.chat,
        "--max-bytes counts the whole input and cannot be used with --shard": arguments.shard and arguments.max_bytes,
        f"{beside_merge} has no effect with --merge, which only joins shards": arguments.merge and beside_merge,
        "--json-key has no effect with --chat, which reads whole objects": arguments.chat and arguments.json_key,
        "--suffix has no effect: no --input is a directory": arguments.suffix and all(map(Path.is_file, inputs)),
    }
    return next((misuse for misuse, applies in misuses.items() if applies), "")


def _merge(arguments: argparse.Namespace) -> str:
    count, total = merge(arguments.output, arguments.merge)
    return f"{arguments.output}: {count} documents, {total} tokens"


def _prepare(arguments: argparse.Namespace) -> str:
    encoding = Encoding(
        tokenizer=arguments.tokenizer,
        end=arguments.end_token,
        begin=arguments.begin_token,
        chat=bool(arguments.chat),
        template=arguments.chat_template,
    )
    tokenizer = encoding.open_tokenizer()
    facts: dict[str, Any] = {"tokenizer": tokenizer.name}
    if arguments.begin_token:
        facts["begin"] = arguments.begin_token
    if arguments.chat:
        template = find_template(arguments.tokenizer, arguments.chat_template)
        facts |= {"sequence": arguments.chat} | ({"template": f"sha256:{template.sha256}"} if template else {})
    paths, prefix = list(text_files(arguments.input, suffix=arguments.suffix)), arguments.output
    key = None if arguments.chat else arguments.json_key or "text"
    if arguments.shard:
        prefix = shard_prefix(prefix, *arguments.shard)
        paths = files_of_shard(paths, *arguments.shard)
        options = {"key": key, "end": arguments.end_token, **facts}
        facts["input"] = describe_input(paths, options)
        if is_prepared(prefix, facts["input"]):
            return f"{prefix}: is there already"
    texts = documents(paths, key=key, limit=arguments.max_bytes)
    progress = _Progress(every=arguments.progress_s, may_be_empty=bool(arguments.shard))
    tokens = progress.watch(encoded(texts, encoding, processes=arguments.processes))
    packing = None
    if arguments.chat:
        packing = Packing(arguments.chat, tokenizer.end, may_be_empty=bool(arguments.shard))
    written = packing.pack(tokens) if packing else tokens
    count, total = write_corpus(written, prefix, vocabulary=tokenizer.vocabulary, facts=facts, is_packed=bool(packing))
    return f"{prefix}: {packing or f'{count} documents'}, {total} tokens"


if __name__ == "__main__":
    sys.exit(main())
