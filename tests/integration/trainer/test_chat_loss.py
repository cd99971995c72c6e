"""The loss of packed conversations: the mean over learnt tokens, however packing and micro-batches cut them."""

import pytest

pytest.importorskip("deepspeed")

import torch

from opsctl.trainer.batches import open_data
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.cross_entropy import cross_entropy
from opsctl.trainer.loop import evaluations
from opsctl.trainer.prepare import main
from opsctl.trainer.rank_layout import Layout
from opsctl.trainer.tensor_parallel import Slice
from tests.integration.trainer.conftest import tiny
from tests.support.conversations import make_pairs, write_pairs
from tests.support.plain_trainer import PlainModel, train_on_pairs

pytestmark = pytest.mark.torch

PAIRS = make_pairs(60)


@pytest.fixture
def config(tmp_path):
    """A step that reads every conversation once."""
    write_pairs(tmp_path / "chats.jsonl", PAIRS)
    main(["--input", str(tmp_path / "chats.jsonl"), "--output", str(tmp_path / "chats"), "--chat", "32"])
    samples = (tmp_path / "chats.bin").stat().st_size // 64
    model = {"family": "llama", "tied": True, "layers": 2, "hidden": 32, "heads": 4, "sequence": 32}
    data = {"prefix": str(tmp_path / "chats"), "separate_documents": True}
    batch = {"micro_batch": 1, "global_batch": samples}
    return TrainerConfig.model_validate(tiny(steps=1, parallel={}, model=model, data=data, batch=batch))


class PlainEngine:
    """Evaluates the model in one process, without DeepSpeed."""

    def __init__(self, config):
        self.model = PlainModel(config.model, seed=config.seed)

    def evaluate(self, batches, *, batch):
        return sum(float(cross_entropy(self.model(x), labels, Slice()).detach()) for x, labels in batches) / batch


def test_loss_is_that_of_every_conversation_alone(config):
    samples, engine = config.batch.global_batch, PlainEngine(config)
    shares = []
    for rank in range(2):  # the micro-batches have unequal shares of the learnt tokens
        batches = open_data(config).training(config, data_rank=rank, data_ranks=2)
        shares.append(engine.evaluate(batches.step(0, samples), batch=samples))
    assert samples > 8
    assert sum(shares) == pytest.approx(train_on_pairs(config, PAIRS)[0], abs=1e-6)


def test_held_out_loss_does_not_depend_on_the_batch(config):
    """Batches have unequal shares of the learnt tokens."""
    sets = [{"name": "chats", "prefix": config.data.prefix}]
    evaluation = {"every": 1, "batches": config.batch.global_batch, "sets": sets}
    batch = {"micro_batch": 1, "global_batch": 1}
    small = TrainerConfig.model_validate(config.model_dump() | {"batch": batch, "evaluation": evaluation})
    (chats,) = evaluations(open_data(small), Layout(pipeline=1, data=1, tensor=1), 0)
    loss = chats.loss(PlainEngine(small), interrupted=lambda: False)
    assert loss == pytest.approx(train_on_pairs(config, PAIRS)[0], abs=1e-6)


def test_text_beside_conversations_is_learnt_whole(config, corpus):
    blend = [{"prefix": config.data.prefix}, {"prefix": str(corpus)}]
    data = config.data.model_copy(update={"blend": type(config.data).model_validate({"blend": blend}).blend})
    mixed = config.model_copy(update={"data": data})
    batches = open_data(mixed).training(mixed, data_rank=0, data_ranks=1)
    shares = [float((weights > 0).float().mean()) for _, (_, weights) in batches.step(0, 8)]
    assert sorted(share == 1 for share in shares) == [False] * 4 + [True] * 4
    assert sum(float(weights.mean()) for _, (_, weights) in batches.step(0, 8)) / 8 == pytest.approx(1)


def test_gradient_of_weighted_labels_is_torchs():
    scores = torch.randn(2, 3, 7, dtype=torch.float64).float().requires_grad_()
    labels, weights = torch.randint(0, 7, (2, 3)), torch.tensor([[0.0, 2, 2], [0, 0, 2]])
    ours = torch.autograd.grad(cross_entropy(scores, (labels, weights), Slice()), scores)[0]
    masked = labels.masked_fill(weights == 0, -100).flatten()
    theirs = torch.autograd.grad(torch.nn.functional.cross_entropy(scores.flatten(0, 1), masked), scores)[0]
    assert ours.allclose(theirs, atol=1e-7)
