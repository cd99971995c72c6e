"""Checks of GPU memory: errors, remapped rows and retired pages."""

from opsctl.nodes.health.check_results import Results, degraded, faulty, note, unknown
from opsctl.nodes.health.node_state import CheckInput, Gpu, NodeSnapshot
from opsctl.settings.thresholds import Thresholds


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
