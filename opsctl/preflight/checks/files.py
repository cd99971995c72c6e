"""The files that a command names: scripts, settings, and corpora, weights and tokenizers made for this model."""

from collections.abc import Iterator

from opsctl.preflight.command_files import find_program, name_mistake
from opsctl.preflight.facts import CorpusFacts, Facts
from opsctl.preflight.problem import LaunchRequest, Problem, error, error_if, note, warning

MAX_SHOWN = 12
"""Names of settings in one message."""


def files(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """opsctl starts a task in its run directory or [setup] directory, not in the directory of the launch."""
    directory = request.train.setup.directory
    if facts.files.get(directory) is False:
        yield error_if(directory not in facts.unseen, "files.no_directory", directory=directory)
        return
    start = directory or "its run directory"
    for file in facts.misplaced_paths:
        if file.here:
            yield error("files.elsewhere", path=file.path, here=file.here, start=start)
            continue
        yield error_if(
            file.is_needed,
            f"files.{name_mistake(file)}",
            path=file.path,
            origin=file.origin,
            near=find_program(file.path),
            start="" if file.path.startswith("/") else start,
        )


def unread(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    """List the settings and files that opsctl does not read, so that nobody relies on a check of them."""
    for problem in request.recipe.invalid:
        yield note("unread.file", problem=problem)
    names = request.recipe.unread
    if names:
        more = len(names) - MAX_SHOWN if len(names) > MAX_SHOWN else None
        yield note("unread.settings", trainer=request.recipe.trainer, names=names[:MAX_SHOWN], more=more)


def data(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    recipe = request.recipe
    how = "preprocess the corpus"
    for corpus in facts.corpora:
        if recipe.is_embedded:
            how = f"python -m opsctl.trainer.prepare --input TEXT --output {corpus.prefix}"
        if corpus.missing:
            is_certain = recipe.is_embedded or recipe.trainer == "Megatron"
            yield error_if(
                is_certain and corpus.prefix not in facts.unseen,
                "data.missing",
                name=recipe.name("data"),
                corpus=corpus.prefix,
                missing=" and no ".join(corpus.missing),
                how=how,
            )
        elif corpus.problem:
            yield error("data.invalid", corpus=corpus.prefix, problem=corpus.problem, how=how)
        elif corpus.packed and recipe.is_embedded and corpus.packed != recipe.sequence:
            yield error("data.packed_otherwise", corpus=corpus.prefix, packed=corpus.packed, sequence=recipe.sequence)
        elif corpus.packed and _mixes_documents(request):
            yield error("data.mixed", corpus=corpus.prefix)
        elif _is_too_short(corpus, recipe.sequence):
            yield error("data.too_short", corpus=corpus.prefix, tokens=corpus.tokens, sequence=recipe.sequence)


def _mixes_documents(request: LaunchRequest) -> bool:
    """Whether the embedded trainer lets documents attend to each other."""
    config = request.recipe.embedded
    return config is not None and not config.data.separate_documents


def _is_too_short(corpus: CorpusFacts, sequence: int | None) -> bool:
    """Whether the corpus has no sample: a sequence, and in running text the token after it."""
    if corpus.tokens is None or not sequence:
        return False
    return corpus.tokens < sequence + (corpus.packed is None)


def tokens(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """A model with fewer rows than tokens fails with an index out of range, on a GPU with an obscure error."""
    rows, name = request.recipe.vocabulary, request.recipe.name("vocabulary")
    if not rows:
        return
    for corpus in facts.corpora:
        if corpus.vocabulary and corpus.vocabulary > rows:
            yield error("tokens.of_corpus", name=name, rows=rows, corpus=corpus.prefix, known=corpus.vocabulary)
        elif corpus.width == 2 and rows > 65536:
            yield warning("tokens.narrow", corpus=corpus.prefix, rows=rows)
    for path, known in facts.tokenizers.items():
        if known and known > rows:
            yield error("tokens.of_tokenizer", name=name, rows=rows, tokenizer=path, known=known)


def tokenizer(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    for path in request.recipe.tokenizers:
        if facts.files.get(path) is False:
            yield error_if(path not in facts.unseen, "tokenizer.missing", path=path)
    prefixes = {corpus.tokenizer: corpus.prefix for corpus in facts.corpora if corpus.tokenizer}
    if len(prefixes) > 1:
        text = "; ".join(f"{prefix}: {name[:19]}" for name, prefix in prefixes.items())
        yield error("tokenizer.several", count=len(prefixes), tokenizers=text)
