"""Parse the output of Slurm's programs. Pure; a malformed row is skipped and does not hide the other rows.

The programs end every field with a random mark, so that no job name can imitate a field's end.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from opsctl.base.errors import InputError
from opsctl.base.model import DrainReason, Job, Limits, Node, Partition, Reservation
from opsctl.base.nodesets import nodeset
from opsctl.base.units import parse_slurm_minutes
from opsctl.slurm.field_values import (
    SLURM_WORDS,
    parse_count,
    parse_exit_code,
    parse_job_number,
    parse_limit,
    parse_node_reason,
    parse_state,
    parse_tasks,
    parse_text,
    parse_time,
    split_list,
)

T = TypeVar("T")

SQUEUE_FIELDS: tuple[str, ...] = tuple(SLURM_WORDS["squeue"])
SACCT_FIELDS: dict[str, str] = SLURM_WORDS["sacct"]
"""The fields of sacct, and squeue's names for them. sacct's JobID of an array task is `12_3`."""
SINFO_FIELDS = ("NodeList", "StateComplete", "NodeAddr", "Reason")
UNSET_MEMORY_MB = frozenset({"", "0", "1"})
"""Slurm prints 1 MB for a node without RealMemory."""
NO_MEMORY = "memory not configured"
KIND_FIELDS = ("NodeList", "CPUs", "Memory", "Gres")
REASON_FIELDS = ("NodeList", "User", "Timestamp", "Reason")
END_FIELDS = ("State", "EndTime")
_GPUS = re.compile(r"\bgpu(?::[^:,()]+)?:(\d+)", re.ASCII)


def long_format(fields: Sequence[str], mark: str) -> str:
    """Return the `--Format` of squeue and sinfo: every field in full length (`:0`), followed by the mark."""
    return ",".join(f"{field}:0{mark}" for field in fields)


def split_rows(text: str, mark: str, width: int) -> Iterator[list[str]]:
    """Split into rows of `width` fields, each field ended by the mark.

    Lines before the first word of a row come from the program (`CLUSTER: name`, line feeds) and are dropped.
    """
    parts = text.split(mark)
    for start in range(0, len(parts) - width, width):
        yield [parts[start].rpartition("\n")[2].strip(), *parts[start + 1 : start + width]]


def parse_rows(parse: Callable[[dict[str, str]], T], text: str, mark: str, fields: Sequence[str]) -> list[T]:
    """Parse every row, given as field name → word; skip the rows for which `parse` raises ValueError."""
    records: list[T] = []
    for row in split_rows(text, mark, len(fields)):
        with suppress(ValueError):
            records.append(parse(dict(zip(fields, row, strict=True))))
    return records


def parse_jobs(text: str, mark: str) -> list[Job]:
    """Parse `squeue --Format` with SQUEUE_FIELDS."""
    return parse_rows(_parse_job, text, mark, SQUEUE_FIELDS)


def _parse_job(row: dict[str, str]) -> Job:
    return Job(
        id=parse_job_number(row["JobID"]),
        array=parse_job_number(row["ArrayJobID"]),
        tasks=parse_tasks(row["ArrayTaskID"]),
        name=row["Name"],
        user=row["UserName"],
        state=parse_state(row["State"]),
        reason=parse_text(row["Reason"]),
        nodes=parse_text(row["NodeList"]),
        node_count=parse_count(row["NumNodes"]),
        partition=row["Partition"],
        comment=parse_text(row["Comment"]),
        start=parse_time(row["StartTime"]),
        end=parse_time(row["EndTime"]),
        submitted=parse_time(row["SubmitTime"]),
        accrued=parse_time(row["AccrueTime"]),
        exit_code=parse_exit_code(row["exit_code"]),
        restarts=parse_count(row["RestartCnt"]),
    )


def parse_past(text: str, mark: str) -> list[Job]:
    """Parse `sacct --duplicates --parsable` with SACCT_FIELDS: every attempt, in sacct's order.

    sacct does not print the restart count, so the attempts of a job are numbered in that order.
    """
    last_restart: dict[str, int] = {}
    attempts = []
    for job in parse_rows(_parse_past_job, text, mark, tuple(SACCT_FIELDS.values())):
        last_restart[job.id] = last_restart.get(job.id, -1) + 1
        attempts.append(replace(job, restarts=last_restart[job.id]))
    return attempts


def _parse_past_job(row: dict[str, str]) -> Job:
    array, _, tasks = row["TaskID"].partition("_")
    return _parse_job({**row, "ArrayJobID": array, "ArrayTaskID": tasks, "AccrueTime": "", "RestartCnt": ""})


def parse_nodes(text: str, mark: str) -> list[Node]:
    """Parse `sinfo -N --Format` with SINFO_FIELDS, which prints a node once for each of its partitions."""
    nodes = parse_rows(_parse_node, text, mark, SINFO_FIELDS)
    return list({node.name: node for node in nodes}.values())


def _parse_node(row: dict[str, str]) -> Node:
    if not row["NodeList"]:
        raise ValueError("a node without a name")
    state = row["StateComplete"].upper()
    reason = parse_node_reason(state, parse_text(row["Reason"]))
    return Node(name=row["NodeList"], state=state, address=row["NodeAddr"], reason=reason)


def parse_kinds(text: str, mark: str) -> dict[str, str]:
    """Parse `sinfo -N --Format` with KIND_FIELDS: what the configuration gives a node, as text, by node.

    The sockets behind a gres, as in `gpu:8(S:0-1)`, come from the node and may differ on a broken one.
    """
    kinds: dict[str, str] = {}
    for name, cpus, memory, gres in split_rows(text, mark, len(KIND_FIELDS)):
        if name and cpus.strip().isdecimal():
            plain = re.sub(r"\(S:[^)]*\)", "", parse_text(gres))
            size = NO_MEMORY if memory.strip() in UNSET_MEMORY_MB else f"{memory.strip()} MB"
            kinds[name] = f"{cpus.strip()} CPUs, {size}, {plain or 'no gres'}"
    return kinds


def parse_shapes(text: str, mark: str) -> dict[str, tuple[int, int]]:
    """Parse `sinfo -N --Format` with KIND_FIELDS: the CPUs and GPUs that the configuration gives a node, by node."""
    rows = [row for row in split_rows(text, mark, len(KIND_FIELDS)) if row[0] and row[1].strip().isdecimal()]
    return {name: (int(cpus), sum(map(int, _GPUS.findall(gres)))) for name, cpus, _, gres in rows}


def parse_reasons(text: str, mark: str) -> list[DrainReason]:
    """Parse `sinfo -N --Format` with REASON_FIELDS: the nodes that have a reason, in service or not."""
    reasons = parse_rows(_parse_reason, text, mark, REASON_FIELDS)
    return list({reason.node: reason for reason in reasons}.values())


def _parse_reason(row: dict[str, str]) -> DrainReason:
    text = parse_text(row["Reason"])
    if not row["NodeList"] or not text:
        raise ValueError("no node or no reason")
    return DrainReason(node=row["NodeList"], text=text, by=parse_text(row["User"]), at=parse_time(row["Timestamp"]))


def parse_excluded(text: str, mark: str) -> str:
    """Parse `squeue` rows of state and excluded nodes: the union over the waiting tasks, folded."""
    node_lists: dict[str, None] = {}
    for state, nodes in split_rows(text, mark, 2):
        if parse_state(state).is_waiting and parse_text(nodes):
            node_lists[nodes] = None
    excluded = nodeset("")
    for nodes in node_lists:
        with suppress(InputError, ValueError):
            excluded.update(nodeset(nodes))
    return str(excluded)


def parse_end(text: str, mark: str) -> datetime | None:
    """Parse `squeue` rows with END_FIELDS: the end of the running job; None without a running job or a limit."""
    ends = [end for state, end in split_rows(text, mark, len(END_FIELDS)) if parse_state(state).is_active]
    return parse_time(ends[0]) if ends else None


def parse_partitions(text: str) -> list[Partition]:
    """Parse `scontrol --oneliner show partition`, which prints no free text."""
    return [
        Partition(
            name=pairs["PartitionName"],
            is_default=pairs.get("Default") == "YES",
            is_up=pairs.get("State") == "UP",
            nodes=parse_count(pairs.get("TotalNodes", "")),
            max_nodes=parse_limit(pairs.get("MaxNodes", "")),
            max_minutes=parse_slurm_minutes(pairs.get("MaxTime", "")),
            qos=parse_text(pairs.get("QoS", "")),
        )
        for pairs in _split_pairs(text.splitlines())
        if "PartitionName" in pairs
    ]


def parse_reservations(text: str) -> list[Reservation]:
    """Parse `scontrol --oneliner show reservation`: one line a reservation, or a sentence without any."""
    return [
        Reservation(
            name=pairs["ReservationName"],
            start=parse_time(pairs.get("StartTime", "")),
            end=parse_time(pairs.get("EndTime", "")),
            nodes=parse_text(pairs.get("Nodes", "")),
            node_count=parse_count(pairs.get("NodeCnt", "")),
            users=split_list(pairs.get("Users", "")),
            accounts=split_list(pairs.get("Accounts", "")),
            flags=split_list(pairs.get("Flags", "")),
        )
        for pairs in _split_pairs(text.splitlines())
        if "ReservationName" in pairs
    ]


def _split_pairs(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """Split each line of `key=value` words into a mapping."""
    for line in lines:
        yield dict(word.split("=", 1) for word in line.split() if "=" in word)


def parse_limits(text: str) -> Limits:
    """Parse `scontrol show config`."""
    config = dict(re.findall(r"^(\w+(?:\[0\])?)\s*=\s?(.*?)\s*$", text, re.MULTILINE))
    # From Slurm 24.11 on, Epilog is a list, of which nothing is shown if it is empty.
    epilog = config.get("Epilog[0]") or config.get("Epilog", "(null)")
    return Limits(
        version=config.get("SLURM_VERSION", ""),
        cluster=config.get("ClusterName", ""),
        max_array_size=parse_count(config.get("MaxArraySize", "")),
        priority=config.get("PriorityType", ""),
        accounting=config.get("AccountingStorageType", "").endswith("slurmdbd"),
        enforced=split_list(config.get("AccountingStorageEnforce", "")),
        has_epilog=epilog != "(null)",
    )
