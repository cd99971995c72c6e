"""The checks of /sys and of NVMe disks find their faults, and find nothing on a healthy node."""

from dataclasses import replace
from datetime import timedelta

import pytest

from opsctl.nodes.health.checks.storage import WARNINGS
from opsctl.nodes.health.host_output import parse_disk_logs, parse_hardware
from opsctl.nodes.health.node_state import DiskLog, Health, NodeBaseline
from opsctl.settings.health import HealthSettings
from tests.support.made_nodes import NOW, UPTIME, judge_snapshot, list_results, make_snapshot, read_corpus

SYS = read_corpus("sys/made.txt")


def test_faults_in_sys_are_reported() -> None:
    verdict = judge_snapshot(make_snapshot(hardware=SYS, nvme=(127, "")))
    assert verdict.health is Health.FAULTY
    assert list_results(verdict, "machine_checks") == [
        ("faulty", "2 uncorrectable memory errors since boot on mc1"),
        ("note", "500 corrected memory errors in 12 days on mc0"),
        ("note", "500 corrected memory errors in 12 days on mc0/dimm3"),
    ]
    assert list_results(verdict, "aer") == [("note", "1 fatal PCIe errors since boot on 0000:02:00.0")]
    assert list_results(verdict, "lustre") == [("degraded", "Lustre reports: NOT HEALTHY")]
    assert list_results(verdict, "nvme") == [
        ("faulty", "nvme1 is dead"),
        ("unknown", "SMART log of nvme0, nvme1: is not installed"),
    ]
    assert list_results(verdict, "fabric") == [
        ("note", "1 NVSwitches, and the service nvidia-fabricmanager is inactive")
    ]
    assert list_results(verdict, "host_settings") == [("note", "clock source hpet: reading the time is slow")]


def test_memory_errors_before_the_undrain_are_a_note() -> None:
    """Counters do not tell when they rose."""
    boot = NOW - timedelta(seconds=UPTIME)
    for cleared, severity in ((boot + timedelta(hours=1), "note"), (boot - timedelta(hours=1), "faulty")):
        verdict = judge_snapshot(make_snapshot(hardware=SYS), prior=NodeBaseline(cleared=cleared.timestamp()))
        assert list_results(verdict, "machine_checks")[0][0] == severity


def test_few_corrected_errors_have_no_result() -> None:
    text = "devices/system/edac/mc/mc0/ce_count:100\ndevices/system/edac/mc/mc0/ue_count:0\n"
    assert list_results(judge_snapshot(make_snapshot(hardware=text)), "machine_checks") == []
    text = text.replace("100", "150")
    assert list_results(judge_snapshot(make_snapshot(hardware=text)), "machine_checks") == [
        ("note", "150 corrected memory errors in 12 days on mc0")
    ]


def test_memory_that_nobody_watches_is_unknown() -> None:
    verdict = judge_snapshot(make_snapshot(kernel=(1, "")))
    assert [severity for severity, _ in list_results(verdict, "machine_checks")] == ["unknown"]
    assert list_results(judge_snapshot(make_snapshot()), "machine_checks") == []


@pytest.mark.parametrize(("bit", "severity"), [(row["bit"], row["severity"]) for row in WARNINGS])
def test_smart_warning_has_its_severity(bit: int, severity: str) -> None:
    snapshot = replace(make_snapshot(), disk_logs={"nvme0": DiskLog(critical_warning=bit)})
    assert [found for found, _ in list_results(judge_snapshot(snapshot), "nvme")] == [severity]


def test_smart_logs_of_both_programs_are_read() -> None:
    text = (
        f"@nvme0\n{read_corpus('nvme/smartctl-7.0-media-errors.json')}\n"
        f"@nvme1\n{read_corpus('nvme/made-nvme-cli.json')}\n@nvme2\nNo such device\n"
    )
    verdict = judge_snapshot(make_snapshot(nvme=text))
    assert list_results(verdict, "nvme") == [
        ("note", "nvme0 counts 7 media errors"),
        ("degraded", "nvme1 has too few spare blocks (critical warning 0x05)"),
        ("degraded", "nvme1 is less reliable: many media or internal errors (critical warning 0x05)"),
        ("note", "nvme1 has used 115 % of its rated endurance"),
    ]


def test_governor_differs_from_the_expected_one() -> None:
    snapshot = make_snapshot(hardware=SYS.replace(":hpet", ":tsc"))
    site = HealthSettings(cpu_governor="performance")
    expected = [("note", "cpufreq governor: 1 CPUs powersave, expected performance")]
    assert list_results(judge_snapshot(snapshot, site=site), "host_settings") == expected
    assert list_results(judge_snapshot(snapshot, governor="performance"), "host_settings") == expected
    assert list_results(judge_snapshot(snapshot), "host_settings") == []


@pytest.mark.parametrize("text", ["", "\0", "@nvme0\n{", "@nvme0\n" + "[" * 5000, "cpu=\n=\nclass/nvme/nvme0/state:\n"])
def test_hostile_output_raises_nothing(text: str) -> None:
    assert parse_hardware(text).disks == {}
    assert parse_disk_logs(text) == {}
