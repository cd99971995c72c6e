"""Whole runs with compiled blocks: bit-exact resumes, and a machine without a compiler."""

import shutil

import pytest

from tests.integration.trainer.conftest import tiny

pytest.importorskip("deepspeed")
pytestmark = pytest.mark.torch

MODEL = {"layers": 2, "hidden": 32, "heads": 2, "sequence": 32}


CUTS = [{"pipeline": 2}, {"tensor": 2}, {"tensor": 2, "sequence_parallel": True}]


def compiled(**changes):
    return tiny(steps=6, model=MODEL | {"family": "bloom"}, compile=True, checkpoint={"every": 3}) | changes


@pytest.mark.parametrize("parallel", CUTS, ids=" ".join)
def test_resume_of_a_compiled_run_is_exact(train, tmp_path, monkeypatch, parallel):
    """With tensor ranks, what they exchange stays out of the compiled code."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    whole = train(**compiled(parallel=parallel))
    assert whole.start(world=2).finish() == [0] * 2, whole.attempts[0].log
    cut = train(**compiled(parallel=parallel))
    cut.adopt(whole)
    for path in cut.checkpoints.glob("*6"):
        path.rename(path.with_name("gone"))
    resumed = cut.start(world=2)
    assert resumed.finish() == [0] * 2, resumed.log
    reference = whole.attempts[0]
    assert "not compiled" not in reference.log + resumed.log
    assert resumed.losses == {step: reference.losses[step] for step in (4, 5, 6)}

    plain = train(**compiled(compile=False, parallel=parallel))  # a run may begin or stop to compile at a resume
    plain.adopt(cut)
    shutil.rmtree(plain.checkpoints / "step-0000006")
    assert plain.start(world=2).finish() == [0] * 2, plain.attempts[0].log
    written = plain.attempts[0].losses
    apart = max(abs(float(written[step]) / float(loss) - 1) for step, loss in resumed.losses.items())
    print(f"\n{parallel}: losses of compiled blocks within {apart:.1e} of those as written")  # noqa: T201 - the figure
    assert apart <= 1e-6


def test_machine_without_a_compiler_trains_on(train, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))  # CXX is read at the import, before ranks are forked
    run = train(**compiled())
    attempt = run.start(world=2)
    assert attempt.finish() == [0] * 2, attempt.log
    assert attempt.log.count("blocks are not compiled: rank 0: ") == 1
