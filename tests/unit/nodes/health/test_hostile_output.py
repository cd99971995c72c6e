"""The parsers raise nothing for any input, and an unknown never becomes a drain."""

from datetime import timedelta

from hypothesis import example, given, settings
from hypothesis import strategies as st

from opsctl.base.model import Node
from opsctl.base.ports import Answer
from opsctl.nodes.drain_plan import plan_drain
from opsctl.nodes.health import host_output, nvidia_smi
from opsctl.nodes.health.host_output import parse_fio
from opsctl.nodes.health.node_state import Card, CheckInput, CheckSeverity, Health, NodeBaseline
from opsctl.nodes.health.snapshot import parse
from opsctl.nodes.health.verdict import judge
from opsctl.nodes.history import NodeRecord, update_record
from opsctl.settings.health import HealthSettings
from tests.support.cases import read_table
from tests.support.made_nodes import MARK, NOW, gpu_uuid, render_answer, render_smi

SECTION_MARKS = [MARK, f"\n{MARK} begin smi 0\n", f"\n{MARK} err\n", f"\n{MARK} done\n"]
SURROGATE = "\ud800".encode("utf-8", "replace").decode()
WORDS = st.sampled_from([*read_table(__file__, "words"), *SECTION_MARKS, "9" * 30, SURROGATE])
ANY = st.one_of(st.text(max_size=60), st.lists(st.one_of(WORDS, st.text(max_size=8)), max_size=40).map("".join))
SECTIONS = read_table(__file__, "sections")
PRIOR = NodeBaseline(cards=tuple(Card(uuid=gpu_uuid(number)) for number in range(8)), memory_kb=10**9)
EXPECTS = HealthSettings(fio_write_mib_s=1e6, fio_read_mib_s=1e6)
NODES = [Node(name="node001", state="IDLE", address="")]


def judge_answer(answer: Answer):
    snapshot = parse(answer, MARK, sent_at=NOW, answered_at=NOW + timedelta(seconds=1))
    verdict = judge(snapshot, CheckInput(prior=PRIOR, busy=False, site=EXPECTS))
    update_record(NodeRecord(node="node001"), snapshot, verdict, baseline_hours=24)
    return verdict


@settings(max_examples=150, deadline=None)
@given(text=ANY)
def test_no_parser_raises(text):
    for parser in (
        nvidia_smi.parse_smi,
        nvidia_smi.parse_links,
        nvidia_smi.parse_link_errors,
        nvidia_smi.normalize_bus,
        host_output.parse_ports,
        host_output.parse_offset,
        host_output.parse_dcgm,
        host_output.parse_libraries,
        host_output.parse_settings,
        host_output.parse_int,
        host_output.parse_float,
        parse_fio,
    ):
        parser(text)
    list(host_output.parse_df(text))
    host_output.parse_kernel(text, 5.0)
    host_output.parse_processes(text, None)


@settings(max_examples=150, deadline=None)
@given(text=ANY, code=st.one_of(st.none(), st.integers(0, 255)))
@example(text=f"{MARK} begin smi 0\n<nvidia_smi_log><gpu></gpu></nvidia_smi_log>\n{MARK} begin smi 0\n", code=None)
def test_noise_instead_of_an_answer_is_unknown(text, code):
    verdict = judge_answer(Answer(node="node001", by="ssh", code=code, out=text))
    assert verdict.health is Health.UNKNOWN


@settings(max_examples=100, deadline=None)
@given(cut=st.integers(0, 9000))
def test_answer_that_is_cut_off_is_unknown(cut):
    verdict = judge_answer(
        Answer(node="node001", by="ssh", code=None, out=render_answer()[:cut], problem="the connection ended")
    )
    assert verdict.health is Health.UNKNOWN


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(SECTIONS), text=ANY, code=st.sampled_from(["0", "1", "2", "9", "124", "127", "late", "x"]))
def test_noise_in_one_section_is_no_evidence_on_gpus(name, text, code):
    if name == "smi" and "<gpu>" in text:
        return  # the noise is an answer
    text = text.replace("GPU is lost", "").replace("fallen off the bus", "")
    out = render_answer(smi=render_smi(), **{name: (code, text)}) if name != "smi" else render_answer(smi=(code, text))
    verdict = judge_answer(Answer(node="node001", by="ssh", code=0, out=out))
    bad = {result.check for result in verdict.evidence} - {"xid", "memory", "shm", "dcgm", "infiniband"}
    assert bad == set()


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(read_table(__file__, "fields")),
    value=st.sampled_from(read_table(__file__, "values")),
)
def test_missing_value_is_no_evidence(name, value):
    verdict = judge_answer(
        Answer(node="node001", by="ssh", code=0, out=render_answer(smi=render_smi(bad=3, **{name: value})))
    )
    assert verdict.evidence == []


@settings(max_examples=100, deadline=None)
@given(text=ANY, cut=st.integers(0, 3000), code=st.one_of(st.none(), st.integers(0, 255)))
def test_no_unknown_becomes_a_drain(text, cut, code):
    verdict = judge_answer(
        Answer(node="node001", by="ssh", code=code, out=render_answer(smi=("late", text))[:cut] + text)
    )
    plan = plan_drain([verdict], NODES, HealthSettings(), scores={"node001": 100.0})
    if not any(result.severity in {CheckSeverity.FAULTY, CheckSeverity.DEGRADED} for result in verdict.results):
        assert plan.steps == ()
    for step in plan.steps:
        assert step.reason.startswith("opsctl: ")
        assert step.reason.isascii() and step.reason.isprintable()
