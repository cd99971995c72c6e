"""Check the ECC errors of GPU memory, since driver load and over the lifetime of the GPU."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, Gpu, NodeSnapshot, Severity
from opsctl.settings.thresholds import Thresholds


def ecc(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    for gpu in snapshot.smi.gpus if snapshot.smi else ():
        if not gpu.ecc and gpu.has_no_ecc:
            if gpu.ecc_mode == "disabled":
                yield _result(gpu, Severity.NOTE, "ECC is switched off: memory errors stay unnoticed")
            continue
        if not gpu.ecc:
            yield _result(gpu, Severity.UNKNOWN, "no ECC counters: N/A")
            continue
        yield from _check_uncorrectable(gpu, check_input.site)
        for kind, limit in (("sram", check_input.site.sram_corrected), ("dram", check_input.site.dram_corrected)):
            corrected = gpu.ecc.get(f"volatile.{kind}_correctable", 0)
            if corrected > limit:
                yield _result(gpu, Severity.DEGRADED, f"{corrected} corrected {kind.upper()} errors, more than {limit}")


def _check_uncorrectable(gpu: Gpu, site: Thresholds) -> Iterator[CheckResult]:
    """Yield uncorrectable errors. Lifetime DRAM errors are no evidence: their rows have been remapped."""
    if sram := gpu.ecc.get("volatile.sram_uncorrectable", 0):
        text = f"{sram} uncorrectable SRAM errors since the driver was loaded"
        yield _result(gpu, Severity.FAULTY, text, "reset the GPU")
    if dram := gpu.ecc.get("volatile.dram_uncorrectable", 0):
        text = f"{dram} uncorrectable DRAM errors since the driver was loaded"
        yield _result(gpu, Severity.DEGRADED, text, "reset the GPU when no job uses the GPU")
    lifetime_sram = gpu.ecc.get("aggregate.sram_uncorrectable", 0)
    if gpu.sram_threshold or lifetime_sram > site.sram_uncorrected_ever:
        text = f"{lifetime_sram} uncorrectable SRAM errors over the GPU's lifetime: more than allowed"
        yield _result(gpu, Severity.FAULTY, text, "replace the GPU")


def _result(gpu: Gpu, severity: Severity, evidence: str, remedy: str = "") -> CheckResult:
    return CheckResult(check="ecc", severity=severity, gpu=gpu.uuid, evidence=evidence, remedy=remedy)
