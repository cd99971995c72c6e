"""Each check both ways: what it says of a fault, and that it says nothing of a node that is well."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.nodes.health.checks import CHECKS
from opsctl.nodes.health.checks.xid import table
from opsctl.nodes.health.node_checker import judge_all
from opsctl.nodes.health.node_state import Health, NodeBaseline, Port
from opsctl.nodes.health.snapshot import parse
from opsctl.ports import Answer
from opsctl.settings.health import HealthSettings
from tests.support.made_nodes import MARK, NOW, bus, corpus, printed, said, seen, smi, stamped, stat, uuid, verdict

CARDS = tuple(uuid(number) for number in range(8))


def test_a_node_that_is_well_is_healthy_and_nothing_is_said_of_it() -> None:
    found = verdict(seen(), prior=NodeBaseline(uuids=CARDS, memory_kb=2113652736))
    assert (found.health, found.results) == (Health.HEALTHY, ())


@pytest.mark.parametrize(("changes", "check", "severity", "evidence"), [
    ({"sram": "2"}, "ecc", "faulty", "2 uncorrectable SRAM errors since the driver was loaded"),
    ({"dram": "1"}, "ecc", "degraded", "1 uncorrectable DRAM errors since the driver was loaded"),
    ({"sram_ever": "5"}, "ecc", "faulty", "5 uncorrectable SRAM errors over the GPU's lifetime: more than allowed"),
    ({"dram_fixed": "20000001"}, "ecc", "degraded", "20000001 corrected DRAM errors, more than 20000000"),
    ({"pending": "Yes"}, "remapped_rows", "degraded", "a row waits to be remapped; what runs is safe"),
    ({"pending": "1"}, "remapped_rows", "degraded", "a row waits to be remapped; what runs is safe"),
    ({"failure": "Yes"}, "remapped_rows", "faulty", "a row could not be remapped"),
    ({"recovery": "Reset"}, "recovery", "faulty", "the driver asks for: Reset"),
    ({"recovery": "Drain and Reset"}, "recovery", "degraded", "the driver asks for: Drain and Reset"),
    ({"recovery": "Dance"}, "recovery", "unknown", "a word that is not known: 'Dance'"),
    ({"hw_thermal": "Active"}, "clocks", "degraded", "slowed down by hw_thermal_slowdown though idle"),
    ({"hw_thermal": "Active", "use": "97"}, "clocks", "note", "slowed down by hw_thermal_slowdown"),
    ({"margin": "-2"}, "temperature", "degraded", "31 C, -2 C from its limit"),
    ({"temperature": "N/A"}, "temperature", "unknown", "temperature: N/A"),
    ({"power": "500.00"}, "temperature", "note", "capped at 500 W, 700 W by default"),
    ({"width": "8", "use": "80"}, "pcie", "degraded", "8 of 16 lanes under load"),
    ({"persistence": "Disabled"}, "persistence", "note",
     "off on 1 GPUs: counters since the driver was loaded prove little"),
])  # fmt: skip
def test_a_value_of_one_card_is_told_with_its_uuid(changes, check, severity, evidence) -> None:
    found = verdict(seen(smi=smi(**changes)))
    assert said(found, check) == [(severity, evidence)]
    assert {result.gpu for result in found.results if result.check == check} <= {uuid(3), ""}


@pytest.mark.parametrize("changes", [
    {"width": "8"}, {"dram_ever": "100"}, {"sw_power_cap": "Active"}, {"sram_ever": "4"}
])  # fmt: skip
def test_harmless_values_have_no_result(changes) -> None:
    """An idle card narrows its link; lifetime DRAM errors are history; a power cap comes and goes."""
    assert verdict(seen(smi=smi(**changes))).results == ()


@pytest.mark.parametrize(("code", "meaning"), [
    (8, "a power cable is not attached"), (10, "the kernel saw an interrupt problem"), (14, "the infoROM is corrupt"),
    (15, "a GPU has fallen off the bus"),
])  # fmt: skip
def test_exit_codes_of_nvidia_smi_that_speak_of_hardware_are_evidence(code, meaning) -> None:
    ((severity, evidence),) = said(verdict(seen(smi=(code, "No devices were found"))), "gpus")
    assert (severity, evidence) == ("faulty", f"nvidia-smi exit code {code}: {meaning}: No devices were found")


@pytest.mark.parametrize("code", [1, 2, 4, 9, 12, 124, 127, 137, 255, "late"])
def test_exit_codes_that_speak_of_drivers_rights_and_time_are_unknown(code) -> None:
    found = verdict(seen(smi=(code, "NVIDIA-SMI has failed")), prior=NodeBaseline(uuids=CARDS))
    assert found.health is Health.UNKNOWN
    assert [each for each, _ in said(found, "gpus")] == ["unknown"]


def test_a_lost_card_is_known_by_what_nvidia_smi_says() -> None:
    found = verdict(seen(smi=(255, corpus("nvidia-smi/errors/gpu-is-lost.txt"))))
    assert found.health is Health.FAULTY
    found = verdict(seen(smi=(255, corpus("nvidia-smi/errors/unknown-error.txt"))))
    assert found.health is Health.UNKNOWN


def test_a_card_that_is_missing_is_named() -> None:
    found = verdict(seen(smi=smi(7), pci="0000:10:00.0\n" * 7), prior=NodeBaseline(uuids=CARDS))
    assert said(found, "gpus") == [("faulty", f"7 of 8 GPUs answer; missing: {uuid(7)}")]


def test_gpus_hidden_from_a_job_are_no_evidence() -> None:
    found = verdict(seen(smi=smi(2), by="srun"), prior=NodeBaseline(uuids=CARDS))
    assert found.health is Health.UNKNOWN
    assert said(found, "gpus")[0][1].endswith("; this job may see only its own GPUs")


def test_a_card_that_was_a_lemon_elsewhere_is_known_again() -> None:
    found = verdict(seen(), lemons={"165052200002": "score 9; last on node907, 2026-11-01: xid: 79"})
    assert said(found, "gpus") == [("note", "a known flaky GPU: score 9; last on node907, 2026-11-01: xid: 79")]


def test_a_node_without_gpus_needs_no_nvidia_smi() -> None:
    found = verdict(seen(smi=(127, ""), pci=""))
    assert (found.health, said(found, "gpus")) == (Health.HEALTHY, [])


@pytest.mark.parametrize(("log", "code", "severity"), [
    ("xid-63-a100", 63, None), ("xid-119-gsp", 119, "faulty"), ("xid-43", 43, None), ("xid-94", 94, "degraded"),
    ("xid-13-109", 109, "faulty"), ("xid-13-109", 13, None), ("xid-79-154", 79, "faulty"),
    ("xid-79-154", 154, "faulty"), ("xid-62-154-45", 62, "faulty"), ("xid-62-154-45", 45, None),
    ("xid-145-149-nvlink5", 149, "faulty"), ("xid-145-149-nvlink5", 145, "note"),
])  # fmt: skip
def test_lines_of_the_kernel_log_mean_what_the_table_says(log, code, severity) -> None:
    found = verdict(seen(kernel=corpus(f"dmesg/{log}.txt")))
    mine = [level for level, words in said(found, "xid") if f"Xid {code} " in words]
    assert mine == ([severity] if severity else [])


def test_a_card_can_fall_off_the_bus_without_an_xid() -> None:
    found = verdict(seen(kernel=corpus("dmesg/fallen-without-xid.txt").replace("1843.", "999843.")))
    assert ("faulty", "the kernel log says that a GPU has fallen off the bus") in said(found, "xid")


def test_a_reset_that_the_driver_knows_of_clears_what_asked_for_it() -> None:
    line = f"NVRM: Xid (PCI:0000:{bus(3)}:00): 119, pid=1, name=x, Timeout waiting for RPC from GSP!"
    assert verdict(seen(kernel=line)).health is Health.HEALTHY
    assert verdict(seen(kernel=line, smi=smi(recovery="N/A"))).health is Health.FAULTY
    assert verdict(seen(kernel=line, smi=smi(recovery="GPU Reset Required"))).health is Health.FAULTY


def test_the_kernel_log_itself_says_when_a_card_is_well_again() -> None:
    where = f"NVRM: Xid (PCI:0000:{bus(3)}:00)"
    sick = f"{where}: 79, GPU has fallen off the bus.\n"
    reset = f"{where}: 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)\n"
    assert verdict(seen(kernel=sick + reset)).health is Health.HEALTHY
    assert verdict(seen(kernel=sick + reset + sick)).health is Health.FAULTY
    elsewhere = reset.replace(bus(3), bus(4))
    assert verdict(seen(kernel=sick + elsewhere)).health is Health.FAULTY


def test_a_card_that_fell_off_the_bus_is_faulty_whatever_the_driver_says() -> None:
    line = f"NVRM: Xid (PCI:0000:{bus(3)}:00): 79, GPU has fallen off the bus."
    found = verdict(seen(kernel=line))
    assert found.health is Health.FAULTY
    assert found.evidence[0].gpu == uuid(3)


def test_old_lines_and_those_from_before_it_was_put_back_do_not_count() -> None:
    text = corpus("dmesg/xid-79-154.txt")
    assert verdict(seen(kernel=stamped(text, 23 * 3600))).health is Health.FAULTY
    assert verdict(seen(kernel=stamped(text, 25 * 3600))).health is Health.HEALTHY
    back = NodeBaseline(cleared=NOW - timedelta(hours=1))
    assert verdict(seen(kernel=stamped(text, 2 * 3600)), prior=back).health is Health.HEALTHY
    assert verdict(seen(kernel=stamped(text, 60)), prior=back).health is Health.FAULTY


def test_what_counts_only_when_repeated_counts_on_one_card() -> None:
    def of(*cards: int) -> list[str]:
        lines = "".join(f"NVRM: Xid (PCI:0000:{bus(card)}:00): 74, pid=1, NVLink: fatal error\n" for card in cards)
        return [severity for severity, _ in said(verdict(seen(kernel=lines)), "xid")]

    assert of(1, 2, 4) == ["note", "note", "note"]
    assert of(1, 1, 1) == ["degraded"]


def test_an_xid_that_nobody_knows_is_told() -> None:
    ((severity, words),) = said(verdict(seen(kernel="NVRM: Xid (PCI:0000:10:00): 999, what")), "xid")
    assert severity == "note"
    assert words.startswith("Xid 999 (not in the table) on 0000:10:00: NVRM: Xid")


def test_a_kernel_log_that_may_not_be_read_is_unknown_unless_the_driver_says_as_much() -> None:
    assert verdict(seen(kernel=(1, ""))).health is Health.HEALTHY
    assert verdict(seen(kernel=(1, ""), smi=smi(recovery="N/A"))).health is Health.UNKNOWN


def test_links_that_were_up_must_be_up() -> None:
    card = f"GPU 3: NVIDIA H100 (UUID: {uuid(3)})\n"
    up = card + corpus("nvlink/v100-two-inactive.txt").partition("\n")[2]
    before = NodeBaseline(links={uuid(3): (0, 1, 2, 3, 4)}, link_errors={uuid(3): 5})
    errors = card + "\t Link 0: Replay Errors: 7\n\t Link 0: Recovery Errors: 0\n"
    found = verdict(seen(nvlink=up, nvlink_errors=errors), prior=before)
    assert said(found, "nvlink") == [
        ("degraded", "links that were up are down: 3"), ("note", "2 new link errors since the last look")
    ]  # fmt: skip
    assert said(verdict(seen(nvlink=up)), "nvlink") == []
    none = card + corpus("nvlink/b200-all-inactive.txt").partition("\n")[2]
    assert said(verdict(seen(nvlink=none), prior=before), "nvlink")[0] == (
        "degraded", "links that were up are down: all"
    )  # fmt: skip


def test_a_process_on_a_card_of_an_idle_node_is_a_orphan() -> None:
    held = "<process_info><pid>4242</pid><type>C</type><process_name>python</process_name></process_info>"
    processes = "1 0\n4242 1001\n--\n" + stat(1, "systemd") + stat(4242, "python") + "--\n100\n"
    orphan = seen(smi=smi(processes=held), processes=processes)
    assert said(verdict(orphan), "orphans") == [("degraded", "held by 4242 (python, uid 1001) though no job runs")]
    assert said(verdict(orphan, busy=True), "orphans") == []
    assert said(verdict(orphan, busy=None), "orphans") == []
    assert said(verdict(replace(orphan, in_job=True)), "orphans") == []


def test_shared_memory_is_there_large_enough_and_empty_when_idle() -> None:
    full = "Filesystem 1024-blocks Used Available Capacity Mounted on\ntmpfs 104857600 99 1 97% /dev/shm\n"
    assert said(verdict(seen(shm=full)), "shm") == [("degraded", "shared memory is 97 % full")]
    assert said(verdict(seen(shm=full), busy=True), "shm") == [("note", "shared memory is 97 % full")]
    small = said(verdict(seen(), site=HealthSettings(shm_gib=2000)), "shm")
    assert small == [("degraded", "1007.9 GiB of shared memory, 2000 wanted")]
    assert verdict(seen(shm=(124, ""))).health is Health.UNKNOWN


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
    found = said(verdict(seen(mount_1=section), site=HealthSettings(mounts=("/scratch",))), "mounts")
    assert found == ([(severity, evidence)] if severity else [])


def ports(state: str = "4: ACTIVE", **counters: int) -> str:
    at = "mlx5_0/ports/1"
    lines = [f"{at}/state:{state}", f"{at}/phys_state:5: LinkUp"]
    return "\n".join([*lines, *(f"{at}/counters/{name}:{count}" for name, count in counters.items())]) + "\n"


def test_a_port_that_was_active_must_be_and_its_counters_are_held_against_the_baseline() -> None:
    before = NodeBaseline(ports={"mlx5_0/1": Port(state="ACTIVE", counters={"link_downed": 2, "symbol_error": 10})},
                   ports_at=NOW - timedelta(hours=1))  # fmt: skip

    def of(text: str, prior: NodeBaseline = before) -> list[tuple[str, str]]:
        return said(verdict(seen(infiniband=text), prior=prior), "infiniband")

    assert of(ports(link_downed=2, symbol_error=12)) == []
    assert of(ports("1: DOWN")) == [("faulty", "mlx5_0/1 was active and is DOWN")]
    assert of("") == [("faulty", "mlx5_0/1 was active and is gone")]
    assert of(ports(link_downed=3)) == [("degraded", "mlx5_0/1: link_downed rose by 1 since the baseline")]
    assert of(ports(link_downed=0, symbol_error=0)) == []
    assert of(ports(symbol_error=1000)) == [("note", "mlx5_0/1: symbol_error rose by 990 in 3602 s")]
    assert of(ports("1: DOWN"), NodeBaseline()) == []
    ignored = verdict(seen(infiniband=""), prior=before, site=HealthSettings(ib_ignore="^mlx5_0/"))
    assert said(ignored, "infiniband") == []


def test_a_clock_that_is_off_is_told_and_degraded_only_by_the_nodes_own_word() -> None:
    slow = "System time     : 1.500000000 seconds slow of NTP time\n"
    assert said(verdict(seen(clock=slow)), "clock_skew") == [
        ("degraded", "its own time service says that it is -1.500 s off")
    ]  # fmt: skip
    assert said(verdict(seen(clock=(127, ""))), "clock_skew") == [
        ("unknown", "chronyc does not say how far it is off")
    ]  # fmt: skip
    ahead = replace(seen(), skew=30.0, skew_error=1.0)
    assert said(verdict(ahead), "clock_skew") == [("note", "+30.0 s against the clock here, give or take 1.0 s")]


def test_memory_that_went_missing_is_degraded() -> None:
    found = verdict(seen(), prior=NodeBaseline(memory_kb=2 * 2113652736))
    assert said(found, "memory") == [("degraded", "2015.7 GiB, 4031.5 before")]


def test_processes_that_are_stuck_are_told_and_held_against_no_node() -> None:
    text = "7 0\n8 0\n--\n" + stat(7, "nvidia-smi", "D", 900) + stat(8, "sh (x) Z", "Z", 900) + "--\n100\n"
    found = verdict(seen(processes=text))
    assert said(found, "processes") == [("note", "1 in D state: 7 (nvidia-smi)"), ("note", "1 zombies: 8 (sh (x) Z)")]
    assert found.health is Health.HEALTHY


def test_an_odd_driver_is_told() -> None:
    found = verdict(seen(), driver="575.1", kernel_version="5.14")
    assert said(found, "versions") == [("note", "driver 570.86.15, most nodes have 575.1")]


def test_a_node_with_another_library_than_most_or_without_it_is_told() -> None:
    usual = "libc.so.6\nlibnccl.so.2.21.5\n"
    printed = [usual, usual, "libc.so.6\nlibnccl.so.2.19.3\n", "libc.so.6\n", f"{usual}libfabric.so.1.22\n", (127, "")]
    nodes = {f"n{number}": seen(node=f"n{number}", libraries=each) for number, each in enumerate(printed)}
    verdicts = judge_all(nodes, {}, HealthSettings(), {}, {})
    assert [said(verdict, "versions") for verdict in verdicts] == [
        [], [],
        [("note", "libnccl 2.19.3, most nodes have 2.21.5")],
        [("note", "libnccl none, most nodes have 2.21.5")],
        [("note", "libfabric 1.22, most nodes have none")],
        [],
    ]  # fmt: skip


@pytest.mark.parametrize("version", ["v3", "v4"])
def test_a_diagnostic_that_fails_is_evidence_whatever_its_form(version) -> None:
    found = verdict(seen(dcgm=(226, corpus(f"dcgmi/made/fail-{version}.json"))))
    assert found.health is Health.FAULTY
    assert "row remappings are pending" in said(found, "dcgm")[0][1] or "cuCtxCreate" in said(found, "dcgm")[0][1]
    assert said(verdict(seen(dcgm=(127, ""))), "dcgm") == [("unknown", "dcgmi diag is not installed")]


def test_published_output_of_a_card_cut_by_mig_is_unknown_where_it_says_nothing() -> None:
    found = verdict(
        seen(smi=corpus("nvidia-smi/535.54.03/a100-mig.xml").replace("<attached_gpus>4", "<attached_gpus>1"))
    )
    assert said(found, "remapped_rows") == [("unknown", "remapped rows: N/A under MIG")]
    assert found.health is Health.UNKNOWN
    site = HealthSettings(may_be_unknown=(*HealthSettings().may_be_unknown, "remapped_rows"))
    snapshot = seen(smi=corpus("nvidia-smi/535.54.03/a100-mig.xml").replace("<attached_gpus>4", "<attached_gpus>1"))
    assert verdict(snapshot, site=site).health is Health.HEALTHY


def test_published_output_of_a_workstation_card_is_read() -> None:
    snapshot = seen(smi=corpus("nvidia-smi/590.44.01/rtx-pro-6000.xml"))
    assert snapshot.smi is not None
    (gpu,) = snapshot.smi.gpus
    assert (gpu.bus, gpu.recovery, gpu.ecc, gpu.rows_pending, gpu.margin) == ("0000:61:00", "None", {}, False, 68)
    assert verdict(snapshot).health is Health.UNKNOWN  # its ECC is switched off


def test_a_node_that_answers_half_is_unknown() -> None:
    found = verdict(seen(printed()[:900]))
    assert (found.health, said(found, "reach")) == (Health.UNKNOWN, [("unknown", "the node's answer is incomplete")])


@pytest.mark.parametrize("length", [30, 900])
def test_a_node_that_is_gone_amid_its_answer_is_told_by_how_it_went(length: int) -> None:
    cut = Answer(node="node001", by="ssh", out=printed()[:length], problem="ssh: the connection ended first")
    found = verdict(parse(cut, MARK, moment=NOW, answered=NOW))
    assert (found.health, said(found, "reach")) == (Health.UNKNOWN, [("unknown", "ssh: the connection ended first")])


def test_half_an_answer_may_still_hold_evidence() -> None:
    text = printed(smi=(15, "GPU is lost"))
    assert verdict(seen(text[: text.index("@@mark begin shm")])).health is Health.FAULTY


def test_every_row_of_the_table_is_complete() -> None:
    words = {"yes", "yes-stays", "after-job", "repeat", "repeat-note", "if-fatal", "follow", "report", "no"}
    assert {row.drain for row in table().values()} <= words
    assert all(row.meaning and row.action and row.source for row in table().values())
    assert {48, 79, 94, 95, 119, 154} <= set(table())


def test_every_check_is_tested_here() -> None:
    text = Path(__file__).read_text()
    assert [name for name in CHECKS if f'"{name}"' not in text] == []


def test_fio_tells_its_figures_and_is_evidence_only_below_what_the_site_expects() -> None:
    measured = seen(fio=corpus("fio/3.33/direct.json"))
    (severity, words), *more = said(verdict(measured), "fio")
    assert (severity, more) == ("note", [])
    assert re.fullmatch(r"write \d+ MiB/s, read \d+ MiB/s, \d+ small reads/s, 99 % within [\d.]+ ms", words)
    fast = verdict(measured, site=HealthSettings(fio_write_mib_s=1e6, fio_read_mib_s=1))
    assert fast.health is Health.DEGRADED
    assert re.match(r"writes \d+ MiB/s, less than 1e\+06; write ", said(fast, "fio")[0][1])


def test_what_was_read_through_the_page_cache_is_no_evidence() -> None:
    site = HealthSettings(fio_read_mib_s=1e6)
    assert verdict(seen(fio=corpus("fio/3.33/direct.json")), site=site).health is Health.DEGRADED
    found = verdict(seen(fio=corpus("fio/3.33/buffered.json")), site=site)
    assert (found.health, said(found, "fio")[0][1].endswith(", through the page cache")) == (Health.HEALTHY, True)


@pytest.mark.parametrize(
    ("section", "evidence"),
    [
        ((127, ""), "fio is not installed"),
        (("late", ""), "fio did not answer in time"),
        ((1, "fio/3.33/cannot-open.json"), "fio exit code 1"),
        ((0, "fio/3.33/cannot-open.json"), "fio printed something that cannot be read"),
        ((0, "{}"), "fio printed something that cannot be read"),
    ],
)
def test_a_fio_that_did_not_measure_says_nothing_of_the_node(section: tuple[int | str, str], evidence: str) -> None:
    code, out = section
    made = seen(fio=(code, corpus(out) if out.endswith(".json") else out))
    found = verdict(made, site=HealthSettings(fio_write_mib_s=1e6))
    assert said(found, "fio") == [("unknown", evidence)]
    assert found.health is Health.HEALTHY
