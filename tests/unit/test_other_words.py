"""Code decides on values: with nonsense for all of opsctl's words, tests of what decides pass as before.

Left out are the tests that read words themselves, in tests/support/tests_of_words.txt. A test is added there after a
look at its failure: the words differ, and what was decided does not.
"""

import pytest

from tests.support.without_words import run_without_words

GUARD = ("test_action.py", "test_finalize.py", "test_finalize_causes.py", "test_outcome.py", "test_restart.py")
DECISIONS = (
    ("tests/unit/alerts",),
    tuple(f"tests/unit/guard/{name}" for name in GUARD),
    ("tests/unit/launch", "tests/unit/nodes/test_drain_plan.py"),
    ("tests/unit/monitor", "tests/unit/cli/test_rollback.py"),
    ("tests/unit/dash/test_headline.py", "tests/unit/dash/test_page_truth.py"),
    ("tests/unit/watchdogs",),
)


@pytest.mark.long
@pytest.mark.parametrize("tests", DECISIONS)
def test_decisions_do_not_depend_on_words(tests: tuple[str, ...]) -> None:
    run_without_words(*tests)
