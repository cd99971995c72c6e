"""The settings of known trainers in one vocabulary, by the tables in opsctl/preflight/trainers.

A table names its trainer, and:

signs      groups of names; a command that gives all names of a group belongs to this trainer
prefixes   what may stand before a name
read       by field of the recipe: the names that give it, the first one given counts
switches   by name: the fields that a switch sets, unless its value says no
values     by name: the fields that each value sets
defaults   fields without any setting
ignored    patterns of names that do not change what opsctl reckons
abbreviates  whether a unique beginning of a name stands for the name, as with argparse
refuses    mistakes with which the trainer itself stops at its start
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Any

from opsctl.base.tables import read_package_table
from opsctl.checkpoints.trainer_command.read_command import parse_options, read_command
from opsctl.checkpoints.trainer_command.shell import END, split_command
from opsctl.checkpoints.trainer_command.value_files import Values, read_values
from opsctl.settings.loader import TrainSettings

DEEPSPEED_FILE = ("deepspeed-config", "deepspeed", "deepspeed-config-file", "deepspeed-config.deepspeed-config-file")
COMMANDS = ("nemo", "nanotron", "torchtitan", "gpt-neox", "transformers", "megatron")
"""Trainers in the order in which their signs are looked for."""
LAUNCHER = "launcher"
"""The table of settings that belong to no trainer: ports and limits."""
FALLBACK = "megatron"
"""The names of this trainer are read for a command of no known trainer, without certainty."""
TEXTS = frozenset(read_package_table("preflight/text_fields.toml")["fields"])
"""Fields that hold a text; other fields hold whole numbers."""
NO = frozenset({"false", "0", "no", "off", "none", "null", "~", "disabled"})
OF_JOB = ("MASTER_ADDR", "MASTER_PORT", "NNODES", "RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_NNODES", "SLURM_NODEID")
"""Variables with a value when the trainer starts, so that what a script has for their absence never counts."""
WORDS_BEFORE_PROGRAM = frozenset({"exec", "srun", "env", "time", "nohup", "numactl", "then", "do", END})
"""Words before a program."""
LAUNCHER_MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"})
_VARIABLE = re.compile(
    r"\$\{?(\w*(?:arg|opt|flag|param|config|setting)\w*|[@*]|\w+(?=\[))(?:\[[@*]\])?\}?", re.IGNORECASE
)
"""A word that may stand for any number of options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenSettings:
    """What the user gives the trainer. A switch without a value has no values."""

    flags: Values
    """The command's own flags."""
    values: Values = field(default_factory=dict)
    """By name; the command's own flags come before scripts, and scripts before files."""
    spellings: Mapping[str, str] = field(default_factory=dict)
    """Each name as the user wrote it, such as `--micro_batch_size` or `train.toml: training.steps`."""
    deepspeed: Values = field(default_factory=dict)
    """The settings in DeepSpeed's file."""
    model: Values = field(default_factory=dict)
    """The settings in config.json of the model that the command names."""
    invalid: tuple[str, ...] = ()
    """The configuration files that cannot be read, each with the reason."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of the environment, the setup and the scripts."""
    foreign: frozenset[str] = frozenset()
    """Options of commands that have no option of a known trainer or launcher."""
    launcher: str = ""
    """The program that starts the ranks, in the command or its scripts."""
    is_complete: bool = True
    """Whether every variable that may stand for further options is known."""
    alternatives: frozenset[str] = frozenset()
    """Options in branches of which one is taken when the script runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerTable:
    """One file of trainers/, which explains the fields."""

    trainer: str
    signs: tuple[tuple[str, ...], ...]
    read: Mapping[str, tuple[str, ...]]
    switches: Mapping[str, Mapping[str, Any]]
    values: Mapping[str, Mapping[str, Mapping[str, Any]]]
    defaults: Mapping[str, Any]
    ignored: re.Pattern[str]
    prefixes: tuple[str, ...]
    refuses: frozenset[str]
    abbreviates: bool = False

    @property
    def names(self) -> set[str]:
        """All names that the table reads."""
        found = {*self.switches, *self.values}
        for names in self.read.values():
            found.update(names)
        return set(_spell_all(self, tuple(found)))


def collect_settings(train: TrainSettings, directory: Path | None) -> GivenSettings:
    """Return what the command gives. Without `directory`, where the trainer starts, no file is read. Never raises."""
    mounts = train.container.sources if train.container else None
    content = read_command(train.command, read_variables(train), directory, mounts=mounts)
    values: dict[str, tuple[str, ...]] = {}
    spellings: dict[str, str] = {}
    parsed = [parse_options(words) for words in content.parts]
    for options in parsed:
        _add(values, spellings, parse_flags(options), "--")
        # A name in capitals is a variable of the shell, and `-n` a switch of some program.
        keys = {name: value for name, value in options.items() if not (name.startswith("-") or name.isupper())}
        _add(values, spellings, keys, "")
    deepspeed_names = {Path(values[name][0]).name for name in DEEPSPEED_FILE if values.get(name)}
    deepspeed: Values = {}
    for path, settings in content.files.items():
        if path.name in deepspeed_names:
            deepspeed = settings
        elif path.suffix != ".py":  # the defaults of a program, which its options replace
            _add(values, spellings, settings, f"{path.name}: ")
    for name in DEEPSPEED_FILE if directory else ():  # that another file names
        deepspeed = deepspeed or read_values(Path(directory or "", *values.get(name, ())[:1]))
    return GivenSettings(
        flags=parse_flags(parsed[0]),
        values=values,
        spellings=spellings,
        deepspeed=deepspeed,
        model=_read_model(values, directory),
        invalid=tuple(f"{path.name}: {reason}" for path, reason in content.unread.items()),
        variables=content.variables,
        launcher=find_launcher([*chain(*content.parts)]),
        foreign=frozenset(_list_foreign(content.parts)),
        alternatives=frozenset(_list_alternatives([*chain.from_iterable((END, *part) for part in content.parts)])),
        is_complete=not any(_is_unknown_variable(word, content.variables) for word in chain(*content.parts)),
    )


def read_variables(train: TrainSettings) -> dict[str, str]:
    """Return the variables with which the command starts, as far as TRAIN.toml gives them."""
    variables = {name: f"${name}" for name in OF_JOB} | dict(train.environment)
    split_command([line + "\n" for line in train.setup.lines], variables)
    return variables


def _list_foreign(parts: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the options of commands without any known option; an array or a text of options is no command."""
    known = frozenset(chain.from_iterable(load_table(name).names for name in (*COMMANDS, LAUNCHER)))
    for is_end, words in groupby(chain(*parts), lambda word: word == END):
        command = [] if is_end else list(words)
        names = set(map(spell, parse_flags(parse_options(command))))
        if command and not command[0].startswith("-") and "=" not in command[0] and not names & known:
            yield from names


