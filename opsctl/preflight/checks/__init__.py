"""Every check by its name. Adding one: a function in a file of this directory, a line here, cases in
tests/corpus/preflight, a row in docs/reference/preflight-checks.md."""

from __future__ import annotations

from opsctl.preflight.checks import (
    accounting,
    command,
    data,
    duplicates,
    layout,
    memory,
    nodes,
    reservation,
    saving,
    settings,
    slurm,
    stopping,
)
from opsctl.preflight.problem import Check

CHECKS: dict[str, Check] = {
    "partition": Check(check=slurm.partition, source="Slurm lets a job wait for ever that is beyond its partition"),
    "array-size": Check(check=slurm.array_size, source="slurm.conf(5), MaxArraySize"),
    "account": Check(check=accounting.account, source="slurm.conf(5), AccountingStorageEnforce=associations"),
    "qos": Check(check=accounting.qos, source="slurm.conf(5), AccountingStorageEnforce=qos"),
    "limits": Check(check=accounting.limits, source="Slurm resource limits guide, slurm.schedmd.com"),
    "exclude": Check(check=slurm.exclude, source="Slurm takes an impossible ExcNodeList, and never starts the job"),
    "in-service": Check(check=slurm.in_service, source="ML Engineering book, more nodes than needed"),
    "after": Check(check=slurm.after, source="Slurm takes a dependency on an unknown job as fulfilled"),
    "extra": Check(check=slurm.extra, source="opsctl.render.directives"),
    "reservation": Check(check=reservation.reservation, source="Slurm reservation guide, slurm.schedmd.com"),
    "job-name": Check(check=settings.job_name, source="BigScience slurm-status.py, %.40j"),
    "secrets": Check(check=settings.secrets, source="BigScience hub-sync.py, a token in a URL"),
    "cpus": Check(check=settings.cpus, source="sbatch(1) since 22.05; ML Engineering book, srun's --cpus-per-task"),
    "gpus": Check(check=settings.gpus, source="one rank a GPU; NCCL: Duplicate GPU detected"),
    "launcher": Check(check=settings.launcher, source="ML Engineering book, only 1 task per dist per node"),
    "leftovers": Check(check=settings.leftovers, source="ML Engineering book, NCCL Environment Variables and NVLink"),
    "nodes": Check(check=duplicates.nodes, source="ML Engineering book, Mismatching nodes number"),
    "ranks": Check(check=duplicates.ranks, source="ML Engineering book, Mismatching nodes number"),
    "batch-twice": Check(
        check=duplicates.batch_twice, source="DeepSpeed, configuration JSON, batch size related parameters"
    ),
    "files": Check(check=command.files, source="tasks start in their run directory, not where they were launched"),
    "processes": Check(check=layout.processes, source="tr1-13B chronicles, DP_SIZE"),
    "heads": Check(check=layout.heads, source="Shoeybi et al. 2019, section 3; prequel of tr11, 14400 / 64"),
    "vocabulary": Check(check=layout.vocabulary, source="Shoeybi et al. 2019, section 3"),
    "stages": Check(check=layout.stages, source="prequel of tr11, Layers + 2 % PP = 0"),
    "tensor": Check(check=layout.tensor, source="prequel of tr11, Reconsiderations"),
    "batch": Check(check=layout.batch, source="tr1-13B chronicles, NNODES=96"),
    "ramp": Check(check=layout.ramp, source="tr1-13B chronicles, Round3 NNODES=32"),
    "pipeline": Check(check=layout.pipeline, source="prequel of tr11, GBS ramp up; (p - 1)/(m + p - 1)"),
    "memory": Check(
        check=memory.memory,
        source="Korthikanti et al. 2022; Rajbhandari et al. 2020; docs/explanation/planning-model.md",
    ),
    "signal": Check(check=stopping.signal, source="ML Engineering book, Dealing with forced resource preemption"),
    "stop-request": Check(check=stopping.stop_request, source="ML Engineering book, Kill switch"),
    "deadline": Check(check=stopping.deadline, source="ML Engineering book, 2 x (iteration + save)"),
    "kill-switch": Check(check=stopping.kill_switch, source="ML Engineering book, Kill switch, and rm it"),
    "interval": Check(check=saving.interval, source="Daly 2006; ML Engineering book, Frequent checkpoint saving"),
    "evaluation": Check(check=saving.evaluation, source="tr1-13B chronicles, Reduced evaluation iterations"),
    "space": Check(check=saving.space, source="ML Engineering book, Low disk space alerts"),
    "inodes": Check(check=saving.inodes, source="ML Engineering book, Low disk space alerts"),
    "resume": Check(check=saving.resume, source="opsctl.trainer.checkpoint.resume"),
    "finished": Check(check=saving.finished, source="opsctl.trainer.manifest"),
    "data": Check(check=data.data, source="opsctl.trainer.indexed_corpus"),
    "tokens": Check(check=data.tokens, source="opsctl.trainer.indexed_corpus, refuse_vocabulary"),
    "tokenizer": Check(check=data.tokenizer, source="opsctl.trainer.prepare"),
    "shm": Check(check=nodes.shm, source="tr1-13B chronicles, bus error in worker"),
    "driver": Check(check=nodes.driver, source="opsctl health, versions"),
    "gpu-kinds": Check(check=nodes.gpu_kinds, source="the slowest rank is the speed of all"),
    "versions": Check(check=nodes.versions, source="opsctl/preflight/versions.toml"),
    "unknown": Check(check=nodes.unknown, source="unknown is neither good nor bad"),
}
"""The checks, in the order in which problems of the same level are reported."""
QUEUED = frozenset(
    {
        "partition",
        "array-size",
        "account",
        "qos",
        "limits",
        "exclude",
        "in-service",
        "after",
        "extra",
        "constraint",
        "reservation",
        "job-name",
        "tasks",
        "kill-switch",
    }
)
"""Checks of what sbatch fixed when the tasks were queued, and of switches: `opsctl edit` changes none of these."""
