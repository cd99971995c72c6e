"""Answers of nodes in the form of the gathering script, made from the corpus."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from opsctl.base.ports import Answer
from opsctl.nodes.health.node_state import CheckInput, NodeBaseline, NodeSnapshot, Verdict
from opsctl.nodes.health.snapshot import parse
from opsctl.nodes.health.verdict import judge
from opsctl.settings.health import HealthSettings
from tests.support.cases import read_table

CORPUS = Path(__file__).parents[1] / "corpus"
MARK = "@@mark"
NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
UPTIME = 1_000_000.0
HEALTHY_GPU = read_table(__file__, "healthy_gpu")


def read_corpus(path: str) -> str:
    return (CORPUS / path).read_text()


def gpu_uuid(number: int, node: str = "") -> str:
    return f"GPU-{node or 'made'}-{number}"


def gpu_bus(number: int) -> str:
    return f"{0x10 + number:02x}"


def render_smi(cards: int = 8, bad: int = 3, *, node: str = "", driver: str = "570.86.15", **changes: str) -> str:
    """Return what nvidia-smi -q -x prints for `cards` GPUs, of which number `bad` has the changes."""
    template = read_corpus("nvidia-smi/made/card.xml")
    gpus = ""
    for number in range(cards):
        values = {**HEALTHY_GPU, **(changes if number == bad else {})}
        values |= {"bus": gpu_bus(number), "serial": f"16505220{number:04}{node}", "uuid": gpu_uuid(number, node)}
        text = template
        for name, value in values.items():
            text = text.replace(f"@{name}@", value)
        gpus += text
    head = f"<driver_version>{driver}</driver_version>\n<attached_gpus>{cards}</attached_gpus>"
    return f'<?xml version="1.0" ?>\n<nvidia_smi_log>\n{head}\n{gpus}</nvidia_smi_log>\n'


def stamp_lines(text: str, seconds_ago: float = 60) -> str:
    """Return lines of the kernel log with dmesg's time stamps."""
    return "".join(f"[{UPTIME - seconds_ago:.6f}] {line}\n" for line in text.splitlines())


def render_answer(**sections: str | tuple[int | str, str] | None) -> str:
    """Return what the script prints. A section is its output, or its exit code and output; None leaves it out."""
    contents: dict[str, str | tuple[int | str, str] | None] = {
        "host": f"kernel=5.14\nboot=b1\nuptime={UPTIME}\nnow={NOW.timestamp()}\nuid=0\njob=\nmemory=2113652736\n",
        "smi": render_smi(),
        "nvlink": (1, "Not supported"),
        "nvlink_errors": (1, ""),
        "pci": "".join(f"0000:{gpu_bus(number)}:00.0\n" for number in range(8)),
        "kernel": "source=dmesg\n",
        "shm": "Filesystem 1024-blocks Used Available Capacity Mounted on\ntmpfs 1056826368 9 1056826359 1% /dev/shm\n",
        "processes": "1 0\n--\n" + render_stat(1, "systemd") + "--\n100\n",
        "infiniband": "",
        "hardware": "cpu=64 AMD EPYC 7543\nclass/dmi/id/product_name:XE8545\n",
        "nvme": (77, ""),
        "clock": "System time     : 0.000000123 seconds fast of NTP time\n",
        **sections,
    }
    text = ""
    for name, section in contents.items():
        if section is not None:
            code, out = section if isinstance(section, tuple) else (0, section)
            text += f"{MARK} begin {name} {code}\n{out}\n{MARK} err\n\n"
    return text + f"{MARK} done\n"


def render_stat(pid: int, name: str, state: str = "S", seconds_ago: float = 1000) -> str:
    """Return a line of /proc/PID/stat."""
    start_ticks = int((UPTIME - seconds_ago) * 100)
    return f"{pid} ({name}) {state} {' '.join(['0'] * 18)} {start_ticks} 0 0\n"


def make_snapshot(
    text: str | None = None, *, by: str = "ssh", node: str = "node001", **sections: object
) -> NodeSnapshot:
    """Return the snapshot of a node that printed `text`, or an answer with these sections."""
    out = render_answer(**sections) if text is None else text  # type: ignore[arg-type]  # passed through
    return parse(Answer(node=node, by=by, code=0, out=out), MARK, sent_at=NOW, answered_at=NOW + timedelta(seconds=2))


def judge_snapshot(
    snapshot: NodeSnapshot,
    *,
    site: HealthSettings | None = None,
    prior: NodeBaseline | None = None,
    busy: bool | None = False,
    **fields: object,
) -> Verdict:
    return judge(
        snapshot,
        CheckInput(site=(site or HealthSettings()).thresholds, prior=prior or NodeBaseline(), busy=busy, **fields),
    )  # type: ignore[arg-type]  # as above


def list_results(verdict: Verdict, check: str) -> list[tuple[str, str]]:
    """Return severity and evidence of the results of one check."""
    return [(result.severity.value, result.evidence) for result in verdict.results if result.check == check]
