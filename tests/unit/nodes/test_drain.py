"""Two opsctl processes that drain at the same time keep to one cap."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from opsctl.base.model import Node
from opsctl.host.system import SystemClock
from opsctl.nodes.drain import Quarantine
from opsctl.nodes.drain_plan import NodePlan, Step
from opsctl.nodes.exclusions import Exclusions
from opsctl.nodes.history import NodeHistory
from opsctl.settings.health import HealthSettings
from opsctl.state.site_dir import SiteDir


class Cluster:
    """Nodes that are reported with a delay, so that a caller acts on an old answer."""

    def __init__(self, *names):
        self.nodes_by_name = {name: Node(name=name, state="IDLE", address="") for name in names}

    def nodes(self):
        nodes = list(self.nodes_by_name.values())
        time.sleep(0.3)
        return nodes

    def reasons(self):
        return []

    def drain(self, node, reason):
        self.nodes_by_name[node] = replace(self.nodes_by_name[node], state="IDLE+DRAIN", reason=reason)


def test_simultaneous_drains_keep_to_the_cap(tmp_path):
    site, clock, cluster = SiteDir(tmp_path), SystemClock(), Cluster("node001", "node002")
    site.create()
    quarantine = Quarantine(
        slurm=cluster,
        history=NodeHistory(site=site, clock=clock),
        exclusions=Exclusions(site=site, clock=clock),
        site=HealthSettings(),
        all_arrays=(),
    )

    def drain(name):
        step = Step(node=name, reason="opsctl: xid: 79", snapshot=cluster.nodes_by_name[name])
        return quarantine.drain(NodePlan(steps=(step,), cap=1))[0]

    with ThreadPoolExecutor(2) as pool:
        actions = list(pool.map(drain, ("node001", "node002")))
    drained, left = sorted(actions, key=lambda action: action.action)
    assert (drained.action, left.action) == ("drained", "left")
    assert left.why == "opsctl has 1 node out of service already; the cap is 1"
