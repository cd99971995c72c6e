"""Start ranks as a launcher does, write their process ids, and wait for the ranks. Tests kill this launcher with -9."""

import json
import os
import sys
from pathlib import Path

from tests.support.ports import HeldPort
from tests.support.prepared import run


def main(run_dir: Path, world: int) -> int:
    port, ranks = HeldPort(), []  # held until all ranks have ended: they need seconds until they connect
    for rank in range(world):
        env = {
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_RANK": str(rank % 2),
            "TRAIN_NODE": f"node{rank // 2}",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port.number),
        }
        ranks.append(os.fork())
        if not ranks[-1]:
            port.let_go()
            os.environ.update(env)
            sys.argv = ["opsctl.trainer", str(run_dir / "trainer.json")]
            run("opsctl.trainer")
            return 0
    (run_dir / "pids.json.part").write_text(json.dumps(ranks))
    (run_dir / "pids.json.part").rename(run_dir / "pids.json")
    codes = [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]
    (run_dir / "codes.json").write_text(json.dumps(codes))
    return max(abs(code) for code in codes)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
