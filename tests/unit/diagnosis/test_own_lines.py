"""What opsctl prints is no evidence: whatever its lines say, they explain no end, and show no progress."""

import logging
import tomllib
from pathlib import Path

import pytest

from opsctl.base.tables import read_package_table
from opsctl.diagnosis.causes import CauseKind, causes, classify
from opsctl.diagnosis.diagnose_attempt import diagnose_logs
from opsctl.diagnosis.scan_logs import scan
from opsctl.host.log_config import RecordFormatter
from opsctl.telemetry.logs.log_lines import blank_own_lines, is_own_line
from opsctl.telemetry.progress.last_lines import read_last_lines
from opsctl.telemetry.progress.signs import read_log_signs
from tests.unit.diagnosis.test_causes import ALL

COMPONENTS = sorted(path.name for path in Path("opsctl").iterdir() if (path / "__init__.py").exists())
LOST = "finalized 1_1.0: node-failed, exclude: Slurm reports NODE_FAIL; node: Slurm lost a node (node002)"


def find_texts(value: object) -> list[str]:
    """Return every text in a table."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in inner for text in find_texts(each)]


TEXTS = [
    LOST,
    *(line for _, line in ALL),
    *(text for cause in causes() for text in (cause.says, cause.advice)),
    *find_texts(read_package_table("diagnosis/exit_reasons.toml")),
    *find_texts(read_package_table("diagnosis/blame.toml")),
    *find_texts(tomllib.loads(Path("templates/findings.toml").read_text())),
    "received SIGTERM",
    "iteration 7/ 100 | lm loss: 2.0 |",
    "saved checkpoint /ckpt/step_100 at iteration 100\nTraceback (most recent call last):\n    MemoryError",
    "[after training is done] datetime: 2024-05-01 10:00:00",
]


def write_record(text: str, level: int = logging.WARNING, component: str = "guard") -> str:
    record = logging.LogRecord(f"opsctl.{component}.any", level, "any.py", 1, "%s", (text,), None)
    return RecordFormatter().format(record)


FORMS = {
    "record": write_record,
    "message": lambda text: f"opsctl: {text}".replace("\n", "\n        "),
    "rank": lambda text: f"[node1:3]: opsctl: {text}".replace("\n", " "),
    "mpirun": lambda text: f"[1,3]<stderr>: opsctl: {text}".replace("\n", " "),
    "torchrun": lambda text: f"[default3]:opsctl: {text}".replace("\n", " "),
    "label": lambda text: f" 3: opsctl: {text}".replace("\n", " "),
}


@pytest.mark.parametrize("form", FORMS)
def test_own_lines_are_no_evidence(tmp_path: Path, form: str) -> None:
    log = tmp_path / "main_log.txt"
    log.write_text("".join(f"{FORMS[form](text)}\n" for text in TEXTS) + "one line of the trainer\n")
    assert scan(log).events == []
    assert scan(log).iteration is None
    last_lines, signs = read_last_lines(log, 0), read_log_signs(log)
    assert not (last_lines.finished or last_lines.unfinished or last_lines.failed)
    assert not signs.steps
    assert not signs.events
    diagnosis = diagnose_logs([log])
    assert (diagnosis.kind, diagnosis.evidence) == (CauseKind.UNKNOWN, ("one line of the trainer",))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("text", TEXTS[:: len(TEXTS) // 20])
def test_own_line_hides_no_cause(tmp_path: Path, form: str, text: str) -> None:
    log = tmp_path / "main_log.txt"
    end = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    log.write_text(f"{FORMS[form](text)}\n{end}\n{FORMS[form](text)}\n")
    diagnosis = diagnose_logs([log])
    assert diagnosis.cause == "gpu-memory-full"
    assert not any("opsctl: " in line or "guard" in line for line in diagnosis.evidence)


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL])
def test_every_record_has_the_mark(component: str, level: int) -> None:
    assert is_own_line(write_record("any text", level, component).encode())


@pytest.mark.parametrize(
    "line",
    [
        b"2026-11-22T10:00:03Z ERROR trainer: CUDA out of memory",
        b"2026-11-22 10:00:03,123 INFO     guard of the data: CUDA out of memory",
        b"the opsctl: a word in a sentence",
        b"    opsctl: indented",
    ],
)
def test_line_of_another_program_is_not_blank(line: bytes) -> None:
    assert not is_own_line(line)
    assert blank_own_lines(line) == line


def test_offsets_stay() -> None:
    data = f"before\n{write_record(LOST + chr(10) + 'further')}\nafter\n".encode()
    blank = blank_own_lines(data)
    assert len(blank) == len(data)
    assert blank.split() == [b"before", b"after"]
    assert classify(LOST) is not None
