"""Read the dumps of PyTorch's flight recorder: which collective did not end, and which ranks never came.

With TORCH_NCCL_TRACE_BUFFER_SIZE (newer: TORCH_FR_BUFFER_SIZE) every rank records its last collectives, and writes them
at a time-out into one file, `<prefix><rank>`, a pickle or JSON. torch/csrc/distributed/c10d/FlightRecorder names the
fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from opsctl.diagnosis.plain_pickle import load_plain
from opsctl.state.files import find_matches, is_regular, parse_json
from opsctl.state.run_dir import FLIGHT_DUMP_PREFIX
from opsctl.trainer.contract import read_bounded

MAX_DUMP_BYTES = 64 << 20
MAX_NAMED_RANKS = 8
_RANK = re.compile(r"(\d{1,7})(?:\.(?:json|pkl|pickle))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One recorded collective of one rank."""

    group: str
    """Number and description of the process group, such as `0 default_pg`."""
    number: int
    """Position in the group's sequence. All ranks of a group run the same sequence."""
    name: str
    """Such as `nccl:all_reduce`."""
    sizes: str
    is_over: bool

    def __str__(self) -> str:
        return f"{self.name} {self.sizes}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightDump:
    """The dump of one rank."""

    rank: int
    ranks_by_group: Mapping[str, tuple[int, ...]]
    """The ranks of each group, by the group's number or name, as far as the dump names them."""
    collectives: tuple[Collective, ...]


def read_dump(path: Path) -> FlightDump:
    """Read one dump, whose file name ends with the rank. Raises OSError, ValueError."""
    match = re.search(rf"{_RANK.pattern}$", path.name)
    if match is None:
        raise ValueError(f"{path.name}: the name does not end with a rank")
    data = read_bounded(path, MAX_DUMP_BYTES)
    fields = parse_json(data) if data.lstrip()[:1] == b"{" else load_plain(data)
    try:
        return parse_dump(int(match[1]), fields)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"{path.name}: not a dump of the flight recorder: {error!r}") from error


def parse_dump(rank: int, fields: Mapping[str, Any]) -> FlightDump:
    """Parse the content of a dump. Raises KeyError, TypeError, AttributeError, IndexError for other content."""
    ranks_by_group = {
        name: tuple(int(number) for number in re.findall(r"\d{1,7}", str(group["ranks"])))
        for name, group in fields.get("pg_config", {}).items()
    }
    entries = [entry for entry in fields["entries"] if not entry.get("is_p2p")]
    return FlightDump(rank=rank, ranks_by_group=ranks_by_group, collectives=tuple(map(_parse_entry, entries)))


def _parse_entry(entry: Mapping[str, Any]) -> Collective:
    return Collective(
        group=" ".join(str(part) for part in entry["process_group"]),
        number=int(entry["collective_seq_id"]),
        name=str(entry["profiling_name"]),
        sizes=str(entry.get("input_sizes", "")),
        is_over=entry.get("state") == "completed" or bool(entry.get("retired")),
    )


def read_dumps(directory: Path) -> list[FlightDump]:
    """Return the readable dumps of a directory. Other files are ignored."""
    dumps: list[FlightDump] = []
    for path in sorted(find_matches(directory, f"{FLIGHT_DUMP_PREFIX}*")):
        try:
            dumps += [read_dump(path)] if is_regular(path) else []
        except (OSError, ValueError):
            continue
    return dumps


def explain_dumps(dumps: Sequence[FlightDump]) -> list[str]:
    """Return one line for each process group in which ranks wait, or call different collectives. Pure."""
    groups: dict[str, None] = {}
    for dump in dumps:
        groups |= dict.fromkeys(collective.group for collective in dump.collectives)
    return list(chain.from_iterable(_explain_group(group, dumps) for group in groups))


def _explain_group(group: str, dumps: Sequence[FlightDump]) -> list[str]:
    calls = {dump.rank: _calls_of(dump, group) for dump in dumps}
    members = _find_members(group, dumps) or tuple(calls)
    silent = [rank for rank in members if rank not in calls]
    last = {rank: max(calls[rank], default=0) for rank in members if rank in calls}
    lines = _explain_difference(group, calls) or _explain_wait(group, calls, last)
    if lines and silent:
        lines.append(f"group {group}: no dump of {name_ranks(silent)}")
    return lines


def _calls_of(dump: FlightDump, group: str) -> dict[int, Collective]:
    return {collective.number: collective for collective in dump.collectives if collective.group == group}


def _find_members(group: str, dumps: Sequence[FlightDump]) -> tuple[int, ...]:
    """Return the ranks of a group; empty if no dump names them."""
    name = group.partition(" ")[0]
    for dump in dumps:
        groups = dump.ranks_by_group
        if ranks := groups.get(name) or (next(iter(groups.values())) if len(groups) == 1 else ()):
            return ranks
    return ()


def _explain_difference(group: str, calls: Mapping[int, Mapping[int, Collective]]) -> list[str]:
    """Return a line for the first number at which ranks call different collectives."""
    for number in sorted(set(chain.from_iterable(calls.values()))):
        ranks_by_call: dict[str, list[int]] = {}
        for rank, own in calls.items():
            if number in own:
                ranks_by_call.setdefault(own[number].name, []).append(rank)
        if len(ranks_by_call) > 1:
            parts = [f"{name_ranks(ranks)} in {call}" for call, ranks in ranks_by_call.items()]
            return [f"group {group}: different collectives at number {number}: {'; '.join(parts)}"]
    return []


def _explain_wait(group: str, calls: Mapping[int, Mapping[int, Collective]], last: Mapping[int, int]) -> list[str]:
    """Return a line for the collective that did not end, with the ranks that never came."""
    waiting_at = min(last.values(), default=0) + 1
    came = [rank for rank in last if last[rank] >= waiting_at]
    if came:
        call = calls[came[0]].get(waiting_at)
        missing = name_ranks([rank for rank in last if rank not in came])
        return [f"group {group}: {missing} never came to {call or 'the collective'} (number {waiting_at})"]
    open_ranks = [rank for rank, number in last.items() if number and not calls[rank][number].is_over]
    if not open_ranks:
        return []
    call = calls[open_ranks[0]][last[open_ranks[0]]]
    came_to = f"all ranks came to {call} (number {waiting_at - 1})"
    return [f"group {group}: {came_to}, which did not end on {name_ranks(open_ranks)}"]


def name_ranks(ranks: Sequence[int]) -> str:
    """Return `rank 3`, or `ranks 0, 1, 2`, cut after a few."""
    shown = ", ".join(map(str, sorted(ranks)[:MAX_NAMED_RANKS])) + (", ..." if len(ranks) > MAX_NAMED_RANKS else "")
    return f"rank{'s' * (len(ranks) != 1)} {shown}"
