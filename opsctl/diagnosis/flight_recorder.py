"""Read the dumps of PyTorch's flight recorder: which collective did not end, and which ranks never came.

With TORCH_NCCL_TRACE_BUFFER_SIZE (newer: TORCH_FR_BUFFER_SIZE) every rank records its last collectives, and writes them
at a time-out into one file, `<prefix><rank>`, a pickle or JSON. torch/csrc/distributed/c10d/FlightRecorder names the
fields.
"""

import io
import pickle
import pickletools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from opsctl.base.tables import read_patterns
from opsctl.state.files import find_matches, is_regular, parse_json
from opsctl.state.run_dir import FLIGHT_DUMP_PREFIX
from opsctl.trainer.bounded_files import read_bounded

MAX_DUMP_BYTES = 64 << 20
MAX_VALUES_A_BYTE = 8
"""Values of a pickle, which names an object again by two bytes."""
MAX_NAMED_RANKS = 8
DUMP_PATTERNS = (f"{FLIGHT_DUMP_PREFIX}*", "nccl_trace_rank_*", "comm_lib_trace_rank_*")
"""Names of dumps: those of an attempt's directory, and those that torch gives by default."""
_RANK = re.compile(r"(\d{1,7})(?:\.(?:json|pkl|pickle))?")
_PLAIN = read_patterns("diagnosis/patterns.toml", "flight")["plain"]


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
    rank: int
    ranks_by_group: Mapping[str, tuple[int, ...]]
    """The ranks of each group, by the group's number or name, as far as the dump names them."""
    collectives: tuple[Collective, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProblem:
    """A collective of one process group for which ranks wait, or in whose place ranks call different collectives."""

    group: str
    number: int
    calls: Mapping[str, tuple[int, ...]]
    """The ranks that came, by the collective that they call."""
    missing: tuple[int, ...] = ()
    """The ranks that have a dump and never came."""
    unfinished: tuple[int, ...] = ()
    """If all ranks with a dump came: the ranks on which the collective did not end."""
    without_dump: tuple[int, ...] = ()

    def render(self, homes: Mapping[int, str] | None = None) -> Iterator[str]:
        """Yield the lines for people. `homes` is the node by rank, as far as known."""
        homes = homes or {}
        call = next(iter(self.calls), "")
        if len(self.calls) > 1:
            parts = [f"{name_ranks(ranks, homes)} in {call}" for call, ranks in self.calls.items()]
            text = f"different collectives at number {self.number}: {'; '.join(parts)}"
        elif self.missing:
            text = f"{name_ranks(self.missing, homes)} never came to {call or 'the collective'} (number {self.number})"
        else:
            who = "the ranks with a dump" if self.without_dump else "all ranks"
            where = name_ranks(self.unfinished, homes)
            text = f"{who} came to {call} (number {self.number}), which did not end on {where}"
        yield f"group {self.group}: {text}"
        if self.without_dump:
            yield f"group {self.group}: no dump of {name_ranks(self.without_dump, homes)}"


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


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise ValueError(f"a pickle that loads {module_name}.{global_name}")


def load_plain(data: bytes) -> Any:
    """Return the object of a pickle. Raises ValueError for anything but plain containers, numbers and texts."""
    try:
        for opcode, argument, _ in pickletools.genops(data):
            # Before it stores an object under a number, the unpickler reserves memory for as many.
            is_far = "PUT" in opcode.name and not 0 <= int(argument or 0) <= len(data)
            if is_far or not _PLAIN.fullmatch(opcode.name):
                raise ValueError(f"a pickle with the instruction {opcode.name}")
        content = _Unpickler(io.BytesIO(data)).load()
        _check_extent(content, MAX_VALUES_A_BYTE * len(data))
    except (
        ValueError,
        pickle.UnpicklingError,
        LookupError,
        TypeError,
        OverflowError,
        AttributeError,
        EOFError,
    ) as error:
        raise ValueError(f"not a plain pickle: {error!s:.200}") from error
    return content


def _check_extent(content: Any, max_values: int) -> None:
    """Raise ValueError for more values than that: in a pickle, one list can stand in many places of another."""
    waiting, visits = [content], 0
    while waiting:
        item = waiting.pop()
        visits += 1
        if isinstance(item, dict | list | tuple):
            waiting += item.values() if isinstance(item, dict) else item
        if visits + len(waiting) > max_values:
            raise ValueError(f"a pickle of more than {max_values} values")


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
    paths = chain.from_iterable(find_matches(directory, pattern) for pattern in DUMP_PATTERNS)
    return list(filter(None, map(_read_any, sorted(paths))))


def find_dumps(paths: Sequence[Path]) -> list[FlightDump]:
    """Return the dumps among files of any name, and in directories under the names of dumps; one for each rank."""
    dumps: dict[int, FlightDump] = {}
    for path in paths:
        found = read_dumps(path) if path.is_dir() else [_read_any(path)]
        dumps |= {dump.rank: dump for dump in found if dump}
    return [dumps[rank] for rank in sorted(dumps)]


def _read_any(path: Path) -> FlightDump | None:
    """Return the dump in a file; None for any other file."""
    try:
        return read_dump(path) if is_regular(path) else None
    except (OSError, ValueError):
        return None


def explain_dumps(dumps: Sequence[FlightDump], homes: Mapping[int, str] | None = None) -> list[str]:
    """Return one line for each process group in which ranks wait, or call different collectives. Pure."""
    return list(chain.from_iterable(problem.render(homes) for problem in find_problems(dumps)))


def describe_dumps(dumps: Sequence[FlightDump], homes: Mapping[int, str] | None = None) -> list[str]:
    """Return the lines of all problems, or one line that there is none; nothing without dumps. Pure."""
    ranks = name_ranks([dump.rank for dump in dumps])
    none = [f"flight recorder: no collective waits for a rank in the dumps of {ranks}"] * bool(dumps)
    return explain_dumps(dumps, homes) or none


def find_problems(dumps: Sequence[FlightDump]) -> list[GroupProblem]:
    """Return one problem for each process group in which ranks wait, or call different collectives. Pure."""
    groups: dict[str, dict[int, dict[int, Collective]]] = {}
    for dump in dumps:
        for call in dump.collectives:
            groups.setdefault(call.group, {}).setdefault(dump.rank, {})[call.number] = call
    return list(filter(None, (_judge_group(group, calls, dumps) for group, calls in groups.items())))


def _judge_group(
    group: str, known: Mapping[int, Mapping[int, Collective]], dumps: Sequence[FlightDump]
) -> GroupProblem | None:
    """Judge the calls of one group, by rank and number."""
    calls = {dump.rank: known.get(dump.rank, {}) for dump in dumps}
    members = _find_members(group, dumps) or tuple(calls)
    silent = tuple(rank for rank in members if rank not in calls)
    last = {rank: max(calls[rank], default=0) for rank in members if rank in calls}
    problem = _find_difference(group, calls) or _find_wait(group, calls, last)
    return replace(problem, without_dump=silent) if problem else None


def _find_members(group: str, dumps: Sequence[FlightDump]) -> tuple[int, ...]:
    """Return the ranks of a group; empty if no dump names them."""
    name = group.partition(" ")[0]
    for dump in dumps:
        groups = dump.ranks_by_group
        if ranks := groups.get(name) or (next(iter(groups.values())) if len(groups) == 1 else ()):
            return ranks
    return ()


def _find_difference(group: str, calls: Mapping[int, Mapping[int, Collective]]) -> GroupProblem | None:
    """Return the first number at which ranks call different collectives."""
    for number in sorted(set(chain.from_iterable(calls.values()))):
        ranks_by_call: dict[str, list[int]] = {}
        for rank, own in calls.items():
            if number in own:
                ranks_by_call.setdefault(own[number].name, []).append(rank)
        if len(ranks_by_call) > 1:
            named = {name: tuple(ranks) for name, ranks in ranks_by_call.items()}
            return GroupProblem(group=group, number=number, calls=named)
    return None


def _find_wait(
    group: str, calls: Mapping[int, Mapping[int, Collective]], last: Mapping[int, int]
) -> GroupProblem | None:
    """Return the collective that did not end, with the ranks that never came."""
    waiting_at = min(last.values(), default=0) + 1
    came = tuple(rank for rank in last if last[rank] >= waiting_at)
    if came:
        call = calls[came[0]].get(waiting_at)
        missing = tuple(rank for rank in last if rank not in came)
        ranks_by_call = {str(call or ""): came}
        return GroupProblem(group=group, number=waiting_at, calls=ranks_by_call, missing=missing)
    unfinished = tuple(rank for rank, number in last.items() if number and not calls[rank][number].is_over)
    if not unfinished:
        return None
    number = last[unfinished[0]]
    ranks_by_call = {str(calls[unfinished[0]][number]): tuple(last)}
    return GroupProblem(group=group, number=number, calls=ranks_by_call, unfinished=unfinished)


def name_ranks(ranks: Sequence[int], homes: Mapping[int, str] | None = None) -> str:
    """Return `rank 3`, or `ranks 0, 1 (node7), 2`, with the nodes in `homes`, cut after a few."""
    homes = homes or {}
    parts = [f"{rank} ({homes[rank]})" if homes.get(rank) else str(rank) for rank in sorted(ranks)[:MAX_NAMED_RANKS]]
    more = ", ..." if len(ranks) > MAX_NAMED_RANKS else ""
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(parts)}{more}"
