"""Time of one command on 64 nodes by ssh, at most 3 s. The ssh daemons run on this machine.

`python -P benchmarks/exec.py`. Both sides of a handshake share the cores here: on a cluster only one side counts.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from opsctl.host.system import SystemClock  # noqa: E402 (as above)
from opsctl.nodes.remote.fanout import Fanout  # noqa: E402 (as above)
from opsctl.nodes.remote.ssh import Ssh  # noqa: E402 (as above)
from opsctl.settings.health import RemoteSettings  # noqa: E402 (as above)
from tests.support.sshds import sshd  # noqa: E402 (found by the path above)

MAX_SSHD_PORTS = 16
"""Of one sshd."""
NODES = [f"node{number:03}" for number in range(1, 65)]


def main() -> None:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        place, shells = Path(name), {}
        for first in range(0, len(NODES), MAX_SSHD_PORTS):
            part = NODES[first : first + MAX_SSHD_PORTS]
            directory = place / str(first)
            directory.mkdir()
            daemon = stack.enter_context(sshd(directory, part))
            shells |= dict.fromkeys(part, Ssh.from_settings(RemoteSettings(**daemon.settings), SystemClock()))
        for parallel in (8, 16, 32, 64):
            times = [run(shells, parallel) for _ in range(5)]
            print(f"{parallel} at once: {min(times):.2f} to {max(times):.2f} s for {len(NODES)} nodes")
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(f"our own CPU: {(used.ru_utime + used.ru_stime) / 20:.2f} s per run")


def run(shells: dict[str, Ssh], parallel: int) -> float:
    started = time.perf_counter()
    fanout = Fanout(shells=[], parallel=parallel)
    answers = fanout.map_nodes(NODES, lambda node: shells[node].run(node, ("printenv", "SLURMD_NODENAME"), timeout=20))
    seconds = time.perf_counter() - started
    wrong = [answer for node, answer in answers.items() if answer.out.strip() != node]
    if wrong:
        sys.exit(f"{len(wrong)} wrong answers: {wrong[0]}")
    return seconds


if __name__ == "__main__":
    main()
