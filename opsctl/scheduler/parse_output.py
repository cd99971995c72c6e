"""From the words of Slurm's programs to our nouns. Pure, and whatever it is fed, nothing is raised: a row that makes no
sense is left out and does not hide the others.

The programs are asked to end every field in a mark of our own making, so that no job's name can look like one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from opsctl.model import DrainReason, Job, Limits, Node, Partition, Reservation
from opsctl.scheduler.field_values import (
    count_of,
    exit_code_of,
    limit_of,
    listed,
    number_of,
    tasks_of,
    text_of,
    time_of,
)
from opsctl.scheduler.states import parse_state
from opsctl.units import parse_slurm_minutes

T = TypeVar("T")

SQUEUE_FIELDS = ("JobID", "ArrayJobID", "ArrayTaskID", "State", "Reason", "NodeList", "NumNodes", "UserName",
                 "Partition", "StartTime", "EndTime", "SubmitTime", "AccrueTime", "exit_code", "RestartCnt",
                 "Comment", "Name")  # fmt: skip
SACCT_FIELDS = ("JobIDRaw", "JobID", "State", "Reason", "NodeList", "NNodes", "User", "Partition", "Start", "End",
                "Submit", "ExitCode", "Comment", "JobName")  # fmt: skip
SINFO_FIELDS = ("NodeList", "StateComplete", "NodeAddr", "Reason")
REASON_FIELDS = ("NodeList", "User", "Timestamp", "Reason")
END_FIELDS = ("State", "EndTime")


def long_format(fields: Sequence[str], mark: str) -> str:
    """What squeue and sinfo take as `--Format`: every field in its full length (`:0`), followed by the mark."""
    return ",".join(f"{field}:0{mark}" for field in fields)


def rows(text: str, mark: str, width: int) -> Iterator[list[str]]:
    """Rows of `width` fields that each end in the mark. Lines before a row's first word are the program's own, such as
    the line feed after the row before or `CLUSTER: name`."""
    parts = text.split(mark)
    for start in range(0, len(parts) - width, width):
        yield [parts[start].rpartition("\n")[2].strip(), *parts[start + 1 : start + width]]


def parse_each(parse: Callable[[list[str]], T], found: Iterable[list[str]]) -> list[T]:
    """What could be made of the rows."""
    made: list[T] = []
    for row in found:
        with suppress(ValueError):
            made.append(parse(row))
    return made


def parse_jobs(text: str, mark: str) -> list[Job]:
    """`squeue --Format` with SQUEUE_FIELDS."""
    return parse_each(_queued, rows(text, mark, len(SQUEUE_FIELDS)))


def _queued(row: list[str]) -> Job:
    (number, array, tasks, state, reason, nodes, count, user, partition, start, end, submitted, accrued, code,
     restarts, comment, name) = row  # fmt: skip
    return Job(
        id=number_of(number), array=number_of(array), tasks=tasks_of(tasks), name=name, user=user,
        state=parse_state(state), reason=text_of(reason), nodes=text_of(nodes), node_count=count_of(count),
        partition=partition, comment=text_of(comment), start=time_of(start), end=time_of(end),
        submitted=time_of(submitted), accrued=time_of(accrued), exit_code=exit_code_of(code),
        restarts=count_of(restarts),
    )  # fmt: skip


def parse_past(text: str, mark: str) -> list[Job]:
    """`sacct --duplicates --parsable` with SACCT_FIELDS: every attempt, in sacct's order, numbered by it."""
    attempts: dict[str, int] = {}
    made = []
    for job in parse_each(_past, rows(text, mark, len(SACCT_FIELDS))):
        attempts[job.id] = attempts.get(job.id, -1) + 1
        made.append(replace(job, restarts=attempts[job.id]))
    return made


