"""Input on which parsers take time that grows with the square of its size: read in time, or refused before."""

import time
from contextlib import suppress

import pytest

from opsctl.nodes.health.node_state import Port
from opsctl.nodes.health.usual_hardware import leave_out_ports
from opsctl.telemetry.disk_usage import MeasurementFailed, read_pattern
from opsctl.watchdogs.slurm_status import find_related_jobs
from tests.hostile.fuzz import FuzzTarget, bounded_memory, bounded_time, find_failure
from tests.hostile.fuzz_all import TARGETS
from tests.hostile.fuzz_outside import SIGNED
from tests.support.cases import read_table
from tests.support.watch_context import job

SHAPES = read_table(__file__, "shapes")
SIZE_BYTES = 40_000
MAX_GROWTH = 9.0
"""Of the time for input of four times the size: 4 if linear, 16 if quadratic."""
MIN_MEASURED_S = 0.06


def make_input(shape: dict[str, str], size: int) -> bytes:
    unit = shape["unit"]
    count = size // len(unit.encode()) + 1
    parts = [unit.replace("{n}", str(n)).replace("{p}", str(n - 1)) for n in range(count)] if "{n}" in unit else None
    middle = "".join(parts)[:size] if parts else unit * count
    return f"{shape.get('begin', '')}{middle}{shape.get('end', '')}".replace("{signed}", SIGNED).encode()


def measure(target: FuzzTarget, data: bytes) -> tuple[float, str]:
    began = time.process_time()
    failure = find_failure(target, data)
    return time.process_time() - began, failure


def find_slow(target: FuzzTarget, shape: dict[str, str]) -> str:
    """Return how the target fails on a shape; empty if its time grows with the size alone."""
    spent_s, failure = measure(target, make_input(shape, SIZE_BYTES))
    if failure or spent_s < MIN_MEASURED_S:
        return failure
    more_s, failure = measure(target, make_input(shape, 4 * SIZE_BYTES))
    return failure or (f"{spent_s:.2f} s, then {more_s:.2f} s" if more_s > MAX_GROWTH * spent_s else "")


@pytest.mark.attack("input of a stranger stops every command that reads it")
@pytest.mark.parametrize("name", TARGETS)
def test_input_is_read_in_time(name: str) -> None:
    with bounded_time(), bounded_memory():
        slow = {shape["id"]: failure for shape in SHAPES if (failure := find_slow(TARGETS[name], shape))}
    assert slow == {}


def test_guard_of_time_holds() -> None:
    shape = {"unit": "a"}
    with bounded_time():
        assert " s, then " in find_slow(FuzzTarget(lambda data: [n for _ in data[::14] for n in data[::14]]), shape)
        assert find_slow(FuzzTarget(bytes.split), shape) == ""


@pytest.mark.attack("a pattern of a user never ends on a text of a stranger")
@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(.*a){20}", "(?P<used>a*)*b"])
def test_pattern_of_a_user_is_searched_in_time(pattern: str) -> None:
    text = "a" * 4000 + "!"
    began = time.process_time()
    with suppress(MeasurementFailed):
        read_pattern(text, pattern)
    find_related_jobs((pattern,), (job(name=text, user="me"),), "me", set())
    leave_out_ports({text: Port(state="ACTIVE")}, pattern)
    assert time.process_time() - began < 2
