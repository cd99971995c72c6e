"""Every check of GPUs finds its faults, and finds nothing on a healthy node."""

import re
from dataclasses import replace
from datetime import timedelta

import pytest

from opsctl.nodes.health.kernel_lines import read_xids
from opsctl.nodes.health.node_state import Card, Health, NodeBaseline
from opsctl.settings.health import HealthSettings
from tests.support.cases import read_cases
from tests.support.made_nodes import (
    NOW,
    gpu_bus,
    gpu_uuid,
    judge_snapshot,
    list_results,
    make_snapshot,
    read_corpus,
    render_smi,
    render_stat,
    stamp_lines,
)

CARDS = tuple(Card(uuid=gpu_uuid(number)) for number in range(8))


def test_healthy_node_has_no_results() -> None:
    verdict = judge_snapshot(make_snapshot(), prior=NodeBaseline(cards=CARDS, memory_kb=2113652736))
    assert (verdict.health, verdict.results) == (Health.HEALTHY, ())


@pytest.mark.parametrize(*read_cases(__file__, "bad_value_is_reported_with_the_gpu"))
def test_bad_value_is_reported_with_the_gpu(changes, check, severity, evidence) -> None:
    verdict = judge_snapshot(make_snapshot(smi=render_smi(**changes)))
    assert list_results(verdict, check) == [(severity, evidence)]
    assert {result.gpu for result in verdict.results if result.check == check} <= {gpu_uuid(3), ""}


@pytest.mark.parametrize(
    "changes", [{"width": "8"}, {"dram_ever": "100"}, {"sw_power_cap": "Active"}, {"sram_ever": "4"}]
)
def test_harmless_values_have_no_result(changes) -> None:
    """An idle GPU narrows its link; lifetime DRAM errors are repaired; a power cap is temporary."""
    assert judge_snapshot(make_snapshot(smi=render_smi(**changes))).results == ()


@pytest.mark.parametrize(*read_cases(__file__, "hardware_exit_code_is_evidence"))
def test_hardware_exit_code_is_evidence(code, meaning) -> None:
    ((severity, evidence),) = list_results(judge_snapshot(make_snapshot(smi=(code, "No devices were found"))), "gpus")
    assert (severity, evidence) == ("faulty", f"nvidia-smi exit code {code}: {meaning}: No devices were found")


@pytest.mark.parametrize("code", [1, 2, 4, 9, 12, 124, 127, 137, 255, "late"])
def test_other_exit_code_is_unknown(code) -> None:
    verdict = judge_snapshot(make_snapshot(smi=(code, "NVIDIA-SMI has failed")), prior=NodeBaseline(cards=CARDS))
    assert verdict.health is Health.UNKNOWN
    assert [severity for severity, _ in list_results(verdict, "gpus")] == ["unknown"]


def test_lost_gpu_is_recognized_by_the_message() -> None:
    verdict = judge_snapshot(make_snapshot(smi=(255, read_corpus("nvidia-smi/errors/gpu-is-lost.txt"))))
    assert verdict.health is Health.FAULTY
    verdict = judge_snapshot(make_snapshot(smi=(255, read_corpus("nvidia-smi/errors/unknown-error.txt"))))
    assert verdict.health is Health.UNKNOWN


def test_missing_gpu_is_named() -> None:
    verdict = judge_snapshot(
        make_snapshot(smi=render_smi(7), pci="0000:10:00.0\n" * 7), prior=NodeBaseline(cards=CARDS)
    )
    assert list_results(verdict, "gpus") == [("faulty", f"7 of 8 GPUs answer; missing: {gpu_uuid(7)}")]


def test_gpus_hidden_from_a_job_are_no_evidence() -> None:
    verdict = judge_snapshot(make_snapshot(smi=render_smi(2), by="srun"), prior=NodeBaseline(cards=CARDS))
    assert verdict.health is Health.UNKNOWN
    assert list_results(verdict, "gpus")[0][1].endswith("; this job may see only its own GPUs")


def test_known_flaky_gpu_is_noted() -> None:
    verdict = judge_snapshot(
        make_snapshot(), flaky_gpus={"165052200002": "score 9; last on node907, 2026-11-01: xid: 79"}
    )
    assert list_results(verdict, "gpus") == [
        ("note", "a known flaky GPU: score 9; last on node907, 2026-11-01: xid: 79")
    ]


