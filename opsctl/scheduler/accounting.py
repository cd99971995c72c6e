"""What sacctmgr says of a user's accounts, of QOS and of their limits. Pure, as parse.py is: a row that makes no sense
is left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from opsctl.model import Accounting, Association, Qos
from opsctl.scheduler.field_values import limit_of, listed
from opsctl.units import parse_slurm_minutes

SHARED = ("MaxWall", "MaxTRES", "MaxTRESPerNode", "MaxTRESMins", "GrpTRES", "GrpTRESRunMins", "GrpJobs", "GrpSubmit")
"""Limits that a QOS and an association may have. Named as in sacctmgr's own table."""
OF_ASSOCIATION = (*SHARED, "MaxJobs", "MaxSubmit")
OF_QOS = (*SHARED, "MaxTRESPU", "MaxTRESPA", "MaxJobsPU", "MaxJobsPA", "MaxSubmitPU", "MaxSubmitPA", "MinTRES")
USER_FIELDS = ("DefaultAccount", "Account", "Partition", "QOS", "DefaultQOS", *OF_ASSOCIATION)
ACCOUNT_FIELDS = ("Account", "ParentName", "QOS", "DefaultQOS", *OF_ASSOCIATION)
QOS_FIELDS = ("Name", "Flags", *OF_QOS)
LIST = ("sacctmgr", "--noheader", "--parsable2", "show")


def questions(user: str, cluster: str) -> dict[str, tuple[str, ...]]:
    """What is asked, by what `read` calls the answers."""
    return {
        "user": (*LIST, "user", f"name={user}", "withassoc", f"cluster={cluster}", f"format={','.join(USER_FIELDS)}"),
        "accounts": (*LIST, "associations", f"cluster={cluster}", "user=", f"format={','.join(ACCOUNT_FIELDS)}"),
        "qos": (*LIST, "qos", f"format={','.join(QOS_FIELDS)}"),
    }


def read(user: str, answers: dict[str, str]) -> Accounting:
    """What the answers to `questions` mean."""
    mine = list(_rows(answers["user"], USER_FIELDS))
    own = [
        Association(
            account=row["Account"], user=user, partition=row["Partition"], parent=row["Account"],
            qos=listed(row["QOS"]), default_qos=row["DefaultQOS"], bounds=_bounds(row, OF_ASSOCIATION),
        )
        for row in mine if row["Account"]
    ]  # fmt: skip
    accounts = [
        Association(
            account=row["Account"], parent=row["ParentName"], qos=listed(row["QOS"]), default_qos=row["DefaultQOS"],
            bounds=_bounds(row, OF_ASSOCIATION),
        )
        for row in _rows(answers["accounts"], ACCOUNT_FIELDS)
    ]  # fmt: skip
    return Accounting(
        default_account=next((row["DefaultAccount"] for row in mine), ""),
        associations=(*own, *accounts),
        qos=tuple(
            Qos(name=row["Name"], flags=listed(row["Flags"]), bounds=_bounds(row, OF_QOS))
            for row in _rows(answers["qos"], QOS_FIELDS)
        ),
    )


def _rows(text: str, fields: Sequence[str]) -> Iterator[dict[str, str]]:
    """`--parsable2` rows: fields between bars, which no name of an account or a QOS may hold."""
    for line in text.splitlines():
        if len(words := line.split("|")) == len(fields):
            yield dict(zip(fields, words, strict=True))


def _bounds(row: dict[str, str], names: Sequence[str]) -> dict[str, int]:
    """What is limited. Amounts with a unit, which only memory has, are left out: nothing here knows how much a job
    gets."""
    numbers: dict[str, int | None] = {}
    for name in names:
        if "TRES" in name:
            pairs = (each.partition("=") for each in listed(row[name]))
            numbers |= {f"{name} {resource}": limit_of(amount) for resource, _, amount in pairs}
        else:
            numbers[name] = parse_slurm_minutes(row[name]) if name == "MaxWall" else limit_of(row[name])
    return {name: most for name, most in numbers.items() if most is not None}
