"""A few cycles of the soak of tests/endurance, to prove that the soak itself works."""

import os
import tempfile
from pathlib import Path

import pytest

from opsctl.sandbox.record import Places
from tests.endurance.soak.run_soak import make_report, soaking
from tests.endurance.soak.soak_report import list_causes


@pytest.mark.long
def test_twenty_cycles_with_faults_lose_no_alert(places: Places, home: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="opsctl-soak-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        with soaking(Path(name), places, cycles=20, seed=3, seconds=0) as soak:
            soak.go()
            fields = make_report(soak)
    story = os.linesep.join([*list_causes(soak.figures, fields), *map(str, fields.items())])
    assert fields["lost"] == {}, story
    assert fields["false"] == {"mail": {}, "slack": {}}, story
    assert fields["doubled though answered"] == {"mail": {}, "slack": {}}, story
    assert (fields["cycles that died"], fields["bugs"], fields["left in outboxes"]) == ([], [], 0)
