"""Every parser of opsctl, by name: its input, and the errors that its docstring promises. More: fuzz_state.py."""

import functools
import os
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from opsctl.alerts import ledger_state, outbox
from opsctl.alerts.channels import slack
from opsctl.alerts.channels.webhook import judge_status
from opsctl.base import capabilities, secret_formats, units, web
from opsctl.base.errors import OpsctlError
from opsctl.base.ports import Answer, Completed
from opsctl.checkpoints import offload
from opsctl.checkpoints.trainer_command import shell, value_files
from opsctl.checkpoints.trainer_command.read_command import parse_options
from opsctl.cron import crontab
from opsctl.diagnosis import causes, diagnose_attempt, line_origin, nccl_debug, root_cause, scan_logs, stack_dumps
from opsctl.metrics import prometheus
from opsctl.nodes.collective_test import all_reduce
from opsctl.nodes.health import amd_smi, host_output, nvidia_smi, snapshot
from opsctl.nodes.remote import ssh as known_hosts
from opsctl.preflight import corpus_files
from opsctl.sandbox import record, start_failures
from opsctl.settings import field_types
from opsctl.slurm import accounting, batch_options, field_values, parse_output, past_jobs, slurm_errors
from opsctl.state.run_dir import Attempt, RunDir
from opsctl.state.site_dir import SiteDir
from opsctl.telemetry import disk_usage
from opsctl.telemetry.logs import log_lines
from opsctl.telemetry.progress import log_formats
from opsctl.trainer import config as trainer_config
from opsctl.trainer import config_problems
from tests.hostile.fuzz import FuzzTarget

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
MARK = "\x1fmark"
YAML = (b"a: {b: [1, x], <<: *d}\n", b"d: &d {c: !!str 1}\ne:\n  <<: [*d, *d]\n  f: >-\n    x\n", b"? [a]\n: |\n  b\n")
JSON = (b'{"a": [1, 2.5, "x", null, true, {"b": {}}]}', b"[]", b"7", b'"x"', b"null")


@functools.cache
def make_place() -> Path:
    """A directory of this process, in memory where possible."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    place = Path(tempfile.mkdtemp(prefix="opsctl-fuzz-", dir=base))
    SiteDir(place / ".site").create()
    RunDir(place / "tr11").create()
    for name in ("node/x", "alerts/outbox/team", "cron"):
        (place / ".site" / name).parent.mkdir(parents=True, exist_ok=True)
    return place


def decode(data: bytes) -> str:
    """Decode as opsctl decodes the output of programs."""
    return data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")


def text(call: Callable[[str], object], *corpus: str, **more: Any) -> FuzzTarget:
    return FuzzTarget(lambda data: call(decode(data)), corpus=corpus, **more)


def file(call: Callable[[Path], object], *corpus: str, name: str = "file", **more: Any) -> FuzzTarget:
    def write_and_read(data: bytes) -> object:
        path = make_place() / name
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
        path.write_bytes(data)
        return call(path)

    return FuzzTarget(write_and_read, corpus=corpus, **more)


def site() -> SiteDir:
    return SiteDir(make_place() / ".site")


def parse_node(data: str) -> object:
    answer = Answer(node="n1", by="ssh", code=0, out=data)
    return snapshot.parse(answer, MARK, sent_at=NOW, answered_at=NOW)


def section(name: str) -> Callable[[bytes], object]:
    """One section of a node's answer."""

    def parse(data: bytes) -> object:
        lines = decode(data)
        out = f"{MARK} begin {name} 0\n{lines}\n{MARK} end\n{MARK} done\n"
        return parse_node(out)

    return parse


def explain_logs(path: Path) -> object:
    scanned = scan_logs.scan(path)
    ordered = diagnose_attempt.merge_in_order({path: scanned})
    return root_cause.find_root_cause(ordered, iteration=scanned.iteration, ranks=8)


def refuse_slack(data: bytes) -> object:
    """What Slack, or a proxy in front of it, answers."""
    code, _, rest = decode(data).partition("\n")
    status = int(code) if code.isdecimal() and len(code) < 4 else 429
    error = judge_status(status, {"retry-after": [rest]}, rest, str)
    return outbox._retry_not_before(error, NOW), slack.read_answer(rest.encode())


def read_corpus(path: Path) -> object:
    prefix = path.with_suffix("")
    path.with_suffix(".bin").touch()
    return corpus_files.read(prefix, "x"), corpus_files.tokenizer_size(path)


