"""Secrets in TRAIN.toml. The body of a train and the words of its command can be read by every user."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from opsctl.base.secret_formats import Secrets
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest, Problem, error
from opsctl.settings.loader import TrainSettings

SECRET = re.compile(r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY)$")
LESS_USUAL = re.compile(r"(?:^|_)(?:JWT|CREDS?|CREDENTIALS?|PASSPHRASE)$|_(?:PWD|PASS)$|PASSWORD$")
IN_FILE = re.compile(r"[/~$<.]|.{0,7}$")
SPECIAL_TOKEN = re.compile(
    r"(?:^|_)(?:BOS|EOS|PAD|UNK|SEP|CLS|MASK|START|END|STOP|IMAGE|SPECIAL|NUM|MAX|MIN|PER)_TOKEN$"
)
"""Variables of tokenizers, which are no secrets."""
ASSIGNMENT = re.compile(r"\b([A-Z][A-Z0-9_]*)=(\"[^\"]*\"|'[^']*'|[^\s;&|]*)")
STAND_IN = re.compile(r"[<$`]|your|xxx|\.\.\.|changeme|dummy|todo|(?:none|null|false|true|offline|disabled|\d)$", re.I)
"""The beginning of a value that stands in for a secret, such as $(cat file) or your_key."""
URL_SECRET = re.compile(
    r"://(?:[^\s/:@]+:[^\s/:@]+|[^\s/:@]{16,})@|[?&](?:token|access_token|api_?key)=[^\s&]{8,}", re.I
)
VARIABLE = re.compile(r"\$\([^)]*\)|\$\{[^}]*\}|\$\w+|\{\{.*?\}\}")


def secrets(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    """A value never appears in a message."""
    environment = request.train.environment
    for name, value in environment.items():
        # Less usual names may hold the path of a file with the secret.
        if _is_secret_name(name) or (LESS_USUAL.search(name.upper()) and not IN_FILE.match(value)):
            yield error("secrets.variable", name=name)
    for place, text in _list_texts(request.train):
        if subject := _find_secret(text):
            yield error("secrets.text", place=place, subject=subject)


def _list_texts(train: TrainSettings) -> Iterator[tuple[str, str]]:
    """Yield every text that is written to the run directory, and its place in TRAIN.toml."""
    for number, line in enumerate(train.setup.lines, start=1):
        yield f"[setup] lines, line {number}", line
    yield from _list_words(train.command)
    for name, value in train.environment.items():
        if not _is_secret_name(name):
            yield f"[environment] {name}", value
    for name, hook in train.hooks.model_dump().items():
        if isinstance(hook, str):
            yield f"[hooks] {name}", hook


def _list_words(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield every word, and every option with the word after it."""
    for number, word in enumerate(command, start=1):
        yield f"command, word {number}", word
    for number, (word, following) in enumerate(pairwise(command), start=2):
        if word.startswith("-") and "=" not in word and not following.startswith("-"):
            yield f"command, word {number}", f"{word} {following}"


def _is_secret_name(name: str) -> bool:
    upper = name.upper().replace("-", "_")
    return bool(SECRET.search(upper)) and not SPECIAL_TOKEN.search(upper)


def _find_secret(text: str) -> str:
    """Return what a text holds of secrets, without their values; empty without any."""
    for match in ASSIGNMENT.finditer(text):
        value = match[2].strip("\"'")
        if _is_secret_name(match[1]) and value and not STAND_IN.match(value):
            return f"sets {match[1]}"
    literal = VARIABLE.sub("", text)
    if URL_SECRET.search(literal):
        return "holds a password or token in an address"
    return "holds a secret" if Secrets().strike_text(literal) != literal else ""
