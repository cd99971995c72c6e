"""Render the gathering script and parse its output into a NodeSnapshot. Parsing raises nothing."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from opsctl.base.ports import WAYS_INSIDE_A_JOB, Answer
from opsctl.nodes.health import host_output, nvidia_smi
from opsctl.nodes.health.amd_smi import parse_amd
from opsctl.nodes.health.host_output import parse_disk_logs, parse_fio, parse_hardware
from opsctl.nodes.health.node_state import NodeSnapshot, Section, Smi

SCRIPT = Path(__file__).with_name("gather.sh")
DCGM_TIMEOUT_S = {0: 0, 1: 120, 2: 600, 3: 2400, 4: 10800}
"""Time limit of `dcgmi diag`, by level."""
EXTRA_TIMEOUT_S = 15
"""Time that the script may take beyond its slowest section."""
MAX_ERROR_CHARS = 160
MAX_HINT_CHARS = 400
ERRORS_ON_STDOUT = frozenset({"smi", "amd", "dcgm", "nvlink"})
"""Sections whose programs print errors to stdout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FioScan:
    """A file system that every node measures: fio writes a file there, reads the file and removes the file."""

    directory: str
    mib: int
    timeout_s: float
    """Time limit of the whole measurement."""


def render_script(
    mark: str, *, section_timeout_s: float, mounts: Sequence[str] = (), dcgm: int = 0, fio: FioScan | None = None
) -> str:
    """Return the script that runs on a node. The script changes nothing there, except for fio's temporary file."""
    values = {
        "MARK": mark,
        "LIMIT": str(max(1, round(section_timeout_s))),
        "MOUNTS": "\n".join(mounts),
        "DCGM": str(dcgm),
        "DCGM_LIMIT": str(DCGM_TIMEOUT_S[dcgm]),
    }
    if fio:
        values |= {"FIO": fio.directory, "FIO_MIB": str(fio.mib), "FIO_LIMIT": str(max(1, round(fio.timeout_s)))}
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items()) + SCRIPT.read_text()


def compute_timeout_s(section_timeout_s: float, dcgm: int, fio: FioScan | None = None) -> float:
    """Return the time limit of the whole script."""
    return max(section_timeout_s, DCGM_TIMEOUT_S[dcgm], fio.timeout_s if fio else 0) + EXTRA_TIMEOUT_S


def split_sections(text: str, mark: str) -> tuple[dict[str, Section], bool]:
    """Return the sections by name, and whether the output is complete. An incomplete section is dropped."""
    sections: dict[str, Section] = {}
    name = ""
    code: int | None = None
    parts: list[list[str]] = [[]]
    for line in text.splitlines(keepends=True):
        words = line.split()
        kind = words[1] if len(words) > 1 else ""
        if words[:1] != [mark]:
            parts[-1].append(line)
            continue
        if kind == "err":
            parts = [parts[0], []]
            continue
        if name:
            sections[name] = _make_section(code, parts)
        name = ""
        if kind == "begin" and len(words) == 4:
            name, code, parts = words[2], host_output.parse_int(words[3]), [[]]
        elif kind == "done":
            return sections, True
    return sections, False


def _make_section(code: int | None, parts: Sequence[Sequence[str]]) -> Section:
    """Return a section from the lines of its output and, if it has any, of its errors."""
    texts = ["".join(lines).rstrip("\n") for lines in parts]
    return Section(code=code, out=texts[0], err=texts[-1])


def parse(answer: Answer, mark: str, *, sent_at: datetime, answered_at: datetime) -> NodeSnapshot:
    """Parse a node's answer. `sent_at` and `answered_at` are this machine's times of the request and of the answer."""
    if answer.code is None and mark not in answer.out:
        return NodeSnapshot(node=answer.node, at=answered_at, by=answer.by, problem=answer.problem or "no answer")
    sections, is_complete = split_sections(answer.out, mark)
    outputs = {name: section.out for name, section in sections.items() if section.code == 0}
    host = host_output.parse_settings(outputs.get("host", ""))
    uptime_s = host_output.parse_float(host.get("uptime", ""))
    now = host_output.parse_float(host.get("now", ""))
    middle = (sent_at.timestamp() + answered_at.timestamp()) / 2
    up, down = nvidia_smi.parse_links(outputs.get("nvlink", ""))
    shm_kb, shm_percent = next(host_output.parse_df(outputs.get("shm", "")), (None, None))
    kernel = outputs.get("kernel")
    return NodeSnapshot(
        node=answer.node,
        at=answered_at,
        by=answer.by,
        problem=_describe_problem(answer, sections, is_complete=is_complete),
        sections={
            name: Section(code=section.code, err=_find_error(name, section)) for name, section in sections.items()
        },
        boot=host.get("boot", ""),
        uid=host_output.parse_int(host.get("uid", "")),
        in_job=bool(host.get("job")) or answer.by in WAYS_INSIDE_A_JOB,
        skew_s=None if now is None else now - middle,
        skew_error_s=(answered_at - sent_at).total_seconds() / 2,
        clock_offset_s=host_output.parse_offset(outputs.get("clock", "")),
        kernel_version=host.get("kernel", ""),
        libraries=host_output.parse_libraries(outputs.get("libraries", "")),
        memory_kb=host_output.parse_int(host.get("memory", "")),
        smi=_parse_gpus(sections, outputs),
        on_bus=len(outputs["pci"].split()) if "pci" in outputs else None,
        links=up,
        links_down=down,
        link_errors=nvidia_smi.parse_link_errors(outputs.get("nvlink_errors", "")),
        kernel=None if kernel is None else host_output.parse_kernel(kernel, uptime_s),
        shm_kb=shm_kb,
        shm_percent=shm_percent,
        processes=host_output.parse_processes(outputs.get("processes", ""), uptime_s),
        ports=host_output.parse_ports(outputs.get("infiniband", "")),
        mounts=tuple(
            host_output.parse_mount(section) for name, section in sections.items() if name.startswith("mount_")
        ),
        uptime_s=uptime_s,
        hardware=parse_hardware(outputs["hardware"]) if "hardware" in outputs else None,
        disk_logs=parse_disk_logs(outputs.get("nvme", "")),
        dcgm=host_output.parse_dcgm(sections["dcgm"].out) if "dcgm" in sections else None,
        fio=parse_fio(outputs.get("fio", "")),
    )


def _describe_problem(answer: Answer, sections: Mapping[str, Section], *, is_complete: bool) -> str:
    """Return why data is missing; an empty string for complete data."""
    if not sections and answer.code is not None:
        text = " ".join((answer.err or answer.out).split())[:MAX_ERROR_CHARS]
        return f"the node printed unexpected output (exit code {answer.code}): {text}"
    if is_complete and sections:
        return ""
    return answer.problem or "the node's answer is incomplete"


def _parse_gpus(sections: Mapping[str, Section], outputs: Mapping[str, str]) -> Smi | None:
    """Return the data of nvidia-smi, whose output counts for any exit code, or else the data of amd-smi."""
    smi = nvidia_smi.parse_smi(sections["smi"].out) if "smi" in sections else None
    return smi or parse_amd(outputs.get("amd", ""))


def _find_error(name: str, section: Section) -> str:
    """Return the error output of a section. A failing nvidia-smi prints its error to stdout."""
    if section.err or not section.code or name not in ERRORS_ON_STDOUT:
        return section.err
    return section.out[-MAX_HINT_CHARS:]
