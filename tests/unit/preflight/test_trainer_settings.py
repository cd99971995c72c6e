"""Commands of other trainers, read into one description."""

import json

import pytest

from opsctl.calc.parallel_layout import Topology
from opsctl.preflight.recipe import read_recipe
from opsctl.preflight.trainer_settings import COMMANDS, load_table
from opsctl.settings.loader import TrainSettings, parse
from tests.support.cases import read_cases, read_table


@pytest.fixture
def read(tmp_path):
    """Return `read(*command, **files)`: the recipe of a command whose files lie in its directory."""

    def read_command(*command, environment=None, files=None):
        for name, text in (files or {}).items():
            (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
            (tmp_path / name).write_text(text)
        table = {"name": "t", "command": list(command), "slurm": {"nodes": 1, "time_limit": "60"}}
        train = parse(TrainSettings, {**table, "environment": environment or {}}, "t.toml")
        return read_recipe(train, tmp_path)

    return read_command


LLAMA = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention"
    " --num-query-groups 8 --seq-length 8192 --swiglu --untie-embeddings-and-output-weights"
    " --tensor-model-parallel-size 2 --context-parallel-size 2 --sequence-parallel --micro-batch-size 1"
    " --global-batch-size 128 --bf16 --fp8-format hybrid --recompute-activations --attention-backend flash"
    " --use-distributed-optimizer --train-iters 1000 --save /c --load /c --save-interval 50"
)


def test_megatron_flags_describe_a_llama(read):
    recipe = read("python", "pretrain_gpt.py", *LLAMA.split())
    assert (recipe.trainer, recipe.layers, recipe.ffn, recipe.kv_heads, recipe.sequence) == (
        "Megatron",
        32,
        14336,
        8,
        8192,
    )
    assert (recipe.gated_mlp, recipe.tied_embeddings, recipe.fp8, recipe.precision) == (True, False, True, "bf16")
    assert (recipe.tensor, recipe.context, recipe.sequence_parallel, recipe.zero) == (2, 2, True, 1)
    assert (recipe.recompute, recipe.attention) == ("selective", "flash")
    assert (recipe.save, recipe.load, recipe.save_every, recipe.unread) == ("/c", "/c", 50, ())


def test_script_with_variables_is_read(read):
    script = read_table(__file__, "script")
    recipe = read("bash", "run/train.sh", files={"run/train.sh": script})
    assert (recipe.trainer, recipe.layers, recipe.tensor, recipe.micro_batch) == ("Megatron", 24, 4, 2)
    assert (recipe.save, recipe.load) == ("/checkpoints", "")
    assert recipe.refuses == frozenset()


def test_torchtitan_file_and_flags_are_read(read):
    train_toml = read_table(__file__, "train_toml")
    command = ("--job.config_file", "train.toml", "--training.local_batch_size", "2")
    recipe = read("python", "-m", "torchtitan.train", *command, files={"train.toml": train_toml})
    assert (recipe.trainer, recipe.micro_batch, recipe.sequence, recipe.steps) == ("torchtitan", 2, 8192, 1000)
    assert (recipe.tensor, recipe.recompute, recipe.fp8, recipe.fsdp) == (8, "selective", True, "fsdp")
    assert (recipe.saves, recipe.save_every, recipe.shards) == (True, 500, None)
    assert recipe.names["tensor"] == "train.toml: parallelism.tensor_parallel_degree"


