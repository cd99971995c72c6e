"""Invalid input is reported before training begins."""

import json
import os
import subprocess
import sys

import pytest

from tests.integration.trainer.conftest import ROOT, tiny
from tests.support.cases import read_cases

pytestmark = pytest.mark.torch
pytest.importorskip("deepspeed")

MODEL = {"layers": 2, "hidden": 32, "heads": 2, "sequence": 32}


def run_trainer(*arguments, **environ):
    return subprocess.run(
        [sys.executable, "-m", "opsctl.trainer", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | environ,
        timeout=250,
    )


@pytest.mark.parametrize(*read_cases(__file__, "invalid_input_is_refused_in_one_line"))
def test_invalid_input_is_refused_in_one_line(tmp_path, config, environ, words):
    (tmp_path / "trainer.json").write_text(json.dumps(config))
    done = run_trainer(tmp_path / "trainer.json", **environ)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_missing_arguments_show_the_usage():
    assert "usage: python -m opsctl.trainer CONFIG " in run_trainer().stderr
    assert "cannot be read" in run_trainer("/gone.json").stderr
    assert "--processes has no effect without --dry-run" in run_trainer("/gone.json", "--processes", 4).stderr


def test_too_little_data_is_refused(train, corpus):
    run = train(**tiny(model=MODEL | {"sequence": 10**6}))
    attempt = run.start(world=2)
    assert attempt.finish() == [2, 2]
    assert "too few for one sample of 1000000" in attempt.log
