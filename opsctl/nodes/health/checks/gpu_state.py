"""Checks of GPUs: present, working, not slowed down, and with sound memory."""

from opsctl.base.tables import read_package_table
from opsctl.nodes.health.check_results import Results, degraded, faulty, note, unknown
from opsctl.nodes.health.kernel_lines import RECOVERY_ACTIONS
from opsctl.nodes.health.node_state import CheckInput, CheckResult, CheckSeverity, Gpu, NodeSnapshot, Smi
from opsctl.nodes.health.usual_hardware import GPUS, ON_BUS
from opsctl.settings.thresholds import Thresholds

HARDWARE_EXIT_CODES: dict[str, str] = read_package_table("nodes/health/checks/nvidia_smi_exits.toml")
"""Exit codes of nvidia-smi that name a hardware fault. Others name drivers, rights or libraries."""
LOST_GPU_MESSAGES = ("GPU is lost", "fallen off the bus")
MAX_MESSAGE_CHARS = 120
MAX_NAMED_GPUS = 4
COOLING_REMEDY = "check cooling and power"
SLOWDOWNS = frozenset({"hw_thermal_slowdown", "hw_power_brake_slowdown"})
MIN_SHARE_OF_POWER = 0.98
MAX_DIAGNOSTIC_CHARS = 200


