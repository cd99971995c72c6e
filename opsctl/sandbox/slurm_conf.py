"""The text of slurm.conf and the other configuration files of a sandbox."""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from opsctl.base.errors import InputError
from opsctl.sandbox.loopback import Network

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
MAX_NODES = 512
MAX_GPUS_PER_NODE = 16
CLUSTER = "sandbox"
ACCOUNT = "train"


class Auth(StrEnum):
    """How Slurm authenticates users. NONE trusts every connection and is only for private network namespaces."""

    MUNGE = "munge"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """The size and options of a sandbox."""

    name: str = "default"
    nodes: int = 4
    gpus_per_node: int = 0
    accounting: bool = False
    fast: bool = False
    """Shorten Slurm's timers: a dead node is down within seconds."""

    def __post_init__(self) -> None:
        check_name(self.name)
        if not 1 <= self.nodes <= MAX_NODES:
            raise InputError(f"--nodes is {self.nodes}, needs 1 to {MAX_NODES}")
        if not 0 <= self.gpus_per_node <= MAX_GPUS_PER_NODE:
            raise InputError(f"--gpus-per-node is {self.gpus_per_node}, needs 0 to {MAX_GPUS_PER_NODE}")

    def describe(self) -> str:
        """Return a phrase such as `8 nodes of 2 GPUs, accounting`."""
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        gpus = f" of {self.gpus_per_node} GPUs" if self.gpus_per_node > 1 else ""
        if self.gpus_per_node == 1:
            gpus = " of 1 GPU"
        extras = [word for word, is_set in (("accounting", self.accounting), ("fast timers", self.fast)) if is_set]
        return nodes + gpus + "".join(f", {word}" for word in extras)

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"node{number:03}" for number in range(1, self.nodes + 1))


def check_name(name: str) -> None:
    """Raise InputError unless the name is safe as the name of a directory."""
    if not NAME.fullmatch(name):
        raise InputError(
            f"sandbox name {name!r} is not allowed",
            hint="lower-case letters, digits and dashes, 32 at most, such as: opsctl sandbox up --name night-1",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSite:
    """The directories, ports, user and network of a sandbox: everything in slurm.conf besides SandboxSpec."""

    home: Path
    """The owner's private directory: keys, logs, the controller's state, the database."""
    run: Path
    """The directory that commands and jobs read."""
    host: str
    user: str
    version: tuple[int, int]
    first_port: int
    auth: Auth
    network: Network
    shared: bool
    """Whether other users of this machine can use the sandbox. Only slurmd of root can run jobs as other users."""

    @property
    def conf(self) -> Path:
        return self.run / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        return self.run / "munge.socket"

    @property
    def libraries(self) -> tuple[Path, Path]:
        """The possible paths of the loopback library, in order of preference."""
        return self.run / "loopback.so", self.home / "loopback.so"

    @property
    def controller_port(self) -> int:
        return self.first_port

    @property
    def dbd_port(self) -> int:
        return self.first_port + 1

    @property
    def node_port(self) -> int:
        """The port of the first node; the ports of the other nodes follow."""
        return self.first_port + 2


def count_ports(spec: SandboxSpec) -> int:
    """Return the number of ports: slurmctld, slurmdbd (also without accounting), and one per node."""
    return spec.nodes + 2


def render_conf(name: str, spec: SandboxSpec, site: SandboxSite) -> str:
    """Return the text of slurm.conf, gres.conf or slurmdbd.conf.

    Nodes may be larger than this machine, because of config_overrides. The database listens on a socket that only the
    owner can reach.
    """
    from jinja2 import StrictUndefined, Template  # noqa: PLC0415 (for a new sandbox only)

    text = Path(__file__).with_name(f"{name}.j2").read_text(encoding="utf-8")
    template = Template(text, trim_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined)
    return str(template.render(spec=spec, site=site, cluster=CLUSTER))
