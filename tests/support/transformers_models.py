"""Small models of Hugging Face's transformers with random weights, one for every family and variant."""

import tomllib
from pathlib import Path

import torch
import transformers
from safetensors import torch as safetensors

TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


def read_fields(name):
    """Return the fields of a config, with those of its base."""
    table = TABLES[name]
    base = read_fields(table["base"]) if "base" in table else {}
    return base | {key: None if value == "" else value for key, value in table.get("fields", {}).items()}


MODELS = {name: (table["class"], read_fields(name)) for name, table in TABLES.items()}


def save_model(name, directory, **changes):
    """Save a model of transformers with random weights, vectors included; return it."""
    kind, fields = MODELS[name]
    torch.manual_seed(3)
    config = getattr(transformers, kind)(**fields | changes)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.ndim == 1), std=0.2)
    model.save_pretrained(directory)
    return model


def add_tensor(directory, name, tensor):
    tensors = safetensors.load_file(directory / "model.safetensors")
    safetensors.save_file(tensors | {name: tensor}, directory / "model.safetensors", metadata={"format": "pt"})
