"""How often `opsctl why` is right on real failure messages: tests/corpus/failures, both halves.

`python -P benchmarks/diagnosis.py` prints figures only, so that nobody tunes rules on the test half.
`python -P benchmarks/diagnosis.py --cases` also prints the cases of the tuning half that were missed.

right    the cause is one of the corpus' names for it, or the class agrees and the corpus has no name that opsctl lacks
partly   another cause of the right class, or the right symptom where only the thread established the class
unknown  opsctl names no class, or names one where the thread established none
wrong    another class
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from opsctl.diagnosis.causes import CauseKind
from opsctl.diagnosis.diagnose_attempt import diagnose_logs
from opsctl.diagnosis.root_cause import Diagnosis
from opsctl.guard.outcome import ACTION_BY_CAUSE, Action

CORPUS = Path(__file__).parents[1] / "tests" / "corpus" / "failures"
HALVES = ("tuning", "test")
CLASSES: dict[CauseKind, str] = {
    CauseKind.TIME_LIMIT: "time-limit",
    CauseKind.SWITCH: "slurm",
    CauseKind.HANG: "unknown",
}
"""The corpus' name of a class, where opsctl's differs. A wait is a symptom: the corpus calls its class unknown."""

NAMES: dict[str, tuple[str, ...]] = {
    "aborted": ("aborted", "core-dumped"),
    "batch-size": ("deepspeed-batch-size", "batch-size"),
    "build-failed": ("environment-install-failed",),
    "bus-error": ("shm-exhausted", "bus-error"),
    "cancelled": ("job-cancelled",),
    "cannot-connect": ("gloo-connect-failed", "no-route-to-host", "connection-refused"),
    "checkpoint-mismatch": ("state-dict-mismatch", "checkpoint-missing-key"),
    "checkpoint-missing": ("checkpoint-not-found",),
    "checkpoint-unreadable": ("checkpoint-corrupt", "safetensors-header", "checkpoint-state-differs"),
    "child-failed": ("child-failed-no-detail",),
    "collective-timeout": ("nccl-timeout", "hang"),
    "config-key": ("config-key",),
    "container-start": ("container-start-failed", "container-image-broken"),
    "cuda-address": ("illegal-memory-access", "cuda-invalid-argument", "hip-memory-fault"),
    "cuda-launch-failure": ("cuda-launch-failure",),
    "dataset-index": ("dataset-index-broken", "dataset-index-range"),
    "deepspeed-config": ("deepspeed-json",),
    "device-assert": ("device-side-assert",),
    "gpu-architecture": ("no-kernel-image",),
    "gpu-firmware": ("gpu-gsp-timeout",),
    "gpu-invisible": ("no-gpu-visible",),
    "gpu-library-failed": ("cublas-execution-failed", "cudnn-error"),
    "gpu-memory-full": ("cuda-oom", "nccl-cuda-oom"),
    "gpu-memory-taken": ("cuda-oom",),
    "gpu-not-ready": ("fabric-manager",),
    "gpu-off-the-bus": ("gpu-fell-off-bus", "pcie-errors"),
    "gpu-pcie": ("pcie-errors",),
    "gpu-peer-access": ("hip-illegal-state",),
    "hangup": ("hangup-signal",),
    "host-memory-full": ("host-oom", "job-memory-limit", "worker-killed"),
    "infiniband": ("ib-completion-error",),
    "infiniband-event": ("ib-subnet-manager-change",),
    "infiniband-port": ("ib-link-flapping", "ib-memory-registration"),
    "killed": ("killed-signal-9", "killed-bare"),
    "library-version": ("glibc-missing-version",),
    "loss-nan": ("grad-norm-nan",),
    "memory-limit-touched": ("memory-limit-warning",),
    "model-load": ("tokenizer-version",),
    "nan": ("loss-nan", "grad-norm-nan"),
    "node-failure": ("node-failed",),
    "parallel-layout": ("parallel-size-mismatch",),
    "pinned-memory-full": ("pinned-memory-oom",),
    "preempted": ("requeued",),
    "host-unresolved": ("name-resolution",),
    "rendezvous-closed": ("rendezvous-heartbeat-lost",),
    "rank-killed": ("killed-signal-9", "segfault", "aborted"),
    "shared-memory-full": ("shm-exhausted", "dev-shm-full"),
    "slurm-account": ("slurm-account-invalid",),
    "slurm-controller": ("slurm-controller-down", "slurm-config-source"),
    "slurm-gres": ("slurm-gres-invalid",),
    "slurm-limit": ("slurm-qos-limit",),
    "slurm-nodes": ("slurm-node-config-unavailable",),
    "slurm-prolog": ("prolog-failed",),
    "slurm-script": ("slurm-script-missing",),
    "slurm-time-limit-invalid": ("time-limit-invalid",),
    "step-cancelled": ("job-cancelled", "preempted"),
    "storage-disconnected": ("lustre-connection-lost",),
    "storage-error": ("io-error", "checkpoint-write-failed"),
    "storage-full": ("disk-full", "disk-quota"),
    "storage-local": ("local-disk-error",),
    "storage-stale": ("stale-file-handle",),
    "terminated": ("terminated-signal-15",),
    "unkillable": ("kill-task-failed",),
}
"""The corpus' names of a cause, besides opsctl's own name."""


def main() -> None:
    for half in HALVES if "--test" in sys.argv else HALVES[:1]:
        cases = [json.loads(line) for line in (CORPUS / f"{half}.jsonl").read_text().splitlines()]
        scores, excluded = Counter[str](), 0
        for case in cases:
            diagnosis = diagnose_case(case["lines"])
            score = judge(case, diagnosis)
            scores[score] += 1
            is_excluded = is_excludable(diagnosis) and case["scope"] == "none"
            excluded += is_excluded
            if half == "tuning" and "--cases" in sys.argv and (score in {"unknown", "wrong"} or is_excluded):
                print_case(case, diagnosis, score)
        print(render(half, scores, excluded))


def diagnose_case(lines: list[str]) -> Diagnosis:
    with tempfile.TemporaryDirectory() as name:
        log = Path(name, "main_log.txt")
        log.write_text("\n".join(lines) + "\n")
        return diagnose_logs([log])


def judge(case: dict[str, Any], diagnosis: Diagnosis) -> str:
    is_named = case["cause"] in (diagnosis.cause, *NAMES.get(diagnosis.cause, ()))
    named_class = CLASSES.get(diagnosis.kind, diagnosis.kind.value)
    is_class = named_class == case["class"]
    if is_named:
        return "right" if is_class else "partly"
    if diagnosis.kind is CauseKind.UNKNOWN or (case["class"] == "unknown" and not is_excludable(diagnosis)):
        return "unknown"
    return "partly" if is_class else "wrong"


def is_excludable(diagnosis: Diagnosis) -> bool:
    """Return whether finalizing would exclude a node for this diagnosis, if the node belongs to the attempt."""
    return ACTION_BY_CAUSE.get(diagnosis.kind) is Action.EXCLUDE_NODES and bool(diagnosis.suspects)


def print_case(case: dict[str, Any], diagnosis: Diagnosis, score: str) -> None:
    print(f"{score}: {case['id']} {case['cause']} ({case['class']}, {case['basis']}) as {diagnosis.cause}")
    print("\n".join(f"    {line[:200]}" for line in (*case["lines"], "->", *diagnosis.evidence)))


def render(half: str, scores: Counter[str], excluded: int) -> str:
    total = scores.total()
    good = 100 * (scores["right"] + scores["partly"]) / total
    parts = ", ".join(f"{name} {scores[name]}" for name in ("right", "partly", "unknown", "wrong"))
    return f"{half}: {total} cases: {parts}; right or partly {good:.1f} %; healthy nodes or code excludable {excluded}"


if __name__ == "__main__":
    main()