def _list_alternatives(words: Sequence[str]) -> Iterator[str]:
    """Yield the options of conditions with several branches, of a script's words."""
    branches: list[list[str]] = []
    for before, word in pairwise(words):
        is_begin = before in {END, "then", "else", "do"}
        if is_begin and word in {"if", "case"}:
            branches.append([])
        elif is_begin and word in {"fi", "esac"} and branches:
            block = branches.pop()
            yield from (spell(name[2:]) for name in block if {"elif", "else", "esac"} & {*block, word})
            if branches:
                branches[-1] += block
        elif branches and (word.startswith("--") or word in {"elif", "else"}):
            branches[-1].append(word.partition("=")[0])


def _is_unknown_variable(word: str, variables: Mapping[str, str]) -> bool:
    match = _VARIABLE.fullmatch(word)
    return match is not None and match[1] not in variables


def find_launcher(words: Sequence[str]) -> str:
    """Return the word that names the launcher; empty without one."""
    return next((word for position, word in enumerate(words) if _is_launcher(words, position)), "")


def _is_launcher(words: Sequence[str], position: int) -> bool:
    """Return whether a word is a program that starts the ranks of a node, and not the value of an option."""
    name, before = Path(words[position]).name, words[position - 1] if position else ""
    if before == "-m":
        return name in LAUNCHER_MODULES
    if name == "deepspeed":  # also the name of a strategy
        return position == 0 or before in WORDS_BEFORE_PROGRAM or bool(re.fullmatch(r"\w+=.*", before))
    is_program = position == 0 or not before.startswith("-")
    if name == "accelerate":
        return is_program and words[position + 1 : position + 2] == ["launch"]
    return is_program and name == "torchrun" and "=" not in words[position]


