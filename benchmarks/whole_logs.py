"""How often `opsctl why` is right on whole logs of public repositories, from their first line to their last.

`benchmarks/whole_logs.csv` lists the logs with their commits and with what became of each run, written down before any
log was scored. The logs themselves are not in this repository: `python -P benchmarks/whole_logs.py FOLDER` reads
FOLDER/OWNER/NAME/PATH, as `git show COMMIT:PATH` of each repository prints it. The tuning half is scored, with its
missed logs; `--test` scores the other half and prints figures only.

A failed run is judged as in `diagnosis.py`. A run that went on or finished must get no cause that is likely or certain.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from pathlib import Path

from opsctl.diagnosis.causes import CauseKind, Confidence
from opsctl.diagnosis.diagnose_attempt import diagnose_logs
from opsctl.diagnosis.root_cause import Diagnosis

sys.path.insert(0, str(Path(__file__).parent))
from diagnosis import judge, render

WENT_ON = "went-on"
"""The truth of a run that finished, or that still ran at the end of its log."""


def main() -> None:
    folder = Path(next(word for word in sys.argv[1:] if not word.startswith("--")))
    for half in ("tuning", "test") if "--test" in sys.argv else ("tuning",):
        score_half(half, folder)


def score_half(half: str, folder: Path) -> None:
    failed: Counter[str] = Counter()
    went_on: Counter[str] = Counter()
    suspected = 0
    for row in read_list(half):
        diagnosis = diagnose_logs([folder / row["repository"] / row["path"]])
        suspected += bool(diagnosis.suspects)
        if row["truth"] == WENT_ON:
            score = "named" if names_cause(diagnosis) else "silent"
            went_on[score] += 1
        else:
            truth_class, _, cause = row["truth"].partition("/")
            score = judge({"class": truth_class, "cause": cause}, diagnosis)
            failed[score] += 1
        if half == "tuning" and score in {"named", "unknown", "wrong"}:
            print_log(row, diagnosis, score)
    print(render(f"{half}, failed runs", failed))
    print(f"{half}: {went_on['named']} of {went_on.total()} runs that went on get a likely or certain cause")
    print(f"{half}: logs that alone make a node suspect: {suspected}")


def read_list(half: str) -> list[dict[str, str]]:
    with Path(__file__).with_name("whole_logs.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["half"] == half]


def names_cause(diagnosis: Diagnosis) -> bool:
    return diagnosis.kind is not CauseKind.NONE and diagnosis.sure is not Confidence.POSSIBLE


def print_log(row: dict[str, str], diagnosis: Diagnosis, score: str) -> None:
    print(f"{score}: {row['repository']} {row['path']}: {row['truth']} as {diagnosis.kind.value}/{diagnosis.cause}")
    print("\n".join(f"    {line[:160]}" for line in diagnosis.evidence))


if __name__ == "__main__":
    main()
