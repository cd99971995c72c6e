"""How often `opsctl why` is right on real failure messages: tests/corpus/failures, both sets.

`python -P benchmarks/diagnosis.py` scores the tuning halves, and `--cases` prints their missed cases. `--test` and
`--test2` score the test half of the first and of the second set as well and print figures only, so that nobody tunes
rules on these halves. `--confusion` prints a table of classes; `--surroundings` scores the tuning halves within whole
logs.

right    the class agrees, and the cause has one of the corpus' names
partly   another cause of the right class or family, or the right symptom where only the thread established the class
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

CORPUS = Path(__file__).parents[1] / "tests" / "corpus" / "failures"
SCORES = ("right", "partly", "unknown", "wrong")
TUNING = ("tuning", "tuning2")
TEST = ("test", "test2")
CLASSES: dict[CauseKind, str] = {
    CauseKind.TIME_LIMIT: "time-limit",
    CauseKind.SWITCH: "slurm",
    CauseKind.HANG: "unknown",
}
"""The corpus' name of a class, where opsctl's differs. A wait is a symptom: the corpus calls its class unknown."""

NAMES: dict[str, tuple[str, ...]] = {
    "rank-exited": (
        "exit-code",
        "child-failed-no-detail",
    ),
    "nccl-warning": ("nccl-warn",),
    "mpi-setup": (
        "pmix-failed",
        "mpi-plugin-missing",
    ),
    "slurm-launch": (
        "step-creation-failed",
        "task-launch-failed",
    ),
    "network-library": (
        "ib-error",
        "efa-error",
        "ofi-error",
    ),
    "thread-limit": ("fork-failed",),
    "interrupted": ("keyboard-interrupt",),
    "worker-died": (
        "worker-exited",
        "dataloader-worker-exited",
    ),
    "collective-mismatch": ("nccl-mismatch",),
    "unused-parameters": ("ddp-unused-parameters",),
    "driver-too-old": (
        "driver-too-old",
        "cuda-driver-insufficient",
    ),
    "version-conflict": (
        "import-error",
        "library-version-mismatch",
    ),
    "library-missing": (
        "shared-library-missing",
        "missing-library",
    ),
    "download-failed": (
        "hub-offline",
        "hub-unreachable",
        "wandb-timeout",
        "wandb-unreachable",
        "ssl-error",
        "download-timeout",
    ),
    "hub-access": (
        "hub-unauthorized",
        "hub-gated",
        "hub-not-found",
        "wandb-api-key",
    ),
    "gpu-program-fault": (
        "gpu-xid",
        "illegal-memory-access",
        "mmu-fault",
    ),
    "gpu-xid-other": ("gpu-xid",),
    "gpu-xid": ("gpu-xid",),
    "connection-lost": (
        "nccl-remote-error",
        "connection-reset",
        "broken-pipe",
        "peer-closed",
        "nccl-connection-closed",
        "remote-process-exited",
        "gloo-connection-closed",
        "store-connection-lost",
        "nccl-peer-closed",
        "nccl-connection-lost",
        "nccl-aborted",
        "tcpstore-closed",
    ),
    "aborted": ("aborted", "core-dumped", "sigabrt"),
    "batch-size": ("deepspeed-batch-size", "batch-size"),
    "build-failed": ("environment-install-failed",),
    "bus-error": ("shm-exhausted", "bus-error"),
    "cancelled": ("job-cancelled",),
    "cannot-connect": (
        "gloo-connect-failed",
        "no-route-to-host",
        "connection-refused",
        "connection-refused",
        "connection-timeout",
        "nccl-connect-failed",
        "connect-timeout",
    ),
    "checkpoint-mismatch": ("state-dict-mismatch", "checkpoint-missing-key"),
    "checkpoint-missing": ("checkpoint-not-found",),
    "checkpoint-unreadable": ("checkpoint-corrupt", "safetensors-header", "checkpoint-state-differs"),
    "child-failed": ("child-failed-no-detail",),
    "collective-timeout": (
        "nccl-timeout",
        "hang",
        "nccl-hang",
        "gloo-timeout",
        "heartbeat-timeout",
        "watchdog-timeout",
    ),
    "config-key": ("config-key",),
    "container-start": (
        "container-start-failed",
        "container-image-broken",
        "container-import-failed",
        "image-pull-failed",
    ),
    "cuda-address": ("illegal-memory-access", "cuda-invalid-argument", "hip-memory-fault", "misaligned-address"),
    "cuda-launch-failure": ("cuda-launch-failure", "cuda-unknown-error"),
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
    "library-version": ("glibc-missing-version", "undefined-symbol", "glibcxx-missing-version"),
    "loss-nan": ("grad-norm-nan",),
    "memory-limit-touched": ("memory-limit-warning",),
    "model-load": ("tokenizer-version",),
    "nan": ("loss-nan", "grad-norm-nan"),
    "node-failure": ("node-failed",),
    "node-unhealthy": ("node-failed",),
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
    "storage-disconnected": ("lustre-connection-lost", "transport-endpoint"),
    "storage-error": ("io-error", "checkpoint-write-failed"),
    "storage-full": ("disk-full", "disk-quota"),
    "storage-local": ("local-disk-error",),
    "storage-stale": ("stale-file-handle",),
    "terminated": ("terminated-signal-15",),
    "torchrun-summary": ("child-failed-no-detail",),
    "unkillable": ("kill-task-failed",),
}
"""The corpus' names of a cause, besides opsctl's own name."""


FAMILY = frozenset({"code", "config"})
"""Classes of one family: the program, its environment or its settings. Its owner has to change both."""


def main() -> None:
    halves = [*TUNING, *(half for half in TEST if f"--{half}" in sys.argv)]
    for half in halves:
        score_half(half)
    if "--surroundings" in sys.argv:
        score_surroundings()


def score_half(half: str) -> None:
    scores: dict[str, Counter[str]] = {"lines": Counter(), "thread": Counter()}
    confusion: Counter[tuple[str, str]] = Counter()
    excluded = 0
    for case in read_cases(half):
        diagnosis = diagnose_case(case["lines"])
        score = judge(case, diagnosis)
        scores[case["basis"]][score] += 1
        confusion[case["class"], find_class(diagnosis)] += 1
        excluded += bool(diagnosis.suspects) and case["scope"] == "none"
        if half in TUNING and "--cases" in sys.argv and score in {"unknown", "wrong"}:
            print_case(case, diagnosis, score)
    print(render(f"{half}, all", scores["lines"] + scores["thread"]))
    print(render(f"{half}, established by the lines alone", scores["lines"]))
    print(f"{half}: cases without evidence against a node in which the log alone excludes a node: {excluded}")
    if "--confusion" in sys.argv:
        print_confusion(confusion)


def print_confusion(confusion: Counter[tuple[str, str]]) -> None:
    """Print a table: a row for each class of the corpus, a column for each class that opsctl names."""
    named = sorted({given for _, given in confusion})
    print("| class \\ named | " + " | ".join(named) + " |")
    print("|---|" + "---:|" * len(named))
    for true in sorted({true for true, _ in confusion}):
        print(f"| {true} | " + " | ".join(str(confusion[true, given] or "") for given in named) + " |")


def score_surroundings() -> None:
    """Print how many verdicts become worse if a start or an end of other trainings surrounds the failure."""
    total = worse = 0
    for case in (case for half in TUNING for case in read_cases(half)):
        alone = SCORES.index(judge(case, diagnose_case(case["lines"])))
        for path in sorted((CORPUS / "surroundings").iterdir()):
            around = path.read_text().splitlines()
            is_start = path.stem.startswith("start")
            lines = [*around, *case["lines"]] if is_start else [*case["lines"], *around]
            total += 1
            worse += SCORES.index(judge(case, diagnose_case(lines))) > alone
    print(f"within whole logs: {worse} of {total} verdicts are worse ({100 * worse / total:.1f} %)")


def read_cases(half: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (CORPUS / f"{half}.jsonl").read_text().splitlines()]


def diagnose_case(lines: list[str]) -> Diagnosis:
    with tempfile.TemporaryDirectory() as name:
        log = Path(name, "main_log.txt")
        log.write_text("\n".join(lines) + "\n")
        return diagnose_logs([log])


def judge(case: dict[str, Any], diagnosis: Diagnosis) -> str:
    is_named = case["cause"] in (diagnosis.cause, *NAMES.get(diagnosis.cause, ()))
    named_class = find_class(diagnosis)
    is_class = named_class == case["class"]
    if is_named:
        return "right" if is_class else "partly"
    if diagnosis.kind is CauseKind.UNKNOWN or (case["class"] == "unknown" and not diagnosis.suspects):
        return "unknown"
    return "partly" if is_class or {named_class, case["class"]} <= FAMILY else "wrong"


def find_class(diagnosis: Diagnosis) -> str:
    return CLASSES.get(diagnosis.kind, diagnosis.kind.value)


def print_case(case: dict[str, Any], diagnosis: Diagnosis, score: str) -> None:
    print(f"{score}: {case['id']} {case['cause']} ({case['class']}, {case['basis']}) as {diagnosis.cause}")
    print("\n".join(f"    {line[:200]}" for line in (*case["lines"], "->", *diagnosis.evidence)))


def render(title: str, scores: Counter[str]) -> str:
    total = scores.total()
    parts = (f"{name} {scores[name]} ({100 * scores[name] / total:.1f} %)" for name in SCORES)
    good = 100 * (scores["right"] + scores["partly"]) / total
    return f"{title}: {total} cases: {', '.join(parts)}; right or partly {good:.1f} %"


if __name__ == "__main__":
    main()