def _past(row: list[str]) -> Job:
    number, shown, state, reason, nodes, count, user, partition, start, end, submitted, code, comment, name = row
    array, _, tasks = shown.partition("_")
    return Job(
        id=number_of(number), array=number_of(array), tasks=tasks_of(tasks), name=name, user=user,
        state=parse_state(state), reason=text_of(reason), nodes=text_of(nodes), node_count=count_of(count),
        partition=partition, comment=text_of(comment), start=time_of(start), end=time_of(end),
        submitted=time_of(submitted), exit_code=code,
    )  # fmt: skip


def parse_nodes(text: str, mark: str) -> list[Node]:
    """`sinfo -N --Format` with SINFO_FIELDS, which has a row for each node in each of its partitions."""
    nodes = parse_each(_node, rows(text, mark, len(SINFO_FIELDS)))
    return list({node.name: node for node in nodes}.values())


def _node(row: list[str]) -> Node:
    name, state, address, reason = row
    if not name:
        raise ValueError("a node without a name")
    return Node(name=name, state=state.upper(), address=address, reason=text_of(reason))


def parse_reasons(text: str, mark: str) -> list[DrainReason]:
    """`sinfo -N --Format` with REASON_FIELDS: only nodes that have a reason."""
    drain_reasons = [
        DrainReason(node=node, text=text_of(said), by=text_of(by), at=time_of(at))
        for node, by, at, said in rows(text, mark, len(REASON_FIELDS))
        if node and text_of(said)
    ]
    return list({reason.node: reason for reason in drain_reasons}.values())


def parse_excluded(text: str, mark: str) -> str:
    """`squeue` rows of state and excluded nodes: all that some waiting task must not get, folded."""
    waiting = [nodes for state, nodes in rows(text, mark, 2) if parse_state(state).is_waiting and text_of(nodes)]
    union = NodeSet(resolver=RESOLVER_NOGROUP)
    for nodes in dict.fromkeys(waiting):
        with suppress(NodeSetException):
            union.update(NodeSet(nodes, resolver=RESOLVER_NOGROUP))
    return str(union)


def parse_end(text: str, mark: str) -> datetime | None:
    """`squeue` rows with END_FIELDS: when what runs will be ended; None where nothing runs or nothing will end it."""
    ends = [end for state, end in rows(text, mark, len(END_FIELDS)) if parse_state(state).is_active]
    return time_of(ends[0]) if ends else None


def parse_partitions(text: str) -> list[Partition]:
    """`scontrol --oneliner show partition`, which holds no free text."""
    lines = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in text.splitlines()]
    return [
        Partition(
            name=line["PartitionName"],
            is_default=line.get("Default") == "YES",
            is_up=line.get("State") == "UP",
            nodes=count_of(line.get("TotalNodes", "")),
            max_nodes=limit_of(line.get("MaxNodes", "")),
            max_minutes=parse_slurm_minutes(line.get("MaxTime", "")),
            qos=text_of(line.get("QoS", "")),
        )
        for line in lines
        if "PartitionName" in line
    ]


def parse_reservations(text: str) -> list[Reservation]:
    """`scontrol --oneliner show reservation`: one a line; a sentence where there is none."""
    lines = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in text.splitlines()]
    return [
        Reservation(
            name=line["ReservationName"],
            start=time_of(line.get("StartTime", "")),
            end=time_of(line.get("EndTime", "")),
            nodes=text_of(line.get("Nodes", "")),
            node_count=count_of(line.get("NodeCnt", "")),
            users=listed(line.get("Users", "")),
            accounts=listed(line.get("Accounts", "")),
            flags=listed(line.get("Flags", "")),
        )
        for line in lines
        if "ReservationName" in line
    ]


def parse_limits(text: str) -> Limits:
    """`scontrol show config`."""
    said = dict(re.findall(r"^(\w+)\s*=\s?(.*?)\s*$", text, re.MULTILINE))
    return Limits(
        version=said.get("SLURM_VERSION", ""),
        cluster=said.get("ClusterName", ""),
        max_array_size=count_of(said.get("MaxArraySize", "")),
        priority=said.get("PriorityType", ""),
        accounting=said.get("AccountingStorageType", "").endswith("slurmdbd"),
        enforced=listed(said.get("AccountingStorageEnforce", "")),
    )