def test_transformers_yaml_deepspeed_and_model_are_read(read):
    sft_yaml = read_table(__file__, "sft_yaml")
    files = {
        "sft.yaml": sft_yaml,
        "ds.json": json.dumps({"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}),
        "model/config.json": json.dumps({"num_hidden_layers": 32, "hidden_size": 4096, "num_key_value_heads": 8}),
    }
    recipe = read("accelerate", "launch", "sft.py", "sft.yaml", "--deepspeed", "ds.json", files=files)
    assert (recipe.trainer, recipe.micro_batch, recipe.accumulation) == ("transformers", 8, 4)
    assert (recipe.precision, recipe.recompute, recipe.attention, recipe.zero) == ("bf16", "full", "flash", 3)
    assert (recipe.layers, recipe.hidden, recipe.kv_heads, recipe.sequence) == (32, 4096, 8, 2048)
    assert (recipe.save_every, recipe.unread) == (0, ("sft.yaml: frobnicate",))


def test_nemo_words_of_hydra_are_read(read):
    words = "training=gpt3/175b training.trainer.num_nodes=16 training.model.pipeline_model_parallel_size=8"
    more = "++training.model.virtual_pipeline_model_parallel_size=12 training.exp_manager.resume_if_exists=True"
    recipe = read("python3", "main.py", *words.split(), *more.split(), "training.trainer.precision=bf16")
    assert (recipe.trainer, recipe.nodes, recipe.pipeline, recipe.chunks) == ("NeMo", 16, 8, 12)
    assert (recipe.resumes, recipe.precision, recipe.unread) == (True, "bf16", ())


def test_gpt_neox_yaml_is_read(read):
    text = '{"pipe-parallel-size": 2, "model-parallel-size": 4, "num-layers": 44, "save": "/c",\n'
    text += '"fp16": {"enabled": true}}'
    recipe = read("python", "deepy.py", "train.py", "20B.yml", files={"20B.yml": text})
    assert (recipe.trainer, recipe.pipeline, recipe.tensor, recipe.layers) == ("GPT-NeoX", 2, 4, 44)
    assert (recipe.save, recipe.precision) == ("/c", "fp16")


@pytest.mark.parametrize(*read_cases(__file__, "options_that_decide_memory_are_read"))
def test_options_that_decide_memory_are_read(read, command, differs):
    topology = read(*command.split()).topology(8)
    usual = Topology(tp=1, pp=1, dp=8)
    assert {name: getattr(topology, name) for name in OF_MEMORY if getattr(topology, name) != getattr(usual, name)} == (
        differs
    )


OF_MEMORY = ("zero", "recompute", "kernels", "accumulates_whole", "gradients_16", "fused_loss")


def test_unknown_trainer_is_never_certain(read):
    recipe = read("python", "train.py", "--num-layers", "3", "--frobnicate", "1")
    assert (recipe.trainer, recipe.refuses, recipe.unread, recipe.layers) == ("", frozenset(), (), 3)


@pytest.mark.parametrize("text", ["{", "- a\n- b", "a: [1, {b: 2}]", "\0", "x: *y", "a: 2026-01-01"])
@pytest.mark.parametrize("name", ["c.yaml", "c.json", "c.toml", "c.sh"])
def test_no_file_raises(read, name, text):
    assert read("python", "train.py", name, files={name: text}).layers is None


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("c.yaml", "a: 1\nb: [", "no YAML in line 3"),
        ("c.json", '{"a": }', "Expecting value: line 1 column 7 (char 6)"),
        ("c.json", json.dumps({f"k{n}": n for n in range(4001)}), "more than 4000 values"),
        ("c.toml", "a = ", "Invalid value"),
        ("c.yaml", "a: 1", ""),
    ],
)
def test_file_that_cannot_be_read_is_reported(read, name, text, problem):
    invalid = read("python", "train.py", name, files={name: text}).invalid
    assert " ".join(invalid).startswith(f"{name}: {problem}" if problem else "")
    assert bool(invalid) == bool(problem)


def test_model_from_scratch_and_settings_of_accelerate_are_read(read):
    files = {"cfg/config.json": '{"num_hidden_layers": 80}', "zero3.yaml": "deepspeed_config:\n  zero_stage: 3\n"}
    trainer = ("run_clm.py", "--config_name", "cfg", "--output_dir", "out", "--per_device_train_batch_size", "4")
    recipe = read("accelerate", "launch", "--config_file", "zero3.yaml", *trainer, files=files)
    assert (recipe.trainer, recipe.layers, recipe.zero, recipe.launcher) == ("transformers", 80, 3, "accelerate")
    inner = {
        "a.yaml": "deepspeed_config:\n  deepspeed_config_file: ds.json\n",
        "ds.json": '{"bf16": {"enabled": true}}',
    }
    recipe = read("accelerate", "launch", "--config_file", "a.yaml", *trainer, files=inner)
    assert recipe.options["ds.bf16.enabled"] == ("true",)


def test_options_in_quotes_are_all_read(read):
    script = (
        "GPT='--num-layers 24 --hidden-size 1024'\npython watch.py --exit-duration 110 &\npython pretrain_gpt.py $GPT"
    )
    recipe = read("bash", "run.sh", files={"run.sh": script})
    assert (recipe.layers, recipe.hidden, recipe.exit_minutes, recipe.is_complete) == (24, 1024, None, True)
    assert not read("python", "pretrain_gpt.py", "--num-layers", "24", "--hidden-size", "8", "$MORE_ARGS").is_complete


def test_file_without_keys_is_no_unread_setting(read):
    model = ("--num-layers", "24", "--hidden-size", "8")
    assert read("python", "pretrain_gpt.py", *model, "a.yaml", files={"a.yaml": "text"}).unread == ()


@pytest.mark.parametrize("name", [*COMMANDS, "deepspeed", "hf-config"])
def test_table_sets_fields_of_the_recipe(name):
    table = load_table(name)
    fields = set(table.read) | set(table.defaults)
    for settings in table.switches.values():
        fields |= set(settings)
    for choices in table.values.values():
        for settings in choices.values():
            fields |= set(settings)
    assert fields - set(read_recipe.__globals__["RECIPE_FIELDS"]) <= OTHER_FIELDS


OTHER_FIELDS = {"deepspeed", "deepspeed_file", "mock_data", "model_path"}
"""Fields that only the reader uses."""
