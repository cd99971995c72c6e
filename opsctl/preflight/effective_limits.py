"""The limits that hold for a job: of its QOS, of its association, and of the accounts above."""

from collections.abc import Sequence

from opsctl.base.model import Accounting, Association, JobSpec, Partition, Qos

Bound = tuple[int, str]
"""A limit, and the QOS or account that sets it."""


def find_limits(spec: JobSpec, known: Accounting, partition: Partition) -> dict[str, Bound]:
    """Return the limits that hold for a job in `partition`, by the names of `opsctl.base.model.Qos.bounds`.

    The first limit of a name counts, in this order: the partition's QOS, the job's QOS (before the partition's QOS if
    it has OverPartQOS), the user's association, the accounts above up to root. Of the Grp limits of accounts, the
    lowest counts. The partition's own limits hold in addition. Source: Slurm's resource limits guide, Hierarchy
    (slurm.schedmd.com/resource_limits.html). A QOS that limits the jobs of a user or an account replaces the
    association's MaxJobs or MaxSubmit (src/slurmctld/acct_policy.c).
    """
    bounds: dict[str, Bound] = {}
    for qos in list_qos(spec, known, partition):
        for limit, most in qos.bounds.items():
            bounds.setdefault(limit, (most, f"QOS {qos.name!r}"))
    replaced = {name for name in ("MaxJobs", "MaxSubmit") if {f"{name}PU", f"{name}PA"} & bounds.keys()}
    accounts = _of_accounts(_upwards(known, spec, partition.name))
    return {limit: bound for limit, bound in accounts.items() if limit not in replaced} | bounds


def list_qos(spec: JobSpec, known: Accounting, partition: Partition) -> list[Qos]:
    """Return the QOS of the partition and of the job, in the order in which they count."""
    of_partition, of_job = named(known, partition.qos), find_job_qos(spec, known, partition.name)
    is_job_first = of_job is not None and "OverPartQOS" in of_job.flags
    order = (of_job, of_partition) if is_job_first else (of_partition, of_job)
    return [qos for qos in order if qos]


def find_job_qos(spec: JobSpec, known: Accounting, partition: str) -> Qos | None:
    """Return the QOS that Slurm gives the job: the named QOS, else the association's default, else its only QOS, else
    root's default, else normal (src/slurmctld/job_mgr.c).
    """
    association = own(known, spec, partition)
    only = association.qos[0] if association and len(association.qos) == 1 else ""
    roots = (entry for entry in known.associations if entry.account == "root" and not entry.user)
    root = next(roots, None)
    default = association.default_qos if association else ""
    names = (spec.qos, default, only, root.default_qos if root else "", "normal")
    return named(known, next(name for name in names if name))


def named(known: Accounting, name: str) -> Qos | None:
    """Return the QOS of this name, in any case of letters."""
    return next((qos for qos in known.qos if qos.name.lower() == name.lower()), None)


def own(known: Accounting, spec: JobSpec, partition: str = "") -> Association | None:
    """Return the user's association with the job's account, preferably for the partition."""
    account = (spec.account or known.default_account).lower()
    associations = (entry for entry in known.associations if entry.user and entry.account.lower() == account)
    matching = (association for association in associations if association.partition in {"", partition})
    return max(matching, key=lambda association: association.partition, default=None)


def _upwards(known: Accounting, spec: JobSpec, partition: str) -> list[Association]:
    """Return the user's association and the associations of the accounts above, up to root."""
    association = own(known, spec, partition)
    line = [association] if association else []
    accounts = {entry.account: entry for entry in known.associations if not entry.user}
    while line and (above := accounts.get(line[-1].parent)) and above not in line:
        line.append(above)
    return line


def _of_accounts(line: Sequence[Association]) -> dict[str, Bound]:
    """Merge limits. Slurm shows inherited limits in the user's association, except Grp limits of accounts."""
    bounds: dict[str, Bound] = {}
    for association in line:
        for limit, most in association.bounds.items():
            if (association.user or limit.startswith("Grp")) and most < bounds.get(limit, (most + 1, ""))[0]:
                bounds[limit] = (most, f"account {association.account!r}")
    return bounds
