"""Read NCCL's debug output: failed connections, the collectives that every rank started, and ranks that are behind."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from opsctl.base.tables import read_patterns
from opsctl.diagnosis.line_origin import split

MAX_NAMED = 8
"""Ranks, peers and warnings that the summary names."""
MAX_COMPARED_CALLS = 64
"""Latest collectives of a communicator that are compared."""
MAX_WARNING_CHARS = 160
MAX_LINE_BYTES = 4000
POINT_TO_POINT = frozenset({"Send", "Recv"})
"""Calls between two ranks, which the other ranks do not make."""

_PATTERNS = read_patterns("diagnosis/patterns.toml", "nccl")
_FAILURES = read_patterns("diagnosis/patterns.toml", "nccl_failures")
MORE_OUTPUT = "run with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,COLL for more output"


@dataclass(frozen=True, slots=True, order=True)
class NcclRank:
    """The process of one GPU, with its rank if a log line names the rank."""

    host: str
    gpu: int
    rank: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        gpu = f"{self.host} GPU {self.gpu}"
        return gpu if self.rank is None else f"rank {self.rank} ({gpu})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionFailure:
    """Failed connections of one host to one peer."""

    host: str
    peer: str
    """Host name, or the address if the log does not name the host."""
    why: str
    times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCall:
    """A collective that a rank started."""

    name: str
    number: int
    """NCCL's operation count."""
    elements: int
    datatype: int

    @property
    def signature(self) -> tuple[str, int, int]:
        """Return the values that agree between all ranks of a collective."""
        return self.name, self.elements, self.datatype

    def __str__(self) -> str:
        return f"{self.name} {self.number:x} of {self.elements}"


@dataclass(slots=True)
class Communicator:
    """A communicator and the collectives that its ranks started."""

    name: str
    size: int
    """Number of ranks."""
    calls: dict[NcclRank, Counter[str]] = field(default_factory=dict)
    """Number of calls by collective."""
    last: dict[NcclRank, CollectiveCall] = field(default_factory=dict)
    recent: dict[int, dict[NcclRank, CollectiveCall]] = field(default_factory=dict)
    """The latest collectives, by number and rank."""

    def find_behind(self) -> dict[NcclRank, CollectiveCall]:
        """Return the last collective of the ranks that are behind. Empty if more than half of the ranks are."""
        newest = max((call.number for call in self.last.values()), default=0)
        behind = {rank: call for rank, call in self.last.items() if call.number < newest}
        return behind if len(behind) <= len(self.last) // 2 else {}

    def find_odd(self) -> dict[NcclRank, CollectiveCall]:
        """Return the ranks that started another collective than most ranks, at the first number with a difference."""
        for number in sorted(self.recent):
            calls = self.recent[number]
            signatures = Counter(call.signature for call in calls.values())
            if len(signatures) > 1:
                usual = signatures.most_common(1)[0][0]
                return {rank: call for rank, call in calls.items() if call.signature != usual}
        return {}


@dataclass(slots=True)
class NcclSummary:
    """The contents of NCCL's debug output."""

    failures: list[ConnectionFailure]
    groups: list[Communicator]
    warnings: dict[str, int]
    """Number of other warnings, by text without large numbers."""
    origins: dict[str, list[NcclRank]] = field(default_factory=dict)
    """The ranks that wrote a warning, by its text."""
    lines: int = 0
    """Lines that name NCCL."""


def read_nccl_debug(lines: Iterable[bytes]) -> NcclSummary:
    """Read NCCL's lines, with any prefixes and between any other lines. Never raises."""
    reader, count = _NcclReader(), 0
    for line in lines:
        if b"NCCL" in line:
            reader.read_line(split(line[:MAX_LINE_BYTES])[1].decode(errors="replace").rstrip())
            count += 1
    return replace(reader.summarize(), lines=count)


