"""Two who drain nodes at the same time, from two hosts or by cron and by hand, keep to the one cap."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from opsctl.host.system import SystemClock
from opsctl.model import Node
from opsctl.nodes.drain import Quarantine
from opsctl.nodes.drain_plan import NodePlan, Step
from opsctl.nodes.exclusions import Exclusions
from opsctl.nodes.history import NodeHistory
from opsctl.settings.health import HealthSettings
from opsctl.state.site_dir import SiteDir


class Cluster:
    """Nodes; whoever asks for them has the answer some time before acting on it."""

    def __init__(self, *names):
        self.known = {name: Node(name=name, state="IDLE", address="") for name in names}

    def nodes(self):
        seen = list(self.known.values())
        time.sleep(0.3)
        return seen

    def reasons(self):
        return []

    def drain(self, node, reason):
        self.known[node] = replace(self.known[node], state="IDLE+DRAIN", reason=reason)


def test_two_who_drain_together_take_out_no_more_than_the_cap(tmp_path):
    site, clock, cluster = SiteDir(tmp_path), SystemClock(), Cluster("node001", "node002")
    site.create()
    acts = Quarantine(
        scheduler=cluster, history=NodeHistory(site=site, clock=clock), exclusions=Exclusions(site=site, clock=clock),
        site=HealthSettings(), chains=(),
    )  # fmt: skip

    def drain(name):
        step = Step(node=name, reason="opsctl: xid: 79", snapshot=cluster.known[name])
        return acts.drain(NodePlan(steps=(step,), cap=1))[0]

    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(drain, ("node001", "node002")))
    assert sorted(node_action.action for node_action in done) == ["drained", "left"]
    assert (
        next(node_action.why for node_action in done if node_action.action == "left")
        == "opsctl has 1 nodes out of service already"
    )
