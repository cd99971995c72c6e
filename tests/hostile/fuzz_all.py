"""All fuzz targets, by name."""

from importlib.util import find_spec

from tests.hostile.fuzz import FuzzTarget
from tests.hostile.fuzz_targets import PARSERS

TARGETS: dict[str, FuzzTarget] = dict(PARSERS)
if find_spec("opsctl.state.requests"):  # without, the files below the shared root are not read within bounds
    from tests.hostile.fuzz_state import STATE_TARGETS

    TARGETS |= STATE_TARGETS
