"""Each broken train gives exactly the findings that it must give. The files: tests/corpus/preflight."""

from collections import Counter

import pytest

from opsctl.preflight.checks import CHECKS
from tests.support.broken_trains import BASE, Case, deepcopy, make_facts, read_cases

ALL = read_cases()
GOOD = {
    "gpt-176b": [],
    "megatron-deepspeed": [],
    "gpt-13b": [("warning", "pipeline")],
    "gpt-104b": [("warning", "pipeline")],
    "gpt-1.3b": [],
    "tiny-gpt": [],
}
"""What the examples give where all is well: the two with Megatron's ramp from 16 start with a pipeline that is not
full, as they did."""


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_a_broken_train_gives_exactly_these_findings(case):
    found = case.find_problems()
    assert Counter((each.level, each.check) for each in found) == Counter((lv, name) for lv, name, _ in case.expected)
    left = list(found)
    for level, name, part in case.expected:
        match = next((each for each in left if (each.level, each.check) == (level, name) and part in each.what), None)
        assert match is not None, [each.what for each in left]
        left.remove(match)


@pytest.mark.parametrize("example", GOOD)
def test_an_example_gives_exactly_the_findings_that_are_known(example):
    """On a cluster that has room for it, of the GPUs that it was made for."""
    smaller = {"vocabulary": 257, "width": 2}
    corpus = {**BASE["corpora"][0], **({} if example in {"gpt-176b", "megatron-deepspeed"} else smaller)}
    gpu = {"gpt-104b": "V100", "tiny-gpt": "none"}.get(example, "A100")
    changes = {"corpora": [corpus], "step_s": "none", "gpu": gpu}
    limits = {"cluster.partitions": [{**BASE["cluster"]["partitions"][0], "nodes": 72, "max_nodes": 64}]}
    nodes = {"cluster.members": ["n[01-72]"], "cluster.nodes": ["n[01-72]"]}
    problems = Case(
        name=example, table={"of": example, "finds": [], "facts": {**changes, **limits, **nodes}}
    ).find_problems()
    assert [(problem.level, problem.check) for problem in problems] == GOOD[example], [
        problem.what for problem in problems
    ]


def test_the_corpus_has_at_least_forty_broken_trains_and_each_check_has_its_own():
    assert len(ALL) >= 40
    assert {name for case in ALL for _, name, _ in case.expected} == set(CHECKS)


def test_every_finding_has_numbers_or_names_a_source_and_a_remedy():
    for case in ALL:
        for finding in case.find_problems():
            assert finding.what and finding.remedy and finding.source, finding


def test_errors_are_told_first_and_notes_last():
    changes = {"slurm.nodes": 47, "name": "n" * 44, "trainer.checkpoint.every": 0}
    worse = Case(name="worse", table={"set": changes, "facts": {"unknown": {"Slurm": "gone"}}})
    assert [finding.check for finding in worse.find_problems()] == ["processes", "job-name", "interval", "unknown"]


def test_case_names_are_unique():
    assert [name for name, count in Counter(case.name for case in ALL).items() if count > 1] == []


def test_without_any_facts_nothing_is_an_error():
    """What could not be looked at is not held against a train."""
    empty = make_facts({"now": deepcopy(BASE["now"]), "user": "me"}, {})
    request = Case(name="", table={"finds": []}).make_request()
    assert [problem for check in CHECKS.values() for problem in check.check(request, empty)] == []
