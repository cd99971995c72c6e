"""Run tests with nonsense for opsctl's words."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_without_words(*tests: str) -> None:
    """Run tests in a process of their own: the plugin has to be there before opsctl is imported."""
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.nonsense_words", "-p", "no:cacheprovider"]
    done = subprocess.run([*argv, *tests], cwd=ROOT, capture_output=True, text=True, timeout=590, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