def test_node_without_gpus_needs_no_nvidia_smi() -> None:
    verdict = judge_snapshot(make_snapshot(smi=(127, ""), pci=""))
    assert (verdict.health, list_results(verdict, "gpus")) == (Health.HEALTHY, [])


@pytest.mark.parametrize(*read_cases(__file__, "xid_has_the_severity_of_its_row"))
def test_xid_has_the_severity_of_its_row(log, code, expected) -> None:
    verdict = judge_snapshot(make_snapshot(kernel=read_corpus(f"dmesg/{log}.txt")))
    severities = [severity for severity, evidence in list_results(verdict, "xid") if f"Xid {code} " in evidence]
    assert severities == ([expected] if expected else [])


def test_gpu_off_the_bus_needs_no_xid() -> None:
    verdict = judge_snapshot(
        make_snapshot(kernel=read_corpus("dmesg/fallen-without-xid.txt").replace("1843.", "999843."))
    )
    line = "NVRM: fallen off the bus and is not responding to commands."
    assert list_results(verdict, "xid") == [("faulty", f"a GPU has fallen off the bus: {line}")]


def test_driver_without_recovery_action_clears_an_xid() -> None:
    line = f"NVRM: Xid (PCI:0000:{gpu_bus(3)}:00): 119, pid=1, name=x, Timeout waiting for RPC from GSP!"
    assert judge_snapshot(make_snapshot(kernel=line)).health is Health.HEALTHY
    assert judge_snapshot(make_snapshot(kernel=line, smi=render_smi(recovery="N/A"))).health is Health.FAULTY
    assert (
        judge_snapshot(make_snapshot(kernel=line, smi=render_smi(recovery="GPU Reset Required"))).health
        is Health.FAULTY
    )


def test_later_recovery_line_clears_an_xid() -> None:
    where = f"NVRM: Xid (PCI:0000:{gpu_bus(3)}:00)"
    sick = f"{where}: 79, GPU has fallen off the bus.\n"
    reset = f"{where}: 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)\n"
    assert judge_snapshot(make_snapshot(kernel=sick + reset)).health is Health.HEALTHY
    assert judge_snapshot(make_snapshot(kernel=sick + reset + sick)).health is Health.FAULTY
    elsewhere = reset.replace(gpu_bus(3), gpu_bus(4))
    assert judge_snapshot(make_snapshot(kernel=sick + elsewhere)).health is Health.FAULTY


def test_gpu_off_the_bus_is_faulty_despite_the_driver() -> None:
    line = f"NVRM: Xid (PCI:0000:{gpu_bus(3)}:00): 79, GPU has fallen off the bus."
    verdict = judge_snapshot(make_snapshot(kernel=line))
    assert verdict.health is Health.FAULTY
    assert verdict.evidence[0].gpu == gpu_uuid(3)


def test_old_lines_and_lines_before_the_undrain_do_not_count() -> None:
    text = read_corpus("dmesg/xid-79-154.txt")
    assert judge_snapshot(make_snapshot(kernel=stamp_lines(text, 23 * 3600))).health is Health.FAULTY
    assert judge_snapshot(make_snapshot(kernel=stamp_lines(text, 25 * 3600))).health is Health.HEALTHY
    back = NodeBaseline(cleared=(NOW - timedelta(hours=1)).timestamp())
    assert judge_snapshot(make_snapshot(kernel=stamp_lines(text, 2 * 3600)), prior=back).health is Health.HEALTHY
    assert judge_snapshot(make_snapshot(kernel=stamp_lines(text, 60)), prior=back).health is Health.FAULTY


@pytest.mark.parametrize(*read_cases(__file__, "single_fatal_xid_counts"))
def test_single_fatal_xid_counts(line: str, expected: str) -> None:
    kernel = f"NVRM: Xid (PCI:0000:{gpu_bus(3)}:00): {line}\n"
    verdict = judge_snapshot(make_snapshot(kernel=kernel, smi=render_smi(recovery="N/A")))
    assert [severity for severity, _ in list_results(verdict, "xid")] == [expected]


