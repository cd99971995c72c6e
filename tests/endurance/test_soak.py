"""Run 500 watch cycles over twenty trains with random faults, in 10 to 17 minutes, at most 23.

`SOAK_SEED=7 pytest -s tests/endurance/test_soak.py` prints the table of docs/explanation/reliability.md, also when the
soak fails.
"""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from opsctl.sandbox.record import Places
from tests.endurance.soak.run_soak import Soak, make_report, soaking
from tests.endurance.soak.soak_report import list_causes, render_table

CYCLES = int(os.environ.get("SOAK_CYCLES", "500"))
SECONDS = float(os.environ.get("SOAK_SECONDS", "800"))
SEED = int(os.environ.get("SOAK_SEED", "7"))


def print_figures(soak: Soak, fields: dict[str, Any], *, minutes: float) -> None:
    lines = [*list_causes(soak.figures, fields), *(f"{name}: {figure}" for name, figure in fields.items())]
    print(*lines, "", f"| | seed {SEED} |", "|---|---:|", *render_table(fields, minutes), sep="\n")  # noqa: T201 (for docs)


@pytest.mark.timeout(1500)
def test_no_alert_is_lost_no_cycle_dies_and_nothing_healthy_is_called_dead(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    places = Places(state=tmp_path / "sandbox", cache=tmp_path / "cache")
    began_s = time.monotonic()
    with soaking(tmp_path, places, cycles=CYCLES, seed=SEED, seconds=SECONDS) as soak:
        try:
            soak.go()
        finally:
            fields = make_report(soak)
            print_figures(soak, fields, minutes=(time.monotonic() - began_s) / 60)
    assert not fields["cut off"]
    assert fields["lost"] == {}
    assert fields["false"] == {"mail": {}, "slack": {}}
    assert fields["doubled though answered"] == {"mail": {}, "slack": {}}
    assert (fields["cycles that died"], fields["bugs"], fields["left in outboxes"]) == ([], [], 0)
    memory = fields["memory after each quarter, MiB"]
    assert memory[-1] < memory[0] + 40