def read_trainer(path: Path) -> object:
    try:
        return trainer_config.TrainerConfig.model_validate_json(path.read_text())
    except ValidationError as error:
        raise ValueError(config_problems.join_problems(trainer_config.TrainerConfig, error)) from error


def answer(data: bytes) -> Answer:
    return Answer(node="n1", by="ssh", code=1, out=decode(data), err=decode(data))


def read_attempt_name(name: str) -> object:
    attempt = Attempt(Path("/x") / name.replace("/", ""))
    return attempt.array, attempt.task, attempt.number


def accounting_tables(data: str) -> object:
    return accounting.parse_accounting("me", {"user": data, "accounts": data, "qos": data})


SQUEUE, SINFO, SCONTROL = "squeue/*/*.txt", "sinfo/*/*.txt", "scontrol/*/*.txt"
LOGS = ("logs/*.txt", "logs/tasks/*.txt", "diagnosis/*.txt", "diagnosis/lines/*.txt")
DURATIONS = (b"90s", b"10m", b"1h30m", b"2d", b"1w2d3h4m5.5s")
CRON = (b"*/5 * * * * opsctl watch\nSHELL=/bin/bash\n@daily date\n0 9-17/2 1,15 * mon-fri x\n",)
TRAIN = (
    b'name = "a"\ncommand = ["true", "--tp", "4"]\n[slurm]\nnodes = 2\ntime_limit = "1-00:00:00"\nexclude = "n[1-2]"\n'
    b'[environment]\nA = "b"\n[watch]\n[guard]\npoll_seconds = 2.0\n',
    b'name = "b"\n[slurm]\nnodes = 1\ntime_limit = "60"\n[trainer]\n[trainer.model]\nlayers = 2\nhidden = 64\n'
    b"heads = 4\nsequence = 8\nvocabulary = 256\n[trainer.batch]\nmicro_batch = 1\nglobal_batch = 1\n[trainer.data]\n"
    b'prefix = "x"\n[trainer.optimizer]\nlr = 1e-4\n',
)
SMI = ("nvidia-smi/*/*.xml", "nvidia-smi/*/*.txt")
LEDGER = (
    b'{"number": 1, "entries": {"a/b": {"key": "a/b", "severity": "warning", "latest_severity": "warning", "since": '
    b'"2026-11-22T00:00:00Z", "summary": "x"}}, "pending": [], "silences": [], "threads": {}}',
)
ITEM = (
    b'{"name": "0000000001-abc.json", "number": 1, "channel": "team", "tries": 0, "at": "2026-11-22T00:00:00Z", '
    b'"message": {"subject": "s", "body": "b"}}',
)
SANDBOX = (
    b'{"spec": {}, "site": {"home": "/h", "run": "/r", "version": [22, 5]}, "started": "2026-01-01", "daemons": []}',
)
VALUES = (OpsctlError, ValueError)
"""A parser whose docstring promises ValueError."""

