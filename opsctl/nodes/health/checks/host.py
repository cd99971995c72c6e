"""Checks of the host: memory, processes, clock and settings, and what it has unlike the other nodes of this check."""

from opsctl.base.units import format_size
from opsctl.nodes.health.check_results import Results, degraded, note, unknown
from opsctl.nodes.health.node_state import NONE, CheckInput, CheckResult, CheckSeverity, Hardware, NodeSnapshot
from opsctl.nodes.health.usual_hardware import GPUS, MEMORY, NVLINKS, ON_BUS, PORTS

MIN_SHARE_OF_MEMORY = 0.98
KIB_PER_GIB = 2**20
BYTES_PER_KIB = 1024
SECONDS_PER_DAY = 86400
MEMORY_REMEDY = "replace the memory module"
STUCK_STATES = {"D": "in D state", "Z": "zombies"}
MAX_NAMED_PROCESSES = 4
SLOW_CLOCKS = frozenset({"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"})
SETTING_BY_HARDWARE = {
    GPUS: "gpus_per_node",
    ON_BUS: "gpus_per_node",
    NVLINKS: "nvlinks",
    PORTS: "ib_ports",
    MEMORY: "memory_gib",
}


def memory(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Check the amount of host memory: a failed memory module is missing from the total.

    The expected amount is that of the settings, of the node's history, or of most nodes of its kind.
    """
    expected_kb = check_input.site.memory_gib * KIB_PER_GIB or max(
        check_input.prior.memory_kb or 0, check_input.usual.values.get(MEMORY, 0)
    )
    if snapshot.memory_kb is None:
        yield unknown("/proc/meminfo cannot be read")
    elif snapshot.memory_kb < MIN_SHARE_OF_MEMORY * expected_kb:
        sizes = [format_size(size_kb * BYTES_PER_KIB) for size_kb in (snapshot.memory_kb, expected_kb)]
        yield degraded(f"{sizes[0]} of memory, expected {sizes[1]}", "check for a failed memory module")


def machine_checks(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Check the memory errors that the kernel's EDAC driver has counted since boot. The kernel log has its own rows.

    An uncorrectable error fails the node: mcelog.conf reports from `uc-error-threshold = 1 / 24h` on. Corrected errors
    are a note above `memory_corrected_per_day`, by default mcelog's `ce-error-threshold = 10 / 24h`.
    """
    hardware = snapshot.hardware
    if hardware is None or not hardware.corrected_memory:
        if snapshot.kernel is None:
            yield unknown("neither the kernel log nor an EDAC driver can be read: memory errors stay unnoticed")
        return
    # Errors before the node was put back into service are no evidence; counters do not tell when they rose.
    is_cleared = check_input.prior.cleared_s(snapshot.at) < (snapshot.uptime_s or 0)
    severity = CheckSeverity.NOTE if is_cleared else CheckSeverity.FAULTY
    for place, count in hardware.uncorrected_memory.items():
        if count:
            yield CheckResult(severity, f"{count} uncorrectable memory errors since boot on {place}", MEMORY_REMEDY)
    days = max(1.0, (snapshot.uptime_s or 0) / SECONDS_PER_DAY)
    for place, count in hardware.corrected_memory.items():
        if count > check_input.site.memory_corrected_per_day * days:
            text = f"{count} corrected memory errors in {days:.0f} days on {place}"
            yield note(text, MEMORY_REMEDY + " if the errors go on")


def processes(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Check for processes that hang in the kernel, and for zombies."""
    if snapshot.processes is None:
        yield unknown("/proc cannot be read")
        return
    limit_s = check_input.site.stuck_seconds
    for state, description in STUCK_STATES.items():
        old = [process for process in snapshot.processes if process.state == state and process.age_s > limit_s]
        if old:
            names = ", ".join(f"{process.pid} ({process.name})" for process in old[:MAX_NAMED_PROCESSES])
            # Only a note: an old process may have entered the state a moment ago.
            yield note(f"{len(old)} {description}: {names}")


def orphans(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Check for orphan processes: user processes that hold a GPU of a node without a job."""
    if check_input.busy is not False or snapshot.in_job or snapshot.smi is None:
        return
    users = {process.pid: process for process in snapshot.user_processes(check_input.site.user_uid_min)}
    for gpu in snapshot.smi.gpus:
        holders = [users[process.pid] for process in gpu.processes if process.pid in users]
        if holders:
            names = ", ".join(map(str, holders[:MAX_NAMED_PROCESSES]))
            fix = f"opsctl undrain-good-nodes {snapshot.node} --kill-orphans"
            yield degraded(f"held by {names} although no job runs", fix, gpu=gpu.uuid)


def clock_skew(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Check the offset of the clock: a wrong clock falsifies log times and timeouts."""
    offset_s, site = snapshot.clock_offset_s, check_input.site
    if offset_s is None:
        yield unknown("chronyc reports no clock offset", "check the node's time service")
    elif abs(offset_s) > site.clock_fail_seconds:
        yield degraded(_render_offset(offset_s), "check the node's time service")
    elif abs(offset_s) > site.clock_warn_seconds:
        yield note(_render_offset(offset_s), "check the node's time service")
    # Only a note: the clock of this machine may be the wrong clock.
    if snapshot.skew_s is not None and abs(snapshot.skew_s) - snapshot.skew_error_s > site.clock_fail_seconds:
        text = f"{snapshot.skew_s:+.1f} s from this machine's clock (uncertainty {snapshot.skew_error_s:.1f} s)"
        yield note(text, "check the node's time service")


def _render_offset(offset_s: float) -> str:
    return f"the node's time service reports a clock offset of {offset_s:+.3f} s"


def host_settings(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Check settings that slow a node down: clock source and cpufreq governor. Always a note, never evidence.

    The kernel leaves the TSC for hpet or acpi_pm when the TSC is unstable; every reading of the clock then takes a
    microsecond (linux Documentation/timers/timekeeping.rst). A governor is wrong only in comparison: `cpu_governor`, or
    the governor of most nodes of this check.
    """
    hardware = snapshot.hardware
    if hardware is None:
        yield unknown(f"/sys {snapshot.section('hardware').why or 'cannot be read'}")
        return
    if hardware.clocksource in SLOW_CLOCKS:
        text = f"clock source {hardware.clocksource}: reading the time is slow"
        yield note(text, "read the kernel log for why the TSC is unstable; update the BIOS")
    yield from _check_governor(hardware, check_input)


def _check_governor(hardware: Hardware, check_input: CheckInput) -> Results:
    expected = check_input.site.cpu_governor or check_input.governor
    others = {name: count for name, count in hardware.governors.items() if name != expected}
    if expected and others:
        names = ", ".join(f"{count} CPUs {name}" for name, count in sorted(others.items()))
        yield note(f"cpufreq governor: {names}, expected {expected}", f"cpupower frequency-set -g {expected}")


def majority(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Report the hardware on which the nodes of a kind do not agree. Where a majority exists, the other checks compare.

    Unknown, and never evidence: the node may lack something, or the other nodes may have more on purpose. Different
    values for [health] gpus_per_node, nvlinks, ib_ports, ib_rate_gbps and memory_gib, or a different Gres in
    slurm.conf, decide.
    """
    for name, evidence in check_input.usual.undecided.items():
        setting = SETTING_BY_HARDWARE.get(name, "ib_rate_gbps")
        if getattr(check_input.site, setting):
            continue
        yield unknown(evidence, f"set [health] {setting}, or let Slurm tell the nodes apart (Gres, CPUs, RealMemory)")


def versions(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Check that driver, kernel and libraries are those of most nodes: one node that differs may break the job."""
    installed = {"driver": snapshot.smi.driver if snapshot.smi else "", "kernel": snapshot.kernel_version}
    if snapshot.libraries:
        installed |= {name: snapshot.libraries.get(name, NONE) for name in check_input.libraries}
    usual = {"driver": check_input.driver, "kernel": check_input.kernel_version, **check_input.libraries}
    for name, version in installed.items():
        if version and usual[name] and version != usual[name]:
            text = f"{name} {version}, most nodes have {usual[name]}"
            remedy = "install the version of most nodes"
            yield note(text, remedy)
