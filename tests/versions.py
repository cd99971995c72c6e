"""The versions of Slurm whose output is in tests/corpus."""

from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def versions_of(program: str) -> list[str]:
    """The versions of which there is output of a program: sacct's and sacctmgr's need a database that starts."""
    return sorted(path.name for path in (CORPUS / program).iterdir())


VERSIONS = versions_of("squeue")


def recorded(program: str, version: str, case: str) -> str:
    """What a program of that version printed. Line ends and odd characters are as they were."""
    with (CORPUS / program / version / f"{case}.txt").open(encoding="utf-8", newline="") as file:
        return file.read()
