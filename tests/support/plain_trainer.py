"""The training as one plain torch loop, without DeepSpeed, stages or slices: the reference of the other tests."""

import math

import torch
from torch.nn import functional

from opsctl.trainer.architecture import layers
from opsctl.trainer.batches import open_data
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.gpt import slopes
from opsctl.trainer.tensor_parallel import Slice
from tests.support import plain_llama


def train(config: TrainerConfig, theirs: torch.nn.Module | None = None) -> tuple[list[float], list[float]]:
    """Return the loss and the gradient norm (before clipping) of each step, in fp32, of `theirs` if given."""
    weights, settings = dict(theirs.named_parameters()) if theirs else _initial(config), config.optimizer
    optimizer = _optimizer(config, weights)
    batches = open_data(config).training(config, data_rank=0, data_ranks=1)
    losses, norms = [], []
    for step in range(config.steps):
        consumed, batch = step * config.batch.global_batch, config.batch.global_batch
        for group in optimizer.param_groups:
            group["lr"] = config.rate().at(consumed + batch)
        turns = batch // config.batch.micro_batch
        total = 0.0
        for tokens, labels in batches.step(consumed, batch):
            scores = theirs(tokens).logits if theirs else _forward(config, weights, tokens)
            loss = functional.cross_entropy(scores.flatten(0, 1), labels.flatten())
            (loss / turns).backward()
            total += float(loss.detach()) / turns
        losses.append(total)
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(weights.values()), settings.clip)))
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms


def _optimizer(config: TrainerConfig, weights) -> torch.optim.Optimizer:
    settings = config.optimizer
    matrices = [w for w in weights.values() if w.ndim > 1]
    vectors = [w for w in weights.values() if w.ndim == 1]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=(settings.beta1, settings.beta2), eps=settings.eps)


def train_on_pairs(config: TrainerConfig, pairs: list[tuple[str, str]]) -> list[float]:
    """Return the losses of steps on all prompts and completions in bytes, every pair alone and unpacked.

    The loss of a step is the mean over the tokens of all completions and their ends.
    """
    weights, settings = _initial(config), config.optimizer
    optimizer = _optimizer(config, weights)
    losses = []
    for step in range(config.steps):
        for group in optimizer.param_groups:
            group["lr"] = config.rate().at((step + 1) * config.batch.global_batch)
        total, count = torch.zeros(()), 0
        for prompt, completion in pairs:
            tokens = torch.tensor([[*prompt.encode(), *completion.encode(), 256]])
            labels = tokens[:, 1:].clone()
            labels[:, : len(prompt.encode()) - 1] = -100
            scores = _forward(config, weights, tokens[:, :-1])
            total = total + functional.cross_entropy(scores[0], labels[0], ignore_index=-100, reduction="sum")
            count += int((labels != -100).sum())
        (total / count).backward()
        losses.append(float(total.detach() / count))
        torch.nn.utils.clip_grad_norm_(list(weights.values()), settings.clip)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def _initial(config: TrainerConfig) -> dict[str, torch.Tensor]:
    """Return the trainer's initial weights by `<layer>.<name>`, without an output whose weights are tied."""
    weights = {}
    specs = layers(config.model, seed=config.seed, part=Slice())
    for number, spec in enumerate(specs[:-1] if config.model.is_tied else specs):
        for name, value in spec.build().named_parameters():
            weights[f"{number}.{name}"] = value.detach().clone().requires_grad_()
    return weights


def _forward(config: TrainerConfig, w: dict[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    if config.model.family == "llama":
        return plain_llama.forward(config.model, w, tokens)
    x = w["0.weight"][tokens]
    x = x + w["1.weight"] if config.model.family == "gpt2" else _norm(x, w, "1")
    for layer in range(2, 2 + config.model.layers):
        x = x + _attention(config, w, _norm(x, w, f"{layer}.norm1"), f"{layer}")
        up = _linear(_norm(x, w, f"{layer}.norm2"), w, f"{layer}.up")
        x = x + _linear(functional.gelu(up, approximate="tanh"), w, f"{layer}.down")
    return _norm(x, w, str(2 + config.model.layers)) @ w["0.weight"].T


def _attention(config: TrainerConfig, w: dict[str, torch.Tensor], x: torch.Tensor, layer: str) -> torch.Tensor:
    """Return the attention of all heads, computed head by head with a softmax."""
    heads, length = config.model.heads, x.shape[1]
    width = config.model.hidden // heads
    places = torch.arange(length)
    back = places.unsqueeze(1) - places
    steep = slopes(heads) if config.model.family == "bloom" else [0.0] * heads
    mixed = []
    for head, part in enumerate(_linear(x, w, f"{layer}.qkv").split(3 * width, dim=-1)):
        q, k, v = part.split(width, dim=-1)
        scores = q @ k.transpose(1, 2) / math.sqrt(width) - steep[head] * back
        mixed.append(scores.masked_fill(back < 0, -math.inf).softmax(-1) @ v)
    return _linear(torch.cat(mixed, dim=-1), w, f"{layer}.out")


def _linear(x: torch.Tensor, w: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def _norm(x: torch.Tensor, w: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"])
