"""Each check both ways: what it says of a fault, and that it says nothing of a node that is well."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.nodes.health.checks import CHECKS
from opsctl.nodes.health.checks.xid import read_table
from opsctl.nodes.health.node_checker import judge_all
from opsctl.nodes.health.node_state import Health, NodeBaseline, Port
from opsctl.nodes.health.snapshot import parse
from opsctl.ports import Answer
from opsctl.settings.health import HealthSettings
from tests.support.made_nodes import (
    MARK,
    NOW,
    gpu_bus,
    gpu_uuid,
    judge_snapshot,
    list_results,
    make_snapshot,
    read_corpus,
    render_answer,
    render_smi,
    render_stat,
    stamp_lines,
)

CARDS = tuple(gpu_uuid(number) for number in range(8))


def test_a_node_that_is_well_is_healthy_and_nothing_is_said_of_it() -> None:
    found = judge_snapshot(make_snapshot(), prior=NodeBaseline(uuids=CARDS, memory_kb=2113652736))
    assert (found.health, found.results) == (Health.HEALTHY, ())


@pytest.mark.parametrize(("changes", "check", "severity", "evidence"), [
    ({"sram": "2"}, "ecc", "faulty", "2 uncorrectable SRAM errors since the driver was loaded"),
    ({"dram": "1"}, "ecc", "degraded", "1 uncorrectable DRAM errors since the driver was loaded"),
    ({"sram_ever": "5"}, "ecc", "faulty", "5 uncorrectable SRAM errors over the GPU's lifetime: more than allowed"),
    ({"dram_fixed": "20000001"}, "ecc", "degraded", "20000001 corrected DRAM errors, more than 20000000"),
    ({"pending": "Yes"}, "remapped_rows", "degraded", "a row waits to be remapped; running jobs are safe"),
    ({"pending": "1"}, "remapped_rows", "degraded", "a row waits to be remapped; running jobs are safe"),
    ({"failure": "Yes"}, "remapped_rows", "faulty", "a row could not be remapped"),
    ({"recovery": "Reset"}, "recovery", "faulty", "the driver requests: Reset"),
    ({"recovery": "Drain and Reset"}, "recovery", "degraded", "the driver requests: Drain and Reset"),
    ({"recovery": "Dance"}, "recovery", "unknown", "unknown recovery action 'Dance'"),
    ({"hw_thermal": "Active"}, "clocks", "degraded", "slowed down by hw_thermal_slowdown although idle"),
    ({"hw_thermal": "Active", "use": "97"}, "clocks", "note", "slowed down by hw_thermal_slowdown"),
    ({"margin": "-2"}, "temperature", "degraded", "31 C, -2 C from its limit"),
    ({"temperature": "N/A"}, "temperature", "unknown", "temperature: N/A"),
    ({"power": "500.00"}, "temperature", "note", "capped at 500 W, 700 W by default"),
    ({"width": "8", "use": "80"}, "pcie", "degraded", "8 of 16 lanes under load"),
    ({"persistence": "Disabled"}, "persistence", "note",
     "off on 1 GPUs: an idle driver loses its error counters"),
])  # fmt: skip
def test_a_value_of_one_card_is_told_with_its_uuid(changes, check, severity, evidence) -> None:
    found = judge_snapshot(make_snapshot(smi=render_smi(**changes)))
    assert list_results(found, check) == [(severity, evidence)]
    assert {result.gpu for result in found.results if result.check == check} <= {gpu_uuid(3), ""}


@pytest.mark.parametrize("changes", [
    {"width": "8"}, {"dram_ever": "100"}, {"sw_power_cap": "Active"}, {"sram_ever": "4"}
])  # fmt: skip
def test_harmless_values_have_no_result(changes) -> None:
    """An idle card narrows its link; lifetime DRAM errors are history; a power cap comes and goes."""
    assert judge_snapshot(make_snapshot(smi=render_smi(**changes))).results == ()


@pytest.mark.parametrize(("code", "meaning"), [
    (8, "a power cable is not attached"),
    (10, "the kernel reported an interrupt problem"), (14, "the infoROM is corrupt"),
    (15, "a GPU has fallen off the bus"),
])  # fmt: skip
def test_exit_codes_of_nvidia_smi_that_speak_of_hardware_are_evidence(code, meaning) -> None:
    ((severity, evidence),) = list_results(judge_snapshot(make_snapshot(smi=(code, "No devices were found"))), "gpus")
    assert (severity, evidence) == ("faulty", f"nvidia-smi exit code {code}: {meaning}: No devices were found")


@pytest.mark.parametrize("code", [1, 2, 4, 9, 12, 124, 127, 137, 255, "late"])
def test_exit_codes_that_speak_of_drivers_rights_and_time_are_unknown(code) -> None:
    found = judge_snapshot(make_snapshot(smi=(code, "NVIDIA-SMI has failed")), prior=NodeBaseline(uuids=CARDS))
    assert found.health is Health.UNKNOWN
    assert [each for each, _ in list_results(found, "gpus")] == ["unknown"]


def test_a_lost_card_is_known_by_what_nvidia_smi_says() -> None:
    found = judge_snapshot(make_snapshot(smi=(255, read_corpus("nvidia-smi/errors/gpu-is-lost.txt"))))
    assert found.health is Health.FAULTY
    found = judge_snapshot(make_snapshot(smi=(255, read_corpus("nvidia-smi/errors/unknown-error.txt"))))
    assert found.health is Health.UNKNOWN


def test_a_card_that_is_missing_is_named() -> None:
    found = judge_snapshot(make_snapshot(smi=render_smi(7), pci="0000:10:00.0\n" * 7), prior=NodeBaseline(uuids=CARDS))
    assert list_results(found, "gpus") == [("faulty", f"7 of 8 GPUs answer; missing: {gpu_uuid(7)}")]


def test_gpus_hidden_from_a_job_are_no_evidence() -> None:
    found = judge_snapshot(make_snapshot(smi=render_smi(2), by="srun"), prior=NodeBaseline(uuids=CARDS))
    assert found.health is Health.UNKNOWN
    assert list_results(found, "gpus")[0][1].endswith("; this job may see only its own GPUs")


def test_a_card_that_was_a_lemon_elsewhere_is_known_again() -> None:
    found = judge_snapshot(
        make_snapshot(), flaky_gpus={"165052200002": "score 9; last on node907, 2026-11-01: xid: 79"}
    )
    assert list_results(found, "gpus") == [("note", "a known flaky GPU: score 9; last on node907, 2026-11-01: xid: 79")]


def test_a_node_without_gpus_needs_no_nvidia_smi() -> None:
    found = judge_snapshot(make_snapshot(smi=(127, ""), pci=""))
    assert (found.health, list_results(found, "gpus")) == (Health.HEALTHY, [])


@pytest.mark.parametrize(("log", "code", "severity"), [
    ("xid-63-a100", 63, None), ("xid-119-gsp", 119, "faulty"), ("xid-43", 43, None), ("xid-94", 94, "degraded"),
    ("xid-13-109", 109, "faulty"), ("xid-13-109", 13, None), ("xid-79-154", 79, "faulty"),
    ("xid-79-154", 154, "faulty"), ("xid-62-154-45", 62, "faulty"), ("xid-62-154-45", 45, None),
    ("xid-145-149-nvlink5", 149, "faulty"), ("xid-145-149-nvlink5", 145, "note"),
])  # fmt: skip
def test_lines_of_the_kernel_log_mean_what_the_table_says(log, code, severity) -> None:
    found = judge_snapshot(make_snapshot(kernel=read_corpus(f"dmesg/{log}.txt")))
    mine = [level for level, words in list_results(found, "xid") if f"Xid {code} " in words]
    assert mine == ([severity] if severity else [])


def test_a_card_can_fall_off_the_bus_without_an_xid() -> None:
    found = judge_snapshot(
        make_snapshot(kernel=read_corpus("dmesg/fallen-without-xid.txt").replace("1843.", "999843."))
    )
    assert ("faulty", "the kernel log says that a GPU has fallen off the bus") in list_results(found, "xid")


def test_a_reset_that_the_driver_knows_of_clears_what_asked_for_it() -> None:
    line = f"NVRM: Xid (PCI:0000:{gpu_bus(3)}:00): 119, pid=1, name=x, Timeout waiting for RPC from GSP!"
    assert judge_snapshot(make_snapshot(kernel=line)).health is Health.HEALTHY
    assert judge_snapshot(make_snapshot(kernel=line, smi=render_smi(recovery="N/A"))).health is Health.FAULTY
    assert (
        judge_snapshot(make_snapshot(kernel=line, smi=render_smi(recovery="GPU Reset Required"))).health
        is Health.FAULTY
    )


def test_the_kernel_log_itself_says_when_a_card_is_well_again() -> None:
    where = f"NVRM: Xid (PCI:0000:{gpu_bus(3)}:00)"
    sick = f"{where}: 79, GPU has fallen off the bus.\n"
    reset = f"{where}: 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)\n"
    assert judge_snapshot(make_snapshot(kernel=sick + reset)).health is Health.HEALTHY
    assert judge_snapshot(make_snapshot(kernel=sick + reset + sick)).health is Health.FAULTY
    elsewhere = reset.replace(gpu_bus(3), gpu_bus(4))
    assert judge_snapshot(make_snapshot(kernel=sick + elsewhere)).health is Health.FAULTY


def test_a_card_that_fell_off_the_bus_is_faulty_whatever_the_driver_says() -> None:
    line = f"NVRM: Xid (PCI:0000:{gpu_bus(3)}:00): 79, GPU has fallen off the bus."
    found = judge_snapshot(make_snapshot(kernel=line))
    assert found.health is Health.FAULTY
    assert found.evidence[0].gpu == gpu_uuid(3)


def test_old_lines_and_those_from_before_it_was_put_back_do_not_count() -> None:
    text = read_corpus("dmesg/xid-79-154.txt")
    assert judge_snapshot(make_snapshot(kernel=stamp_lines(text, 23 * 3600))).health is Health.FAULTY
    assert judge_snapshot(make_snapshot(kernel=stamp_lines(text, 25 * 3600))).health is Health.HEALTHY
    back = NodeBaseline(cleared=NOW - timedelta(hours=1))
    assert judge_snapshot(make_snapshot(kernel=stamp_lines(text, 2 * 3600)), prior=back).health is Health.HEALTHY
    assert judge_snapshot(make_snapshot(kernel=stamp_lines(text, 60)), prior=back).health is Health.FAULTY


def test_what_counts_only_when_repeated_counts_on_one_card() -> None:
    def of(*cards: int) -> list[str]:
        lines = "".join(f"NVRM: Xid (PCI:0000:{gpu_bus(card)}:00): 74, pid=1, NVLink: fatal error\n" for card in cards)
        return [severity for severity, _ in list_results(judge_snapshot(make_snapshot(kernel=lines)), "xid")]

    assert of(1, 2, 4) == ["note", "note", "note"]
    assert of(1, 1, 1) == ["degraded"]


def test_an_xid_that_nobody_knows_is_told() -> None:
    ((severity, words),) = list_results(
        judge_snapshot(make_snapshot(kernel="NVRM: Xid (PCI:0000:10:00): 999, what")), "xid"
    )
    assert severity == "note"
    assert words.startswith("Xid 999 (not in the table) on 0000:10:00: NVRM: Xid")


def test_a_kernel_log_that_may_not_be_read_is_unknown_unless_the_driver_says_as_much() -> None:
    assert judge_snapshot(make_snapshot(kernel=(1, ""))).health is Health.HEALTHY
    assert judge_snapshot(make_snapshot(kernel=(1, ""), smi=render_smi(recovery="N/A"))).health is Health.UNKNOWN


def test_links_that_were_up_must_be_up() -> None:
    card = f"GPU 3: NVIDIA H100 (UUID: {gpu_uuid(3)})\n"
    up = card + read_corpus("nvlink/v100-two-inactive.txt").partition("\n")[2]
    before = NodeBaseline(links={gpu_uuid(3): (0, 1, 2, 3, 4)}, link_errors={gpu_uuid(3): 5})
    errors = card + "\t Link 0: Replay Errors: 7\n\t Link 0: Recovery Errors: 0\n"
    found = judge_snapshot(make_snapshot(nvlink=up, nvlink_errors=errors), prior=before)
    assert list_results(found, "nvlink") == [
        ("degraded", "links that were up are down: 3"), ("note", "2 new link errors since the last check")
    ]  # fmt: skip
    assert list_results(judge_snapshot(make_snapshot(nvlink=up)), "nvlink") == []
    none = card + read_corpus("nvlink/b200-all-inactive.txt").partition("\n")[2]
    assert list_results(judge_snapshot(make_snapshot(nvlink=none), prior=before), "nvlink")[0] == (
        "degraded", "links that were up are down: all"
    )  # fmt: skip


def test_a_process_on_a_card_of_an_idle_node_is_a_orphan() -> None:
    held = "<process_info><pid>4242</pid><type>C</type><process_name>python</process_name></process_info>"
    processes = "1 0\n4242 1001\n--\n" + render_stat(1, "systemd") + render_stat(4242, "python") + "--\n100\n"
    orphan = make_snapshot(smi=render_smi(processes=held), processes=processes)
    assert list_results(judge_snapshot(orphan), "orphans") == [
        ("degraded", "held by 4242 (python, uid 1001) although no job runs")
    ]
    assert list_results(judge_snapshot(orphan, busy=True), "orphans") == []
    assert list_results(judge_snapshot(orphan, busy=None), "orphans") == []
    assert list_results(judge_snapshot(replace(orphan, in_job=True)), "orphans") == []


def test_shared_memory_is_there_large_enough_and_empty_when_idle() -> None:
    full = "Filesystem 1024-blocks Used Available Capacity Mounted on\ntmpfs 104857600 99 1 97% /dev/shm\n"
    assert list_results(judge_snapshot(make_snapshot(shm=full)), "shm") == [("degraded", "shared memory is 97 % full")]
    assert list_results(judge_snapshot(make_snapshot(shm=full), busy=True), "shm") == [
        ("note", "shared memory is 97 % full")
    ]
    small = list_results(judge_snapshot(make_snapshot(), site=HealthSettings(shm_gib=2000)), "shm")
    assert small == [("degraded", "1007.9 GiB of shared memory, required 2000 GiB")]
    assert judge_snapshot(make_snapshot(shm=(124, ""))).health is Health.UNKNOWN


DF = "Filesystem 1024-blocks Used Available Capacity Mounted on\nnas:/x 100 5 95 {} /scratch\n" * 2


@pytest.mark.parametrize(("section", "severity", "evidence"), [
    ("path=/scratch\nmounted=lustre rw,flock\n" + DF.format("5%", "5%"), None, ""),
    ("path=/scratch\n" + DF.format("5%", "5%"), "faulty", "/scratch is not mounted"),
    ("path=/scratch\nmounted=lustre ro,flock\n" + DF.format("5%", "5%"), "faulty", "/scratch is mounted read-only"),
    ("path=/scratch\nmounted=lustre rw,erofs\n" + DF.format("5%", "99%"), "note",
     "/scratch is 5 % full, 99 % of its inodes"),
    ((124, "path=/scratch\n"), "unknown", "/scratch did not answer in time"),
    ((1, "path=/scratch\nmounted=nfs rw\n"), "unknown", "/scratch: df exit code 1"),
])  # fmt: skip
def test_mounts_must_be_there_and_writable(section, severity, evidence) -> None:
    found = list_results(
        judge_snapshot(make_snapshot(mount_1=section), site=HealthSettings(mounts=("/scratch",))), "mounts"
    )
    assert found == ([(severity, evidence)] if severity else [])


def ports(state: str = "4: ACTIVE", **counters: int) -> str:
    at = "mlx5_0/ports/1"
    lines = [f"{at}/state:{state}", f"{at}/phys_state:5: LinkUp"]
    return "\n".join([*lines, *(f"{at}/counters/{name}:{count}" for name, count in counters.items())]) + "\n"


def test_a_port_that_was_active_must_be_and_its_counters_are_held_against_the_baseline() -> None:
    before = NodeBaseline(ports={"mlx5_0/1": Port(state="ACTIVE", counters={"link_downed": 2, "symbol_error": 10})},
                   ports_at=NOW - timedelta(hours=1))  # fmt: skip

    def of(text: str, prior: NodeBaseline = before) -> list[tuple[str, str]]:
        return list_results(judge_snapshot(make_snapshot(infiniband=text), prior=prior), "infiniband")

    assert of(ports(link_downed=2, symbol_error=12)) == []
    assert of(ports("1: DOWN")) == [("faulty", "mlx5_0/1 was active and is DOWN")]
    assert of("") == [("faulty", "mlx5_0/1 was active and is gone")]
    assert of(ports(link_downed=3)) == [("degraded", "mlx5_0/1: link_downed rose by 1 since the baseline")]
    assert of(ports(link_downed=0, symbol_error=0)) == []
    assert of(ports(symbol_error=1000)) == [("note", "mlx5_0/1: symbol_error rose by 990 in 3602 s")]
    assert of(ports("1: DOWN"), NodeBaseline()) == []
    ignored = judge_snapshot(make_snapshot(infiniband=""), prior=before, site=HealthSettings(ib_ignore="^mlx5_0/"))
    assert list_results(ignored, "infiniband") == []


def test_a_clock_that_is_off_is_told_and_degraded_only_by_the_nodes_own_word() -> None:
    slow = "System time     : 1.500000000 seconds slow of NTP time\n"
    assert list_results(judge_snapshot(make_snapshot(clock=slow)), "clock_skew") == [
        ("degraded", "the node's time service reports a clock offset of -1.500 s")
    ]  # fmt: skip
    assert list_results(judge_snapshot(make_snapshot(clock=(127, ""))), "clock_skew") == [
        ("unknown", "chronyc reports no clock offset")
    ]  # fmt: skip
    ahead = replace(make_snapshot(), skew_s=30.0, skew_error_s=1.0)
    assert list_results(judge_snapshot(ahead), "clock_skew") == [
        ("note", "+30.0 s from this machine's clock (uncertainty 1.0 s)")
    ]


def test_memory_that_went_missing_is_degraded() -> None:
    found = judge_snapshot(make_snapshot(), prior=NodeBaseline(memory_kb=2 * 2113652736))
    assert list_results(found, "memory") == [("degraded", "2015.7 GiB of memory, expected 4031.5 GiB")]


def test_processes_that_are_stuck_are_told_and_held_against_no_node() -> None:
    text = (
        "7 0\n8 0\n--\n" + render_stat(7, "nvidia-smi", "D", 900) + render_stat(8, "sh (x) Z", "Z", 900) + "--\n100\n"
    )
    found = judge_snapshot(make_snapshot(processes=text))
    assert list_results(found, "processes") == [
        ("note", "1 in D state: 7 (nvidia-smi)"),
        ("note", "1 zombies: 8 (sh (x) Z)"),
    ]
    assert found.health is Health.HEALTHY


def test_an_odd_driver_is_told() -> None:
    found = judge_snapshot(make_snapshot(), driver="575.1", kernel_version="5.14")
    assert list_results(found, "versions") == [("note", "driver 570.86.15, most nodes have 575.1")]


def test_a_node_with_another_library_than_most_or_without_it_is_told() -> None:
    usual = "libc.so.6\nlibnccl.so.2.21.5\n"
    printed = [usual, usual, "libc.so.6\nlibnccl.so.2.19.3\n", "libc.so.6\n", f"{usual}libfabric.so.1.22\n", (127, "")]
    nodes = {f"n{number}": make_snapshot(node=f"n{number}", libraries=each) for number, each in enumerate(printed)}
    verdicts = judge_all(nodes, {}, HealthSettings(), {}, {})
    assert [list_results(verdict, "versions") for verdict in verdicts] == [
        [], [],
        [("note", "libnccl 2.19.3, most nodes have 2.21.5")],
        [("note", "libnccl none, most nodes have 2.21.5")],
        [("note", "libfabric 1.22, most nodes have none")],
        [],
    ]  # fmt: skip


@pytest.mark.parametrize("version", ["v3", "v4"])
def test_a_diagnostic_that_fails_is_evidence_whatever_its_form(version) -> None:
    found = judge_snapshot(make_snapshot(dcgm=(226, read_corpus(f"dcgmi/made/fail-{version}.json"))))
    assert found.health is Health.FAULTY
    assert (
        "row remappings are pending" in list_results(found, "dcgm")[0][1]
        or "cuCtxCreate" in list_results(found, "dcgm")[0][1]
    )
    assert list_results(judge_snapshot(make_snapshot(dcgm=(127, ""))), "dcgm") == [
        ("unknown", "dcgmi diag is not installed")
    ]


def test_published_output_of_a_card_cut_by_mig_is_unknown_where_it_says_nothing() -> None:
    found = judge_snapshot(
        make_snapshot(
            smi=read_corpus("nvidia-smi/535.54.03/a100-mig.xml").replace("<attached_gpus>4", "<attached_gpus>1")
        )
    )
    assert list_results(found, "remapped_rows") == [("unknown", "remapped rows: N/A under MIG")]
    assert found.health is Health.UNKNOWN
    site = HealthSettings(may_be_unknown=(*HealthSettings().may_be_unknown, "remapped_rows"))
    snapshot = make_snapshot(
        smi=read_corpus("nvidia-smi/535.54.03/a100-mig.xml").replace("<attached_gpus>4", "<attached_gpus>1")
    )
    assert judge_snapshot(snapshot, site=site).health is Health.HEALTHY


def test_published_output_of_a_workstation_card_is_read() -> None:
    snapshot = make_snapshot(smi=read_corpus("nvidia-smi/590.44.01/rtx-pro-6000.xml"))
    assert snapshot.smi is not None
    (gpu,) = snapshot.smi.gpus
    assert (gpu.bus, gpu.recovery, gpu.ecc, gpu.rows_pending, gpu.margin_c) == ("0000:61:00", "None", {}, False, 68)
    assert judge_snapshot(snapshot).health is Health.UNKNOWN  # its ECC is switched off


def test_a_node_that_answers_half_is_unknown() -> None:
    found = judge_snapshot(make_snapshot(render_answer()[:900]))
    assert (found.health, list_results(found, "reach")) == (
        Health.UNKNOWN,
        [("unknown", "the node's answer is incomplete")],
    )


@pytest.mark.parametrize("length", [30, 900])
def test_broken_connection_is_reported_as_the_reason(length: int) -> None:
    problem = "ssh: the connection broke before the command ended"
    cut = Answer(node="node001", by="ssh", out=render_answer()[:length], problem=problem)
    found = judge_snapshot(parse(cut, MARK, sent_at=NOW, answered_at=NOW))
    assert (found.health, list_results(found, "reach")) == (
        Health.UNKNOWN,
        [("unknown", problem)],
    )


def test_half_an_answer_may_still_hold_evidence() -> None:
    text = render_answer(smi=(15, "GPU is lost"))
    assert judge_snapshot(make_snapshot(text[: text.index("@@mark begin shm")])).health is Health.FAULTY


def test_every_row_of_the_table_is_complete() -> None:
    words = {"yes", "yes-stays", "after-job", "repeat", "repeat-note", "if-fatal", "follow", "report", "no"}
    assert {row.drain for row in read_table().values()} <= words
    assert all(row.meaning and row.action and row.source for row in read_table().values())
    assert {48, 79, 94, 95, 119, 154} <= set(read_table())


def test_every_check_is_tested_here() -> None:
    text = Path(__file__).read_text()
    assert [name for name in CHECKS if f'"{name}"' not in text] == []


def test_fio_tells_its_figures_and_is_evidence_only_below_what_the_site_expects() -> None:
    measured = make_snapshot(fio=read_corpus("fio/3.33/direct.json"))
    (severity, words), *more = list_results(judge_snapshot(measured), "fio")
    assert (severity, more) == ("note", [])
    assert re.fullmatch(r"write \d+ MiB/s, read \d+ MiB/s, \d+ small reads/s, 99 % within [\d.]+ ms", words)
    fast = judge_snapshot(measured, site=HealthSettings(fio_write_mib_s=1e6, fio_read_mib_s=1))
    assert fast.health is Health.DEGRADED
    assert re.match(r"writes \d+ MiB/s, less than 1e\+06; write ", list_results(fast, "fio")[0][1])


def test_what_was_read_through_the_page_cache_is_no_evidence() -> None:
    site = HealthSettings(fio_read_mib_s=1e6)
    assert judge_snapshot(make_snapshot(fio=read_corpus("fio/3.33/direct.json")), site=site).health is Health.DEGRADED
    found = judge_snapshot(make_snapshot(fio=read_corpus("fio/3.33/buffered.json")), site=site)
    assert (found.health, list_results(found, "fio")[0][1].endswith(", through the page cache")) == (
        Health.HEALTHY,
        True,
    )


@pytest.mark.parametrize(
    ("section", "evidence"),
    [
        ((127, ""), "fio is not installed"),
        (("late", ""), "fio did not answer in time"),
        ((1, "fio/3.33/cannot-open.json"), "fio exit code 1"),
        ((0, "fio/3.33/cannot-open.json"), "fio printed unreadable output"),
        ((0, "{}"), "fio printed unreadable output"),
    ],
)
def test_a_fio_that_did_not_measure_says_nothing_of_the_node(section: tuple[int | str, str], evidence: str) -> None:
    code, out = section
    made = make_snapshot(fio=(code, read_corpus(out) if out.endswith(".json") else out))
    found = judge_snapshot(made, site=HealthSettings(fio_write_mib_s=1e6))
    assert list_results(found, "fio") == [("unknown", evidence)]
    assert found.health is Health.HEALTHY
