"""Starts ranks as a launcher does, tells their pids, and waits for them. Killed with -9 in tests, as launchers are."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.ports import HeldPort


def main(run_dir: Path, world: int) -> int:
    port, ranks = HeldPort(), []  # held until all have ended: it takes them seconds to come so far as to meet
    for rank in range(world):
        env = os.environ | {
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_RANK": str(rank % 2),
            "TRAIN_NODE": f"node{rank // 2}",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port.number),
        }
        argv = [sys.executable, "-m", "opsctl.trainer", str(run_dir / "trainer.json")]
        ranks.append(subprocess.Popen(argv, env=env))
    (run_dir / "pids.json.part").write_text(json.dumps([rank.pid for rank in ranks]))
    (run_dir / "pids.json.part").rename(run_dir / "pids.json")
    codes = [rank.wait() for rank in ranks]
    (run_dir / "codes.json").write_text(json.dumps(codes))
    return max(abs(code) for code in codes)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
