"""Every check by its name.

Adding one: a condition in checks.toml or a function in a file of this directory, a line here, its source and sentences
in checks.toml, cases in tests/corpus/preflight, a row in docs/reference/preflight-checks.md.
"""

from opsctl.preflight.checks import accounting, duplicates, files, nodes, saving, secrets, slurm, stopping
from opsctl.preflight.problem import Check
from opsctl.preflight.table_checks import TableCheck


def _by_table(*names: str) -> dict[str, Check]:
    return {name: TableCheck(name) for name in names}


def _by_name(*checks: Check) -> dict[str, Check]:
    return {check.__name__.replace("_", "-"): check for check in checks}


CHECKS: dict[str, Check] = {
    **_by_name(slurm.partition),
    **_by_table("array-size"),
    **_by_name(accounting.account, accounting.qos, accounting.limits),
    **_by_name(slurm.constraint, slurm.exclude, slurm.in_service, slurm.after, slurm.extra, slurm.reservation),
    **_by_table("job-name"),
    **_by_name(secrets.secrets),
    **_by_table("cpus", "gpus", "launcher", "leftovers"),
    **_by_name(duplicates.nodes, duplicates.ranks),
    **_by_table("batch-twice", "precision"),
    **_by_name(files.files),
    **_by_table("startup", "chain", "processes", "heads", "vocabulary", "stages", "tensor", "batch", "ramp"),
    **_by_table("pipeline"),
    **_by_name(nodes.memory, stopping.signal, stopping.stop_request),
    **_by_table("deadline"),
    **_by_name(stopping.kill_switch),
    **_by_name(saving.interval),
    **_by_table("evaluation"),
    **_by_name(saving.save),
    **_by_table("load"),
    **_by_table("tasks"),
    **_by_name(saving.space, saving.inodes, saving.resume),
    **_by_table("finished"),
    **_by_name(files.data),
    **_by_table("weights"),
    **_by_name(files.tokens, files.tokenizer),
    **_by_table("timeouts", "ports"),
    **_by_name(nodes.shm, nodes.driver, nodes.gpu_kinds),
    **_by_table("processor"),
    **_by_name(nodes.versions, files.unread, nodes.unknown),
}
"""The checks, in the order in which problems of the same severity are reported."""
