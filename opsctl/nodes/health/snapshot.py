"""Render the gathering script and parse its output into a NodeSnapshot. Parsing raises nothing."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from opsctl.nodes.health import host_output, nvidia_smi
from opsctl.nodes.health.amd_smi import parse_amd
from opsctl.nodes.health.fio_output import parse_fio
from opsctl.nodes.health.node_state import NodeSnapshot, Section
from opsctl.ports import Answer

SCRIPT = Path(__file__).with_name("gather.sh")
DCGM_SECONDS = {0: 0, 1: 120, 2: 600, 3: 2400, 4: 10800}
"""What `dcgmi diag` may take at each level."""
TOTAL_EXTRA = 15
"""Seconds that the script may take beyond its slowest question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FioScan:
    """A file system to be measured on each node: a file is written there, read, and removed."""

    directory: str
    mib: int
    seconds: float
    """For all of it."""


def script(
    mark: str, *, seconds: float, mounts: Sequence[str] = (), dcgm: int = 0, fio: FioScan | None = None
) -> str:  # fmt: skip
    """What runs on a node: nothing there is changed by it, but for the file of `fio`, which it removes."""
    values = {"MARK": mark, "LIMIT": str(max(1, round(seconds))), "MOUNTS": "\n".join(mounts), "DCGM": str(dcgm),
              "DCGM_LIMIT": str(DCGM_SECONDS[dcgm])}  # fmt: skip
    if fio:
        values |= {"FIO": fio.directory, "FIO_MIB": str(fio.mib), "FIO_LIMIT": str(max(1, round(fio.seconds)))}
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items()) + SCRIPT.read_text()


def longest(seconds: float, dcgm: int, fio: FioScan | None = None) -> float:
    """How long the script may take."""
    return max(seconds, DCGM_SECONDS[dcgm], fio.seconds if fio else 0) + TOTAL_EXTRA


def split(text: str, mark: str) -> tuple[dict[str, Section], bool]:
    """The answers by question, and whether there are all of them. Half an answer is none."""
    sections: dict[str, Section] = {}
    name, code, out, into = "", None, [""], [""]
    for line in text.splitlines(keepends=True):
        words = line.split()
        if words[:1] != [mark]:
            into.append(line)
            continue
        if name and words[1:2] != ["err"]:
            sections[name] = Section(code=code, out="".join(out).rstrip("\n"), err="".join(into).rstrip("\n"))
            name = ""
        if words[1:2] == ["begin"] and len(words) == 4:
            name, code = words[2], host_output.digits(words[3])
            out = into = []
        elif words[1:2] == ["err"]:
            into = []
        elif words[1:2] == ["done"]:
            return sections, True
    return sections, False


def parse(answer: Answer, mark: str, *, moment: datetime, answered: datetime) -> NodeSnapshot:
    """Parse a node's answer. `moment` and `answered` are this machine's times of the request and of the answer."""
    if answer.code is None and mark not in answer.out:
        return NodeSnapshot(node=answer.node, at=answered, by=answer.by, problem=answer.problem or "no answer")
    sections, is_whole = split(answer.out, mark)
    problem = "" if is_whole and sections else answer.problem or "the node's answer is incomplete"
    if not sections and answer.code is not None:
        text = " ".join((answer.err or answer.out).split())[:160]
        problem = f"the node printed unexpected output (exit code {answer.code}): {text}"
    about = host_output.settings(_out(sections, "host"))
    uptime = host_output.decimal(about.get("uptime", ""))
    now = host_output.decimal(about.get("now", ""))
    middle = (moment.timestamp() + answered.timestamp()) / 2
    up, down = nvidia_smi.parse_links(_out(sections, "nvlink"))
    shm = next(host_output.parse_df(_out(sections, "shm")), (None, None))
    return NodeSnapshot(
        node=answer.node,
        at=answered,
        by=answer.by,
        problem=problem,
        sections={name: Section(code=section.code, err=_hint(name, section)) for name, section in sections.items()},
        boot=about.get("boot", ""),
        uid=host_output.digits(about.get("uid", "")),
        in_job=bool(about.get("job")) or answer.by in {"srun", "job"},
        skew=None if now is None else now - middle,
        skew_error=(answered - moment).total_seconds() / 2,
        clock_offset=host_output.parse_offset(_out(sections, "clock")),
        kernel_version=about.get("kernel", ""),
        libraries=host_output.parse_libraries(_out(sections, "libraries")),
        memory_kb=host_output.digits(about.get("memory", "")),
        smi=(nvidia_smi.parse_smi(sections["smi"].out) if "smi" in sections else None)
        or parse_amd(_out(sections, "amd")),
        on_bus=len(_out(sections, "pci").split()) if _ended(sections, "pci") else None,
        links=up,
        links_down=down,
        link_errors=nvidia_smi.parse_link_errors(_out(sections, "nvlink_errors")),
        kernel=host_output.parse_kernel(_out(sections, "kernel"), uptime) if _ended(sections, "kernel") else None,
        shm_kb=shm[0],
        shm_percent=shm[1],
        processes=host_output.parse_processes(_out(sections, "processes"), uptime),
        ports=host_output.parse_ports(_out(sections, "infiniband")),
        mounts=tuple(
            host_output.parse_mount(section) for name, section in sections.items() if name.startswith("mount_")
        ),
        dcgm=host_output.parse_dcgm(sections["dcgm"].out) if "dcgm" in sections else None,
        fio=parse_fio(_out(sections, "fio")),
    )


def _ended(sections: dict[str, Section], name: str) -> bool:
    return name in sections and sections[name].code == 0


def _out(sections: dict[str, Section], name: str) -> str:
    """What it printed, if it ended well."""
    return sections[name].out if _ended(sections, name) else ""


def _hint(name: str, section: Section) -> str:
    """What is kept to say why: a failing nvidia-smi prints its error to stdout."""
    return section.err or (section.out[-400:] if section.code and name in {"smi", "amd", "dcgm", "nvlink"} else "")
