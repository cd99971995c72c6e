"""Compare the hardware of a node with the majority of its kind: a node broken at its first look has no baseline. Pure.

Nodes are of one kind if Slurm's configuration (CPUs, memory, gres), the product, the CPUs and the models of the GPUs
are equal. A value is usual if more than half of all nodes of the kind, and at least three other nodes, agree on it.
"""

from collections.abc import Iterable, Mapping
from statistics import median_low

from opsctl.nodes.health.node_state import NodeSnapshot, Port, Usual
from opsctl.settings.bounded_pattern import compile_bounded

MIN_AGREEING_NODES = 3
MIN_SHARE = 0.98
"""Values agree within 2 %: the kernel reserves a slightly different amount of memory on every node."""
MAX_NAMED_VALUES = 8

ON_BUS = "GPUs on the bus"
GPUS = "GPUs that answer"
NVLINKS = "NVLinks of a GPU"
PORTS = "active network ports"
MEMORY = "KiB of memory"


def rate_of(port: str) -> str:
    """Return the name of a port's rate among the values."""
    return f"Gb/s of {port}"


def measure(snapshot: NodeSnapshot, ib_ignore: str = "") -> dict[str, float]:
    """Return the values of a node that other nodes of its kind must share. Unknown values are missing.

    `ib_ignore` is the pattern of network ports that do not count.
    """
    values: dict[str, float] = {}
    if snapshot.on_bus is not None:
        values[ON_BUS] = snapshot.on_bus
    if snapshot.smi is not None and not snapshot.in_job:  # a job may see only its own GPUs
        values[GPUS] = len(snapshot.smi.gpus)
    links = [len(up) for up in snapshot.links.values()]
    if links:
        values[NVLINKS] = min(links)
    if snapshot.memory_kb is not None:
        values[MEMORY] = snapshot.memory_kb
    if snapshot.section("infiniband").code == 0:
        active = select_active_ports(snapshot, ib_ignore)
        values[PORTS] = len(active)
        values |= {rate_of(name): port.rate_gbps for name, port in active.items() if port.rate_gbps}
    return values


def select_active_ports(snapshot: NodeSnapshot, ib_ignore: str) -> dict[str, Port]:
    """Return the active network ports, without those that match the pattern."""
    ports = leave_out_ports(snapshot.ports, ib_ignore)
    return {name: port for name, port in ports.items() if port.state == "ACTIVE"}


def leave_out_ports(ports: Mapping[str, Port], ib_ignore: str) -> dict[str, Port]:
    """Return the ports without those whose names match the pattern."""
    if not ib_ignore:
        return dict(ports)
    ignored = compile_bounded(ib_ignore)
    return {name: port for name, port in ports.items() if ignored.search(name) is None}


def name_kind(snapshot: NodeSnapshot, slurm_kind: str) -> str:
    """Return the kind of a node; an empty string if Slurm's configuration or /sys is unknown."""
    hardware = snapshot.hardware
    if not slurm_kind or hardware is None:
        return ""
    return " | ".join((slurm_kind, hardware.product, hardware.cpus, ", ".join(hardware.gpu_models)))


def find_usual(own: Mapping[str, float], others: Iterable[Mapping[str, float]]) -> Usual:
    """Return what the majority has, of the values that the node knows or should have."""
    known = list(others)
    values: dict[str, float] = {}
    undecided: dict[str, str] = {}
    for name, value in own.items():
        theirs = sorted(other[name] for other in known if name in other)
        if not theirs:
            continue
        usual = median_low(theirs)
        agreeing = sum(MIN_SHARE * max(usual, other) <= min(usual, other) for other in theirs)
        if agreeing >= MIN_AGREEING_NODES and 2 * agreeing > len(theirs) + 1:
            values[name] = usual
        elif value < MIN_SHARE * theirs[-1]:
            listed = ", ".join(f"{other:g}" for other in reversed(theirs[-MAX_NAMED_VALUES:]))
            undecided[name] = f"{value:g} {name}, other nodes of this kind have {listed}: no majority"
    return Usual(values=values, undecided=undecided)


def find_usual_by_node(members: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, Usual]:
    """Return what the others of its kind have, for every node. `members` is kind → node → values."""
    usual: dict[str, Usual] = {}
    for nodes in members.values():
        for node, own in nodes.items():
            usual[node] = find_usual(own, [values for other, values in nodes.items() if other != node])
    return usual
