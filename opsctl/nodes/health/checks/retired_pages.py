"""Check the pages of GPU memory that Volta and Turing cards took out of use.

A pending retirement takes effect at the next reset (NVIDIA, Dynamic Page Retirement). A card can retire 64 pages
(docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/row-remapping.html); from 60 on (`retired_pages`) the card is replaced,
before retirement fails. gcm warns from 10 on; here any retired page is a note.
"""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, Gpu, NodeSnapshot, Severity


def retired_pages(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    limit = check_input.site.retired_pages
    for gpu in snapshot.smi.gpus if snapshot.smi else ():
        count = gpu.retired_pages or 0
        if count >= limit:
            yield _result(
                gpu, Severity.FAULTY, f"{count} retired pages, allowed are fewer than {limit}", "replace the GPU"
            )
        elif count:
            yield _result(gpu, Severity.NOTE, f"{count} retired pages")
        if gpu.retirement_pending:
            text = "a page waits to be retired"
            yield _result(gpu, Severity.DEGRADED, text, "reset the GPU when no job uses the GPU")


def _result(gpu: Gpu, severity: Severity, evidence: str, remedy: str = "") -> CheckResult:
    return CheckResult(check="retired_pages", severity=severity, gpu=gpu.uuid, evidence=evidence, remedy=remedy)
