"""Checks of the links of GPUs: NVLink, fabric manager and PCIe."""

from opsctl.nodes.health.check_results import Results, degraded, note, unknown
from opsctl.nodes.health.node_state import CheckInput, CheckResult, CheckSeverity, NodeSnapshot
from opsctl.nodes.health.usual_hardware import NVLINKS

LINKS_REMEDY = "reset the GPUs, or reboot the node"
FABRIC_REMEDY = "systemctl restart nvidia-fabricmanager; the version of the fabric manager must be that of the driver"
NOT_STARTED = frozenset({"not started", "not supported"})
MIN_USE_PERCENT = 10
"""A GPU that is used less counts as idle."""


def nvlink(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Check NVLink: links that were up must be up, and as many as on most nodes.

    Error counters alone are no evidence.
    """
    prior = check_input.prior
    expected = check_input.site.nvlinks or check_input.usual.values.get(NVLINKS, 0)
    if snapshot.smi is None or not (snapshot.links or prior.links or expected):
        return
    section = snapshot.section("nvlink")
    if section.code != 0:
        yield unknown(f"nvidia-smi nvlink {section.why}")
        return
    for gpu in snapshot.smi.gpus:
        up_before = prior.links.get(gpu.uuid, ())
        down = set(up_before) & set(snapshot.links_down.get(gpu.uuid, ()))
        is_all_down = up_before and gpu.uuid in snapshot.links and not snapshot.links[gpu.uuid]
        if down or is_all_down:
            links = ", ".join(map(str, sorted(down))) or "all"
            yield degraded(f"links that were up are down: {links}", LINKS_REMEDY, gpu=gpu.uuid)
        elif gpu.uuid in snapshot.links and len(snapshot.links[gpu.uuid]) < expected:
            whose = "the settings name" if check_input.site.nvlinks else "most nodes of this kind have"
            text = f"{len(snapshot.links[gpu.uuid])} links are up, {whose} {expected:g}"
            yield degraded(text, LINKS_REMEDY, gpu=gpu.uuid)
        before, now = prior.link_errors.get(gpu.uuid), snapshot.link_errors.get(gpu.uuid)
        if before is not None and now is not None and now > before:
            yield note(f"{now - before} new link errors since the last check", gpu=gpu.uuid)


def fabric(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Check that GPUs behind NVSwitches are registered with the fabric manager.

    Without registration CUDA starts no program on the GPU (NVIDIA, Fabric Manager User Guide). The driver reports state
    and status of every GPU. The state `In Progress` and the service are only notes: both differ between driver
    versions.
    """
    failed: dict[str, list[str]] = {}
    for gpu in snapshot.gpus:
        state, status = (gpu.fabric_state or "").lower(), (gpu.fabric_status or "").lower()
        if state == "completed" and status not in {"", "success"}:
            failed.setdefault(f"registration failed: {gpu.fabric_status}", []).append(gpu.uuid)
        elif state and state != "completed" and state not in NOT_STARTED:
            failed.setdefault(f"registration: {gpu.fabric_state}", []).append(gpu.uuid)
    for text, uuids in failed.items():
        is_failure = text.startswith("registration failed")
        yield CheckResult(
            CheckSeverity.FAULTY if is_failure else CheckSeverity.NOTE,
            f"{text} on {len(uuids)} GPUs",
            FABRIC_REMEDY,
            gpu=uuids[0] if len(uuids) == 1 else "",
        )
    hardware = snapshot.hardware
    if hardware and hardware.nvswitches and hardware.fabric_service not in {"", "active"}:
        text = f"{hardware.nvswitches} NVSwitches, and the service nvidia-fabricmanager is {hardware.fabric_service}"
        yield note(text, FABRIC_REMEDY)


def pcie(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Check the PCIe link of GPUs under load. An idle GPU narrows its link to save power."""
    for gpu in snapshot.gpus:
        is_loaded = (gpu.use_percent or 0) >= MIN_USE_PERCENT
        if is_loaded and gpu.pcie_lanes and gpu.max_pcie_lanes and gpu.pcie_lanes < gpu.max_pcie_lanes:
            yield degraded(f"{gpu.pcie_lanes} of {gpu.max_pcie_lanes} lanes under load", "reseat the GPU", gpu=gpu.uuid)
        before = check_input.prior.replays.get(gpu.uuid)
        if before is not None and gpu.replays is not None and gpu.replays > before:
            yield note(f"{gpu.replays - before} new PCIe replays since the last check", gpu=gpu.uuid)


def aer(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Check the PCIe errors (AER) that the kernel has counted since boot. The kernel log has its own rows.

    Totals are only a note, and corrected errors none: a reset of the card also counts, and the hardware repeats a
    corrected transfer. gcm calls corrected errors ok and others a warning.
    """
    for device, counts in (snapshot.hardware.pcie_errors if snapshot.hardware else {}).items():
        uncorrected = [f"{counts[kind]} {kind}" for kind in ("fatal", "nonfatal") if counts.get(kind)]
        if uncorrected:
            yield note(f"{' and '.join(uncorrected)} PCIe errors since boot on {device}", "watch the card")
