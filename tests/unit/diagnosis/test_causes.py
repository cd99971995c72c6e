"""Rows of the catalogue of causes classify real lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from opsctl.diagnosis.causes import UNEXPLAINED, Weight, causes, classify
from opsctl.diagnosis.scan_logs import select_lines
from opsctl.diagnosis.speakers import split

LINES = Path(__file__).parents[2] / "corpus" / "diagnosis" / "lines"


def lines_of(name: str) -> list[str]:
    return [line for line in (LINES / f"{name}.txt").read_text().splitlines() if line and not line.startswith("# ")]


ALL = [(cause.name, line) for cause in causes() for line in lines_of(cause.name)]


@pytest.mark.parametrize(("name", "line"), ALL, ids=[f"{name}-{n}" for n, (name, _) in enumerate(ALL)])
def test_line_has_the_cause_of_its_row(name: str, line: str) -> None:
    cause = classify(split(line.encode())[1].decode())
    assert cause is not None
    assert cause.name == name


@pytest.mark.parametrize(("name", "line"), ALL, ids=[f"{name}-{n}" for n, (name, _) in enumerate(ALL)])
def test_line_passes_the_gate(name: str, line: str) -> None:
    assert list(select_lines(line.encode()))


@pytest.mark.parametrize("cause", causes(), ids=lambda cause: cause.name)
def test_every_row_has_two_lines_with_a_source(cause: object) -> None:
    text = (LINES / f"{cause.name}.txt").read_text()
    assert len(lines_of(cause.name)) >= 2
    assert re.match(r"# \S", text)


def test_every_file_of_lines_has_a_row() -> None:
    assert {path.stem for path in LINES.iterdir()} == {cause.name for cause in causes()}


def test_later_row_exists() -> None:
    names = {cause.name for cause in causes()}
    assert {cause.later for cause in causes() if cause.later} <= names


HARMLESS = [
    " iteration    29020/  311541 | lm loss: 2.775923E+00 | number of nan iterations:   0 |",
    "[2021-08-08 01:00:44,221] [INFO] [logging.py:68:log_dist] [Rank 0] Saving model checkpoint: /ckpt/mp_rank_00.pt",
    "ubuntu:39964:40049 [5] NCCL INFO Channel 20 : 5[5] -> 4[4] via SHM/direct/direct",
    "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.",
    "NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001",
    "*****************************************",
    "srun: error: node001: task 3: Exited with exit code 143",
    "/lib/python3.8/site-packages/torch/cuda/__init__.py: UserWarning: something may be slow",
]


ALL_CLEAR = [
    "volatile uncorrectable ECC errors = 0, all GPUs fine",
    "[health] uncorrectable ECC errors: none",
    "GPU 0: 0 uncorrectable ECC errors, 12 corrected",
    "monitoring for uncorrectable ECC errors on 8 GPUs",
    "uncorrectable ECC error threshold = 1",
    "will drain the node if uncorrectable ECC errors > 0",
    "no uncorrectable hardware errors detected",
    "amdgpu 0000:c1:00.0: amdgpu: no uncorrectable hardware errors detected in umc block",
    "amdgpu 0000:c1:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block",
    "fallen off the bus? no",
    "GPU 3 has not fallen off the bus",
    "no GPU has fallen off the bus",
    "GPU requires reset: No",
    "NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)",
    "NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Non-fatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)",
    "NVRM: Xid (PCI:0000:1a:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
    "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ interrupt",
    "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-Fatal, Link 44 Minion Link DLREQ interrupt",
    "pcieport 0000:80:1b.4: AER: Uncorrected (Non-Fatal) error received: 0000:80:1b.4",
    "mce: [Hardware Error]: Machine check events logged",
    "EDAC MC0: 1 CE memory read error on CPU_SrcID#0",
    "fabric manager: 0 failures",
    "no kernel panics or soft lockups in the last day",
    "amdgpu: no GPU hang",
    "HW Exception by GPU node: none",
    "If you see 'GPU has fallen off the bus', reboot the node",
    "hint: uncorrectable ECC errors mean that the GPU must be replaced",
    "uncorrectable ECC error ........ OK",
    "uncorrectable ECC errors: GPU0=0 GPU1=0 GPU2=0 GPU3=0",
    '"uncorrectable ECC errors": 0, "xid": []',
    'gpu_health{check="uncorrectable ECC error"} 0',
    "uncorrectable ECC error | 0 | 0 | 0",
]


@pytest.mark.parametrize("line", ALL_CLEAR)
def test_all_clear_names_no_cause(line: str) -> None:
    """What health checks and monitors print into the log of a healthy rank."""
    cause = classify(line)
    assert cause is None or cause.weight is Weight.NOTE


FAULTS = {
    "rank 0: uncorrectable ECC error encountered rank=0": "gpu-ecc",
    "GPU 0 has fallen off the bus": "gpu-off-the-bus",
    "uncorrectable ECC errors = 3": "gpu-ecc",
    "uncorrectable ECC errors: GPU0=0 GPU1=2 GPU2=0 GPU3=0": "gpu-ecc",
    "uncorrectable ECC error | 0 | 7 | 0": "gpu-ecc",
    "CUDA error: uncorrectable ECC error encountered (code = 0)": "gpu-ecc",
    "no checkpoint was written: CUDA error: uncorrectable ECC error encountered": "gpu-ecc",
    "0 uncorrectable ECC errors at start; now CUDA error: uncorrectable ECC error encountered": "gpu-ecc",
    "NVRM: GPU 0000:0f:00.0: RmInitAdapter failed! (0x26:0x56:1463)": "gpu-off-the-bus",
    "NVRM: Xid (PCI:0000:0c:00): 74, pid=1, NVLink: fatal error detected on link 6(0x10000)": "gpu-nvlink",
    "NVRM: Xid (PCI:0000:1a:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Reboot)": "gpu-xid",
    "NVRM: Xid (PCI:0000:1a:00): 999, what": "gpu-xid-other",
    "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up": "gpu-nvlink",
    "amdgpu 0000:e3:00.0: amdgpu: uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!": "gpu-ecc",
    "amdgpu 0000:c1:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block": "gpu-ecc",
    "amdgpu 0000:e3:00.0: amdgpu: GPU reset(1) failed": "gpu-firmware",
    "amdgpu 0000:48:00.0: amdgpu: Fatal error during GPU init": "gpu-firmware",
}


@pytest.mark.parametrize("line", FAULTS)
def test_fault_beside_harmless_words_keeps_its_cause(line: str) -> None:
    cause = classify(line)
    assert cause is not None
    assert cause.name == FAULTS[line]
    assert list(select_lines(line.encode()))


@pytest.mark.parametrize("line", HARMLESS)
def test_harmless_line_has_no_cause(line: str) -> None:
    assert classify(line) is None


def test_unknown_traceback_is_unexplained() -> None:
    assert classify("Traceback (most recent call last):") is UNEXPLAINED


SURVIVED = [
    "wandb: Currently logged in as: user. Use `wandb login --relogin` to force relogin",
    "UserWarning: Failed to load image Python extension: 'libpng16.so.16: cannot open shared object file'",
    "node1:10:10 [0] NCCL INFO NET/Plugin : Plugin load returned 2 : libnccl-net.so: cannot open shared object file",
    "node1:10:10 [0] NCCL INFO NET/IB : No device found.",
    "node1:10:10 [0] NCCL INFO Could not enable P2P between dev 1(=2000) and dev 0(=1000)",
    "[W init.cpp:767] Warning: nvfuser is no longer supported in torch script",
    " > WARNING: could not find the metadata file /ckpt/latest_checkpointed_iteration.txt",
    "pyxis: imported docker image: nvcr.io#nvidia/pytorch:23.10-py3",
    "`use_cache=True` is incompatible with gradient checkpointing. Setting `use_cache=False`...",
    "  tensor_model_parallel_size ...................... 4",
    "[2024-01-01 10:00:00,123] [INFO] [config.py:1001:print]   zero_optimization_stage .......... 2",
    "apex is not installed",
    "[2024-01-01 10:00:00,123] [WARNING] [runner.py:178:fetch_hostfile] Unable to find hostfile, will proceed alone",
]


@pytest.mark.parametrize("line", SURVIVED)
def test_line_of_a_healthy_start_explains_no_end(line: str) -> None:
    cause = classify(split(line.encode())[1].decode())
    assert cause is None or cause.weight is Weight.NOTE


AMD = re.compile(r"\bHIP\b|\bhip[A-Z]|amdgpu|ROC[mk]|HSA_|miopen|MIOpen|rocblas|Memory access fault by GPU")
NVIDIA = re.compile(r"CUDA|\bXid|nvidia-|NVML")


@pytest.mark.parametrize("line", [line for _, line in ALL if AMD.search(line)])
def test_advice_about_amd_names_its_tools(line: str) -> None:
    cause = classify(split(line.encode())[1].decode())
    assert cause is not None
    assert not NVIDIA.search(cause.advice) or re.search(r"AMD|amd-|roc", cause.advice)
    assert not re.search(r"CUDA|NVIDIA", cause.says) or "cuBLAS" in cause.says
