"""Commands killed at some of their effects and run again.

tests/endurance/test_kill_points.py kills all commands at all effects.
"""

from collections.abc import Iterator

import pytest

from opsctl.sandbox.cluster import Sandbox
from tests.endurance.kills.kill_proof import Proof, Runs
from tests.endurance.kills.trains import slurm_of
from tests.endurance.kills.verbs import FILES, SLURM, on_slurm


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    runs = Runs(place=tmp_path_factory.mktemp("runs"))
    yield runs
    runs.close()


@pytest.mark.parametrize("verb", ["kill-switch arm", "kill-switch disarm", "checkpoint prune", "cron tick"])
def test_killed_command_on_files_acts_once_when_repeated(verb: str, runs: Runs) -> None:
    verdict = Proof(verb=verb, make=FILES[verb], runs=runs, most=4).go()
    assert verdict.failures == [], "\n".join(verdict.failures)


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with slurm_of(tmp_path_factory.mktemp("slurm"), "few-cuts", many=2) as sandbox:
        yield sandbox


@pytest.mark.parametrize("verb", ["launch", "cancel"])
def test_killed_command_on_slurm_acts_once_when_repeated(verb: str, runs: Runs, counting: Sandbox) -> None:
    assert verb in SLURM
    verdict = Proof(verb=verb, make=on_slurm(verb, counting, runs), runs=runs, most=3, wrong=(2,)).go()
    assert verdict.failures == [], "\n".join(verdict.failures)
