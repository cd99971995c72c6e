"""The model that a plan is for: a preset, a config.json, a TRAIN.toml, or a few sizes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from opsctl.base.errors import InputError
from opsctl.calc import gpu_memory
from opsctl.calc.gpt_size import PUBLISHED, ModelShape, shape_of_sizes
from opsctl.calc.gpu_memory import MemoryModel
from opsctl.calc.hf_config import read_config
from opsctl.calc.parallel_layout import Topology
from opsctl.state import files

MAX_CONFIG_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    name: str
    shape: ModelShape
    assumed: tuple[str, ...] = ()
    batch: int | None = None
    topology: Callable[[int], Topology] | None = None
    """The layout that a TRAIN.toml states, for a number of GPUs."""
    fullest: MemoryModel = gpu_memory.fullest


def find_model(name: str | None, *, layers: int | None, hidden: int | None, sequence: int | None) -> PlannedModel:
    """Return the model. Raises InputError for a name that is neither a preset nor a file."""
    if name is None:
        if not (layers and hidden):
            raise InputError("no model is given", hint=f"a file, --layers with --hidden, or: {', '.join(PUBLISHED)}")
        shape, assumed = shape_of_sizes(layers, hidden, sequence=sequence)
        return PlannedModel(name=f"{layers} layers of {hidden}", shape=shape, assumed=assumed)
    if name.lower() in PUBLISHED:
        shape = PUBLISHED[name.lower()]
        return PlannedModel(name=name.lower(), shape=replace(shape, sequence=sequence) if sequence else shape)
    path = Path(name)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        read = _read_train if path.suffix == ".toml" else _read_config
        return read(path, sequence)
    near = get_close_matches(name.lower(), PUBLISHED, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else f"presets: {', '.join(PUBLISHED)}"
    raise InputError(f"{name}: no preset, and no such file", hint=hint)


def _read_config(path: Path, sequence: int | None) -> PlannedModel:
    try:
        data = files.read_json(path, MAX_CONFIG_BYTES)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a config.json: {error}") from error
    if not isinstance(data, dict):
        raise InputError(f"{path}: not a config.json: the whole is no object")
    shape, assumed = read_config(data, sequence=sequence)
    return PlannedModel(name=path.name, shape=shape, assumed=assumed)


def _read_train(path: Path, sequence: int | None) -> PlannedModel:
    from opsctl.preflight.estimates import memory_model  # noqa: PLC0415 (as above)
    from opsctl.preflight.recipe import read_recipe  # noqa: PLC0415 (a plan of a preset reads no settings)
    from opsctl.settings.loader import load_train  # noqa: PLC0415 (as above)

    train = load_train(path, layout=False)
    recipe = read_recipe(train, path.parent / train.setup.directory)
    shape = recipe.shape()
    if shape is None:
        raise InputError(f"{path}: states no layers, hidden size and heads", hint="give a preset or a config.json")
    if sequence:
        shape = replace(shape, sequence=sequence)
    return PlannedModel(
        name=path.name,
        shape=shape,
        batch=recipe.global_batch,
        topology=recipe.topology,
        fullest=memory_model(recipe),
    )
