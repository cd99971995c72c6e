"""Code decides on values: with nonsense for all words of findings and reasons, tests of decisions pass as before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DECISIONS = (
    "monitor",
    "dash/test_headline.py",
    "dash/test_page_truth.py",
    "guard/test_action.py",
    "watchdogs/test_failures.py",
)
ABOUT_WORDS = (
    "command_names_the_newest or says_so or is_left or with_a_doubt or reported_with_its_evidence"
    " or node_without_replacement or reported_once or until_a_decision or names_its_attempts or once_nodes_run_out"
    " or hold_in_the_end or asks_for_a_decision"
)
"""Tests of these modules that read the sentences themselves."""


def test_decisions_do_not_depend_on_words() -> None:
    folders = [f"tests/unit/{name}" for name in DECISIONS]
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.nonsense_words", "-p", "no:cacheprovider"]
    argv += ["-k", f"not ({ABOUT_WORDS})", *folders]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