PARSERS: dict[str, FuzzTarget] = {
    # Slurm
    "squeue": text(lambda data: parse_output.parse_jobs(data, "mark"), SQUEUE),
    "squeue, excluded nodes": text(lambda data: parse_output.parse_excluded(data, "mark"), SQUEUE),
    "squeue, end of a job": text(lambda data: parse_output.parse_end(data, "mark"), SQUEUE),
    "sacct": text(lambda data: parse_output.parse_past(data, "mark"), "sacct/*/*.txt"),
    "sacct, as a file": text(
        lambda data: past_jobs.parse_past_jobs(data, "x"),
        "sacct/*/*.txt",
        examples=(b"JobID|State|Submit|Start|End|NodeList\n12|COMPLETED|1|2|3|n1\n",),
    ),
    "sinfo, nodes": text(lambda data: parse_output.parse_nodes(data, "mark"), SINFO),
    "sinfo, reasons": text(lambda data: parse_output.parse_reasons(data, "mark"), SINFO),
    "scontrol, partitions": text(parse_output.parse_partitions, SCONTROL),
    "scontrol, reservations": text(parse_output.parse_reservations, SCONTROL),
    "scontrol, configuration": text(parse_output.parse_limits, SCONTROL),
    "sacctmgr": text(accounting_tables, "sacctmgr/*/*.txt"),
    "state of a job": text(field_values.parse_state, examples=(b"CANCELLED by 0", b"RUNNING")),
    "reason of a node": text(lambda data: field_values.parse_node_reason("DRAIN", data), examples=(b"Not responding",)),
    "array tasks": text(field_values.parse_tasks, examples=(b"0-399:7%2", b"[1,3,5-7]")),
    "job number": text(field_values.parse_job_number, errors=VALUES, examples=(b"12",)),
    "exit code": text(field_values.parse_exit_code, examples=(b"1792",)),
    "time of Slurm": text(field_values.parse_time, examples=(b"1795333309",)),
    "version of Slurm": text(capabilities.parse_version, examples=(b"slurm-wlm 22.05.8",)),
    "refusal of Slurm": text(
        lambda data: slurm_errors.raise_for_error(Completed(argv=("sbatch",), code=1, out=data, err=data)), "stderr/*/*"
    ),
    "start failure of a daemon": text(start_failures.find_causes, "stderr/*/*"),
    # nodes
    "answer of a node": text(
        parse_node, examples=(f"{MARK} begin host 0\nuptime=5.5\n{MARK} end\n{MARK} done\n".encode(),)
    ),
    "nvidia-smi": text(nvidia_smi.parse_smi, *SMI),
    "nvidia-smi nvlink": text(nvidia_smi.parse_links, "nvlink/*.txt"),
    "nvidia-smi nvlink -e": text(nvidia_smi.parse_link_errors, "nvlink/*.txt"),
    "amd-smi": text(
        amd_smi.parse_amd,
        "amd-smi/made/*.json",
        examples=(b'@list\n[{"gpu": 0, "uuid": "x"}]\n@static\n[{"gpu": 0}]\n@metric\n[{"gpu": 0}]\n',),
    ),
    "dcgmi": text(host_output.parse_dcgm, "dcgmi/made/*.json"),
    "fio": text(host_output.parse_fio, "fio/*/*.json"),
    "kernel log": text(lambda data: host_output.parse_kernel(data, 1e6), "dmesg/*.txt"),
    "kernel log, as a section": FuzzTarget(section("kernel"), corpus=("dmesg/*.txt",)),
    "processes of a node": text(
        lambda data: host_output.parse_processes(data, 5.0),
        examples=(b"12 1000\n--\n12 (x) S " + b"1 " * 40 + b"\n--\n100\n",),
    ),
    "df of a node": text(lambda data: list(host_output.parse_df(data)), examples=(b"a 100 50 50 50% /x\n",)),
    "InfiniBand ports": text(
        host_output.parse_ports, examples=(b"mlx5_0/ports/1/state:4: ACTIVE\nmlx5_0/ports/1/counters/symbol_error:5\n",)
    ),
    "chronyc": text(host_output.parse_offset, examples=(b"System time     : 0.000012 seconds fast of NTP\n",)),
    "libraries": text(host_output.parse_libraries, examples=(b"libnccl.so.2.19.3\n",)),
    "all-reduce": FuzzTarget(
        lambda data: (all_reduce._bandwidth(answer(data)), all_reduce._error(answer(data))),
        examples=(b'{"gigabytes_per_s": 5.5}\n{"error": "x"}\n', *JSON),
    ),
    "known_hosts": text(
        known_hosts.parse, examples=(b"n1 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAA\n@revoked * ssh-rsa AAAA",)
    ),
    # logs
    "iteration line": text(log_formats.parse_megatron, *LOGS, "progress/*.jsonl"),
    "root cause": file(explain_logs, *LOGS, "failures/*.jsonl"),
    "cause of a line": text(
        lambda data: causes.classify(data[: scan_logs.MAX_LINE_BYTES]), "diagnosis/lines/*.txt", "failures/*.jsonl"
    ),
    "skew of logs": file(lambda path: diagnose_attempt.estimate_skews([path, path]), *LOGS),
    "NCCL debug": FuzzTarget(
        lambda data: nccl_debug.read_nccl_debug(data.split(b"\n")),
        corpus=("diagnosis/nccl-odd.txt", "diagnosis/tr11*.txt"),
    ),
    "stacks": FuzzTarget(
        stack_dumps.parse,
        corpus=("diagnosis/tr11-hang*.txt",),
        examples=(
            b'Process 12: python train.py\nThread 12 (idle): "MainThread"\n    wait (threading.py:320)\n',
            b'Thread 0x00007f (most recent call first):\n  File "a.py", line 3 in f\n',
        ),
    ),
    "prefix of a rank": FuzzTarget(line_origin.split, corpus=LOGS),
    "name of a log": text(line_origin.origin_of_file, examples=(b"node001-3.log",)),
    "log line": FuzzTarget(lambda data: (log_lines.read_line(data), log_lines.time_of(data)), corpus=LOGS),
    "line for a terminal": FuzzTarget(log_lines.for_terminal, corpus=LOGS),
    "text for a terminal": text(log_lines.harmless, *LOGS),
    "secrets in a text": FuzzTarget(
        lambda data: secret_formats.Secrets(frozenset()).strike(data),
        corpus=LOGS,
        examples=(b"token=hf_abcdefghijklmnopqrstuvwxyz0123456789 password: x", b"a://b:c@d/"),
    ),
    # settings and arguments
    "trainer.json": file(read_trainer, "preflight/configurations/*", errors=VALUES, examples=JSON),
    "duration": text(units.parse_duration, errors=VALUES, examples=DURATIONS),
    "size": text(units.parse_size, errors=VALUES, examples=(b"400T", b"2.5 GiB", b"3000000")),
    "time": text(lambda data: units.parse_time(data, NOW), errors=VALUES, examples=(b"2026-03-01 12:00", b"3d")),
    "time limit": text(units.parse_slurm_minutes, examples=(b"1-00:00:00", b"60", b"UNLIMITED")),
    "quiet hours": text(field_types.parse_hours, errors=VALUES, examples=(b"22:00-07:00",)),
    "address of metrics": text(prometheus.parse_address, examples=(b"127.0.0.1:9400", b"[::1]:9400")),
    "address of a web page": text(web.parse_address, errors=VALUES, examples=(b"https://u:p@example.org:8/x?y=z",)),
    "options of a command": text(
        lambda data: parse_options(shell.split_command(data.split("\0"), {"A": "b"}, Path("/c"))), "commands/*.jsonl"
    ),
    "YAML of a trainer": file(value_files.read_values, name="a.yaml", examples=YAML),
    "variables of a script": text(
        lambda data: (shell.find_numbers(data, "NNODES"), batch_options.read_directives(data)),
        examples=(b"#SBATCH --nodes=4\nexport NNODES=8\n",),
    ),
    "corpus index": file(
        read_corpus,
        name="corpus.idx",
        examples=(b"MMIDIDX\0\0" + bytes(8) + b"\x08" + bytes(16), b"MMIDIDX\0\0\x01" + bytes(60)),
    ),
    "description of a corpus": file(corpus_files._read_description, examples=JSON),
    "tokenizer": file(
        corpus_files.tokenizer_size, examples=(b'{"model": {"vocab": {"a": 1}}, "added_tokens": [{"id": 5}]}', *JSON)
    ),
    # cron
    "times of cron": text(
        lambda data: crontab.parse_when(data, UTC), errors=VALUES, examples=(b"*/5 9-17 1,15 * mon-fri", b"@daily")
    ),
    "crontab": file(lambda path: crontab.read_schedule(path.parent, UTC), name="cron-etc/crontab", examples=CRON),
    # alerts
    "ledger of alerts": FuzzTarget(ledger_state.parse, errors=VALUES, examples=(*LEDGER, *JSON)),
    "answer of Slack": FuzzTarget(
        refuse_slack,
        errors=VALUES,
        examples=(b"429\n30", b'200\n{"ok": false, "error": "channel_not_found"}', b"500\n<html>"),
    ),
    # checkpoints
    "sha256sum": text(offload.parse_sums, examples=(b"00  ./a\n11 *b\n",)),
    # the host
    "quota": text(
        lambda data: disk_usage.read_pattern(
            data, r"(?P<used>\S{1,99}) of (?P<limit>\S+) (?P<percent>\S+) at (?P<at>.*)"
        ),
        errors=(OpsctlError, disk_usage.MeasurementFailed),
        examples=(b"5T of 6T 83% at 1795333309",),
    ),
    "du": file(lambda path: disk_usage.find_largest(path, "/x"), examples=(b"B 5\t/x\nB 3\t/x/a\nI 7\t/x/a\n",)),
    "record of a sandbox": file(
        lambda path: record.read_record(path.parent), name="box/sandbox.json", examples=(*SANDBOX, *JSON)
    ),
    "name of an attempt": text(read_attempt_name, errors=VALUES, examples=(b"12_1.0",)),
}
