"""One rank that takes steps without the loop around it, and writes down what no log line has digits for."""

import hashlib
import json
import os
import sys
from pathlib import Path

from trainer import config, process
from trainer.data import Batches, Corpus
from trainer.layout import layout
from trainer.order import Order
from trainer.parallel import choose_accelerator, connect, leave


def main(run_dir: Path) -> None:
    settings, me = config.read(run_dir / "trainer.json"), process.from_environment(os.environ)
    process.die_with_parent()
    choose_accelerator()
    from trainer.engine import Engine  # noqa: PLC0415 - DeepSpeed looks for its accelerator when it is imported

    cut = layout(settings, me.world_size)
    control = connect(me, timeout_s=60)
    engine = Engine(settings, cut, me.rank)
    corpus, size = Corpus(settings.data.prefix), settings.model.sequence
    batches = Batches(
        corpus=corpus,
        order=Order(samples=corpus.samples(size), seed=settings.seed),
        sequence=size,
        vocabulary=settings.model.vocabulary,
        micro_batch=settings.batch.micro_batch,
        data_rank=cut.data_rank(me.rank),
        data_ranks=cut.data,
    )
    steps = []
    for step in range(settings.steps):
        consumed = step * settings.batch.global_batch
        taken = batches.step(consumed, engine.accumulation)
        steps.append(
            engine.step(taken, rate=settings.rate().at(consumed + settings.batch.global_batch), consumed=consumed)
        )
    module = engine.deepspeed.module
    seen = {
        "losses": [loss for loss, _ in steps],
        "norms": [norm for _, norm in steps],
        "parameters": sum(p.numel() for p in module.parameters()),
        "weights": {name: _digest(value) for name, value in module.state_dict().items()},
    }
    (run_dir / f"rank-{me.rank}.json").write_text(json.dumps(seen))
    leave(control, 0)


def _digest(value):
    import torch  # noqa: PLC0415 - not before the accelerator is chosen

    return hashlib.sha256(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
