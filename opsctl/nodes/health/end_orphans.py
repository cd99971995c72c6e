"""Ending processes that hold a card though the node has no job: by id, and only those very ones."""

from __future__ import annotations

from opsctl.nodes.health.node_state import NodeProcess, NodeSnapshot
from opsctl.nodes.remote.fanout import Fanout
from opsctl.ports import Answer
from opsctl.settings.health import HealthSettings

END = r"""
for process in "$@"; do
    pid=${process%:*}
    # The time of its start, behind the name in brackets: a later process with the same number is another one.
    now=$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -d' ' -f20)
    [ "$now" = "${process#*:}" ] && kill -9 "$pid" && echo "$pid"
done
exit 0
"""


def find_orphans(snapshot: NodeSnapshot, site: HealthSettings) -> list[NodeProcess]:
    """The users' processes that hold a card there."""
    on_cards = {process.pid for gpu in (snapshot.smi.gpus if snapshot.smi else ()) for process in gpu.processes}
    users = [
        process
        for process in snapshot.processes or ()
        if process.uid >= site.user_uid_min and process.state not in "ZX"
    ]
    return [user for user in users if user.pid in on_cards]


def end_orphans(fanout: Fanout, snapshot: NodeSnapshot, orphans: list[NodeProcess]) -> Answer:
    """End them; the ids of those that were ended are what it prints."""
    which = [f"{orphan.pid}:{orphan.started}" for orphan in orphans]
    return fanout.run_on(snapshot.node, ("sh", "-c", END, "end", *which), timeout=20)
