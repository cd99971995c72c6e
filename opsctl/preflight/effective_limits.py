"""Which limits hold for a job: those of its QOS, of its association, and of the accounts above that."""

from __future__ import annotations

from collections.abc import Sequence

from opsctl.model import Accounting, Association, JobSpec, Partition, Qos

Bound = tuple[int, str]
"""A limit, and whose it is."""


def find_limits(spec: JobSpec, known: Accounting, partition: Partition) -> dict[str, Bound]:
    """The limits that hold for a job in `partition`, by the names of `opsctl.model.Qos.bounds`.

    Of those that are set more than once the first counts: the partition's QOS, the job's QOS (the other way round where
    that has OverPartQOS), the user's association, the accounts above it up to root. Of a Grp limit of accounts the
    least counts, wherever it is set. The partition's own limits hold besides. Source: Slurm's resource limits guide,
    Hierarchy (slurm.schedmd.com/resource_limits.html). A QOS that limits how many jobs a user or an account has takes
    the association's MaxJobs or MaxSubmit out, under whichever name (src/slurmctld/acct_policy.c).
    """
    bounds: dict[str, Bound] = {}
    for list_qos in list_qos(spec, known, partition):
        for limit, most in list_qos.bounds.items():
            bounds.setdefault(limit, (most, f"QOS {list_qos.name!r}"))
    taken_out = {name for name in ("MaxJobs", "MaxSubmit") if {f"{name}PU", f"{name}PA"} & bounds.keys()}
    accounts = _of_accounts(_upwards(known, spec, partition.name))
    return {limit: bound for limit, bound in accounts.items() if limit not in taken_out} | bounds


def list_qos(spec: JobSpec, known: Accounting, partition: Partition) -> list[Qos]:
    """The partition's and the job's, the one that counts first first."""
    of_partition, ours = named(known, partition.qos), find_job_qos(spec, known, partition.name)
    first_ours = ours is not None and "OverPartQOS" in ours.flags
    return [qos for qos in ((ours, of_partition) if first_ours else (of_partition, ours)) if qos]


def find_job_qos(spec: JobSpec, known: Accounting, partition: str) -> Qos | None:
    """The one that the job will have: named, or its association's default, or the only one there, or root's, or normal
    (src/slurmctld/job_mgr.c)."""
    mine = own(known, spec, partition)
    only = mine.qos[0] if mine and len(mine.qos) == 1 else ""
    root = next(
        (association for association in known.associations if association.account == "root" and not association.user),
        None,
    )
    names = (spec.qos, mine.default_qos if mine else "", only, root.default_qos if root else "", "normal")
    return named(known, next(name for name in names if name))


def named(known: Accounting, name: str) -> Qos | None:
    return next((qo for qo in known.qos if qo.name.lower() == name.lower()), None)


def own(known: Accounting, spec: JobSpec, partition: str = "") -> Association | None:
    """The user's association with the account that is charged; the one for the partition, where there is one."""
    account = (spec.account or known.default_account).lower()
    mine = [
        association for association in known.associations if association.user and association.account.lower() == account
    ]
    return max(
        (association for association in mine if association.partition in {"", partition}),
        key=lambda e: e.partition,
        default=None,
    )


def _upwards(known: Accounting, spec: JobSpec, partition: str) -> list[Association]:
    """The user's association and those of the accounts above it, up to root."""
    mine = own(known, spec, partition)
    line = [mine] if mine else []
    accounts = {association.account: association for association in known.associations if not association.user}
    while line and (above := accounts.get(line[-1].parent)) and above not in line:
        line.append(above)
    return line


def _of_accounts(line: Sequence[Association]) -> dict[str, Bound]:
    """sacctmgr shows in a user's association what accounts above set for him, but for Grp limits: they are theirs."""
    bounds: dict[str, Bound] = {}
    for association in line:
        for limit, most in association.bounds.items():
            if (association.user or limit.startswith("Grp")) and most < bounds.get(limit, (most + 1, ""))[0]:
                bounds[limit] = (most, f"account {association.account!r}")
    return bounds
