"""Rows of GPU memory that were, are to be, or could not be replaced by spare ones; AMD's cards retire pages instead."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity


def remapped_rows(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:  # noqa: ARG001 (every check has the same form)
    for gpu in snapshot.smi.gpus if snapshot.smi else ():

        def result(severity: Severity, evidence: str, remedy: str = "", uuid: str = gpu.uuid) -> CheckResult:
            return CheckResult(check="remapped_rows", severity=severity, gpu=uuid, evidence=evidence, remedy=remedy)

        if gpu.rows_failed:
            literal = "a row could not be remapped" if gpu.maker == "nvidia" else "more bad pages than are allowed"
            yield result(Severity.FAULTY, literal, "run the field diagnostic; replace the card")
        elif gpu.rows_pending:
            yield result(
                Severity.DEGRADED, "a row waits to be remapped; what runs is safe", "reset the GPU when it is free"
            )
        elif gpu.maker == "nvidia" and None in {gpu.rows_failed, gpu.rows_pending}:
            yield result(Severity.UNKNOWN, "remapped rows: N/A" + (" under MIG" if gpu.mig else ""))
        if gpu.rows_used_up:
            yield result(Severity.NOTE, f"{gpu.rows_used_up} banks have no spare row left")
