"""The corpus that the benchmarks of the trainer read."""

import subprocess
import sys
from pathlib import Path


def write_corpus(directory: Path) -> None:
    """Write a corpus of some million tokens, one token per byte, to DIRECTORY/corpus."""
    text = b"".join(b"%d fish, %d more.\n" % (number, number**3) for number in range(80_000))
    (directory / "text").write_bytes(text)
    argv = ["-m", "opsctl.trainer.prepare", "--input", str(directory / "text"), "--output", str(directory / "corpus")]
    subprocess.run([sys.executable, "-P", *argv], check=True, stdout=subprocess.DEVNULL)
