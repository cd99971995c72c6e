"""Which precision the run computes in, and whether the processor has instructions for bf16. Without torch."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Names of these instructions in /proc/cpuinfo, on x86 and on Arm."""
_LIMITS_WITHOUT_BF16 = frozenset(
    {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"}
)
"""Values of oneDNN's variable that exclude bf16 instructions which the processor has."""
SLOWDOWN_FROM_BF16 = 30
"""Time of a bf16 product of 512 x 128 x 512 over that of the same in fp32, on a processor without bf16 instructions:
31 on an AMD EPYC with AVX2, 40 on another whose oneDNN was limited to AVX2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """What /proc/cpuinfo says of the processor."""

    name: str
    has_bf16: bool | None
    """None if /proc/cpuinfo lists no instructions."""


def read_processor(environ: Mapping[str, str], cpuinfo: Path = Path("/proc/cpuinfo")) -> Processor:
    """Return the processor of this machine, as oneDNN uses it: `environ` may limit the instructions."""
    try:
        text = cpuinfo.read_text()
    except OSError:
        text = ""
    name = re.search(r"^model name\s*:\s*(.+)", text, re.MULTILINE)
    listed = re.search(r"^(?:flags|Features)\s*:\s*(.+)", text, re.MULTILINE)
    limit = environ.get("ONEDNN_MAX_CPU_ISA") or environ.get("DNNL_MAX_CPU_ISA") or ""
    has_bf16 = None if listed is None else not _BF16_FLAGS.isdisjoint(listed[1].split())
    return Processor(
        name=name[1] if name else "the processor", has_bf16=has_bf16 and limit.upper() not in _LIMITS_WITHOUT_BF16
    )


def choose_precision(*, saved: str | None, gpu_has_bf16: bool | None, processor: Processor) -> tuple[str, str]:
    """Return the precision for `auto`, and why: that of the resumed checkpoint, else bf16 where the device has it.

    `gpu_has_bf16`: None without a GPU. By instructions and never by time: a busy machine chooses the same.
    """
    if saved is not None:
        return saved, "of the checkpoint"
    if gpu_has_bf16 is not None:
        return ("bf16", "the GPU has it") if gpu_has_bf16 else ("fp32", "the GPU has no bf16 instructions")
    if processor.has_bf16:
        return "bf16", f"{processor.name} has instructions for it"
    if processor.has_bf16 is None:
        return "fp32", "the processor's instructions are unknown"
    return "fp32", f"{processor.name} has no bf16 instructions"
