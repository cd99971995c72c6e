"""All fuzz targets, by name."""

from tests.hostile.fuzz import FuzzTarget
from tests.hostile.fuzz_outside import OUTSIDE_TARGETS
from tests.hostile.fuzz_state import STATE_TARGETS
from tests.hostile.fuzz_targets import PARSERS

TARGETS: dict[str, FuzzTarget] = {**PARSERS, **STATE_TARGETS, **OUTSIDE_TARGETS}