@dataclass(slots=True)
class _NcclReader:
    hosts: dict[str, str] = field(default_factory=dict)
    """Host names by address."""
    members: dict[tuple[str, str, str], tuple[int, str]] = field(default_factory=dict)
    """Rank and communicator, by host, PID and pointer: the pointer differs between processes."""
    failed: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    groups: dict[tuple[str, int], Communicator] = field(default_factory=dict)
    warnings: Counter[str] = field(default_factory=Counter)
    origins: dict[str, set[NcclRank]] = field(default_factory=dict)
    ranks: dict[tuple[str, str], int] = field(default_factory=dict)
    """Rank in the first communicator, by host and PID."""

    def read_line(self, text: str) -> None:
        match = _PATTERNS["line"].search(text)
        if match is None:
            return
        host, rest = match["host"], match["rest"]
        if call := _PATTERNS["call"].search(rest):
            self._add_call(match, call)
        elif address := _PATTERNS["address"].search(rest):
            self.hosts[address["address"]] = host
        elif rank := _PATTERNS["rank"].search(rest):
            self.members[host, match["pid"], rank["comm"]] = (int(rank["rank"]), rank["id"] or "")
            self.ranks.setdefault((host, match["pid"]), int(rank["rank"]))
        elif "NCCL WARN" in rest:
            self._add_warning(NcclRank(host, int(match["gpu"]), self.ranks.get((host, match["pid"]))), rest)

    def _add_warning(self, origin: NcclRank, rest: str) -> None:
        warning = rest.partition("NCCL WARN ")[2]
        failure = next(filter(None, (pattern.search(warning) for pattern in _FAILURES.values())), None)
        if failure:
            self.failed[origin.host, failure["peer"], failure["why"].strip()] += 1
            return
        text = _PATTERNS["large_number"].sub("#", warning)[:MAX_WARNING_CHARS]
        self.warnings[text] += 1
        self.origins.setdefault(text, set()).add(origin)

    def _add_call(self, line: re.Match[str], call: re.Match[str]) -> None:
        number, name = self.members.get((line["host"], line["pid"], call["comm"]), (None, ""))
        rank = NcclRank(line["host"], int(line["gpu"]), number)
        size = int(call["size"])
        group = self.groups.setdefault((name, size), Communicator(name or f"of {size} ranks", size))
        collective = CollectiveCall(
            name=call["name"], number=int(call["count"], 16), elements=int(call["elements"]), datatype=int(call["type"])
        )
        group.calls.setdefault(rank, Counter())[collective.name] += 1
        if rank not in group.last or collective.number >= group.last[rank].number:
            group.last[rank] = collective
        if collective.name in POINT_TO_POINT:
            return
        group.recent.setdefault(collective.number, {})[rank] = collective
        if len(group.recent) > MAX_COMPARED_CALLS:
            del group.recent[min(group.recent)]

    def summarize(self) -> NcclSummary:
        failures = [
            ConnectionFailure(host=host, peer=self.hosts.get(peer, peer), why=why, times=times)
            for (host, peer, why), times in self.failed.items()
        ]
        return NcclSummary(
            failures=sorted(failures, key=lambda failure: -failure.times),
            groups=sorted(self.groups.values(), key=lambda group: -group.size),
            warnings=dict(self.warnings.most_common()),
            origins={text: sorted(origins) for text, origins in self.origins.items()},
        )


def render_nccl(summary: NcclSummary) -> list[str]:
    """Return the summary as lines of text."""
    lines = [*_render_failures(summary.failures)]
    for group in summary.groups:
        lines += _render_group(group)
    for text, times in list(summary.warnings.items())[:MAX_NAMED]:
        lines += [f"warning, {times} times: {text}", f"  from: {_name_origins(summary.origins.get(text, []))}"]
    return lines or [f"no NCCL problem found; {MORE_OUTPUT}"]


def _name_origins(origins: list[NcclRank]) -> str:
    more = f" and {len(origins) - MAX_NAMED} more" if len(origins) > MAX_NAMED else ""
    return ", ".join(map(str, origins[:MAX_NAMED])) + more


def _render_failures(failures: list[ConnectionFailure]) -> Iterator[str]:
    for failure in failures[:MAX_NAMED]:
        yield f"{failure.host} -> {failure.peer}: {failure.why} ({failure.times} times)"
    if len(failures) > MAX_NAMED:
        yield f"... and {len(failures) - MAX_NAMED} more pairs"
    hosts_by_peer = Counter(peer for peer, _ in {(failure.peer, failure.host) for failure in failures})
    for peer, hosts in hosts_by_peer.most_common(1):
        if hosts > 1:
            yield f"most hosts cannot reach {peer} ({hosts} hosts)"


def _render_group(group: Communicator) -> Iterator[str]:
    counts: Counter[str] = Counter()
    for counter in group.calls.values():
        counts += counter
    collectives = ", ".join(f"{name} {times}" for name, times in counts.most_common())
    yield f"communicator {group.name}: {len(group.last)} of {group.size} ranks logged collectives: {collectives}"
    newest = max(group.last.values(), key=lambda call: call.number)
    for rank, call in sorted(group.find_behind().items())[:MAX_NAMED]:
        yield f"  behind: {rank} last started {call}; other ranks are at {newest}"
    odd = group.find_odd()
    for rank, call in sorted(odd.items())[:MAX_NAMED]:
        usual = next(other for other_rank, other in group.recent[call.number].items() if other_rank not in odd)
        yield f"  odd: {rank} started {call}, other ranks started {usual}"
