"""The history of every node and every GPU, stored in `.site/nodes`.

A cloud may return a faulty GPU under a new node name. Incidents are therefore also stored by GPU
UUID and serial number.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from opsctl.base.errors import RunDirError
from opsctl.base.ports import Clock
from opsctl.nodes.exclusions import Exclusions
from opsctl.nodes.health.node_state import Card, Health, NodeBaseline, NodeSnapshot, Port, Verdict
from opsctl.nodes.health.usual_hardware import measure
from opsctl.nodes.slow_nodes import NodeSpeed, StepTimeRatio, judge_speed
from opsctl.state.files import MAX_RECORD_BYTES, read_json, set_aside
from opsctl.state.lease import lease
from opsctl.state.records import HEADER, decode, load_record
from opsctl.state.site_dir import SiteDir

T = TypeVar("T")
MAX_ENTRIES = 200
"""Newest incidents, drains and hangs that are stored for one node."""
MAX_PASSED = 20
"""Newest passed health checks that are stored for one node."""
MAX_STEP_TIMES = 100
"""Newest attempts whose step times are stored for one node."""
MAX_EVIDENCE_CHARS = 300

LASTING_FIELDS = ("drained", "drain_reason", "is_reboot", "drained_by", "hangs", "incidents", "named", "step_times")
"""Fields of a record that a new baseline leaves alone."""
SAME_DRAIN_S = 120.0
"""Drains no further apart are the same drain: Slurm's clock and this machine's clock may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One fault of a node or a GPU since one boot.

    `at` and `last` are the Unix times of the first and the last health check that found the fault.
    """

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
class CardRecord:
    """The stored incidents of one GPU."""

    uuid: str
    incidents: tuple[Incident, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord(NodeBaseline):
    """The stored history of one node, with the baseline of its next health check."""

    node: str
    at: float | None = None
    health: str = ""
    evidence: tuple[str, ...] = ()
    kind: str = ""
    """Configuration, product and models that nodes of one kind share; empty if unknown."""
    hardware: dict[str, float] = field(default_factory=dict)
    """Values that nodes of one kind share, at the last health check that could read them."""
    shm_kb: int | None = None
    driver: str = ""
    passed: tuple[float, ...] = ()
    """Times of the health checks in a row that found the node healthy."""
    drained: tuple[float, ...] = ()
    drain_reason: str = ""
    """The reason that opsctl last wrote to Slurm for this node."""
    is_reboot: bool = False
    """Whether the reason is that of a reboot, which is no drain."""
    drained_by: str = ""
    """The user whom Slurm reports for this reason; empty if not known."""
    hangs: dict[str, float] = field(default_factory=dict)
    """By `train/attempt`: when an attempt hung and the stacks of this node's ranks differed from all others."""
    incidents: tuple[Incident, ...] = ()
    named: dict[str, float] = field(default_factory=dict)
    """By `cause train/attempt`: when the log of an attempt of any train named this node."""
    step_times: dict[str, StepTimeRatio] = field(default_factory=dict)
    """By `train/attempt`: how fast the node was against its partners."""

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """The names of the GPUs, as the driver reports them."""
        return tuple(card.name for card in self.cards if card.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHistory:
    """Reads and writes the histories of a site's nodes."""

    site: SiteDir
    clock: Clock

    def read(self, node: str) -> NodeRecord:
        """Return a node's record, an empty record if none can be read."""
        return load_record(NodeRecord, self._file("node", node)) or NodeRecord(node=node)

    def load(self, node: str) -> NodeRecord:
        """Return a node's record, an empty record without a file. Raises OSError, ValueError for an unreadable file."""
        try:
            return decode(NodeRecord, read_json(self._file("node", node), MAX_RECORD_BYTES))
        except FileNotFoundError:
            return NodeRecord(node=node)

    def all(self) -> list[NodeRecord]:
        """Return the records of all nodes."""
        paths = (self.site.nodes / "node").glob("*.json")
        return [record for path in sorted(paths) if (record := load_record(NodeRecord, path))]

    def cards(self) -> dict[str, tuple[Incident, ...]]:
        """Return the incidents by GPU UUID, for every GPU that had an incident."""
        paths = (self.site.nodes / "card").glob("*.json")
        return {card.uuid: card.incidents for path in paths if (card := load_record(CardRecord, path))}

    def list_unreadable(self) -> list[str]:
        """Return a line for each file of the site that cannot be read, or was set aside because of that.

        Decisions leave out what it held, but for exclusions, without which none is made.
        """
        kinds: dict[str, type[NodeRecord | CardRecord]] = {"node": NodeRecord, "card": CardRecord}
        paths = [path for path in self.site.nodes.glob("*/*.json") if path.parent.name in kinds]
        lines = [f"{path}: cannot be read" for path in paths if load_record(kinds[path.parent.name], path) is None]
        try:
            Exclusions(site=self.site, clock=self.clock).now()
        except RunDirError as error:
            lines.append(error.message)
        return lines + self.site.list_set_aside()

    def save(
        self,
        checks: Iterable[tuple[NodeSnapshot, Verdict]],
        *,
        baseline_hours: float,
        kinds: Mapping[str, str] | None = None,
    ) -> list[NodeRecord]:
        """Store the results of health checks; `kinds` is the kind by node. Raises RunDirError, Busy."""
        self.site.create()
        records = []
        with lease(self.site.nodes, self.clock):
            for snapshot, verdict in checks:
                before = self.read(snapshot.node)
                kind = (kinds or {}).get(snapshot.node, "")
                record = update_record(before, snapshot, verdict, baseline_hours=baseline_hours, kind=kind)
                self._write(record)
                self._write_cards(record, before)
                records.append(record)
        return records

    def note_reason(self, node: str, reason: str, *, is_reboot: bool = False) -> None:
        """Store the reason that is about to be written to Slurm. The caller holds the lease. Raises RunDirError."""
        self._write(replace(self.read(node), drain_reason=reason, is_reboot=is_reboot, drained_by=""))

    def note_drained(self, node: str, at: datetime, *, by: str = "") -> None:
        """Store that opsctl drained a node at a time, as user `by`; earlier passed health checks no longer count.

        Idempotent. Raises RunDirError, Busy.
        """
        with lease(self.site.nodes, self.clock):
            record, drained_at = self.read(node), at.timestamp()
            noted = replace(record, drained_by=record.drained_by or by)
            if all(drained_at - earlier > SAME_DRAIN_S for earlier in record.drained):
                noted = replace(noted, drained=(*record.drained, drained_at)[-MAX_ENTRIES:], passed=())
            if noted != record:
                self._write(noted)

    def note_hang(self, node: str, attempt: str, at: datetime, *, days: float) -> int:
        """Store that the stacks of a node's ranks differed when `attempt` hung. Return the hangs of the last `days`.

        Idempotent. Raises RunDirError, Busy.
        """
        self.site.create()
        with lease(self.site.nodes, self.clock):
            record = self.read(node)
            in_order = sorted({attempt: at.timestamp(), **record.hangs}.items(), key=lambda hang: hang[1])
            hangs = dict(in_order[-MAX_ENTRIES:])
            self._write(replace(record, hangs=hangs))
            return count_recent(hangs.values(), at, days)

    def note_named(self, nodes: Sequence[str], cause: str, attempt: str, at: datetime) -> None:
        """Store that the log of `attempt` names nodes for a cause. Idempotent. Raises RunDirError, Busy."""
        self.site.create()
        with lease(self.site.nodes, self.clock):
            for record in map(self.read, nodes):
                named = {**record.named, f"{cause} {attempt}": at.timestamp()}
                self._write(replace(record, named=dict(list(named.items())[-MAX_ENTRIES:])))

    def list_named(self, cause: str, since: datetime, until: datetime) -> dict[str, dict[str, float]]:
        """Return when logs of attempts, of all trains, named a node for a cause: by node and attempt.

        Reads the records of all nodes.
        """
        begin, end, named = since.timestamp(), until.timestamp(), dict[str, dict[str, float]]()
        for record in self.all():
            for key, at in record.named.items():
                name, attempt = key.split(" ", 1)
                if name == cause and begin <= at <= end:
                    named.setdefault(record.node, {})[attempt] = at
        return named

    def list_speeds(self, days: float, train: str = "") -> dict[str, NodeSpeed]:
        """Return the speed of each node over the attempts of all trains in the last `days`.

        With `train`, of the nodes that this train has run on.
        """
        speeds = {}
        for record in self.all():
            is_chosen = not train or any(attempt.startswith(f"{train}/") for attempt in record.step_times)
            if is_chosen and (speed := judge_speed(record.step_times.values(), self.clock.now(), days)):
                speeds[record.node] = speed
        return speeds

    def note_step_times(self, attempt: str, ratios: Mapping[str, StepTimeRatio]) -> None:
        """Store how fast the nodes of `attempt` were, by node. Idempotent. Raises RunDirError, Busy."""
        self.site.create()
        with lease(self.site.nodes, self.clock):
            for node, ratio in ratios.items():
                record = self.read(node)
                in_order = sorted({**record.step_times, attempt: ratio}.items(), key=lambda entry: entry[1].at)
                self._write(replace(record, step_times=dict(in_order[-MAX_STEP_TIMES:])))

    def note_cleared(self, node: str) -> None:
        """Store that a node is put back into service. Raises RunDirError, Busy."""
        with lease(self.site.nodes, self.clock):
            self._write(replace(self.read(node), cleared=self.clock.now().timestamp()))

    def forget_baseline(self, nodes: Sequence[str]) -> None:
        """Let the next health check set a new baseline. Incidents, drains and hangs stay. Raises RunDirError, Busy."""
        self.site.create()
        with lease(self.site.nodes, self.clock):
            for node in nodes:
                old = self.read(node)
                self._write(NodeRecord(node=node, **{name: getattr(old, name) for name in LASTING_FIELDS}))

    def _write_cards(self, record: NodeRecord, before: NodeRecord) -> None:
        """Store new and changed incidents of GPUs in the GPUs' own files."""
        old = {(incident.at, incident.gpu): incident for incident in before.incidents}
        changed = [
            incident
            for incident in record.incidents
            if incident.gpu and old.get((incident.at, incident.gpu)) != incident
        ]
        for uuid in {incident.gpu for incident in changed}:
            path = self._file("card", uuid)
            stored = load_record(CardRecord, path) or CardRecord(uuid=uuid)
            incidents = {_key(incident): incident for incident in stored.incidents}
            incidents |= {_key(incident): incident for incident in changed if incident.gpu == uuid}
            newest = tuple(incidents.values())[-MAX_ENTRIES:]
            self._write_json(path, CardRecord(uuid=uuid, incidents=newest))

    def _write(self, record: NodeRecord) -> None:
        self._write_json(self._file("node", record.node), record)

    def _write_json(self, path: Path, record: NodeRecord | CardRecord) -> None:
        path.parent.mkdir(exist_ok=True, mode=0o755)
        if load_record(type(record), path) is None:
            set_aside(path)
        self.site.write(path, json.dumps({**HEADER, **asdict(record)}, separators=(",", ":")))

    def _file(self, kind: str, name: str) -> Path:
        return self.site.nodes / kind / f"{quote(name, safe='').replace('.', '%2E')}.json"


def update_record(
    before: NodeRecord, snapshot: NodeSnapshot, verdict: Verdict, *, baseline_hours: float, kind: str = ""
) -> NodeRecord:
    """Return a node's record with one more health check. Values that the check could not read stay as stored. Pure."""
    at = snapshot.at.timestamp()
    replays = {gpu.uuid: gpu.replays for gpu in snapshot.gpus if gpu.uuid and gpu.replays is not None}
    ports, ports_at = _merge_ports(before, snapshot, baseline_hours)
    return replace(
        before,
        at=at,
        health=verdict.health.value,
        evidence=tuple(result.evidence for result in verdict.evidence),
        boot=snapshot.boot or before.boot,
        kind=kind or before.kind,
        hardware={**before.hardware, **measure(snapshot)},
        cards=_merge_cards(before, snapshot),
        memory_kb=max(before.memory_kb or 0, snapshot.memory_kb or 0) or None,
        shm_kb=snapshot.shm_kb if snapshot.shm_kb is not None else before.shm_kb,
        driver=(snapshot.smi.driver if snapshot.smi else "") or before.driver,
        links=_merge_links(before, snapshot),
        link_errors={**before.link_errors, **snapshot.link_errors},
        replays={**before.replays, **replays},
        ports=ports,
        ports_at=ports_at,
        passed=_append_passed(before, verdict, at),
        incidents=_merge_incidents(before, snapshot, verdict),
    )


def _merge_ports(
    before: NodeRecord, snapshot: NodeSnapshot, baseline_hours: float
) -> tuple[dict[str, Port], float | None]:
    """Return the baseline of active ports, and its time. A reboot, or `baseline_hours`, starts a new baseline."""
    at = snapshot.at.timestamp()
    is_rebooted = bool(snapshot.boot and before.boot and snapshot.boot != before.boot)
    is_old = before.ports_at is None or at - before.ports_at > baseline_hours * 3600
    active = {name: port for name, port in snapshot.ports.items() if port.state == "ACTIVE"}
    if is_old or is_rebooted:
        return {**before.ports, **active}, at if active else before.ports_at
    return {**active, **before.ports}, before.ports_at


def _merge_links(before: NodeRecord, snapshot: NodeSnapshot) -> dict[str, tuple[int, ...]]:
    """Return, by GPU UUID, the NVLinks that were ever up."""
    links = dict(before.links)
    for uuid, up in snapshot.links.items():
        if up:
            links[uuid] = tuple(sorted({*before.links.get(uuid, ()), *up}))
    return links


def _append_passed(before: NodeRecord, verdict: Verdict, at: float) -> tuple[float, ...]:
    """Return the passed health checks in a row. A check of unknown result neither adds one nor ends the row."""
    if verdict.is_bad:
        return ()
    return (*before.passed, at)[-MAX_PASSED:] if verdict.health is Health.HEALTHY else before.passed


def _merge_cards(before: NodeRecord, snapshot: NodeSnapshot) -> tuple[Card, ...]:
    """Return the GPUs that the node should have. Fewer GPUs never replace the stored ones."""
    cards = tuple(
        Card(uuid=gpu.uuid, serial=gpu.serial, bus=gpu.bus, name=gpu.name) for gpu in snapshot.gpus if gpu.uuid
    )
    return cards if len(cards) >= len(before.cards) else before.cards


def _merge_incidents(before: NodeRecord, snapshot: NodeSnapshot, verdict: Verdict) -> tuple[Incident, ...]:
    """Return the incidents with the new evidence. One check of one GPU since one boot is one incident."""
    at = snapshot.at.timestamp()
    serials = {card.uuid: card.serial for card in before.cards}
    serials |= {gpu.uuid: gpu.serial for gpu in snapshot.gpus}
    incidents = {_key(incident): incident for incident in before.incidents}
    for result in verdict.evidence:
        new = Incident(
            at=at,
            last=at,
            count=1,
            node=snapshot.node,
            check=result.check,
            severity=result.severity.value,
            evidence=result.evidence[:MAX_EVIDENCE_CHARS],
            gpu=result.gpu,
            serial=serials.get(result.gpu, ""),
            boot=snapshot.boot,
        )
        old = incidents.get(_key(new))
        incidents[_key(new)] = replace(old, last=at, count=old.count + 1, evidence=new.evidence) if old else new
    return tuple(incidents.values())[-MAX_ENTRIES:]


def _key(incident: Incident) -> tuple[str, str, str, str]:
    return incident.node, incident.check, incident.gpu, incident.boot


def count_recent(times: Iterable[float], now: datetime, days: float) -> int:
    """Return how many `times`, in seconds since the epoch, lie in the last `days`."""
    since = (now - timedelta(days=days)).timestamp()
    return sum(at >= since for at in times)
