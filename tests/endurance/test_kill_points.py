"""Every verb that changes something, killed at each of its effects and run again: nothing is lost, nothing is doubled.

`pytest -s tests/endurance/test_kill_points.py` prints the table of docs/explanation/reliability.md. CUTS=5 cuts each
off at five places.
"""

import os
from collections.abc import Iterator
from functools import partial

import pytest

from opsctl.sandbox.cluster import Sandbox
from tests.endurance.kills.files import Ends
from tests.endurance.kills.kill_proof import Proof, Runs
from tests.endurance.kills.nodes import Cards, cards, on_nodes
from tests.endurance.kills.sandboxes import SIZE, Private
from tests.endurance.kills.trains import slurm_of
from tests.endurance.kills.verbs import CHANNELS, FILES, LAUNCH, SLURM, on_slurm, watching

FEW = 10
"""Cuts of a verb that takes seconds."""
MANY = 40

pytestmark = pytest.mark.timeout(0 if "CUTS" in os.environ else 900)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    runs = Runs(place=tmp_path_factory.mktemp("runs"))
    yield runs
    runs.close()


@pytest.fixture(scope="module")
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with slurm_of(tmp_path_factory.mktemp("slurm"), "cuts") as sandbox:
        yield sandbox


@pytest.mark.parametrize("verb", FILES)
def test_killed_at_any_effect_and_run_again_it_is_as_never_killed(verb: str, runs: Runs) -> None:
    verdict = Proof(verb=verb, make=FILES[verb], runs=runs, most=MANY).go()
    assert verdict.failures == [], "\n".join(verdict.failures)


@pytest.mark.parametrize("verb", SLURM)
def test_on_a_real_slurm_too(verb: str, runs: Runs, slurm: Sandbox) -> None:
    # A launch that is known to have been submitted is refused a second time.
    wrong = (2,) if verb.startswith("launch") else ()
    make = on_slurm(verb, slurm, runs)
    verdict = Proof(verb=verb, make=make, runs=runs, most=FEW, pause_s=0.1, wrong=wrong).go()
    assert verdict.failures == [], "\n".join(verdict.failures)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cards]:
    with cards(tmp_path_factory.mktemp("cards")) as made:
        yield made


@pytest.mark.parametrize("verb", ["drain-bad-nodes", "undrain-good-nodes"])
def test_on_nodes(verb: str, runs: Runs, slurm: Sandbox, known: Cards) -> None:
    make = partial(on_nodes, verb, slurm, runs, known, LAUNCH)
    verdict = Proof(verb=verb, make=make, runs=runs, most=FEW, pause_s=0.2).go()
    assert verdict.failures == [], "\n".join(verdict.failures)


@pytest.mark.parametrize("verb", ["sandbox up", "sandbox down"])
def test_on_a_sandbox_that_comes_and_goes(verb: str, runs: Runs) -> None:
    is_up = verb == "sandbox down"
    words = ("sandbox", "down", "--name", "cut") if is_up else ("sandbox", "up", *SIZE)
    make = partial(Private, words=words, runs=runs, is_up=is_up)
    verdict = Proof(verb=verb, make=make, runs=runs, most=FEW, pause_s=0.2).go()
    assert verdict.failures == [], "\n".join(verdict.failures)


def test_a_watch_that_alerts_tells_everybody_of_everything_wherever_it_is_killed(runs: Runs, ends: Ends) -> None:
    verdict = Proof(verb="watch --once", make=watching(ends), runs=runs, lines=CHANNELS, most=2 * FEW).go()
    assert verdict.failures == [], "\n".join(verdict.failures)
