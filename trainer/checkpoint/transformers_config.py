"""The `config.json` of Hugging Face's transformers, from and to the table of the model."""

import json
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from opsctl.trainer import families
from opsctl.trainer.bounded_files import read_bounded
from opsctl.trainer.checkpoint import transformers_positions as positions
from opsctl.trainer.checkpoint.transformers_files import INDEX, SINGLE, has_weights
from opsctl.trainer.config_problems import join_problems
from opsctl.trainer.errors import Refused
from opsctl.trainer.families import ModelFamily, find_figure, with_defaults
from opsctl.trainer.model_config import ModelConfig

_MAX_CONFIG_BYTES = 1 << 20
_OPTIONAL = ("kv_heads", "head_width", "query_width", "score_cap", "logit_cap")
"""Keys whose absence, or null, means something."""
_OF_FILE = ("_name_or_path", "auto_map", "dtype", "quantization_config", "torch_dtype", "transformers_version")
"""What a config.json says of its own files."""
_APART = ("dropouts", "window")
"""Keys of a family's `config` that are not the name of one figure."""


def write_config(config: ModelConfig, *, like: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the `config.json` of transformers. The tokenizer of the corpus is not part of a checkpoint.

    `like` is the config.json of the model that a run began with. If it describes the same model, it determines the
    type and all that does not change logits. Raises Refused if transformers has no such model.
    """
    first = families.of_type(str(like.get("model_type"))) if like else None
    if like and first and describes({**like, "vocab_size": config.vocabulary}, config):
        key, ours = first.config["sequence"], _write_as(first, config)
        longest = ours[key] if first.positions == "learnt" else max(ours[key], with_defaults(like)[key])
        fields = {**{key: value for key, value in like.items() if key not in _OF_FILE}, **ours, key: longest}
        if describes(fields, config):
            return fields
    others = (families.load(name) for name in families.NAMES if name != config.family)
    for family in (config.kind, *others):
        if describes(fields := _write_as(family, config), config):
            return fields
    keys = ", ".join(key for key in config.kind.keys if getattr(config, key) not in (None, False))
    raise Refused(f"transformers has no model of family {config.family} with this choice of {keys}")


def describes(fields: Mapping[str, Any], config: ModelConfig) -> bool:
    """Return whether a config.json describes the model of `config`."""
    try:
        return _read(fields, "", config.sequence).resolved() == config.resolved()
    except Refused:
        return False


def _write_as(family: ModelFamily, config: ModelConfig) -> dict[str, Any]:
    """Return the config.json of `family` with the figures of `config`, be it able to hold them or not."""
    values = {**config.resolved(), "sequence": config.sequence}
    names = {ours: theirs for ours, theirs in family.config.items() if ours not in _APART}
    fields = {
        "model_type": family.type,
        "architectures": [family.architecture],
        "vocab_size": config.vocabulary,
        "tie_word_embeddings": config.is_tied,
        "bos_token_id": None,  # no password  # nosec B105
        "eos_token_id": None,  # no password  # nosec B105
        "pad_token_id": None,  # no password  # nosec B105
        **family.fixed,
        **{theirs: values[ours] for ours, theirs in names.items()},
        **dict.fromkeys(family.config["dropouts"], config.dropout),
    }
    for theirs, matrices in family.switches.items():
        if matrices:
            fields[theirs] = set(matrices) <= set(values["biases"])
    return fields | positions.write(family, config)


def read_model(directory: Path, *, sequence: int | None = None) -> ModelConfig:
    """Return the table of the model in `directory`, with samples of `sequence` tokens (if absent, the model's longest).

    Raises OSError. Raises Refused with everything that this trainer cannot do.
    """
    return _read(read_fields(directory), f"{directory}", sequence)


def _read(fields: Mapping[str, Any], place: str, sequence: int | None) -> ModelConfig:
    family = families.of_type(str(fields.get("model_type")))
    if family is None:
        known = ", ".join(families.load(name).type for name in families.NAMES)
        raise Refused(f"{place} is of type {fields.get('model_type')}; known are {known}")
    fields = with_defaults(fields)
    try:
        if problems := [*_find_differences(fields, family), *positions.find_differences(fields, family)]:
            raise Refused(f"{place}: {'; '.join(problems)}")
        table = _read_sizes(fields, family) | _read_biases(fields, family) | positions.read(fields, family)
        if "tied" in family.keys:
            table["tied"] = bool(fields.get("tie_word_embeddings", False))
        return ModelConfig.model_validate(table | ({"sequence": sequence} if sequence else {}))
    except ValidationError as error:
        raise Refused(f"{place}/config.json: {join_problems(ModelConfig, error)}") from error
    except KeyError as error:
        raise Refused(f"{place}/config.json: {error.args[0]} is missing") from error
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise Refused(f"{place}/config.json: a value is of a wrong type ({error})") from error


def refuse_other_model(directory: Path, config: ModelConfig) -> None:
    """Raise Refused if `directory` has no weights of the model of `config`, whose vocabulary may be larger; OSError."""
    if not has_weights(directory):
        raise Refused(f"{directory} has neither {INDEX} nor {SINGLE}: only safetensors are read")
    there, here = read_model(directory, sequence=config.sequence).resolved(), config.resolved()
    differences = [
        f"{key} is {value} there and {here[key]} here"
        for key, value in there.items()
        if value != here[key] and not (key == "vocabulary" and here[key] > value)
    ]
    if differences:
        raise Refused(f"{directory} is another model: {'; '.join(differences)} (opsctl checkpoint import prints it)")
    longest = read_model(directory).sequence if config.kind.positions == "learnt" else config.sequence
    if config.sequence > longest:
        raise Refused(f"{directory} has {longest} learnt positions, fewer than sequence = {config.sequence}")


def read_fields(directory: Path) -> dict[str, Any]:
    """Return the `config.json` of `directory`. Raises OSError, Refused."""
    try:
        fields = json.loads(read_bounded(directory / "config.json", _MAX_CONFIG_BYTES, follow=True))
    except (ValueError, RecursionError) as error:
        raise Refused(f"{directory}/config.json is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise Refused(f"{directory}/config.json is no JSON object")
    return fields


def _find_differences(fields: Mapping[str, Any], family: ModelFamily) -> Iterator[str]:
    """Yield what the model has and this trainer has not."""
    if fields.get("quantization_config"):
        yield "its weights are quantised"
    for key, values in family.only.items():
        if fields.get(key, values[0]) not in (*values, None):
            yield f"{key} is {fields[key]}, and this trainer has only {' or '.join(map(str, values))}"
    width = fields.get("n_inner")
    if not family.is_gated and width not in (None, 4 * int(fields.get("n_embd", 0))):
        yield f"n_inner is {width}, and this trainer has only 4 x n_embd"


def _read_sizes(fields: Mapping[str, Any], family: ModelFamily) -> dict[str, Any]:
    """Return the keys that are figures; files of one family name sizes in different ways."""
    names = {ours: theirs for ours, theirs in family.config.items() if ours not in _APART}
    table: dict[str, Any] = {"family": family.name}
    for ours, theirs in (names | {"vocabulary": "vocab_size"}).items():
        value = fields.get(theirs)
        if value is None and ours in ("layers", "heads", "hidden", "vocabulary", "sequence"):
            value = find_figure(fields, ours)
        if value is None and ours not in _OPTIONAL:
            raise KeyError(theirs)
        if value is not None:
            table[ours] = value
    if "kv_heads" in family.keys:
        table.setdefault("kv_heads", table["heads"])
    if "head_width" in family.keys:
        table.setdefault("head_width", table["hidden"] // table["heads"])
    return table


def _read_biases(fields: Mapping[str, Any], family: ModelFamily) -> dict[str, Any]:
    switched = (matrices for theirs, matrices in family.switches.items() if fields.get(theirs))
    return {f"{matrix}_bias": True for matrix in chain.from_iterable(switched)}
