"""Nodes that answer: made of the corpus, in the form in which the gathering script prints."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from opsctl.nodes.health.node_state import CheckInput, NodeBaseline, NodeSnapshot, Verdict
from opsctl.nodes.health.snapshot import parse
from opsctl.nodes.health.verdict import judge
from opsctl.ports import Answer
from opsctl.settings.health import HealthSettings

CORPUS = Path(__file__).parents[1] / "corpus"
MARK = "@@mark"
NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
UPTIME = 1_000_000.0
WELL = {
    "persistence": "Enabled",
    "recovery": "None",
    "width": "16",
    "sw_power_cap": "Not Active",
    "hw_thermal": "Not Active",
    "use": "0",
    "sram": "0",
    "dram_fixed": "177",
    "dram": "0",
    "sram_ever": "0",
    "dram_ever": "3",
    "pending": "No",
    "failure": "No",
    "temperature": "31",
    "margin": "55",
    "power": "700.00",
    "processes": "",
}


def corpus(path: str) -> str:
    return (CORPUS / path).read_text()


def uuid(number: int, node: str = "") -> str:
    return f"GPU-{node or 'made'}-{number}"


def bus(number: int) -> str:
    return f"{0x10 + number:02x}"


def smi(cards: int = 8, bad: int = 3, *, node: str = "", driver: str = "570.86.15", **changes: str) -> str:
    """What nvidia-smi -q -x prints for `cards` cards, of which number `bad` has the changes."""
    template = corpus("nvidia-smi/made/card.xml")
    made = ""
    for number in range(cards):
        values = {**WELL, **(changes if number == bad else {})}
        values |= {"bus": bus(number), "serial": f"16505220{number:04}{node}", "uuid": uuid(number, node)}
        text = template
        for name, value in values.items():
            text = text.replace(f"@{name}@", value)
        made += text
    head = f"<driver_version>{driver}</driver_version>\n<attached_gpus>{cards}</attached_gpus>"
    return f'<?xml version="1.0" ?>\n<nvidia_smi_log>\n{head}\n{made}</nvidia_smi_log>\n'


def stamped(text: str, seconds_ago: float = 60) -> str:
    """Lines of the kernel log with the time that dmesg gives them."""
    return "".join(f"[{UPTIME - seconds_ago:.6f}] {line}\n" for line in text.splitlines())


def printed(**sections: str | tuple[int | str, str] | None) -> str:
    """What the script prints; a section is its output, or its exit code and output; None leaves it out."""
    given: dict[str, str | tuple[int | str, str] | None] = {
        "host": f"kernel=5.14\nboot=b1\nuptime={UPTIME}\nnow={NOW.timestamp()}\nuid=0\njob=\nmemory=2113652736\n",
        "smi": smi(),
        "nvlink": (1, "Not supported"),
        "nvlink_errors": (1, ""),
        "pci": "".join(f"0000:{bus(number)}:00.0\n" for number in range(8)),
        "kernel": "source=dmesg\n",
        "shm": "Filesystem 1024-blocks Used Available Capacity Mounted on\ntmpfs 1056826368 9 1056826359 1% /dev/shm\n",
        "processes": "1 0\n--\n" + stat(1, "systemd") + "--\n100\n",
        "infiniband": "",
        "clock": "System time     : 0.000000123 seconds fast of NTP time\n",
        **sections,
    }
    text = ""
    for name, section in given.items():
        if section is not None:
            code, out = section if isinstance(section, tuple) else (0, section)
            text += f"{MARK} begin {name} {code}\n{out}\n{MARK} err\n\n"
    return text + f"{MARK} done\n"


def stat(pid: int, name: str, state: str = "S", seconds_ago: float = 1000) -> str:
    """A line of /proc/PID/stat."""
    started = int((UPTIME - seconds_ago) * 100)
    return f"{pid} ({name}) {state} {' '.join(['0'] * 18)} {started} 0 0\n"


def seen(text: str | None = None, *, by: str = "ssh", node: str = "node001", **sections: object) -> NodeSnapshot:
    """The snapshot of a node that printed this."""
    out = printed(**sections) if text is None else text  # type: ignore[arg-type]  # handed on
    return parse(Answer(node=node, by=by, code=0, out=out), MARK, moment=NOW, answered=NOW + timedelta(seconds=2))


def verdict(
    snapshot: NodeSnapshot,
    *,
    site: HealthSettings | None = None,
    prior: NodeBaseline | None = None,
    busy: bool | None = False,
    **given: object,
) -> Verdict:
    return judge(snapshot, CheckInput(site=site or HealthSettings(), prior=prior or NodeBaseline(), busy=busy, **given))  # type: ignore[arg-type]  # as above


def said(verdict: Verdict, check: str) -> list[tuple[str, str]]:
    """Severity and evidence of each of that check's results."""
    return [(result.severity.value, result.evidence) for result in verdict.results if result.check == check]
