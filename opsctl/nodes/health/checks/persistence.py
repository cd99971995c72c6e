"""Check persistence mode: without it an idle driver is unloaded and loses its error counters."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity


def persistence(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:  # noqa: ARG001 (every check has the same form)
    off = [gpu for gpu in (snapshot.smi.gpus if snapshot.smi else ()) if gpu.persistence is False]
    if off:
        yield CheckResult(
            check="persistence",
            severity=Severity.NOTE,
            evidence=f"off on {len(off)} GPUs: an idle driver loses its error counters",
            remedy="run nvidia-smi -pm 1 as administrator",
        )