def test_repeats_count_on_one_gpu() -> None:
    def judge(*gpus: int) -> list[str]:
        lines = "".join(f"NVRM: Xid (PCI:0000:{gpu_bus(number)}:00): 74, pid=1, NVLink\n" for number in gpus)
        return [severity for severity, _ in list_results(judge_snapshot(make_snapshot(kernel=lines)), "xid")]

    assert judge(1, 2, 4) == ["note", "note", "note"]
    assert judge(1, 1, 1) == ["degraded"]


def test_unknown_xid_is_a_note() -> None:
    ((severity, evidence),) = list_results(
        judge_snapshot(make_snapshot(kernel="NVRM: Xid (PCI:0000:10:00): 999, what")), "xid"
    )
    assert severity == "note"
    assert evidence.startswith("Xid 999 (not in the table) on 0000:10:00: NVRM: Xid")


def test_unreadable_kernel_log_needs_the_recovery_action() -> None:
    assert judge_snapshot(make_snapshot(kernel=(1, ""))).health is Health.HEALTHY
    assert judge_snapshot(make_snapshot(kernel=(1, ""), smi=render_smi(recovery="N/A"))).health is Health.UNKNOWN


def test_link_that_was_up_must_stay_up() -> None:
    card = f"GPU 3: NVIDIA H100 (UUID: {gpu_uuid(3)})\n"
    up = card + read_corpus("nvlink/v100-two-inactive.txt").partition("\n")[2]
    before = NodeBaseline(links={gpu_uuid(3): (0, 1, 2, 3, 4)}, link_errors={gpu_uuid(3): 5})
    errors = card + "\t Link 0: Replay Errors: 7\n\t Link 0: Recovery Errors: 0\n"
    verdict = judge_snapshot(make_snapshot(nvlink=up, nvlink_errors=errors), prior=before)
    assert list_results(verdict, "nvlink") == [
        ("degraded", "links that were up are down: 3"),
        ("note", "2 new link errors since the last check"),
    ]
    assert list_results(judge_snapshot(make_snapshot(nvlink=up)), "nvlink") == []
    none = card + read_corpus("nvlink/b200-all-inactive.txt").partition("\n")[2]
    assert list_results(judge_snapshot(make_snapshot(nvlink=none), prior=before), "nvlink")[0] == (
        "degraded",
        "links that were up are down: all",
    )


def test_process_on_a_gpu_of_an_idle_node_is_an_orphan() -> None:
    held = "<process_info><pid>4242</pid><type>C</type><process_name>python</process_name></process_info>"
    processes = "1 0\n4242 1001\n--\n" + render_stat(1, "systemd") + render_stat(4242, "python") + "--\n100\n"
    orphan = make_snapshot(smi=render_smi(processes=held), processes=processes)
    assert list_results(judge_snapshot(orphan), "orphans") == [
        ("degraded", "held by 4242 (python, uid 1001) although no job runs")
    ]
    assert list_results(judge_snapshot(orphan, busy=True), "orphans") == []
    assert list_results(judge_snapshot(orphan, busy=None), "orphans") == []
    assert list_results(judge_snapshot(replace(orphan, in_job=True)), "orphans") == []


@pytest.mark.parametrize("version", ["v3", "v4"])
def test_failed_dcgm_test_is_evidence_in_every_format(version) -> None:
    verdict = judge_snapshot(make_snapshot(dcgm=(226, read_corpus(f"dcgmi/made/fail-{version}.json"))))
    assert verdict.health is Health.FAULTY
    assert (
        "row remappings are pending" in list_results(verdict, "dcgm")[0][1]
        or "cuCtxCreate" in list_results(verdict, "dcgm")[0][1]
    )
    assert list_results(judge_snapshot(make_snapshot(dcgm=(127, ""))), "dcgm") == [
        ("unknown", "dcgmi diag is not installed")
    ]


def test_value_that_mig_hides_is_unknown() -> None:
    verdict = judge_snapshot(
        make_snapshot(
            smi=read_corpus("nvidia-smi/535.54.03/a100-mig.xml").replace("<attached_gpus>4", "<attached_gpus>1")
        )
    )
    assert list_results(verdict, "remapped_rows") == [("unknown", "remapped rows: N/A under MIG")]
    assert verdict.health is Health.UNKNOWN
    site = HealthSettings(may_be_unknown=(*HealthSettings().may_be_unknown, "remapped_rows"))
    snapshot = make_snapshot(
        smi=read_corpus("nvidia-smi/535.54.03/a100-mig.xml").replace("<attached_gpus>4", "<attached_gpus>1")
    )
    assert judge_snapshot(snapshot, site=site).health is Health.HEALTHY


