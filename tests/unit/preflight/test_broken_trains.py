"""Every broken train in tests/corpus/preflight has exactly the expected problems, published configurations none."""

from collections import Counter, defaultdict
from string import Formatter

import pytest

from opsctl.preflight.checks import CHECKS
from opsctl.preflight.problem import ProblemSeverity, read_table
from tests.support.broken_trains import BASE, ROOT, Case, deepcopy, make_facts, read_cases
from tests.support.real_configurations import read_configurations

ALL = read_cases()
CHECK_TRAIN = "opsctl/actions/check_train.py"
GOOD = {
    "gpt-176b": [],
    "megatron-deepspeed": [],
    "gpt-13b": [("warning", "pipeline")],
    "gpt-104b": [("warning", "pipeline")],
    "gpt-1.3b": [],
    "tiny-gpt": [],
}
"""The problems of the examples on a fitting cluster. Two start with a batch ramp that does not fill the pipeline."""


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_broken_train_gives_exactly_these_problems(case):
    problems = case.find_problems()
    assert Counter((problem.severity, problem.check) for problem in problems) == Counter(
        (lv, name) for lv, name, _ in case.expected
    )
    left = list(problems)
    for severity, name, part in case.expected:
        matches = [problem for problem in left if (problem.severity, problem.check) == (severity, name)]
        match = next((problem for problem in matches if part in problem.what), None)
        assert match is not None, [problem.what for problem in left]
        left.remove(match)
    for problem in problems:
        assert problem.what and problem.remedy and problem.source, problem
        sentences = read_table()[problem.check][problem.kind.partition(".")[2]]
        names = [name for key in ("what", "remedy") for _, name, _, _ in Formatter().parse(sentences[key]) if name]
        assert set(names) <= set(problem.facts), problem.kind


@pytest.mark.parametrize("example", GOOD)
def test_example_gives_exactly_the_known_problems(example):
    """The cluster has enough nodes, with the GPUs of the example."""
    smaller = {"vocabulary": 257, "width": 2}
    corpus = {**BASE["corpora"][0], **({} if example in {"gpt-176b", "megatron-deepspeed"} else smaller)}
    gpu = {"gpt-104b": "V100", "tiny-gpt": "none"}.get(example, "A100")
    changes = {"corpora": [corpus], "step_s": "none", "gpu": gpu}
    limits = {"cluster.partitions": [{**BASE["cluster"]["partitions"][0], "nodes": 72, "max_nodes": 64}]}
    nodes = {"cluster.members": ["n[01-72]"], "cluster.nodes": ["n[01-72]"]}
    problems = Case(
        name=example, table={"of": example, "finds": [], "facts": {**changes, **limits, **nodes}}
    ).find_problems()
    assert [(problem.severity, problem.check) for problem in problems] == GOOD[example], [
        problem.what for problem in problems
    ]


def test_every_check_has_a_broken_train():
    assert len(ALL) >= 40
    assert {name for case in ALL for _, name, _ in case.expected} == set(CHECKS)


def test_every_sentence_belongs_to_a_problem():
    """The names of problems stand in the code as they stand in checks.toml, which nobody else uses."""
    code = "".join(path.read_text() for path in (*ROOT.glob("opsctl/preflight/**/*.py"), ROOT / CHECK_TRAIN))
    for check, table in read_table().items():
        for name in (
            name for name, row in table.items() if isinstance(row, dict) and "when" not in row and "what" in row
        ):
            assert f'"{check}.{name}"' in code or f'.{name}"' in code or f'"{name}"' in code, f"{check}.{name}"


def test_errors_come_first_and_notes_last():
    changes = {"slurm.nodes": 47, "name": "n" * 44, "trainer.checkpoint.every": 0}
    worse = Case(name="worse", table={"set": changes, "facts": {"unknown": {"Slurm": "gone"}}})
    assert [finding.check for finding in worse.find_problems()] == ["processes", "job-name", "interval", "unknown"]


def test_case_names_are_unique():
    assert [name for name, count in Counter(case.name for case in ALL).items() if count > 1] == []


def test_unknown_facts_give_no_problem():
    """Unknown facts are neither good nor bad."""
    empty = make_facts({"now": deepcopy(BASE["now"]), "user": "me"}, {})
    request = Case(name="", table={"finds": []}).make_request()
    assert [problem for check in CHECKS.values() for problem in check(request, empty)] == []


TEXT = (ROOT / "docs" / "reference" / "preflight-checks.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("| `")]


def test_rows_have_the_order_of_the_checks():
    assert [row[0].strip("`") for row in ROWS] == list(CHECKS)


def test_rows_have_the_levels_of_the_corpus():
    found = defaultdict(set)
    for case in read_cases():
        for severity, name, _ in case.expected:
            found[name].add(severity)
    shown = {name: ", ".join(severity for severity in ProblemSeverity if severity in found[name]) for name in CHECKS}
    assert {row[0].strip("`"): row[1] for row in ROWS} == shown


def test_rows_have_source_and_remedy():
    assert {row[0].strip("`"): row[2] for row in ROWS} == {name: read_table()[name]["source"] for name in CHECKS}
    assert [row[0] for row in ROWS if not row[3]] == []


def find_refused(half, directory, *, by_torchrun):
    """Return the refused configurations with their errors."""
    refused = {}
    for configuration in read_configurations(half, directory):
        problems = configuration.find_problems(by_torchrun=by_torchrun)
        errors = [problem.what for problem in problems if problem.severity is ProblemSeverity.ERROR]
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
