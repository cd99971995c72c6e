"""NCCL's own debug output: who could not connect to whom, which collectives each rank began, which rank is behind."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from opsctl.diagnosis.speakers import split

MAX_NAMED = 8
"""Ranks, peers and warnings that the summary names."""

_LINE = re.compile(r"(?P<host>[\w.-]+):(?P<pid>\d+):\d+ \[(?P<gpu>\d{1,3})\] (?P<rest>.*)")
_ADDRESS = re.compile(r"NCCL INFO Bootstrap ?: Using (?:\[0\])?[^:\s]+:(?P<address>[^\s<]+)<")
_RANK = re.compile(
    r"comm (?P<comm>0x[\da-f]+) rank (?P<rank>\d+) n[rR]anks (?P<size>\d+)(?:.* commId (?P<id>0x[\da-f]+))?"
)
_FAILED = (
    re.compile(r"NCCL WARN .*?[Cc]onnect(?: to)? (?P<peer>[^\s<]+)<\d+> failed ?: (?P<why>.+)"),
    re.compile(r"NCCL WARN .*?Call to (?:recv|send|connect) (?:from|to) (?P<peer>[^\s<]+)<\d+> failed ?: (?P<why>.+)"),
    re.compile(r"NCCL WARN .*?(?P<why>Connection closed by remote peer) (?P<peer>[^\s<]+)"),
    re.compile(
        r"NCCL WARN NET/IB.{0,3}Got completion from peer (?P<peer>[^\s<]+)<\d+> with (?P<why>(?:error|status=?) ?\d+)"
    ),
)
_CALL = re.compile(
    r"NCCL INFO (?P<name>[A-Z]\w+): opCount (?P<count>[\da-f]+) .*?\bcount (?P<elements>\d+) datatype (?P<type>\d+)"
    r".* comm (?P<comm>0x[\da-f]+) \[nranks=(?P<size>\d+)\]"
)


@dataclass(frozen=True, slots=True, order=True)
class NcclRank:
    """One GPU's process, and its rank where a line told it."""

    host: str
    gpu: int
    rank: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return (
            f"rank {self.rank} ({self.host} GPU {self.gpu})" if self.rank is not None else f"{self.host} GPU {self.gpu}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionFailure:
    """Processes of one host could not reach a peer."""

    host: str
    peer: str
    """By name where its address is known, else its address."""
    why: str
    times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCall:
    """A collective, as a rank began it."""

    name: str
    number: int
    elements: int
    datatype: int

    def __str__(self) -> str:
        return f"{self.name} {self.number:x} of {self.elements}"


@dataclass(slots=True)
class Communicator:
    """A communicator: what each of its ranks began."""

    name: str
    size: int
    calls: dict[NcclRank, Counter[str]] = field(default_factory=dict)
    last: dict[NcclRank, CollectiveCall] = field(default_factory=dict)
    recent: dict[int, dict[NcclRank, CollectiveCall]] = field(default_factory=dict)
    """Of the latest numbers, what each rank began."""

    def behind(self) -> dict[NcclRank, CollectiveCall]:
        """The ranks whose last collective is an earlier one than most others' is."""
        newest = max((call.number for call in self.last.values()), default=0)
        collective_calls = {rank: call for rank, call in self.last.items() if call.number < newest}
        return collective_calls if len(collective_calls) <= len(self.last) // 2 else {}

    def absent(self) -> int:
        """How many ranks began nothing that was logged."""
        return self.size - len(self.last)

    def odd(self) -> dict[NcclRank, CollectiveCall]:
        """The ranks that began something else under the same number as most; the first such number."""
        for number in sorted(self.recent):
            begun = self.recent[number]
            kinds = Counter((call.name, call.elements, call.datatype) for call in begun.values())
            if len(kinds) > 1:
                usual = kinds.most_common(1)[0][0]
                return {
                    rank: call for rank, call in begun.items() if (call.name, call.elements, call.datatype) != usual
                }
        return {}


@dataclass(slots=True)
class NcclSummary:
    """What a debug log tells."""

    failures: list[ConnectionFailure]
    groups: list[Communicator]
    warnings: dict[str, int]
    """The first line of each other kind of warning, and how often."""


def read_nccl_debug(lines: Iterable[bytes]) -> NcclSummary:
    """Read NCCL's lines, whatever stands before and between them. Never raises."""
    reader = _NcclReader()
    for line in lines:
        if b"NCCL" in line:
            reader.take(split(line)[1].decode(errors="replace").rstrip())
    return reader.summarize()


MAX_COMPARED_CALLS = 64
"""Latest collectives of a communicator that are compared."""


@dataclass(slots=True)
class _NcclReader:
    hosts: dict[str, str] = field(default_factory=dict)
    """By address."""
    members: dict[tuple[str, str, str], tuple[int, str]] = field(default_factory=dict)
    """Rank and communicator, by host, process and pointer: in each process the pointer is another one."""
    failed: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    groups: dict[tuple[str, int], Communicator] = field(default_factory=dict)
    warnings: Counter[str] = field(default_factory=Counter)

    def take(self, text: str) -> None:
        match = _LINE.search(text)
        if match is None:
            return
        host, rest = match["host"], match["rest"]
        if call := _CALL.search(rest):
            self._call(match, call)
        elif address := _ADDRESS.search(rest):
            self.hosts[address["address"]] = host
        elif rank := _RANK.search(rest):
            self.members[host, match["pid"], rank["comm"]] = (int(rank["rank"]), rank["id"] or "")
        elif "NCCL WARN" in rest:
            self._warning(host, rest)

    def _warning(self, host: str, rest: str) -> None:
        failure = next(filter(None, (pattern.search(rest) for pattern in _FAILED)), None)
        if failure:
            self.failed[host, failure["peer"], failure["why"].strip()] += 1
        else:
            self.warnings[re.sub(r"0x[\da-f]+|\d{4,}", "#", rest.partition("NCCL WARN ")[2])[:160]] += 1

    def _call(self, line: re.Match[str], call: re.Match[str]) -> None:
        rank, name = self.members.get((line["host"], line["pid"], call["comm"]), (None, ""))
        who = NcclRank(line["host"], int(line["gpu"]), rank)
        key = (name, int(call["size"]))
        group = self.groups.setdefault(key, Communicator(name or f"of {call['size']} ranks", int(call["size"])))
        begun = CollectiveCall(
            name=call["name"], number=int(call["count"], 16), elements=int(call["elements"]), datatype=int(call["type"])
        )
        group.calls.setdefault(who, Counter())[begun.name] += 1
        if who not in group.last or begun.number >= group.last[who].number:
            group.last[who] = begun
        if begun.name in {"Send", "Recv"}:
            return  # these are between two, and the others know nothing of them
        group.recent.setdefault(begun.number, {})[who] = begun
        if len(group.recent) > MAX_COMPARED_CALLS:
            del group.recent[min(group.recent)]

    def summarize(self) -> NcclSummary:
        failures = [
            ConnectionFailure(host=host, peer=self.hosts.get(peer, peer), why=why, times=times)
            for (host, peer, why), times in self.failed.items()
        ]
        return NcclSummary(
            failures=sorted(failures, key=lambda connection_failure: -connection_failure.times),
            groups=sorted(self.groups.values(), key=lambda group: -group.size),
            warnings=dict(self.warnings.most_common()),
        )


def render_nccl(summary: NcclSummary) -> list[str]:
    """For people."""
    lines = [*_connections(summary.failures)]
    for group in summary.groups:
        lines += _of_group(group)
    lines += [f"warning, {times} times: {text}" for text, times in list(summary.warnings.items())[:MAX_NAMED]]
    return lines or ["nothing of NCCL's is wrong in it; NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,COLL tells more"]


def _connections(failures: list[ConnectionFailure]) -> Iterator[str]:
    blamed: Counter[str] = Counter()
    for failure in failures[:MAX_NAMED]:
        yield f"{failure.host} -> {failure.peer}: {failure.why} ({failure.times} times)"
    for peer, _ in {(failure.peer, failure.host) for failure in failures}:
        blamed[peer] += 1
    if len(failures) > MAX_NAMED:
        yield f"... and {len(failures) - MAX_NAMED} pairs more"
    if blamed and blamed.most_common(1)[0][1] > 1:
        peer, hosts = blamed.most_common(1)[0]
        yield f"most hosts cannot reach {peer} ({hosts} of them)"


def _of_group(group: Communicator) -> Iterator[str]:
    counts: Counter[str] = Counter()
    for counter in group.calls.values():
        counts += counter
    begun = ", ".join(f"{name} {times}" for name, times in counts.most_common())
    yield f"communicator {group.name}: {len(group.last)} of {group.size} ranks logged collectives: {begun}"
    newest = max(group.last.values(), key=lambda call: call.number)
    for rank, call in sorted(group.behind().items())[:MAX_NAMED]:
        yield f"  behind: {rank} began last {call}; others are at {newest}"
    for rank, call in sorted(group.odd().items())[:MAX_NAMED]:
        usual = next(
            collective_call for w, collective_call in group.recent[call.number].items() if w not in group.odd()
        )
        yield f"  odd: {rank} began {call}, the others {usual}"
