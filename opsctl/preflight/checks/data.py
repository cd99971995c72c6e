"""Corpora and tokenizers: there, whole, and made for this model."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.preflight.facts import CorpusFacts, Facts
from opsctl.preflight.problem import LaunchRequest, Problem, error, warning


def data(order: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    for each in facts.corpora:
        if each.missing:
            name = order.recipe.name("data")
            yield error(f"{name} {each.prefix}: no {_and(each.missing)}", _make(order, each))
        elif each.problem:
            yield error(f"corpus {each.prefix}: {each.problem}", _make(order, each))
        elif each.tokens is not None and order.recipe.sequence and each.tokens <= order.recipe.sequence:
            yield error(
                f"corpus {each.prefix} has {each.tokens} tokens, too few for one sample of {order.recipe.sequence}",
                "more text, or a shorter sequence",
            )


def _make(order: LaunchRequest, corpus: CorpusFacts) -> str:
    how = (
        f"python -m opsctl.trainer.prepare --input TEXT --output {corpus.prefix}"
        if order.recipe.is_embedded
        else "preprocess it"
    )
    return f"{how}; relative paths are relative to where you type this"


def tokens(order: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """A model with fewer rows than there are tokens ends with an index out of range, on a GPU with a puzzle."""
    rows = order.recipe.vocabulary
    for each in facts.corpora:
        if rows and each.vocabulary and each.vocabulary > rows:
            yield error(
                f"{order.recipe.name('vocabulary')} is {rows}, and corpus {each.prefix} was made with a vocabulary of"
                f" {each.vocabulary}",
                f"at least {each.vocabulary}, rounded up to a multiple of 128 x tensor",
            )
        elif rows and each.width == 2 and rows > 65536:
            yield warning(
                f"corpus {each.prefix} has tokens of 2 bytes, so none above 65535, and the model has {rows} rows",
                "is it the right corpus? else those rows are never trained",
            )
    for path, known in facts.tokenizers.items():
        if rows and known and known > rows:
            yield error(
                f"{order.recipe.name('vocabulary')} is {rows}, and tokenizer {path} knows {known} tokens",
                f"at least {known}, rounded up to a multiple of 128 x tensor",
            )


def tokenizer(order: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    for path in order.recipe.tokenizers:
        if facts.files.get(path) is False:
            yield error(f"tokenizer {path} is not there", "correct the path; compute nodes must see it too")
    made = {each.tokenizer: each.prefix for each in facts.corpora if each.tokenizer}
    if len(made) > 1:
        told = "; ".join(f"{prefix}: {name[:19]}" for name, prefix in made.items())
        yield error(
            f"the corpora were made with {len(made)} tokenizers, so one number means different words: {told}",
            "prepare them all with the same one",
        )


def _and(names: tuple[str, ...]) -> str:
    return " and no ".join(names)
