"""The training as one plain torch loop, without DeepSpeed, stages or slices: the reference of the other tests.

Its layers are those of the trainer, which test_hugging_face.py holds against transformers.
"""

import torch
from torch.nn import functional

from opsctl.trainer import gpt
from opsctl.trainer.architecture import layers
from opsctl.trainer.batches import open_data
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.model_config import ModelConfig
from opsctl.trainer.tensor_parallel import Slice


class PlainModel(torch.nn.Module):
    """The layers of a model, one after the other."""

    def __init__(self, config: ModelConfig, *, seed: int = 1) -> None:
        super().__init__()
        stack = [spec.build() for spec in layers(config, seed=seed, part=Slice())]
        self.stack = torch.nn.ModuleList(stack[:-1] if config.is_tied else stack)
        self._is_tied = config.is_tied

    def forward(self, x: torch.Tensor | tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return the logits of tokens, or of tokens and the starts of their documents."""
        for layer in self.stack:
            x = layer(x)
        return gpt.logits(self.stack[0], x) if self._is_tied else x


def train(config: TrainerConfig, theirs: torch.nn.Module | None = None) -> tuple[list[float], list[float]]:
    """Return the loss and the gradient norm (before clipping) of each step, in fp32, of `theirs` if given."""
    model = theirs or PlainModel(config.model, seed=config.seed)
    optimizer = _optimizer(config, model)
    batches = open_data(config).training(config, data_rank=0, data_ranks=1)
    losses, norms = [], []
    for step in range(config.steps):
        consumed, batch = step * config.batch.global_batch, config.batch.global_batch
        for group in optimizer.param_groups:
            group["lr"] = config.rate().at(consumed + batch)
        turns = batch // config.batch.micro_batch
        total = 0.0
        for tokens, labels in batches.step(consumed, batch):
            scores = theirs(tokens).logits if theirs else model(tokens)
            loss = functional.cross_entropy(scores.flatten(0, 1), labels.flatten())
            (loss / turns).backward()
            total += float(loss.detach()) / turns
        losses.append(total)
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.clip)))
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms


def _optimizer(config: TrainerConfig, model: torch.nn.Module) -> torch.optim.Optimizer:
    settings = config.optimizer
    matrices = [w for w in model.parameters() if w.ndim > 1]
    vectors = [w for w in model.parameters() if w.ndim == 1]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=(settings.beta1, settings.beta2), eps=settings.eps)


def train_on_pairs(config: TrainerConfig, pairs: list[tuple[str, str]]) -> list[float]:
    """Return the losses of steps on all prompts and completions in bytes, every pair alone and unpacked.

    The loss of a step is the mean over the tokens of all completions and their ends.
    """
    model = PlainModel(config.model, seed=config.seed)
    optimizer = _optimizer(config, model)
    losses = []
    for step in range(config.steps):
        for group in optimizer.param_groups:
            group["lr"] = config.rate().at((step + 1) * config.batch.global_batch)
        total, count = torch.zeros(()), 0
        for prompt, completion in pairs:
            tokens = torch.tensor([[*prompt.encode(), *completion.encode(), 256]])
            labels = tokens[:, 1:].clone()
            labels[:, : len(prompt.encode()) - 1] = -100
            scores = model(tokens[:, :-1])
            total = total + functional.cross_entropy(scores[0], labels[0], ignore_index=-100, reduction="sum")
            count += int((labels != -100).sum())
        (total / count).backward()
        losses.append(float(total.detach() / count))
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.clip)
        optimizer.step()
        optimizer.zero_grad()
    return losses
