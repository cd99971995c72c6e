"""Corpora and tokenizers: there, parse_whole, and made for this model."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.preflight.facts import CorpusFacts, Facts
from opsctl.preflight.problem import LaunchRequest, Problem, error, warning


def data(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    for corpus_facts in facts.corpora:
        if corpus_facts.missing:
            name = request.recipe.name("data")
            yield error(f"{name} {corpus_facts.prefix}: no {_and(corpus_facts.missing)}", _make(request, corpus_facts))
        elif corpus_facts.problem:
            yield error(f"corpus {corpus_facts.prefix}: {corpus_facts.problem}", _make(request, corpus_facts))
        elif (
            corpus_facts.tokens is not None
            and request.recipe.sequence
            and corpus_facts.tokens <= request.recipe.sequence
        ):
            yield error(
                f"corpus {corpus_facts.prefix} has {corpus_facts.tokens} tokens, too few for one sample"
                f" of {request.recipe.sequence}",
                "more text, or a shorter sequence",
            )


def _make(request: LaunchRequest, corpus: CorpusFacts) -> str:
    how = (
        f"python -m opsctl.trainer.prepare --input TEXT --output {corpus.prefix}"
        if request.recipe.is_embedded
        else "preprocess it"
    )
    return f"{how}; relative paths are relative to where you type this"


def tokens(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """A model with fewer rows than there are tokens ends with an index out of range, on a GPU with a puzzle."""
    rows = request.recipe.vocabulary
    for corpus_facts in facts.corpora:
        if rows and corpus_facts.vocabulary and corpus_facts.vocabulary > rows:
            yield error(
                f"{request.recipe.name('vocabulary')} is {rows}, and corpus {corpus_facts.prefix} was"
                " made with a vocabulary of"
                f" {corpus_facts.vocabulary}",
                f"at least {corpus_facts.vocabulary}, rounded up to a multiple of 128 x tensor",
            )
        elif rows and corpus_facts.width == 2 and rows > 65536:
            yield warning(
                f"corpus {corpus_facts.prefix} has tokens of 2 bytes, so none above 65535, and the model"
                f" has {rows} rows",
                "is it the right corpus? else those rows are never trained",
            )
    for path, known in facts.tokenizers.items():
        if rows and known and known > rows:
            yield error(
                f"{request.recipe.name('vocabulary')} is {rows}, and tokenizer {path} knows {known} tokens",
                f"at least {known}, rounded up to a multiple of 128 x tensor",
            )


def tokenizer(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    for path in request.recipe.tokenizers:
        if facts.files.get(path) is False:
            yield error(f"tokenizer {path} is not there", "correct the path; compute nodes must see it too")
    made = {corpus_facts.tokenizer: corpus_facts.prefix for corpus_facts in facts.corpora if corpus_facts.tokenizer}
    if len(made) > 1:
        text = "; ".join(f"{prefix}: {name[:19]}" for name, prefix in made.items())
        yield error(
            f"the corpora were made with {len(made)} tokenizers, so one number means different words: {text}",
            "prepare them all with the same one",
        )


def _and(names: tuple[str, ...]) -> str:
    return " and no ".join(names)
