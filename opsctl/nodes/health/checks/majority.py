"""Report the hardware on which the nodes of a kind do not agree. Where a majority exists, the other checks compare.

Unknown, and never evidence: the node may lack something, or the other nodes may have more on purpose. Different values
for [health] gpus_per_node, nvlinks, ib_ports, ib_rate_gbps and memory_gib, or a different Gres in slurm.conf, decide.
"""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity
from opsctl.nodes.health.usual_hardware import GPUS, MEMORY, NVLINKS, ON_BUS, PORTS

SETTINGS = {
    GPUS: "gpus_per_node",
    ON_BUS: "gpus_per_node",
    NVLINKS: "nvlinks",
    PORTS: "ib_ports",
    MEMORY: "memory_gib",
}


def majority(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:  # noqa: ARG001 (every check has the same form)
    for name, evidence in check_input.usual.undecided.items():
        setting = SETTINGS.get(name, "ib_rate_gbps")
        if getattr(check_input.site, setting):
            continue
        yield CheckResult(
            check="majority",
            severity=Severity.UNKNOWN,
            evidence=evidence,
            remedy=f"set [health] {setting}, or let Slurm tell the nodes apart (Gres, CPUs, RealMemory)",
        )
