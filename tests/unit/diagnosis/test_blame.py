"""The table blame.toml: which evidence convicts a node."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.diagnosis.blame import EXCLUDE, Accusation, Proof, blame_table, find_rule, judge_accusation, may_exclude
from opsctl.diagnosis.causes import CauseKind, causes
from opsctl.diagnosis.diagnose_attempt import diagnose_logs
from opsctl.guard.end_record import Action
from opsctl.nodes.health.node_state import Health, Verdict
from tests.support.cases import read_cases

CORPUS = Path(__file__).parents[2] / "corpus" / "failures" / "tuning.jsonl"
INNOCENT = (
    CauseKind.CODE,
    CauseKind.CONFIG,
    CauseKind.DATA,
    CauseKind.STORAGE,
    CauseKind.MEMORY,
    CauseKind.UNKNOWN,
)
"""Classes for which nothing may exclude a node."""
NAMES = sorted({cause.name for cause in causes()} | {"end", "traceback", "hang", "nothing"})


def make_verdict(health: Health) -> Verdict:
    return Verdict(node="node001", health=health, results=(), at=datetime(2026, 3, 1, tzinfo=UTC), by="ssh")


ACCUSED = Accusation(node="node001")
HEALTHY = replace(ACCUSED, verdict=make_verdict(Health.HEALTHY))
WITHOUT_GPUS = replace(ACCUSED, verdict=replace(make_verdict(Health.HEALTHY), saw_gpus=False))
FAULTY = replace(ACCUSED, verdict=make_verdict(Health.FAULTY))
accusations = st.builds(
    Accusation,
    node=st.just("node001"),
    verdict=st.sampled_from([None, *map(make_verdict, Health)]),
    is_lost=st.booleans(),
    crowd=st.integers(1, 9),
    voices=st.integers(0, 9),
    is_cut_off=st.sampled_from([None, True, False]),
    repeats=st.integers(1, 99),
)


@pytest.mark.parametrize("kind", CauseKind)
def test_every_class_has_a_rule_for_the_rest(kind: CauseKind) -> None:
    assert find_rule(kind).causes == ()


def test_rules_are_complete() -> None:
    rules = blame_table().rules
    assert {Action(rule.action) for rule in rules} == {Action.EXCLUDE_NODES, Action.HOLD_QUEUED, Action.CONTINUE}
    assert all((rule.action == EXCLUDE) == (rule.proof is not None) for rule in rules)
    assert {name for rule in rules for name in rule.causes} <= set(NAMES)


@given(kind=st.sampled_from(INNOCENT), cause=st.sampled_from(NAMES), accusation=accusations)
def test_innocent_class_never_convicts(kind: CauseKind, cause: str, accusation: Accusation) -> None:
    assert not judge_accusation(kind, cause, accusation).is_convicted


@given(kind=st.sampled_from(CauseKind), cause=st.sampled_from(NAMES), accusation=accusations)
def test_healthy_check_acquits_without_repeats(kind: CauseKind, cause: str, accusation: Accusation) -> None:
    looked = replace(accusation, verdict=make_verdict(Health.HEALTHY), repeats=1)
    assert not judge_accusation(kind, cause, looked).is_convicted


@pytest.mark.parametrize(*read_cases(__file__, "evidence_convicts", kind=lambda name: CauseKind[name]))
def test_evidence_convicts(kind: CauseKind, cause: str, accusation: dict[str, Any], is_convicted: bool) -> None:
    known = {"WITHOUT_GPUS": WITHOUT_GPUS, "ACCUSED": ACCUSED, "FAULTY": FAULTY, "HEALTHY": HEALTHY}
    changes = {name: value for name, value in accusation.items() if name != "of"}
    judged = judge_accusation(kind, cause, replace(known[accusation["of"]], **changes))
    assert judged.is_convicted is is_convicted


@given(kind=st.sampled_from(CauseKind), cause=st.sampled_from(NAMES))
def test_log_alone_never_convicts(kind: CauseKind, cause: str) -> None:
    assert not judge_accusation(kind, cause, ACCUSED).is_convicted


def test_logs_alone_suspect_only_by_messages() -> None:
    for cause in causes():
        makes_suspect = find_rule(cause.kind, cause.name).proof in {Proof.MESSAGE, Proof.SLURM}
        assert makes_suspect <= may_exclude(cause.kind)


def read_cases_without_node_evidence() -> list[dict[str, object]]:
    cases = map(json.loads, CORPUS.read_text().splitlines())
    return [case for case in cases if case["scope"] == "none"]


@pytest.mark.parametrize("case", read_cases_without_node_evidence(), ids=lambda case: case["id"])
def test_log_without_node_evidence_suspects_none(case: dict[str, object], tmp_path: Path) -> None:
    """The file name tells the node of the rank, as in a train, so that any line can be held against the node."""
    log = tmp_path / "node001-3.log"
    log.write_text("\n".join(map(str, case["lines"])) + "\n")  # type: ignore[call-overload]  # a list, by the README
    diagnosis = diagnose_logs([log])
    assert diagnosis.suspects == ()
    assert not judge_accusation(diagnosis.kind, diagnosis.cause, ACCUSED).is_convicted
