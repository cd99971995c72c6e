"""What is remembered of each node, and of each card wherever it sits: `.site/nodes`.

Clouds give the same lemon back under a new name, so what is held against a card is kept by its UUID and serial.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from opsctl.nodes.health.node_state import NodeBaseline, NodeSnapshot, Port, Severity, Verdict
from opsctl.ports import Clock
from opsctl.state.lease import lease
from opsctl.state.site_dir import SiteDir

KEEP = 200
"""Incidents that are kept of one node, the newest."""

SAME_DRAIN = 120.0
"""Seconds by which Slurm's clock and ours may differ: drains that lie no further apart are one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Something that was held against a node or a card; how often it was seen since then."""

    at: float
    last: float
    count: int
    node: str
    check: str
    severity: str
    evidence: str
    gpu: str = ""
    serial: str = ""
    boot: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    uuid: str
    serial: str
    bus: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """All that is remembered of one node."""

    node: str
    at: float | None = None
    health: str = ""
    evidence: tuple[str, ...] = ()
    boot: str = ""
    cards: tuple[Card, ...] = ()
    memory_kb: int | None = None
    shm_kb: int | None = None
    driver: str = ""
    links: dict[str, tuple[int, ...]] = field(default_factory=dict)
    link_errors: dict[str, int] = field(default_factory=dict)
    replays: dict[str, int] = field(default_factory=dict)
    ports: dict[str, Port] = field(default_factory=dict)
    ports_at: float | None = None
    passed: tuple[float, ...] = ()
    """The looks, one after the other, at which it was healthy."""
    cleared: float | None = None
    drained: tuple[float, ...] = ()
    hangs: dict[str, float] = field(default_factory=dict)
    """Lives that hung while its ranks were the odd ones, `train/attempt`, and when."""
    incidents: tuple[Incident, ...] = ()

    @property
    def prior(self) -> NodeBaseline:
        """What the next look is held against."""
        return NodeBaseline(
            at=_time(self.at), boot=self.boot, uuids=tuple(card.uuid for card in self.cards),
            memory_kb=self.memory_kb, links=self.links, link_errors=self.link_errors, replays=self.replays,
            ports=self.ports, ports_at=_time(self.ports_at), cleared=_time(self.cleared),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHistory:
    site: SiteDir
    clock: Clock

    def read(self, node: str) -> NodeRecord:
        """Empty for a node that was never seen, or of which nothing can be read."""
        try:
            return _record(json.loads(self._file("node", node).read_text()))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return NodeRecord(node=node)

    def all(self) -> list[NodeRecord]:
        """Every node that was ever seen."""
        paths = (self.site.nodes / "node").glob("*.json")
        return [record for path in sorted(paths) if (record := _read(path)) is not None]

    def cards(self) -> dict[str, tuple[Incident, ...]]:
        """What is held against cards, by UUID; only of those against which there is anything."""
        found: dict[str, tuple[Incident, ...]] = {}
        for path in (self.site.nodes / "card").glob("*.json"):
            try:
                given = json.loads(path.read_text())
                found[given["uuid"]] = tuple(Incident(**each) for each in given["incidents"])
            except (OSError, ValueError, TypeError, KeyError, AttributeError):
                continue
        return found

    def save(self, looks: Iterable[tuple[NodeSnapshot, Verdict]], *, baseline_hours: float) -> list[NodeRecord]:
        """Remember these looks. Raises RunDirError, Busy."""
        self.site.create()
        made = []
        with lease(self.site.nodes, self.clock):
            for snapshot, verdict in looks:
                before = self.read(snapshot.node)
                record = update_record(before, snapshot, verdict, baseline_hours=baseline_hours)
                self._write(record)
                self._hold_against_cards(record, before)
                made.append(record)
        return made

    def note_drained(self, node: str, at: datetime) -> None:
        """It was taken out then: it has to pass anew. Noting it again changes nothing. Raises RunDirError, Busy."""
        with lease(self.site.nodes, self.clock):
            record, when = self.read(node), at.timestamp()
            if all(when - value > SAME_DRAIN for value in record.drained):
                self._write(replace(record, drained=(*record.drained, when)[-KEEP:], passed=()))

    def note_hang(self, node: str, attempt: str, at: datetime, *, days: float) -> int:
        """Its ranks were the odd ones when `attempt` hung; how many hangs that makes in `days`. Noting it again changes
        nothing. Raises RunDirError, Busy."""
        self.site.create()
        with lease(self.site.nodes, self.clock):
            record = self.read(node)
            hangs = dict(sorted({attempt: at.timestamp(), **record.hangs}.items(), key=lambda each: each[1])[-KEEP:])
            self._write(replace(record, hangs=hangs))
            return _since(hangs.values(), at, days)

    def note_cleared(self, node: str) -> None:
        """It is put back into service. Raises RunDirError, Busy."""
        with lease(self.site.nodes, self.clock):
            self._write(replace(self.read(node), cleared=self.clock.now().timestamp()))

    def forget_baseline(self, nodes: Sequence[str]) -> None:
        """What it has from now on is what it should have; what was held against it stays."""
        self.site.create()
        with lease(self.site.nodes, self.clock):
            for node in nodes:
                old = self.read(node)
                self._write(NodeRecord(node=node, drained=old.drained, hangs=old.hangs, incidents=old.incidents))

    def _hold_against_cards(self, record: NodeRecord, before: NodeRecord) -> None:
        old = {(incident.at, incident.gpu): incident for incident in before.incidents}
        changed = [
            incident
            for incident in record.incidents
            if incident.gpu and old.get((incident.at, incident.gpu)) != incident
        ]
        for uuid in {incident.gpu for incident in changed}:
            path = self._file("card", uuid)
            known = {_key(incident): incident for incident in _incidents(path)}
            known |= {_key(incident): incident for incident in changed if incident.gpu == uuid}
            rows = [asdict(incident) for incident in list(known.values())[-KEEP:]]
            self._put(path, {"uuid": uuid, "incidents": rows})

    def _write(self, record: NodeRecord) -> None:
        self._put(self._file("node", record.node), asdict(record))

    def _put(self, path: Path, mapping: Mapping[str, Any]) -> None:
        path.parent.mkdir(exist_ok=True, mode=0o755)
        self.site.write(path, json.dumps(mapping, separators=(",", ":")))

    def _file(self, kind: str, name: str) -> Path:
        return self.site.nodes / kind / f"{quote(name, safe='').replace('.', '%2E')}.json"


def update_record(before: NodeRecord, snapshot: NodeSnapshot, verdict: Verdict, *, baseline_hours: float) -> NodeRecord:
    """The record with this look in it. What could not be seen leaves what is known as it was. Pure."""
    at = snapshot.at.timestamp()
    rebooted = bool(snapshot.boot and before.boot and snapshot.boot != before.boot)
    is_old = before.ports_at is None or at - before.ports_at > baseline_hours * 3600
    active = {name: port for name, port in snapshot.ports.items() if port.state == "ACTIVE"}
    gpus = snapshot.smi.gpus if snapshot.smi else ()
    return replace(
        before, at=at, health=verdict.health.value, evidence=tuple(result.evidence for result in verdict.evidence),
        boot=snapshot.boot or before.boot, cards=_cards(before, snapshot),
        memory_kb=max(before.memory_kb or 0, snapshot.memory_kb or 0) or None,
        shm_kb=snapshot.shm_kb if snapshot.shm_kb is not None else before.shm_kb,
        driver=(snapshot.smi.driver if snapshot.smi else "") or before.driver,
        links={**before.links, **{uuid: tuple(sorted({*before.links.get(uuid, ()), *up}))
                                  for uuid, up in snapshot.links.items() if up}},
        link_errors={**before.link_errors, **snapshot.link_errors},
        replays={**before.replays, **{gpu.uuid: gpu.replays for gpu in gpus if gpu.uuid and gpu.replays is not None}},
        ports={**before.ports, **active} if is_old or rebooted else {**active, **before.ports},
        ports_at=at if active and (is_old or rebooted) else before.ports_at,
        passed=_passed(before, verdict, at), incidents=_with_incidents(before, snapshot, verdict),
    )  # fmt: skip


def _passed(before: NodeRecord, verdict: Verdict, at: float) -> tuple[float, ...]:
    if verdict.is_bad:
        return ()
    # Unknown is no pass, and takes none away.
    return (*before.passed, at)[-20:] if verdict.health.value == "healthy" else before.passed


def _cards(before: NodeRecord, snapshot: NodeSnapshot) -> tuple[Card, ...]:
    """Cards that went missing are expected on: only as many or more replace what is known."""
    cards = tuple(
        Card(uuid=gpu.uuid, serial=gpu.serial, bus=gpu.bus, name=gpu.name)
        for gpu in (snapshot.smi.gpus if snapshot.smi else ())
        if gpu.uuid
    )
    return cards if len(cards) >= len(before.cards) else before.cards


def _with_incidents(before: NodeRecord, snapshot: NodeSnapshot, verdict: Verdict) -> tuple[Incident, ...]:
    """The same thing on the same card since the same boot is one incident, however often it is seen."""
    at, serials = snapshot.at.timestamp(), {gpu.uuid: gpu.serial for gpu in (snapshot.smi.gpus if snapshot.smi else ())}
    serials = {card.uuid: card.serial for card in before.cards} | serials
    found = {_key(incident): incident for incident in before.incidents}
    for result in verdict.evidence:
        new = Incident(
            at=at, last=at, count=1, node=snapshot.node, check=result.check, severity=result.severity.value,
            evidence=result.evidence[:300], gpu=result.gpu, serial=serials.get(result.gpu, ""), boot=snapshot.boot,
        )  # fmt: skip
        old = found.get(_key(new))
        found[_key(new)] = replace(old, last=at, count=old.count + 1, evidence=new.evidence) if old else new
    return tuple(found.values())[-KEEP:]


def _key(incident: Incident) -> tuple[str, str, str, str]:
    return incident.node, incident.check, incident.gpu, incident.boot


def score(incidents: Iterable[Incident], drained: Iterable[float], now: datetime, days: float) -> float:
    """How much of a lemon: each faulty incident of the last `days` counts 3, each degraded one 1, each drain 2."""
    since = (now - timedelta(days=days)).timestamp()
    weights = {Severity.FAULTY.value: 3.0, Severity.DEGRADED.value: 1.0}
    found = sum(weights.get(incident.severity, 0.0) for incident in incidents if incident.last >= since)
    return found + 2.0 * _since(drained, now, days)


def _since(times: Iterable[float], now: datetime, days: float) -> int:
    since = (now - timedelta(days=days)).timestamp()
    return sum(at >= since for at in times)


def node_score(record: NodeRecord, cards: Mapping[str, Sequence[Incident]], now: datetime, days: float) -> float:
    """That of the node: its own incidents, and those that its cards had under other names. A hang of which it was the
    odd one counts 2, once there are two: the first may have been the program."""
    elsewhere = [
        incident for card in record.cards for incident in cards.get(card.uuid, ()) if incident.node != record.node
    ]  # fmt: skip
    hangs = _since(record.hangs.values(), now, days)
    return score([*record.incidents, *elsewhere], record.drained, now, days) + (2.0 * hangs if hangs > 1 else 0.0)


def find_lemons(cards: Mapping[str, Sequence[Incident]], now: datetime, *, days: float, limit: float) -> dict[str, str]:
    """By UUID and by serial, what is held against the cards that are lemons."""
    found: dict[str, str] = {}
    for uuid, incidents in cards.items():
        if not incidents or (points := score(incidents, (), now, days)) < limit:
            continue
        last = max(incidents, key=lambda incident: incident.last)
        when = datetime.fromtimestamp(last.last, UTC)
        text = f"score {points:g}; last on {last.node}, {when:%Y-%m-%d}: {last.check}: {last.evidence[:80]}"
        found[uuid] = text
        found |= {incident.serial: text for incident in incidents if incident.serial}
    return found


def _read(path: Path) -> NodeRecord | None:
    try:
        return _record(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _incidents(path: Path) -> list[Incident]:
    try:
        return [Incident(**load) for load in json.loads(path.read_text())["incidents"]]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []


def _record(fields: dict[str, Any]) -> NodeRecord:
    made: dict[str, Any] = {
        "evidence": tuple(fields.get("evidence", ())),
        "cards": tuple(Card(**each) for each in fields.get("cards", ())),
        "links": {uuid: tuple(up) for uuid, up in fields.get("links", {}).items()},
        "ports": {name: Port(**port) for name, port in fields.get("ports", {}).items()},
        "passed": tuple(fields.get("passed", ())),
        "drained": tuple(fields.get("drained", ())),
        "hangs": dict(fields.get("hangs", {})),
        "incidents": tuple(Incident(**each) for each in fields.get("incidents", ())),
    }
    return NodeRecord(**{**fields, **made})


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
