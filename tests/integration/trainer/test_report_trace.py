"""`--trace`: the calls of chosen packages, written to one file per rank."""

import json
import re
import sys
from pathlib import Path

import pytest

from opsctl.trainer.rank_process import _Profile
from tests.integration.trainer.conftest import tiny

pytestmark = pytest.mark.torch
pytest.importorskip("deepspeed")


def test_full_disk_does_not_disturb_the_traced_code():
    profile = _Profile(("json",), Path("/dev/full").open("w", buffering=1))  # noqa: SIM115 - closing it would raise
    sys.setprofile(profile)
    try:
        text = json.dumps({"a": 1}, indent=1)
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert json.loads(text) == {"a": 1}


def test_package_is_chosen_by_its_full_name(tmp_path):
    calls = (tmp_path / "calls").open("w+", buffering=1)
    profile = _Profile(("json.enc", "json.decoder"), calls)
    sys.setprofile(profile)
    json.loads(json.dumps({"a": 1}, indent=1))
    sys.setprofile(None)
    calls.seek(0)
    assert {line.split()[2].rpartition("JSON")[0] for line in calls} == {"json.decoder."}


def test_rank_traces_only_chosen_packages(train):
    run = train(**tiny(steps=2, trace=["opsctl.trainer.loop", "opsctl.trainer.engine"]))
    attempt = run.start(world=2)
    assert attempt.finish() == [0, 0], attempt.log
    for rank in (0, 1):
        text = (run.run_dir / "attempts" / "7_0.0" / "trace" / f"node0-{rank}.log").read_text()
        lines = [re.fullmatch(r"(\d+\.\d{6}) (\d+) ( *)(\S+) (\S+):(\d+)", line) for line in text.splitlines()]
        assert all(lines), text
        names = [line[4] for line in lines]
        assert names.count("opsctl.trainer.engine.Engine.step") == 2
        assert {name.split(".")[2] for name in names} == {"loop", "engine"}
        depth = {line[4]: len(line[3]) for line in lines}
        assert (
            depth["opsctl.trainer.engine.Engine.step"]
            > depth["opsctl.trainer.loop._step"]
            > depth["opsctl.trainer.loop.train"]
        )
    assert json.loads((run.run_dir / "trainer.json").read_text())["trace"]