def gpus(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Check that nvidia-smi or amd-smi answers, and that all expected GPUs are present.

    The expected number is that of the settings, of the node's history, or of most nodes of its kind.
    """
    tool, section = snapshot.gpu_tool
    usual = check_input.usual.values
    learnt = max(len(check_input.prior.cards), int(usual.get(GPUS, 0)))
    expected = check_input.site.gpus_per_node or learnt
    fault = _find_hardware_fault(snapshot)
    if fault:
        yield faulty(fault, "reboot the node; replace the GPU if the fault remains")
    elif snapshot.smi is not None and section.code == 0:
        yield from _check_count(snapshot.smi, snapshot, check_input, expected)
        yield from _list_flaky_gpus(snapshot.smi, check_input)
    elif snapshot.on_bus is not None and snapshot.on_bus < usual.get(ON_BUS, 0):
        text = f"{snapshot.on_bus} GPUs on the bus, most nodes of this kind have {usual[ON_BUS]:g}"
        yield faulty(text, "reboot the node; reseat the GPU if the fault remains")
    elif section.code == 127 and not expected and snapshot.on_bus == 0:
        return  # a node without GPUs
    else:
        why = section.why or "printed unreadable output"
        yield unknown(f"{tool} {why}", f"check the driver: opsctl exec -w {snapshot.node} {tool}")


def _find_hardware_fault(snapshot: NodeSnapshot) -> str:
    """Return the hardware fault that nvidia-smi reports; an empty string for none."""
    tool, section = snapshot.gpu_tool
    if tool != "nvidia-smi" or not section.code:
        return ""
    text = f"{section.err} {snapshot.smi.messages if snapshot.smi else ''}"
    if str(section.code) not in HARDWARE_EXIT_CODES and not any(message in text for message in LOST_GPU_MESSAGES):
        return ""
    meaning = HARDWARE_EXIT_CODES.get(str(section.code), "a GPU is lost")
    return f"nvidia-smi exit code {section.code}: {meaning}: {' '.join(text.split())[:MAX_MESSAGE_CHARS]}"


def _check_count(smi: Smi, snapshot: NodeSnapshot, check_input: CheckInput, expected: int) -> Results:
    uuids = {gpu.uuid for gpu in smi.gpus if gpu.uuid}
    missing = [card.uuid for card in check_input.prior.cards if card.uuid not in uuids]
    required = max(expected, smi.attached or 0)
    if len(smi.gpus) < required:
        names = f"; missing: {', '.join(missing[:MAX_NAMED_GPUS])}" if missing else ""
        text = f"{len(smi.gpus)} of {required} GPUs answer{names}"
        if snapshot.in_job and (snapshot.on_bus is None or snapshot.on_bus >= required):
            text += "; this job may see only its own GPUs"
            yield unknown(text, "check again when the node is idle")
        else:
            yield faulty(text, "reboot the node")
    elif len(uuids) < len(smi.gpus):
        yield unknown(f"{len(smi.gpus) - len(uuids)} GPUs report no UUID", "read the kernel log")
    elif missing:
        yield note(f"{len(missing)} GPUs differ from before")


def _list_flaky_gpus(smi: Smi, check_input: CheckInput) -> Results:
    for gpu in smi.gpus:
        by_serial = check_input.flaky_gpus.get(gpu.serial, "") if gpu.serial else ""
        summary = check_input.flaky_gpus.get(gpu.uuid, "") or by_serial
        if summary:
            remedy = "return the node and name the GPU"
            yield note(f"a known flaky GPU: {summary}", remedy, gpu=gpu.uuid)


def recovery(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Check the recovery action that the driver requests for a GPU."""
    for gpu in snapshot.gpus:
        if gpu.maker != "nvidia":
            continue
        action = (gpu.recovery or "").lower()
        severity = RECOVERY_ACTIONS.get(action)
        if severity is not None:
            text = f"the driver requests: {gpu.recovery}"
            yield CheckResult(severity, text, "carry out the requested action", gpu=gpu.uuid)
        elif gpu.reset_required:
            yield faulty("the driver requests a reset", "reset the GPU", gpu=gpu.uuid)
        elif action not in RECOVERY_ACTIONS and gpu.reset_required is None:
            text = f"unknown recovery action {gpu.recovery!r}" if action else "the driver reports no recovery action"
            yield unknown(text, gpu=gpu.uuid)


def clocks(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Check the clock event reasons: a GPU that is idle and too hot, or short of power, is degraded."""
    for gpu in snapshot.gpus:
        if gpu.maker != "nvidia":
            continue
        if gpu.clocks is None:
            yield unknown("clock event reasons: N/A", gpu=gpu.uuid)
            continue
        slowdowns = sorted(gpu.clocks & SLOWDOWNS)
        if slowdowns:
            # A GPU under load may be hot for a moment; an idle GPU may not.
            is_idle = check_input.busy is False and gpu.use_percent == 0
            yield CheckResult(
                CheckSeverity.DEGRADED if is_idle else CheckSeverity.NOTE,
                f"slowed down by {', '.join(slowdowns)}{' although idle' if is_idle else ''}",
                COOLING_REMEDY,
                gpu=gpu.uuid,
            )


def temperature(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Check the temperature and the power limit of GPUs."""
    for gpu in snapshot.gpus:
        yield from _check_temperature(gpu)
        limit_w, default_w = gpu.power_limit_w, gpu.default_power_limit_w
        if limit_w and default_w and limit_w < MIN_SHARE_OF_POWER * default_w:
            yield note(f"capped at {limit_w:g} W, {default_w:g} W by default", COOLING_REMEDY, gpu=gpu.uuid)


def _check_temperature(gpu: Gpu) -> Results:
    if gpu.temperature_c is None:
        yield unknown("temperature: N/A", COOLING_REMEDY, gpu=gpu.uuid)
    elif gpu.slowdown_c is not None and gpu.temperature_c >= gpu.slowdown_c:
        yield degraded(f"{gpu.temperature_c} C, slows down at {gpu.slowdown_c} C", COOLING_REMEDY, gpu=gpu.uuid)
    elif gpu.margin_c is not None and gpu.slowdown_margin_c is not None and gpu.margin_c <= gpu.slowdown_margin_c:
        yield degraded(f"{gpu.temperature_c} C, {gpu.margin_c} C from its limit", COOLING_REMEDY, gpu=gpu.uuid)


def persistence(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Check persistence mode: without it an idle driver is unloaded and loses its error counters."""
    off = [gpu for gpu in snapshot.gpus if gpu.persistence is False]
    if off:
        yield note(
            f"off on {len(off)} GPUs: an idle driver loses its error counters", "run nvidia-smi -pm 1 as administrator"
        )


def dcgm(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Check the results of NVIDIA's diagnostic (DCGM), if requested."""
    if "dcgm" not in snapshot.sections:
        return
    if snapshot.dcgm is None:
        why = snapshot.section("dcgm").why or "printed unreadable output"
        yield unknown(f"dcgmi diag {why}")
        return
    for test, result, text in snapshot.dcgm:
        evidence = f"{test}: {result}: {text}"[:MAX_DIAGNOSTIC_CHARS]
        if result == "fail":
            remedy = "run dcgmi diag -r 3; replace the GPU if the failure remains"
            yield faulty(evidence, remedy)
        elif result == "warn":
            yield note(evidence)


def ecc(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Check the ECC errors of GPU memory, since driver load and over the lifetime of the GPU."""
    for gpu in snapshot.gpus:
        if not gpu.ecc and gpu.has_no_ecc:
            if gpu.ecc_mode == "disabled":
                yield note("ECC is switched off: memory errors stay unnoticed", gpu=gpu.uuid)
            continue
        if not gpu.ecc:
            yield unknown("no ECC counters: N/A", gpu=gpu.uuid)
            continue
        yield from _check_uncorrectable(gpu, check_input.site)
        for kind, limit in (("sram", check_input.site.sram_corrected), ("dram", check_input.site.dram_corrected)):
            corrected = gpu.ecc.get(f"volatile.{kind}_correctable", 0)
            if corrected > limit:
                yield degraded(f"{corrected} corrected {kind.upper()} errors, more than {limit}", gpu=gpu.uuid)


def _check_uncorrectable(gpu: Gpu, site: Thresholds) -> Results:
    """Yield uncorrectable errors. Lifetime DRAM errors are no evidence: their rows have been remapped."""
    if sram := gpu.ecc.get("volatile.sram_uncorrectable", 0):
        text = f"{sram} uncorrectable SRAM errors since the driver was loaded"
        yield faulty(text, "reset the GPU", gpu=gpu.uuid)
    if dram := gpu.ecc.get("volatile.dram_uncorrectable", 0):
        text = f"{dram} uncorrectable DRAM errors since the driver was loaded"
        yield degraded(text, "reset the GPU when no job uses the GPU", gpu=gpu.uuid)
    lifetime_sram = gpu.ecc.get("aggregate.sram_uncorrectable", 0)
    if gpu.sram_threshold or lifetime_sram > site.sram_uncorrected_ever:
        text = f"{lifetime_sram} uncorrectable SRAM errors over the GPU's lifetime: more than allowed"
        yield faulty(text, "replace the GPU", gpu=gpu.uuid)


def remapped_rows(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Check the rows of GPU memory that are, or cannot be, remapped. AMD GPUs retire pages instead."""
    for gpu in snapshot.gpus:
        if gpu.rows_failed:
            text = "a row could not be remapped" if gpu.maker == "nvidia" else "more bad pages than are allowed"
            yield faulty(text, "run the field diagnostic; replace the GPU", gpu=gpu.uuid)
        elif gpu.rows_pending:
            text = "a row waits to be remapped; running jobs are safe"
            yield degraded(text, "reset the GPU when no job uses the GPU", gpu=gpu.uuid)
        elif gpu.maker == "nvidia" and None in {gpu.rows_failed, gpu.rows_pending} and not _has_no_rows(gpu):
            yield unknown("remapped rows: N/A" + (" under MIG" if gpu.mig else ""), gpu=gpu.uuid)
        if gpu.rows_used_up:
            yield note(f"{gpu.rows_used_up} banks have no spare row left", gpu=gpu.uuid)


def _has_no_rows(gpu: Gpu) -> bool:
    """Return whether the card remaps no rows: Volta and Turing retire pages, a card without ECC does neither."""
    return gpu.retired_pages is not None or gpu.has_no_ecc


def retired_pages(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Check the pages of GPU memory that Volta and Turing cards took out of use.

    A pending retirement takes effect at the next reset (NVIDIA, Dynamic Page Retirement). A card can retire 64 pages
    (docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/row-remapping.html); from 60 on (`retired_pages`) the card is
    replaced, before retirement fails. gcm warns from 10 on; here any retired page is a note.
    """
    limit = check_input.site.retired_pages
    for gpu in snapshot.gpus:
        count = gpu.retired_pages or 0
        if count >= limit:
            yield faulty(f"{count} retired pages, allowed are fewer than {limit}", "replace the GPU", gpu=gpu.uuid)
        elif count:
            yield note(f"{count} retired pages", gpu=gpu.uuid)
        if gpu.retirement_pending:
            yield degraded("a page waits to be retired", "reset the GPU when no job uses the GPU", gpu=gpu.uuid)
