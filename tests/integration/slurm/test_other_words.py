"""On a real Slurm as well, trains are held, reconciled and freed of bad nodes by values, not by words."""

from tests.support.without_words import run_without_words


def test_decisions_do_not_depend_on_words() -> None:
    run_without_words(*(f"tests/integration/slurm/test_{name}.py" for name in ("failures", "hold_rules", "reconcile")))
