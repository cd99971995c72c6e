"""GPUs that amd-smi reports: the same checks, for the values that amd-smi has."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.nodes.health.amd_smi import parse_amd
from opsctl.nodes.health.node_state import Card, Health, NodeBaseline, NodeSnapshot, Verdict
from tests.support.cases import read_cases
from tests.support.made_nodes import judge_snapshot, list_results, make_snapshot, read_corpus

FORMS = ("list", "static", "metric")
UUIDS = tuple(f"67ff740f-{number}" for number in range(8))
CARDS = tuple(Card(uuid=uuid) for uuid in UUIDS)


def render_cards(cards: int = 8, *, newer: bool = False, bad: dict[str, Any] | None = None) -> str:
    """Return the script's section for `cards` GPUs. `bad` changes values of GPU 3, by `form.key.key`."""
    text = ""
    for form in FORMS:
        rows = []
        for number in range(cards):
            row = json.loads(read_corpus(f"amd-smi/made/{form}.json")) | {"gpu": number}
            if form == "list":
                row |= {"uuid": UUIDS[number], "bdf": f"0000:{5 + number:02x}:00.0"}
            for path, value in (bad or {}).items() if number == 3 else ():
                keys = path.split(".")
                _put(row, keys[1:], value) if keys[0] == form else None
            rows.append(row)
        text += f"@{form}\n" + json.dumps({"gpu_data": rows} if newer else rows, indent=1) + "\n"
    return text


def _put(row: Any, keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        row = row[key]
    row[keys[-1]] = value


def make_node(text: str | tuple[int | str, str] | None = None, **options: Any) -> NodeSnapshot:
    """Return the snapshot of a node without nvidia-smi."""
    return make_snapshot(smi=(127, ""), amd=render_cards() if text is None else text, **options)


def judge_node(text: str | tuple[int | str, str] | None = None, **options: Any) -> Verdict:
    return judge_snapshot(make_node(text), prior=NodeBaseline(cards=CARDS), **options)


@pytest.mark.parametrize("newer", [False, True])
def test_healthy_node_has_no_results(newer: bool) -> None:
    verdict = judge_node(render_cards(newer=newer))
    assert (verdict.health, verdict.results) == (Health.HEALTHY, ())
    smi = make_node(render_cards(newer=newer)).smi
    assert smi is not None
    assert (smi.driver, smi.gpus[3].bus, smi.gpus[3].temperature_c, smi.gpus[3].slowdown_c) == (
        "6.18.3",
        "0000:08:00",
        44,
        100,
    )


@pytest.mark.parametrize(*read_cases(__file__, "fault_is_found"))
def test_fault_is_found(bad: dict[str, Any], check: str, severity: str, evidence: str) -> None:
    verdict = judge_node(render_cards(bad=bad))
    assert list_results(verdict, check) == [(severity, evidence)]
    assert verdict.health.value == severity
    assert verdict.evidence[0].gpu == UUIDS[3]


def test_missing_gpu_is_named() -> None:
    assert list_results(judge_node(render_cards(7)), "gpus") == [("faulty", f"7 of 8 GPUs answer; missing: {UUIDS[7]}")]


@pytest.mark.parametrize(*read_cases(__file__, "failed_amd_smi_is_unknown", answer=tuple))
def test_failed_amd_smi_is_unknown(answer: tuple[int | str, str], evidence: str) -> None:
    verdict = judge_node(answer)
    assert (verdict.health, list_results(verdict, "gpus")) == (Health.UNKNOWN, [("unknown", evidence)])


@settings(max_examples=100, deadline=None)
@given(
    path=st.sampled_from(
        [
            "metric.ecc",
            "metric.ecc.total_uncorrectable_count",
            "metric.temperature",
            "static.limit",
            "metric.pcie.width",
            "static.ras.bad_page_threshold_exceeded",
            "static.driver",
            "static.bus",
        ]
    ),
    value=st.sampled_from(["", "N/A", "???", None, [], {}, {"value": "N/A"}, {"value": None}, True, False]),
)
def test_missing_value_is_no_evidence(path: str, value: object) -> None:
    if path.endswith("exceeded") and value is True:
        return  # the value is a fault
    assert judge_node(render_cards(bad={path: value})).evidence == []


@settings(max_examples=100, deadline=None)
@given(cut=st.integers(0, 9000), noise=st.text(max_size=20))
def test_noise_raises_nothing(cut: int, noise: str) -> None:
    text = render_cards(2)
    parse_amd(text[:cut] + noise)
    parse_amd(text[:cut] + noise + text[cut:])
    parse_amd(noise)
