"""Check the rows of GPU memory that are, or cannot be, remapped. AMD GPUs retire pages instead."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, Gpu, NodeSnapshot, Severity


def remapped_rows(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:  # noqa: ARG001 (every check has the same form)
    for gpu in snapshot.smi.gpus if snapshot.smi else ():
        if gpu.rows_failed:
            text = "a row could not be remapped" if gpu.maker == "nvidia" else "more bad pages than are allowed"
            yield _result(gpu, Severity.FAULTY, text, "run the field diagnostic; replace the GPU")
        elif gpu.rows_pending:
            text = "a row waits to be remapped; running jobs are safe"
            yield _result(gpu, Severity.DEGRADED, text, "reset the GPU when no job uses the GPU")
        elif gpu.maker == "nvidia" and None in {gpu.rows_failed, gpu.rows_pending} and not _has_no_rows(gpu):
            yield _result(gpu, Severity.UNKNOWN, "remapped rows: N/A" + (" under MIG" if gpu.mig else ""))
        if gpu.rows_used_up:
            yield _result(gpu, Severity.NOTE, f"{gpu.rows_used_up} banks have no spare row left")


def _has_no_rows(gpu: Gpu) -> bool:
    """Return whether the card remaps no rows: Volta and Turing retire pages, a card without ECC does neither."""
    return gpu.retired_pages is not None or gpu.has_no_ecc


def _result(gpu: Gpu, severity: Severity, evidence: str, remedy: str = "") -> CheckResult:
    return CheckResult(check="remapped_rows", severity=severity, gpu=gpu.uuid, evidence=evidence, remedy=remedy)
