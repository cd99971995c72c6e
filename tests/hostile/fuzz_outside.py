"""Parsers of what strangers send or publish: answers by mail and Slack, dumps of torch, models, texts to train on."""

import gzip
from datetime import UTC, datetime
from pathlib import Path

import jinja2

from opsctl.alerts import answer, own_line
from opsctl.alerts.channels import email, ntfy, slack
from opsctl.alerts.channels import email as mail_channel
from opsctl.checkpoints.trainer_command.value_files import read_values
from opsctl.cli.plan import model_source
from opsctl.dash import steering
from opsctl.diagnosis import flight_recorder
from opsctl.launch import revisions
from opsctl.nodes.health.node_local import read_thresholds
from opsctl.slurm import batch_options
from opsctl.telemetry.progress import read_log, tracker_log
from opsctl.trainer import text_sources
from opsctl.trainer.chat import ChatTemplate, TemplateFailed
from opsctl.trainer.checkpoint import transformers_config
from opsctl.trainer.errors import Refused
from tests.hostile.fuzz import FuzzTarget
from tests.hostile.fuzz_targets import JSON, VALUES, file, text

KEY = "key"
NOW = datetime(2026, 11, 23, tzinfo=UTC)
SIGNED = f"alert.1.{answer.sign(KEY, 'alert.1')}"
MAIL = (
    f"From: Me <me@example.org>\r\nMessage-ID: <1@x>\r\nIn-Reply-To: <{SIGNED}@opsctl.example.org>\r\n"
    "Content-Type: text/plain; charset=utf-8\r\n\r\nack: known\r\n> quoted\r\n",
    f"From: =?utf-8?q?M=C3=BC?= <me@example.org>\r\nReferences: <{SIGNED}@opsctl.x> <a@b>\r\nMIME-Version: 1.0\r\n"
    'Content-Type: multipart/alternative; boundary="b"\r\n\r\n--b\r\nContent-Type: text/plain; charset="iso-8859-1"\r\n'
    "Content-Transfer-Encoding: quoted-printable\r\n\r\nsilence=204h\r\n--b--\r\n",
)
MODEL = (
    b'{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99,'
    b' "intermediate_size": 99, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_scaling":'
    b' {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,'
    b' "original_max_position_embeddings": 16}}',
    b'{"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 99}',
)


def read_thread(data: str) -> object:
    page = slack.read_answer(data.encode())
    return list(slack._read_thread("team", "alert.1", "1.2", answer.list_objects(page.get("messages"))))


def show_changes(data: str) -> object:
    half = len(data) // 2
    files = (revisions.Files(config=part, trainer="", body="") for part in (data[:half], data[half:]))
    return revisions.diff(*files)


def write_chat(data: str) -> object:
    try:
        return ChatTemplate(data, {}).spans([{"role": "user", "content": "a"}], 0, {})
    except (jinja2.TemplateError, ValueError, RecursionError) as error:  # as find_template does
        raise Refused(f"{error!s:.300}") from error


def report_compressed(path: Path) -> object:
    path.write_bytes(gzip.compress(path.read_bytes(), 1))
    return read_log.read_summary(path)


def list_texts(path: Path) -> object:
    return list(text_sources.read_documents(path, "text"))


OUTSIDE_TARGETS: dict[str, FuzzTarget] = {
    "answer": text(
        lambda data: answer.parse_answer(data, NOW),
        examples=(b"ack: known\n", b"silence 4h: disks are full", b"Hi,\n> hold\nhold gpt", b"silence until 08:00"),
    ),
    "mail as HTML": text(own_line.to_text, examples=(b"<p>ack<blockquote>hold", b"<div style='display:none'>x</div>a")),
    "signed message": text(lambda data: answer.verify(KEY, data), examples=(SIGNED.encode(),)),
    "mail": FuzzTarget(
        lambda data: mail_channel._parse(data, "mail", KEY), examples=tuple(mail.encode() for mail in MAIL)
    ),
    "thread of Slack": text(
        read_thread,
        errors=VALUES,
        examples=(
            b'{"ok": true, "messages": [{"ts": "1.2", "user": "U1", "text": "ack", '
            b'"reactions": [{"name": "eyes", "users": ["U1"]}]}]}',
            *JSON,
        ),
    ),
    "plain pickle": FuzzTarget(flight_recorder.load_plain, errors=VALUES, corpus=("flight/*",)),
    "flight recorder": file(flight_recorder.read_dump, "flight/*", name="flight-3", errors=VALUES),
    "config.json, plan": file(lambda path: model_source._read_config(path, None), examples=(*MODEL, *JSON)),
    "config.json, trainer": file(
        lambda path: transformers_config.read_model(path.parent),
        name="model/config.json",
        errors=(Refused,),
        examples=(*MODEL, *JSON),
    ),
    "text to train on": file(
        list_texts,
        errors=(Refused,),
        examples=(
            b'{"text": "a"}\n{"text": "b"}\n',
            b'[{"text": "a"}, "b"]',
            b"\x1f\x8b\x08\0" + bytes(20),
            b"PAR1PAR1",
        ),
    ),
    "sender of a mail": FuzzTarget(
        lambda data: email.find_sender(data, "mx", NOW), examples=tuple(mail.encode() for mail in MAIL)
    ),
    "buttons of ntfy": FuzzTarget(
        lambda data: list(ntfy._read(data, "phone", "topic", KEY, NOW)),
        examples=(b'{"event": "message", "message": "ack alert.1.99999999999.x"}\n', *JSON),
    ),
    "action of the page": FuzzTarget(
        steering.parse_instruction, examples=(b'{"verb": "hold", "train": "tr11", "reason": "x", "number": 5}', *JSON)
    ),
    "changes of a train": text(show_changes, examples=(b"a = 1\nb = 2\na = 2\nb = 2\n",)),
    "chat template": text(
        write_chat,
        errors=(Refused, TemplateFailed),
        examples=(b"{% for m in messages %}{{ m.role }}: {{ m.content | trim }}{% endfor %}", b"{{ 2 ** 3 * 'a' }}"),
    ),
    "compressed log": file(report_compressed, "logs/*.txt", name="train.log.gz"),
    "curve in a table": file(tracker_log.read_tracker_log, name="a.csv", examples=(b"step,loss\n1,2.5\n",)),
    "TOML of a trainer": file(read_values, name="a.toml", examples=(b"a.b = 1\n[c]\nd = [1, 2]\n",)),
    "thresholds of a node": file(read_thresholds, errors=VALUES, examples=(b"[health]\nfio_mib = 5\n",)),
    "options of sbatch": text(
        lambda data: list(batch_options.list_options(data)), examples=(b"--hint=x -a1-3 --comm y",)
    ),
}
