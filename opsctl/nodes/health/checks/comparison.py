"""Checks that compare a node with the other nodes of this check."""

from opsctl.nodes.health.check_results import Results, note, unknown
from opsctl.nodes.health.node_state import NONE, CheckInput, NodeSnapshot
from opsctl.nodes.health.usual_hardware import GPUS, MEMORY, NVLINKS, ON_BUS, PORTS

SETTINGS = {
    GPUS: "gpus_per_node",
    ON_BUS: "gpus_per_node",
    NVLINKS: "nvlinks",
    PORTS: "ib_ports",
    MEMORY: "memory_gib",
}


def majority(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Report the hardware on which the nodes of a kind do not agree. Where a majority exists, the other checks compare.

    Unknown, and never evidence: the node may lack something, or the other nodes may have more on purpose. Different
    values for [health] gpus_per_node, nvlinks, ib_ports, ib_rate_gbps and memory_gib, or a different Gres in
    slurm.conf, decide.
    """
    for name, evidence in check_input.usual.undecided.items():
        setting = SETTINGS.get(name, "ib_rate_gbps")
        if getattr(check_input.site, setting):
            continue
        yield unknown(evidence, f"set [health] {setting}, or let Slurm tell the nodes apart (Gres, CPUs, RealMemory)")


def versions(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Check that driver, kernel and libraries are those of most nodes: one node that differs may break the job."""
    installed = {"driver": snapshot.smi.driver if snapshot.smi else "", "kernel": snapshot.kernel_version}
    if snapshot.libraries:
        installed |= {name: snapshot.libraries.get(name, NONE) for name in check_input.libraries}
    usual = {"driver": check_input.driver, "kernel": check_input.kernel_version, **check_input.libraries}
    for name, version in installed.items():
        if version and usual[name] and version != usual[name]:
            text = f"{name} {version}, most nodes have {usual[name]}"
            remedy = "install the version of most nodes"
            yield note(text, remedy)
