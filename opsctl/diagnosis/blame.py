"""Decide whether evidence convicts a node, by the table blame.toml. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from pydantic import TypeAdapter

from opsctl.diagnosis.causes import CauseKind, read_table
from opsctl.nodes.health.node_state import Health, Verdict

EXCLUDE = "exclude-nodes"
"""The action of the rules that may take a node away from trains."""


class Proof(StrEnum):
    """The evidence that convicts a node."""

    SLURM = "slurm"
    """Slurm reports that it lost the node."""
    MESSAGE = "message"
    """Messages of the driver or the kernel about the node: one makes the node suspect, the next one convicts."""
    CHECK = "check"
    """A failed health check of the node."""
    PAIR = "pair"
    """Complaints from several other nodes, and a failed connection test between these nodes and the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of blame.toml."""

    kind: CauseKind
    action: str
    why: str
    causes: tuple[str, ...] = ()
    """The causes of the class to which the rule applies; empty for all."""
    proof: Proof | None = None
    """None if nothing convicts a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlameTable:
    """The content of blame.toml."""

    rules: tuple[Rule, ...]
    voices: int
    """Nodes that must complain about a node before the network to this node is suspected."""
    crowd: int
    """Nodes with the same line in one attempt from which on the line is no evidence about any of them."""
    repeats: dict[Proof, int]
    """Attempts through which a failure follows a node before a healthy check no longer acquits the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accusation:
    """What is known about one node that the logs of an attempt name."""

    node: str
    verdict: Verdict | None = None
    """The health check of the node; None if the node was not checked."""
    is_lost: bool = False
    """Whether Slurm reports that it lost the node."""
    crowd: int = 1
    """Nodes of the attempt whose ranks print the same line, this node included."""
    voices: int = 0
    """Other nodes that complain about this node."""
    is_cut_off: bool | None = None
    """Whether the connection test failed; None if there was no test, or the test could not be carried out."""
    repeats: int = 1
    """Attempts through which the failure followed the node, this attempt included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """Whether a node is convicted, and why."""

    node: str
    is_convicted: bool
    why: str


@cache
def blame_table() -> BlameTable:
    return TypeAdapter(BlameTable).validate_python(read_table("blame"))


def find_rule(kind: CauseKind, cause: str = "") -> Rule:
    """Return the first rule for a class and a cause. Without a cause, return the rule for the rest of the class."""
    return next(rule for rule in blame_table().rules if rule.kind is kind and (not rule.causes or cause in rule.causes))


def may_exclude(kind: CauseKind) -> bool:
    """Return whether evidence may exclude a node for causes of this class."""
    return find_rule(kind).action == EXCLUDE


def judge_accusation(kind: CauseKind, cause: str, accusation: Accusation) -> Ruling:
    """Return whether the evidence convicts the node of the cause."""
    rule = find_rule(kind, cause)
    if rule.proof is None:
        why = f"a {kind.value} fault is no evidence against a node: {rule.why}"
        return Ruling(node=accusation.node, is_convicted=False, why=why)
    is_convicted, why = _weigh(rule, rule.proof, accusation)
    return Ruling(node=accusation.node, is_convicted=is_convicted, why=why)


def _weigh(rule: Rule, proof: Proof, accusation: Accusation) -> tuple[bool, str]:
    table, verdict = blame_table(), accusation.verdict
    if verdict and verdict.is_bad:
        return True, "its health check failed"
    if accusation.crowd >= table.crowd and not (proof is Proof.SLURM and accusation.is_lost):
        return False, f"the same line on {accusation.crowd} nodes has one cause, not {accusation.crowd} bad nodes"
    if accusation.repeats >= table.repeats[proof]:
        return True, f"the failure followed the node through {accusation.repeats} attempts"
    is_blind = verdict is not None and rule.kind is CauseKind.GPU and not verdict.saw_gpus
    if verdict and verdict.health is Health.HEALTHY and not is_blind:
        return False, "its health check found no fault"
    return _weigh_proof(rule, proof, accusation)


def _weigh_proof(rule: Rule, proof: Proof, accusation: Accusation) -> tuple[bool, str]:
    """Weigh what is known besides health checks and earlier attempts."""
    if proof is Proof.SLURM and accusation.is_lost:
        return True, "Slurm lost it"
    if proof is Proof.PAIR:
        return _weigh_pair(accusation, blame_table().voices)
    return False, f"its health is unknown, and the log alone is no evidence: {rule.why}"


def _weigh_pair(accusation: Accusation, voices: int) -> tuple[bool, str]:
    if accusation.voices < voices:
        return False, f"{accusation.voices} of the {voices} other nodes needed complain about it"
    if accusation.is_cut_off is None:
        return False, "the connection to it could not be tested; opsctl test-nodes tests the nodes"
    if accusation.is_cut_off:
        return True, f"{accusation.voices} other nodes complain about it, and the connection test failed"
    return False, "the connection test passed"
