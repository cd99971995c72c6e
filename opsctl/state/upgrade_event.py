"""Lines of journals from before there were reasons and formats, read as events of today."""

from typing import Any


def upgrade(kind: str, fields: dict[str, Any]) -> str:
    """Give a line without a format the fields of format 1; return its kind. Reasons, jobs and steps were texts.

    Raises KeyError and ValueError for a line that was never valid.
    """
    if kind == "quarantined":
        kind = "exclusion-decided"
    if kind == "diagnosed":
        fields["cause_kind"] = fields.pop("class", "")
    if kind in {"held", "cancelling", "cancelled", "exclusion-decided"}:
        why = fields.pop("why", None)
        # Only these words told a dropped duplicate from the end of the train.
        is_duplicate = kind == "cancelled" and why == "the same submission arrived twice"
        fields["reason"] = {"kind": "duplicate"} if is_duplicate else {"text": why}
    if kind in {"cancelling", "cancelled"}:
        jobs, _, task = str(fields.pop("job", "")).partition("_")
        fields["jobs"] = jobs.split(",")
        fields |= {"task": int(task)} if task else {}
    if kind in {"rolled-back", "rollback-undone"}:
        fields["step"] = int(fields["step"])
    return kind
