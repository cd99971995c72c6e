"""Preflight refuses no published configuration of a run that works."""

from collections import Counter

import pytest

from opsctl.preflight.problem import ProblemLevel
from tests.support.real_configurations import read_configurations


def find_refused(half, directory, *, by_torchrun):
    """Return the refused configurations with their errors."""
    refused = {}
    for configuration in read_configurations(half, directory):
        problems = configuration.find_problems(by_torchrun=by_torchrun)
        errors = [problem.what for problem in problems if problem.level is ProblemLevel.ERROR]
        if errors:
            refused[configuration.row["id"]] = errors
    return refused


@pytest.mark.parametrize("by_torchrun", [False, True])
def test_no_run_of_the_tuning_half_is_refused(tmp_path, by_torchrun):
    assert find_refused("tuning", tmp_path, by_torchrun=by_torchrun) == {}


@pytest.mark.parametrize("by_torchrun", [False, True])
def test_no_run_of_the_test_half_is_refused(tmp_path, by_torchrun):
    assert len(find_refused("test", tmp_path, by_torchrun=by_torchrun)) == 0


def test_trainers_of_the_tuning_half_are_recognised(tmp_path):
    """Trainers without a table are read by Megatron's names, and never with certainty."""
    unknown = Counter()
    for configuration in read_configurations("tuning", tmp_path):
        if not configuration.make_request(by_torchrun=False).recipe.trainer:
            unknown[configuration.row["trainer"]] += 1
    assert set(unknown) <= {"KempnerForge", "llm-foundry", "llm.c", "InternLM", "torchtitan"}, unknown
