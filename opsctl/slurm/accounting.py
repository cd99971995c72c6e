"""Parse sacctmgr's tables of accounts, QOS and limits. Pure; a malformed row is skipped."""

from collections.abc import Iterator, Mapping, Sequence

from opsctl.base.model import Accounting, Association, Qos
from opsctl.base.units import parse_slurm_minutes
from opsctl.slurm.field_values import SLURM_WORDS, parse_limit, split_list

_LIMITS = SLURM_WORDS["limits"]
ASSOCIATION_LIMITS = (*_LIMITS["shared"], *_LIMITS["association"])
QOS_LIMITS = (*_LIMITS["shared"], *_LIMITS["qos"])
USER_FIELDS = ("DefaultAccount", "Account", "Partition", "QOS", "DefaultQOS", *ASSOCIATION_LIMITS)
ACCOUNT_FIELDS = ("Account", "ParentName", "QOS", "DefaultQOS", *ASSOCIATION_LIMITS)
QOS_FIELDS = ("Name", "Flags", *QOS_LIMITS)
LIST = ("sacctmgr", "--noheader", "--parsable2", "show")


def build_queries(user: str, cluster: str) -> dict[str, tuple[str, ...]]:
    """Return the sacctmgr commands, keyed by the table that the command prints: user, accounts, qos."""
    return {
        "user": (*LIST, "user", f"name={user}", "withassoc", f"cluster={cluster}", f"format={','.join(USER_FIELDS)}"),
        "accounts": (*LIST, "associations", f"cluster={cluster}", "user=", f"format={','.join(ACCOUNT_FIELDS)}"),
        "qos": (*LIST, "qos", f"format={','.join(QOS_FIELDS)}"),
    }


def parse_accounting(user: str, outputs: Mapping[str, str]) -> Accounting:
    """Parse the outputs of the `build_queries` commands, keyed as there."""
    user_rows = list(_split_rows(outputs["user"], USER_FIELDS))
    account_rows = _split_rows(outputs["accounts"], ACCOUNT_FIELDS)
    of_user = [_parse_association(row, user) for row in user_rows if row["Account"]]
    return Accounting(
        default_account=next((row["DefaultAccount"] for row in user_rows), ""),
        associations=(*of_user, *map(_parse_association, account_rows)),
        qos=tuple(
            Qos(name=row["Name"], flags=split_list(row["Flags"]), bounds=_parse_bounds(row, QOS_LIMITS))
            for row in _split_rows(outputs["qos"], QOS_FIELDS)
        ),
    )


def _parse_association(row: Mapping[str, str], user: str = "") -> Association:
    return Association(
        account=row["Account"],
        user=user,
        partition=row.get("Partition", ""),
        parent=row["Account"] if user else row["ParentName"],
        qos=split_list(row["QOS"]),
        default_qos=row["DefaultQOS"],
        bounds=_parse_bounds(row, ASSOCIATION_LIMITS),
    )


def _split_rows(text: str, fields: Sequence[str]) -> Iterator[dict[str, str]]:
    """Split `--parsable2` rows at the bars. Names of accounts and QOS cannot contain a bar."""
    for line in text.splitlines():
        words = line.split("|")
        if len(words) == len(fields):
            yield dict(zip(fields, words, strict=True))


def _parse_bounds(row: Mapping[str, str], names: Sequence[str]) -> dict[str, int]:
    """Return the limits that are set.

    Amounts with a unit are left out. Only memory has a unit, and a job's memory is not known before Slurm places it.
    """
    bounds: dict[str, int | None] = {}
    for name in names:
        if "TRES" in name:
            for pair in split_list(row[name]):
                resource, _, amount = pair.partition("=")
                bounds[f"{name} {resource}"] = parse_limit(amount)
        elif name == "MaxWall":
            bounds[name] = parse_slurm_minutes(row[name])
        else:
            bounds[name] = parse_limit(row[name])
    return {name: bound for name, bound in bounds.items() if bound is not None}
