"""Start ranks of `trainer_rank.py` together and read their results."""

import json
import os
from pathlib import Path

from tests.integration.trainer.conftest import ROOT
from tests.support.ports import HeldPort
from tests.support.prepared import Forked, server

RANK = Path(__file__).with_name("trainer_rank.py")
SLICE_RANK = Path(__file__).with_name("slice_rank.py")


def run_ranks(run_dir: Path, world: int, config: dict, **plan) -> list[dict]:
    """Run `world` ranks and return the results of each. `run_dir` may hold checkpoints of an earlier call."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "trainer.json").write_text(json.dumps(config))
    return _run(RANK, run_dir, world, {"steps": config["steps"]} | plan)


def run_slices(run_dir: Path, world: int, cases: list[dict]) -> list[list[list[dict]]]:
    """Run `world` tensor ranks of `slice_rank.py`; return, for every rank and case, the results alone, without and with
    slices of the sequence."""
    return _run(SLICE_RANK, run_dir, world, cases)


def _run(script: Path, run_dir: Path, world: int, plan) -> list:
    (run_dir / "plan.json").write_text(json.dumps(plan))
    with HeldPort() as port:
        ranks = [_start(script, run_dir, rank=rank, world=world, port=port.number) for rank in range(world)]
        codes = [rank.wait(timeout=400) for rank in ranks]
    assert codes == [0] * world, (run_dir / "log").read_text()
    return [json.loads((run_dir / f"rank-{rank}.json").read_text()) for rank in range(world)]


def _start(script: Path, run_dir: Path, *, rank: int, world: int, port: int) -> Forked:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TRAIN_", "SLURM_"))}
    env |= {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return server().start(str(script), [str(run_dir)], env=env, cwd=Path.cwd(), log=run_dir / "log")