def test_workstation_gpu_is_read() -> None:
    snapshot = make_snapshot(smi=read_corpus("nvidia-smi/590.44.01/rtx-pro-6000.xml"))
    assert snapshot.smi is not None
    (gpu,) = snapshot.smi.gpus
    assert (gpu.bus, gpu.recovery, gpu.ecc, gpu.rows_pending, gpu.margin_c) == ("0000:61:00", "None", {}, False, 68)
    verdict = judge_snapshot(snapshot)
    assert list_results(verdict, "ecc") == [("note", "ECC is switched off: memory errors stay unnoticed")]
    assert verdict.health is Health.HEALTHY


V100 = read_corpus("nvidia-smi/460.73.01/v100.xml").replace("<attached_gpus>8", "<attached_gpus>1")
T4 = read_corpus("nvidia-smi/515.105.01/t4.xml")


@pytest.mark.parametrize("smi", [V100, T4], ids=["V100", "T4"])
def test_card_that_retires_pages_can_be_healthy(smi: str) -> None:
    """These cards remap no rows and report no recovery action: N/A says that the card lacks the feature."""
    verdict = judge_snapshot(make_snapshot(smi=smi, pci="0000:00:0d.0\n"))
    assert (verdict.health, list_results(verdict, "ecc"), list_results(verdict, "remapped_rows")) == (
        Health.HEALTHY,
        [],
        [],
    )
    assert judge_snapshot(make_snapshot(smi=smi, pci="0000:00:0d.0\n", kernel=(1, ""))).health is Health.UNKNOWN


def test_card_without_ecc_can_be_healthy() -> None:
    mode = "<ecc_mode><current_ecc>N/A</current_ecc></ecc_mode>"
    without = re.sub(r"<ecc_mode>.*</retired_pages>", mode, T4, flags=re.DOTALL)
    verdict = judge_snapshot(make_snapshot(smi=without, pci="0000:00:1e.0\n"))
    assert (verdict.health, list_results(verdict, "ecc")) == (Health.HEALTHY, [])
    unreadable = without.replace(">N/A</current_ecc>", ">Unknown Error</current_ecc>")
    assert judge_snapshot(make_snapshot(smi=unreadable, pci="0000:00:1e.0\n")).health is Health.UNKNOWN


def test_volta_counts_bits_by_memory() -> None:
    """Double bits in device memory are DRAM errors; in registers and caches, SRAM errors."""
    dram = V100.replace("<double_bit>\n                    <device_memory>0", "<double_bit><device_memory>2", 1)
    dram = dram.replace("<cbu>0</cbu>\n                    <total>0", "<cbu>0</cbu><total>2", 1)
    snapshot = make_snapshot(smi=dram, pci="0000:00:0d.0\n")
    assert list_results(judge_snapshot(snapshot), "ecc") == [
        ("degraded", "2 uncorrectable DRAM errors since the driver was loaded")
    ]
    sram = V100.replace("<cbu>0</cbu>\n                    <total>0", "<cbu>1</cbu><total>1", 1)
    snapshot = make_snapshot(smi=sram, pci="0000:00:0d.0\n")
    assert list_results(judge_snapshot(snapshot), "ecc") == [
        ("faulty", "1 uncorrectable SRAM errors since the driver was loaded")
    ]


@pytest.mark.parametrize(*read_cases(__file__, "retired_pages_have_a_limit"))
def test_retired_pages_have_a_limit(count: int, pending: str, expected: list[list[str]]) -> None:
    text = V100.replace("<retired_count>0", f"<retired_count>{count}", 1).replace(
        "<pending_retirement>No", f"<pending_retirement>{pending}"
    )
    verdict = judge_snapshot(make_snapshot(smi=text, pci="0000:00:0d.0\n"))
    assert list(map(list, list_results(verdict, "retired_pages"))) == expected


def test_every_row_of_the_xid_table_is_complete() -> None:
    words = {"yes", "yes-stays", "after-job", "repeat", "repeat-note", "if-fatal", "follow", "report", "no"}
    assert {row.drain for row in read_xids().values()} <= words
    assert all(row.meaning and row.action and row.source for row in read_xids().values())
    assert {48, 79, 94, 95, 119, 154} <= set(read_xids())
