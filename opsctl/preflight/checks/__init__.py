"""Every check by its name. Adding one: a function in a file of this directory, a line here, cases in
tests/corpus/preflight, a row in docs/preflight.md."""

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
    "partition": Check(look=slurm.partition, source="Slurm lets a job wait for ever that is beyond its partition"),
    "array-size": Check(look=slurm.array_size, source="slurm.conf(5), MaxArraySize"),
    "account": Check(look=accounting.account, source="slurm.conf(5), AccountingStorageEnforce=associations"),
    "qos": Check(look=accounting.qos, source="slurm.conf(5), AccountingStorageEnforce=qos"),
    "limits": Check(look=accounting.limits, source="Slurm resource limits guide, slurm.schedmd.com"),
    "exclude": Check(look=slurm.exclude, source="Slurm takes an impossible ExcNodeList, and never starts the job"),
    "in-service": Check(look=slurm.in_service, source="ML Engineering book, more nodes than needed"),
    "after": Check(look=slurm.after, source="Slurm takes a dependency on an unknown job as fulfilled"),
    "extra": Check(look=slurm.extra, source="opsctl.render.directives"),
    "reservation": Check(look=reservation.reservation, source="Slurm reservation guide, slurm.schedmd.com"),
    "job-name": Check(look=settings.job_name, source="BigScience slurm-status.py, %.40j"),
    "secrets": Check(look=settings.secrets, source="BigScience hub-sync.py, a token in a URL"),
    "cpus": Check(look=settings.cpus, source="sbatch(1) since 22.05; ML Engineering book, srun's --cpus-per-task"),
    "gpus": Check(look=settings.gpus, source="one rank a GPU; NCCL: Duplicate GPU detected"),
    "launcher": Check(look=settings.launcher, source="ML Engineering book, only 1 task per dist per node"),
    "leftovers": Check(look=settings.leftovers, source="ML Engineering book, NCCL Environment Variables and NVLink"),
    "nodes": Check(look=duplicates.nodes, source="ML Engineering book, Mismatching nodes number"),
    "ranks": Check(look=duplicates.ranks, source="ML Engineering book, Mismatching nodes number"),
    "batch-twice": Check(
        look=duplicates.batch_twice, source="DeepSpeed, configuration JSON, batch size related parameters"
    ),
    "files": Check(look=command.files, source="tasks start in their run directory, not where they were launched"),
    "processes": Check(look=layout.processes, source="tr1-13B chronicles, DP_SIZE"),
    "heads": Check(look=layout.heads, source="Shoeybi et al. 2019, section 3; prequel of tr11, 14400 / 64"),
    "vocabulary": Check(look=layout.vocabulary, source="Shoeybi et al. 2019, section 3"),
    "stages": Check(look=layout.stages, source="prequel of tr11, Layers + 2 % PP = 0"),
    "tensor": Check(look=layout.tensor, source="prequel of tr11, Reconsiderations"),
    "batch": Check(look=layout.batch, source="tr1-13B chronicles, NNODES=96"),
    "ramp": Check(look=layout.ramp, source="tr1-13B chronicles, Round3 NNODES=32"),
    "pipeline": Check(look=layout.pipeline, source="prequel of tr11, GBS ramp up; (p - 1)/(m + p - 1)"),
    "memory": Check(look=memory.memory, source="Korthikanti et al. 2022; Rajbhandari et al. 2020; docs/plan.md"),
    "signal": Check(look=stopping.signal, source="ML Engineering book, Dealing with forced resource preemption"),
    "stop-request": Check(look=stopping.stop_request, source="ML Engineering book, Kill switch"),
    "deadline": Check(look=stopping.deadline, source="ML Engineering book, 2 x (iteration + save)"),
    "kill-switch": Check(look=stopping.kill_switch, source="ML Engineering book, Kill switch, and rm it"),
    "interval": Check(look=saving.interval, source="Daly 2006; ML Engineering book, Frequent checkpoint saving"),
    "evaluation": Check(look=saving.evaluation, source="tr1-13B chronicles, Reduced evaluation iterations"),
    "space": Check(look=saving.space, source="ML Engineering book, Low disk space alerts"),
    "inodes": Check(look=saving.inodes, source="ML Engineering book, Low disk space alerts"),
    "resume": Check(look=saving.resume, source="opsctl.trainer.checkpoint.resume"),
    "finished": Check(look=saving.finished, source="opsctl.trainer.manifest"),
    "data": Check(look=data.data, source="opsctl.trainer.indexed_corpus"),
    "tokens": Check(look=data.tokens, source="opsctl.trainer.indexed_corpus, refuse_vocabulary"),
    "tokenizer": Check(look=data.tokenizer, source="opsctl.trainer.prepare"),
    "shm": Check(look=nodes.shm, source="tr1-13B chronicles, bus error in worker"),
    "driver": Check(look=nodes.driver, source="opsctl health, versions"),
    "gpu-kinds": Check(look=nodes.gpu_kinds, source="the slowest rank is the speed of all"),
    "versions": Check(look=nodes.versions, source="opsctl/preflight/versions.toml"),
    "unknown": Check(look=nodes.unknown, source="unknown is neither good nor bad"),
}
"""In the order in which they are told, among those of the same level."""
