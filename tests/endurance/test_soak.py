"""Run 500 watch cycles over twenty trains with random faults, in ten to fifteen minutes.

`pytest -s tests/endurance/test_soak.py` prints the figures of docs/explanation/reliability.md.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from opsctl.sandbox.record import Places
from tests.endurance.soak.run_soak import list_causes, make_report, soaking

CYCLES = int(os.environ.get("SOAK_CYCLES", "500"))
SECONDS = float(os.environ.get("SOAK_SECONDS", "800"))
SEED = int(os.environ.get("SOAK_SEED", "7"))


@pytest.mark.timeout(1500)
def test_no_alert_is_lost_no_cycle_dies_and_nothing_healthy_is_called_dead(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    places = Places(state=tmp_path / "sandbox", cache=tmp_path / "cache")
    with soaking(tmp_path, places, cycles=CYCLES, seed=SEED, seconds=SECONDS) as soak:
        soak.go()
        fields = make_report(soak)
    print(*list_causes(soak, fields), sep="\n")  # noqa: T201 (explains a failure)
    print(*(f"{name}: {figure}" for name, figure in fields.items()), sep="\n")  # noqa: T201 (the figures are for the docs)
    assert fields["lost"] == {}
    assert fields["false"] == {"mail": {}, "slack": {}}
    assert fields["doubled though answered"] == {"mail": {}, "slack": {}}
    assert (fields["cycles that died"], fields["bugs"], fields["left in outboxes"]) == ([], [], 0)
    memory = fields["memory after each quarter, MiB"]
    assert memory[-1] < memory[0] + 40
