"""The connection test: whether two nodes that reach each other both fail to reach a third node by TCP."""

import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opsctl.launch.render import templates_dir
from opsctl.nodes.remote.fanout import Fanout, merge_objects

PORTS = range(20_000, 30_000)
CONNECT_S = 15.0
"""How long the nodes try to connect. Steps on several nodes do not start at the same moment."""
START_S = 20.0
"""Time limit for the start of the program on a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionTest:
    fanout: Fanout
    addresses: Mapping[str, str]
    """Network address by node; the node's name where an address is missing."""
    rng: random.Random
    """Chooses the ports and the token."""
    connect_s: float = CONNECT_S
    python: str = sys.executable
    """An interpreter that exists on the nodes."""

    def is_cut_off(self, suspect: str, voices: Sequence[str]) -> bool | None:
        """Return whether the suspect listens, and the first two voices reach each other but not the suspect.

        None if the test could not be carried out or shows nothing, such as ports that a firewall closes everywhere.
        """
        if len(voices) < 2:
            return None
        first, second = voices[:2]
        suspect_port, control_port = self.rng.sample(PORTS, 2)
        suspect_target = {suspect: (self.addresses.get(suspect) or suspect, suspect_port)}
        control_target = {first: (self.addresses.get(first) or first, control_port)}
        fields = self._run(
            {
                suspect: {"listen": suspect_port, "expected": 2, "targets": {}},
                first: {"listen": control_port, "expected": 1, "targets": suspect_target},
                second: {"listen": 0, "expected": 0, "targets": suspect_target | control_target},
            }
        )
        reached = {node: fields[node].get("reached") for node in (first, second)}
        if any(isinstance(names, list) and suspect in names for names in reached.values()):
            return False
        is_complete = bool(fields[suspect].get("listening")) and reached[first] == [] and reached[second] == [first]
        return True if is_complete else None

    def _run(self, requests: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, object]]:
        """Run the program on every node at the same time. Return the printed fields by node."""
        program = (templates_dir() / "nodes" / "connect.py").read_text()
        common = {"token": f"{self.rng.getrandbits(64):016x}", "seconds": self.connect_s}
        arguments = {node: {**common, **request} for node, request in requests.items()}
        timeout = self.connect_s + START_S
        answers = self.fanout.run_program(program, arguments, python=self.python, timeout=timeout)
        return {node: merge_objects(answer.out) for node, answer in answers.items()}
