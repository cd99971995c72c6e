"""Find and end orphan processes: user processes that hold a GPU of a node without a job."""

from itertools import chain
from pathlib import Path

from opsctl.base.ports import Answer
from opsctl.nodes.health.node_state import NodeProcess, NodeSnapshot
from opsctl.nodes.remote.fanout import Fanout
from opsctl.settings.health import HealthSettings

TIMEOUT_S = 20
SCRIPT = Path(__file__).with_suffix(".sh")


def find_orphans(snapshot: NodeSnapshot, site: HealthSettings) -> list[NodeProcess]:
    """Return the user processes that hold a GPU of the node."""
    gpu_pids = {process.pid for process in chain.from_iterable(gpu.processes for gpu in snapshot.gpus)}
    return [process for process in snapshot.user_processes(site.user_uid_min) if process.pid in gpu_pids]


def end_orphans(fanout: Fanout, snapshot: NodeSnapshot, orphans: list[NodeProcess]) -> Answer:
    """Kill these processes. The answer's output is the PIDs of the killed processes, one a line."""
    arguments = [f"{orphan.pid}:{orphan.start_ticks}" for orphan in orphans]
    return fanout.run([snapshot.node], ("sh", "-c", SCRIPT.read_text(), "end", *arguments), timeout=TIMEOUT_S)[
        snapshot.node
    ]
