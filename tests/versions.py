"""The versions of Slurm whose output is in tests/corpus."""

from __future__ import annotations

from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
VERSIONS = sorted(path.name for path in (CORPUS / "squeue").iterdir())


def recorded(program: str, version: str, case: str) -> str:
    """What a program of that version printed. Line ends and odd characters are as they were."""
    with (CORPUS / program / version / f"{case}.txt").open(encoding="utf-8", newline="") as file:
        return file.read()
