"""precision = "auto": by the device's instructions at the start of a run, by the checkpoint afterwards."""

import shutil

import pytest

from opsctl.trainer import manifest
from opsctl.trainer.precision import Processor, choose_precision, read_processor
from tests.integration.trainer.conftest import tiny
from tests.support.cases import read_cases


@pytest.mark.parametrize(*read_cases(__file__, "instructions_are_those_that_onednn_may_use"))
def test_instructions_are_those_that_onednn_may_use(cpuinfo, limit, name, has_bf16, tmp_path):
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert read_processor(limit or {}, tmp_path / "cpuinfo") == Processor(name=name, has_bf16=has_bf16)


@pytest.mark.parametrize(*read_cases(__file__, "checkpoint_decides_before_the_gpu_and_the_processor", choice=tuple))
def test_checkpoint_decides_before_the_gpu_and_the_processor(saved, gpu_has_bf16, processor_has_bf16, choice):
    processor = Processor(name="EPYC", has_bf16=processor_has_bf16)
    assert choose_precision(saved=saved, gpu_has_bf16=gpu_has_bf16, processor=processor) == choice


@pytest.mark.torch
def test_auto_keeps_the_precision_of_its_checkpoint_on_another_processor(train, monkeypatch):
    run = train(**tiny(precision="auto"))
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")  # takes the instructions away, where there are any
    first = run.start()
    assert first.finish() == [0, 0, 0, 0], first.log
    assert first.log.count("has no bf16 instructions") == 1, first.log
    shutil.rmtree(run.checkpoints / manifest.directory_name(20))

    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    second = run.start()
    assert second.finish() == [0, 0, 0, 0], second.log
    assert "precision fp32: of the checkpoint" in second.log
    assert {step: first.losses[step] for step in second.losses} == second.losses
    assert manifest.read_manifest(run.checkpoints / manifest.directory_name(20)).precision == "fp32"
