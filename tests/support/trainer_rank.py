"""One rank that takes steps without the trainer's loop, and writes losses and norms with all their digits.

`plan.json` beside the config says whether to resume, how many steps to take, whether to save, and which fault to plant.
"""

import hashlib
import json
import math
import os
import sys
from pathlib import Path

from opsctl.trainer import config, rank_process
from opsctl.trainer.process_groups import choose_accelerator, connect, leave
from opsctl.trainer.rank_layout import layout
from opsctl.trainer.run_state import RunState


def main(run_dir: Path) -> None:
    settings = config.TrainerConfig.model_validate_json((run_dir / "trainer.json").read_text())
    me = rank_process.from_environment(os.environ)
    plan = json.loads((run_dir / "plan.json").read_text())
    rank_process.die_with_parent()
    choose_accelerator()
    # DeepSpeed looks for its accelerator when it is imported.
    from opsctl.trainer import nan_search  # noqa: PLC0415
    from opsctl.trainer.batches import open_data  # noqa: PLC0415
    from opsctl.trainer.checkpoint.resume import open_resuming  # noqa: PLC0415
    from opsctl.trainer.checkpoint.save import Checkpoints  # noqa: PLC0415
    from opsctl.trainer.engine import Engine  # noqa: PLC0415
    from tests.support.host_syncs import HostSyncs  # noqa: PLC0415

    cut, state = layout(settings, me.world_size), RunState()
    control = connect(me, timeout_s=60)
    resuming = open_resuming(run_dir / "checkpoints", settings, cut, control)
    found = resuming.find(state) if plan.get("resume") else None
    engine = Engine(settings, cut, me.rank, begins=found is None)
    checkpoints = Checkpoints(resuming, engine, parameters=100_000)
    batches = open_data(settings).training(settings, data_rank=cut.data_rank(me.rank), data_ranks=cut.data)
    fields = {"losses": [], "norms": [], "fault": "", "is_undrawn": has_no_weights(engine)}
    if found:
        resuming.load(found, engine, state)
    fields["first"] = read_digests(engine)
    for _ in range(plan["steps"]):
        if plan.get("plant", {}).get("step") == state.step + 1:
            plant(engine.deepspeed.module, **plan["plant"])
        before, consumed, batch = (
            read_digests(engine),
            state.consumed_samples,
            settings.batch.at(state.consumed_samples),
        )
        rate = settings.rate().at(consumed + batch)
        with HostSyncs() as syncs:
            loss, norm = engine.step(batches.step(consumed, batch), batch=batch, rate=rate, consumed=consumed)
        fields["syncs"] = syncs.callers
        if math.isnan(norm):
            after_step, again = read_digests(engine), batches.step(consumed, batch)
            fields["fault"] = nan_search.find_origin(engine, again, consumed=consumed, control=control)
            fields["untouched"] = before == after_step == read_digests(engine)
            fields["step"] = state.step + 1
            break
        state.advance(samples=batch, loss=loss, grad_norm=norm, step_s=0.1)
        fields["losses"].append(loss)
        fields["norms"].append(norm)
    fields["last"] = read_digests(engine)
    if plan.get("save"):
        checkpoints.save(state, background=True)
        assert checkpoints.collect_save(state, wait=True), state.notes
    fields["parameters"] = sum(p.numel() for p in engine.deepspeed.module.parameters())
    (run_dir / f"rank-{me.rank}.json").write_text(json.dumps(fields))
    leave(control, 0)


def has_no_weights(engine) -> bool:
    """Return whether no matrix has initial weights."""
    return all(bool(p.isnan().all()) for p in engine.deepspeed.module.parameters() if p.ndim > 1)


def read_digests(engine) -> dict[str, str]:
    """Return the digest of each weight, and one of the whole optimizer state."""
    from opsctl.trainer.checkpoint.rank_files import tensors_in  # noqa: PLC0415 - not before the accelerator is chosen

    weights = {name: digest([value]) for name, value in engine.deepspeed.module.state_dict().items()}
    return weights | {"optimizer": digest(tensors_in(engine.deepspeed.optimizer.state_dict()))}


def digest(tensors) -> str:
    import torch  # noqa: PLC0415 - not before the accelerator is chosen

    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def plant(module, *, step: int, layer: int, fault: str) -> None:
    """Plant a fault in a layer, if this stage has the layer."""
    import torch  # noqa: PLC0415 - not before the accelerator is chosen

    if not module._local_start <= layer < module._local_stop:
        return
    block = module.forward_funcs[layer - module._local_start]
    if fault == "weight":
        block.up.weight.data[0, 0] = torch.inf
    elif fault == "backward":
        block.norm1.register_full_backward_hook(lambda _, inputs, outputs: (inputs[0] * torch.inf,))
    elif fault != "token" or block.part.rank == block.part.size - 1:

        def spoil(_, inputs, output):
            if fault == "once":  # as a GPU that computes wrongly once
                hook.remove()
            return spoil_output(fault, output)

        hook = block.up.register_forward_hook(spoil)


def spoil_output(fault: str, output):
    if fault == "token":  # the columns of one rank, of one token
        spoiled = output.clone()
        spoiled[:, 0] = math.inf
        return spoiled
    return output * 1e38 * 1e38 if fault == "forward" else output * math.nan


if __name__ == "__main__":
    main(Path(sys.argv[1]))
