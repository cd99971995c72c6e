"""torchtitan's Trainer with a Llama 3 of one layer, told that the device is a CPU."""

import importlib.util
import os
import sys
import tempfile
import types
from pathlib import Path

import torch
from datasets import Dataset
from pace import STEPS
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.distributed.fsdp import FSDPModule

CPU = {
    "current_device": lambda: 0,
    "empty_cache": lambda: None,
    "get_device_name": lambda device: "CPU",
    "get_device_properties": lambda device: types.SimpleNamespace(total_memory=2**30),
    "memory_stats": lambda device: {},
    "reset_peak_memory_stats": lambda: None,
}
"""What torchtitan's memory monitor and its barrier call on torch.cuda, and torch.cpu lacks or answers otherwise."""
LINES = {
    "            data_iterator = self.batch_generator(self.dataloader)\n": """\
            import opsctl_contract, pace
            contract = opsctl_contract.Contract()
{}""",
    """\
                    self.checkpointer.save(
                        self.step,
                        last_step=(self.step == config.training.steps),
                    )
""": """\
                    pace.record_step(self.step)
                    request = contract.after_step(self.step, last_steps=config.training.steps)
                    last_step = request.save or self.step == config.training.steps
                    self.checkpointer.save(self.step, last_step=last_step)
                    if request.save: contract.saved(self.step)
                    if request.stop: contract.end(self.step); return
""",
}
"""Lines of torchtitan/trainer.py 0.3.0, and those that stand there instead, as in examples/torchtitan.toml."""


def import_trainer():
    """Import torchtitan.trainer with the lines of the recipe."""
    spec = importlib.util.find_spec("torchtitan.trainer")
    source = Path(spec.origin).read_text()
    for old, new in LINES.items():
        assert source.count(old) == 1, f"torchtitan/trainer.py has changed: {old}"
        source = source.replace(old, new.format(old))
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    exec(compile(source, spec.origin, "exec"), module.__dict__)


def parallelize(model, **options):
    """Parallelize the model as torchtitan does; let gloo, which has no scaled sum, sum the gradients."""
    for module in parallelize_llama(model, **options).modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
    return model


def one_layer():
    """Return the configuration of the debug model with one layer, for text of two words."""
    config = config_registry.llama3_debugmodel()
    layer = config.model_spec.model.layers[0]
    config.model_spec.model.layers = [layer]
    layer.attention.inner_attention = ScaledDotProductAttention.Config()  # the others need a compiler or a GPU
    config.model_spec.parallelize_fn = parallelize
    config.training.local_batch_size, config.training.seq_len = 1, 16
    config.training.mixed_precision_param = "float32"
    return config


torch.set_num_threads(1)
torch._utils._get_available_device_type = lambda: "cpu"
for name, function in CPU.items():
    setattr(torch.cpu, name, function)
if not hasattr(torch.distributed, "set_timeout"):  # PyTorch 2.13
    torch.distributed.set_timeout = torch.distributed.distributed_c10d._set_pg_timeout
import_trainer()

import torchtitan.train  # noqa: E402 (after the replacements above)
from torchtitan.hf_datasets import DatasetConfig  # noqa: E402 (after the replacements above)
from torchtitan.hf_datasets.text_datasets import DATASETS  # noqa: E402 (after the replacements above)
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402 (after the replacements above)
from torchtitan.models.llama3 import config_registry, parallelize_llama  # noqa: E402 (after the replacements above)

config_registry.one_layer = one_layer
texts = Dataset.from_dict({"text": ["a b a b a b a b a b a b a b a b a"] * 4 * STEPS})
DATASETS["words"] = DatasetConfig(path="", loader=lambda path: texts, sample_processor=lambda sample: sample["text"])
words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
with tempfile.TemporaryDirectory() as assets:
    words.save(f"{assets}/tokenizer.json")
    sys.argv[1:] = [
        *("--module", "llama3", "--config", "one_layer"),
        *("--dump_folder", os.environ.get("TRAIN_CHECKPOINT_DIR", "out")),
        *("--checkpoint.enable", "--checkpoint.interval", "20", "--checkpoint.keep_latest_k", "2"),
        "--checkpoint.no_last_save_model_only",
        *("--parallelism.spmd_backend", "partial_dtensor"),  # the default needs a newer PyTorch
        *("--training.steps", str(STEPS), "--hf_assets_path", assets, "--dataloader.dataset", "words"),
    ]
    torchtitan.train.main()
