"""One tensor rank that runs the layers of a model once: alone, cut, and cut with slices of the sequence.

`plan.json` in the directory holds the cases: a config each. The rank writes losses, gradients (also before they are
summed over the ranks) and the bytes that the blocks store for the backward pass.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

from opsctl.trainer import rank_process
from opsctl.trainer.process_groups import choose_accelerator

choose_accelerator()

from opsctl.trainer import architecture, gpt, tensor_parallel  # noqa: E402 - DeepSpeed looks for its accelerator
from opsctl.trainer.config import TrainerConfig  # noqa: E402 - likewise
from opsctl.trainer.cross_entropy import cross_entropy  # noqa: E402 - likewise
from opsctl.trainer.rank_layout import Layout  # noqa: E402 - likewise


class SavedBytes:
    """Counts the bytes of the storages that autograd keeps, each once and without parameters."""

    def __init__(self, parameters) -> None:
        self._parameters = {parameter.untyped_storage().data_ptr() for parameter in parameters}
        self._storages: dict[int, torch.UntypedStorage] = {}  # held, so that no address is used twice
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor)

    @property
    def total(self) -> int:
        return sum(storage.nbytes() for storage in self._storages.values())

    def _keep(self, tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._parameters:
            self._storages[storage.data_ptr()] = storage
        return tensor


def run(config: TrainerConfig, part: tensor_parallel.Slice) -> dict:
    torch.manual_seed(7)
    kind = torch.bfloat16 if config.precision == "bf16" else torch.float32
    model = config.model
    *stack, output = architecture.layers(model, seed=1, part=part)
    modules = torch.nn.ModuleList([spec.build() for spec in stack]).to(kind)
    last = modules[0] if model.is_tied else output.build().to(kind)
    everything = modules if model.is_tied else torch.nn.ModuleList([*modules, last])
    shape = (config.batch.micro_batch, model.sequence)
    tokens, labels = torch.randint(model.vocabulary, (2, *shape))
    x = (tokens, make_starts(tokens)) if config.data.separate_documents else tokens
    saved = SavedBytes(everything.parameters())
    for module in modules:
        if isinstance(module, gpt.Block):
            with saved.hooks:
                x = module(x)
        else:
            x = module(x)
    scores = gpt.logits(last, x) if model.is_tied else last(x)
    loss = cross_entropy(scores, labels, part)
    loss.backward()
    shared = tensor_parallel.shared_gradients(everything, part)
    shares = {name: p.grad.tolist() for name, p in everything.named_parameters() if any(p is q for q in shared)}
    if shared:
        part.sum_all([parameter.grad for parameter in shared])
    gradients = {name: p.grad.tolist() for name, p in everything.named_parameters()} if model.hidden < 100 else {}
    return {"loss": loss.item(), "saved": saved.total, "gradients": gradients, "shares": shares if gradients else {}}


def make_starts(tokens):
    """Return starts of documents: each sample has a second one, which begins in the middle of a slice."""
    places, first = torch.arange(tokens.shape[1]), tokens.shape[1] // 3
    return (first * (places >= first)).expand(tokens.shape[0], -1).contiguous()


def main(directory: Path) -> None:
    rank_process.die_with_parent()
    warnings.simplefilter("ignore", FutureWarning)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    results = []
    for fields in json.loads((directory / "plan.json").read_text()):
        config = TrainerConfig.model_validate({"steps": 1, "precision": "fp32"} | fields)
        layout = Layout(pipeline=1, data=1, tensor=world)
        slices = [tensor_parallel.slice_of(layout, rank, cuts_sequence=cuts) for cuts in (False, True)]
        results.append([run(config, part) for part in (tensor_parallel.Slice(), *slices)])
    (directory / f"rank-{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # threads of gloo sometimes abort at the interpreter's shutdown


if __name__ == "__main__":
    main(Path(sys.argv[1]))
