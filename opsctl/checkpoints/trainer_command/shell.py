"""Shell text: words, variables, assignments and here-documents. Linear in the text, and never executed."""

import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import islice
from pathlib import Path

MAX_WORDS = 4000
MAX_COMMAND_CHARS = 1 << 18
"""A longer command is not read."""
MAX_WORD_CHARS = 4096
"""The variables of a longer word are not replaced: values that name values grow without bound."""
MAX_NESTING = 3
"""Scripts within scripts: bash -c "env bash -c '...'"."""
END = ";"
"""The word that stands for every end of a command: a line end, `;`, `&`, `|` and parentheses."""

_GAP = re.compile(r"(?:[^\S\n]|\\\r?\n|#[^\n]*+)++")
_END = re.compile(r"[\n;&|()]+")
_QUOTED = r"""'[^']*+'|"[^"\\]*+(?:\\.[^"\\]*+)*+"|\\."""
_WORD = re.compile(rf"(?:{_QUOTED}|\$\(\(?[^()\n]*+\)?\)|`[^`\n]*+`|[^\s;&|()])++", re.DOTALL)
_PART = re.compile(_QUOTED, re.DOTALL)
_ESCAPED = re.compile(r"\\([\"\\$`])|\\\n")
_HERE = re.compile(r"(?<!<)<<-?[^\S\n]*[\"']?([A-Za-z_]\w*)")
_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_ASSIGNED = re.compile(r"\A([A-Za-z_]\w*)=")
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^{}]*))?\}|(\w+))")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)
_NUMBER = r"(?:^|[\s;])(?:export\s+)?{}=[\"']?(\d{{1,9}})\b"


def split_command(
    command: Iterable[str], variables: MutableMapping[str, str] | None = None, checkpoints: Path | None = None
) -> list[str]:
    """Return the words of a command and of the shell scripts in it; an END stands where one of its commands ends.

    Variables and, with `checkpoints`, the placeholders `{{ checkpoint_dir }}` and `{{ run_dir }}` are replaced. Other
    variables and placeholders stay, the latter without blanks. The assignments of scripts are added to `variables`, for
    the scripts that follow.
    """
    variables = {} if variables is None else variables
    words = tuple(command)
    if sum(map(len, words)) > MAX_COMMAND_CHARS:
        return []
    known: dict[str, str] = {}
    if checkpoints is not None:
        known = {"checkpoint_dir": str(checkpoints), "run_dir": str(checkpoints.parent)}
        variables["TRAIN_CHECKPOINT_DIR"], variables["TRAIN_RUN_DIR"] = known["checkpoint_dir"], known["run_dir"]
    filled = [_PLACEHOLDER.sub(lambda match: known.get(match[1], f"{{{{{match[1]}}}}}"), word) for word in words]
    replaced = []
    for word in islice(_split(filled, MAX_NESTING), MAX_WORDS):
        text = _replace_variables(word, variables)
        if match := _ASSIGNMENT.fullmatch(text):
            variables[match[1]] = match[2]
        replaced.append(text)
    return replaced


def _split(words: Sequence[str], depth: int) -> Iterator[str]:
    for word in words:
        if depth and re.search(r"\s", word.strip()):
            # Options in a quoted value are words of their own: ARGS="--tp 2 --pp 4".
            text = word if depth == MAX_NESTING else _ASSIGNED.sub(r"\1= ", word)
            yield from _split(split_shell(text), depth - 1)
        else:
            yield word


def split_shell(script: str) -> list[str]:
    """Return the words of a script without quotes and comments, and an END for each end of a command.

    A quote without an end is an ordinary character. Here-documents follow the script.
    """
    code, documents = separate_documents(script)
    words: list[str] = []
    for text in (code, *documents):
        words += [*_list_words(text), END]
    return words


def _list_words(text: str) -> Iterator[str]:
    position, is_array, begins_array = 0, False, False
    while position < len(text):
        if gap := _GAP.match(text, position):
            position = gap.end()
        elif end := _END.match(text, position):
            is_array = ")" not in end[0] and (is_array or (begins_array and end[0][0] == "("))
            if not is_array:  # a line within ARGS=( ... ) ends no command
                yield END
            position = end.end()
        elif word := _WORD.match(text, position):
            yield _PART.sub(_unquote, word[0])
            position = word.end()
            begins_array = word[0][-1] == "="
        else:  # a backslash at the end
            position += 1


def _unquote(match: re.Match[str]) -> str:
    text = match[0]
    if text[0] == "\\":
        return text[1:].strip("\n")
    return text[1:-1] if text[0] == "'" else _ESCAPED.sub(lambda escaped: escaped[1] or "", text[1:-1])


def separate_documents(script: str) -> tuple[str, list[str]]:
    """Return a script without the bodies of its here-documents, and these bodies."""
    code: list[str] = []
    body: list[str] = []
    documents: list[str] = []
    end = ""
    for line in script.splitlines():
        if end and line.strip() == end:
            documents.append("\n".join(body))
            end, body = "", []
        elif end:
            body.append(line)
        else:
            code.append(line)
            match = _HERE.search(_COMMENT.sub("", line)) if "<<" in line else None
            end = match[1] if match else ""
    return "\n".join(code + body), documents  # a document without an end is none


def _replace_variables(text: str, variables: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return variables.get(name, match[2] if match[2] is not None else match[0])

    if len(text) > MAX_WORD_CHARS:
        return text
    replaced = _VARIABLE.sub(value, text)
    return replaced if len(replaced) <= MAX_WORD_CHARS else text


def strip_comments(script: str) -> str:
    return _COMMENT.sub("", script)


def find_numbers(script: str, variable: str) -> list[int]:
    """Return the numbers that a script assigns to the variable."""
    if variable not in script:
        return []
    pattern = _NUMBER.format(re.escape(variable))
    return [int(digits) for digits in re.findall(pattern, strip_comments(script), re.MULTILINE)]
