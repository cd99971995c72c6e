"""Corpora, weights and tokenizers: present, complete, and made for this model."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.preflight.facts import CorpusFacts, Facts
from opsctl.preflight.problem import LaunchRequest, Problem, error, warning


def data(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    for corpus in facts.corpora:
        if corpus.missing:
            name = request.recipe.name("data")
            is_certain = request.recipe.is_embedded or request.recipe.trainer == "Megatron"
            problem = error if is_certain and corpus.prefix not in facts.unseen else warning
            yield problem(f"{name} {corpus.prefix}: no {_and(corpus.missing)}", _make(request, corpus))
        elif corpus.problem:
            yield error(f"corpus {corpus.prefix}: {corpus.problem}", _make(request, corpus))
        elif corpus.packed and request.recipe.is_embedded and corpus.packed != request.recipe.sequence:
            yield error(
                f"corpus {corpus.prefix} is packed into sequences of {corpus.packed} tokens, and the model's sequence"
                f" is {request.recipe.sequence}",
                f"set that sequence, or prepare the corpus with --chat {request.recipe.sequence}",
            )
        elif corpus.packed and _mixes_documents(request):
            yield error(
                f"corpus {corpus.prefix} holds packed conversations, which would attend to each other",
                "set [trainer.data] separate_documents = true",
            )
        elif _is_too_short(corpus, request.recipe.sequence):
            yield error(
                f"corpus {corpus.prefix} has {corpus.tokens} tokens, too few for one sample"
                f" of {request.recipe.sequence}",
                "add text, or set a shorter sequence",
            )


def _mixes_documents(request: LaunchRequest) -> bool:
    """Whether the embedded trainer lets documents attend to each other although its model can keep them apart."""
    config = request.recipe.embedded
    return config is not None and config.model.family != "bloom" and not config.data.separate_documents


def _is_too_short(corpus: CorpusFacts, sequence: int | None) -> bool:
    """Whether the corpus has no sample: a sequence, and in running text the token after it."""
    if corpus.tokens is None or not sequence:
        return False
    return corpus.tokens < sequence + (corpus.packed is None)


def _make(request: LaunchRequest, corpus: CorpusFacts) -> str:
    how = (
        f"python -m opsctl.trainer.prepare --input TEXT --output {corpus.prefix}"
        if request.recipe.is_embedded
        else "preprocess the corpus"
    )
    return f"{how}; relative paths start at the current directory"


def weights(_: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """A run with a checkpoint resumes from it and needs no weights."""
    if facts.weights_problem and facts.saved is None:
        yield error(
            f"[trainer] weights: {facts.weights_problem}",
            "correct the path, or take the tables that `opsctl checkpoint import` prints",
        )


def tokens(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """A model with fewer rows than tokens fails with an index out of range, on a GPU with an obscure error."""
    rows = request.recipe.vocabulary
    for corpus in facts.corpora:
        if rows and corpus.vocabulary and corpus.vocabulary > rows:
            yield error(
                f"{request.recipe.name('vocabulary')} is {rows}, and corpus {corpus.prefix} was"
                " made with a vocabulary of"
                f" {corpus.vocabulary}",
                f"set at least {corpus.vocabulary}, rounded up to a multiple of 128 x tensor",
            )
        elif rows and corpus.width == 2 and rows > 65536:
            yield warning(
                f"corpus {corpus.prefix} has tokens of 2 bytes, so none above 65535, but the model has {rows} rows",
                "check the corpus: rows above 65535 would never be trained",
            )
    for path, known in facts.tokenizers.items():
        if rows and known and known > rows:
            yield error(
                f"{request.recipe.name('vocabulary')} is {rows}, but tokenizer {path} knows {known} tokens",
                f"set at least {known}, rounded up to a multiple of 128 x tensor",
            )


def tokenizer(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    for path in request.recipe.tokenizers:
        if facts.files.get(path) is False:
            problem = warning if path in facts.unseen else error
            yield problem(f"tokenizer {path} does not exist", "correct the path; compute nodes must see it too")
    prefixes = {corpus.tokenizer: corpus.prefix for corpus in facts.corpora if corpus.tokenizer}
    if len(prefixes) > 1:
        text = "; ".join(f"{prefix}: {name[:19]}" for name, prefix in prefixes.items())
        yield error(
            f"the corpora were made with {len(prefixes)} tokenizers, so one token id means different words: {text}",
            "prepare all corpora with the same tokenizer",
        )


def _and(names: tuple[str, ...]) -> str:
    return " and no ".join(names)