def parse_flags(options: Values) -> dict[str, tuple[str, ...]]:
    """Return the `--flags` of options by their names with dashes: `--micro_batch_size` is `micro-batch-size`."""
    return {name[2:].replace("_", "-"): value for name, value in options.items() if name.startswith("--")}


def _add(values: dict[str, tuple[str, ...]], spellings: dict[str, str], settings: Values, prefix: str) -> None:
    for key, texts in settings.items():
        name = spell(key)
        if key and name not in values:  # a file that is one text, or empty, has no keys
            values[name] = texts
            spellings[name] = prefix + (name if prefix == "--" else key)


def spell(name: str) -> str:
    return name.replace("_", "-").lower()


def _read_model(values: Values, directory: Path | None) -> Values:
    named = [*values.get("config-name", ())[:1], *values.get("model-name-or-path", ())[:1]]
    paths = [directory / name for name in named] if directory else []
    found = (read_values(path if path.suffix == ".json" else path / "config.json") for path in paths)
    return {spell(key): value for key, value in next(filter(None, found), {}).items()}


def parse_whole(word: str) -> int | None:
    """Read `9_765_625` as a number; None for other words, such as placeholders."""
    text = word.replace("_", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def number(flags: Values, *names: str) -> int | None:
    """Return the first of these flags that is a whole number."""
    numbers = (parse_whole(flags[name][0]) for name in names if flags.get(name))
    return next((value for value in numbers if value is not None), None)


@cache
def load_table(name: str) -> TrainerTable:
    """Return the table of trainers/NAME.toml."""
    table = read_package_table(f"preflight/trainers/{name}.toml")
    return TrainerTable(
        trainer=table["trainer"],
        signs=tuple(map(tuple, table["signs"])),
        read={field: tuple(names) for field, names in table["read"].items()},
        switches=table["switches"],
        values=table.get("values", {}),
        defaults=table.get("defaults", {}),
        ignored=re.compile("|".join(table["ignored"]["names"])),
        prefixes=tuple(table.get("prefixes", [""])),
        refuses=frozenset(table["refuses"]),
        abbreviates=table.get("abbreviates", False),
    )


def read_trainer_settings(given: GivenSettings) -> dict[str, Any]:
    """Return the fields of the recipe, by the table of the trainer that the names show."""
    known = next((name for name in COMMANDS if _fits(load_table(name), given.values)), "")
    table = load_table(known or FALLBACK)
    given = _write_out(table, given) if table.abbreviates else given
    fields, sources = _read(table, given.values)
    launching, launcher_sources = _read(load_table(LAUNCHER), given.values)
    fields, sources = {**launching, **fields}, {**launcher_sources, **sources}
    for name, settings in (("deepspeed", given.deepspeed), ("hf-config", given.model)):
        further, _ = _read(load_table(name), {spell(key): value for key, value in settings.items()})
        fields = {**further, **fields}
    names = {name_of_field: given.spellings[name] for name_of_field, name in sources.items()}
    fields |= {"trainer": table.trainer if known else "", "names": names, "variables": given.variables}
    fields["launcher"] = given.launcher
    in_deepspeed = {f"ds.{spell(name)}": texts for name, texts in given.deepspeed.items()}
    fields |= {"options": {**given.values, **in_deepspeed}, "is_complete": given.is_complete}
    fields["alternatives"] = given.alternatives
    if known:
        fields |= {"precisions": _list_precisions(table, given), "unread": tuple(_list_unread(table, given))}
    # A script or a file may set otherwise what the trainer reads in the end.
    if known and set(sources.values()) <= set(map(spell, given.flags)):
        fields["refuses"] = table.refuses
    return fields


def _list_precisions(table: TrainerTable, given: GivenSettings) -> dict[str, str]:
    """Return every setting of a precision. GPT-NeoX's `fp16.type` may name another one than fp16."""
    if "fp16.type" in given.values:
        return {}
    pairs = [*_list_set(table, given.values), *_list_set(load_table(LAUNCHER), given.values)]
    return {
        given.spellings[name]: settings["precision"]
        for name, settings in pairs
        if "precision" in settings and name not in given.alternatives
    }


def _write_out(table: TrainerTable, given: GivenSettings) -> GivenSettings:
    """Return the settings with abbreviated names written out."""
    full = {}
    for name in given.values:
        candidates = [known for known in table.names if known.startswith(name)]
        if name not in {*table.names, *given.foreign} and len(candidates) == 1:
            full[name] = candidates[0]
    return replace(
        given,
        values={full.get(name, name): value for name, value in given.values.items()},
        spellings={full.get(name, name): spelling for name, spelling in given.spellings.items()},
        flags={full.get(spell(name), name): value for name, value in given.flags.items()},
    )


def _fits(table: TrainerTable, values: Values) -> bool:
    groups = ([set(_spell_all(table, (name,))) for name in group] for group in table.signs)
    return any(all(spellings & values.keys() for spellings in group) for group in groups)


def _read(table: TrainerTable, values: Values) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the fields, and the name that gave each field."""
    fields: dict[str, Any] = dict(table.defaults)
    sources: dict[str, str] = {}
    for name, settings in _list_set(table, values):
        fields.update(settings)
        sources.update(dict.fromkeys(settings, name))
    for field_name, names in table.read.items():
        for name in _spell_all(table, names):
            value = _convert(field_name, values[name]) if name in values else None
            if value is not None:
                fields[field_name] = value
            if value is not None or "$" in " ".join(values.get(name, ())):  # given, by a variable without a value
                sources[field_name] = name
                break
    return fields, sources


def _list_set(table: TrainerTable, values: Values) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every name that is given, and the fields that its switch or value sets."""
    for key, settings in table.switches.items():
        for name in _spell_all(table, (key,)):
            if name in values and (values[name] or ("true",))[0].lower() not in NO:
                yield name, settings
    for key, choices in table.values.items():
        for name in _spell_all(table, (key,)):
            for value in values.get(name, ()):
                yield name, choices.get(value.strip("\"'").lower(), {})


def _spell_all(table: TrainerTable, names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        yield from (prefix + name for prefix in table.prefixes)


def _convert(field_name: str, texts: tuple[str, ...]) -> Any:
    """Return the value of a field; None for no value, and for a text where a number is needed."""
    if not texts or texts[0].lower() in {"none", "null", "~", ""}:
        return None
    if field_name in TEXTS:
        return texts[0]
    if field_name == "rampup":
        numbers = [parse_whole(text) for text in " ".join(texts).replace(",", " ").split()[:3]]
        return tuple(numbers) if len(numbers) == 3 and None not in numbers else None
    return parse_whole(texts[0])


def _list_unread(table: TrainerTable, given: GivenSettings) -> Iterator[str]:
    launcher = load_table(LAUNCHER)
    known = table.names | launcher.names
    for name, spelling in given.spellings.items():
        if name not in known and not table.ignored.fullmatch(name) and not launcher.ignored.fullmatch(name):
            yield spelling
