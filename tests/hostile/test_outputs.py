"""Text of logs, nodes and other users in every output: no line, header, row or command is forged."""

import email
import os
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from email.policy import SMTP

import pytest

from opsctl.alerts.channels import slack
from opsctl.alerts.channels.email import Email
from opsctl.alerts.ledger_state import AlertTransition
from opsctl.alerts.message import render_single
from opsctl.base import statements
from opsctl.base.findings import Severity, Transition
from opsctl.cli.output import cell
from opsctl.host.system import SystemRunner
from opsctl.metrics.prometheus import MetricSample, exposition
from opsctl.preflight.security.permissions import quote
from opsctl.settings.alert_channels import EmailTable
from opsctl.settings.alerts import AlertSettings
from opsctl.telemetry.logs.log_lines import harmless
from tests.support.cases import read_table
from tests.support.findings import make_finding

AT = datetime(2026, 11, 22, 3, tzinfo=UTC)
PAYLOADS = read_table(__file__, "payloads") | {"lone surrogate": "x\udcffy", "long line": "x" * 100_000}
FORBIDDEN = {chr(code) for code in (*range(9), *range(11, 32), *range(127, 160))} | set(
    "\u061c\u200b\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff"
)
attempts = pytest.mark.parametrize("text", PAYLOADS.values(), ids=PAYLOADS)


def alert(text: str):
    finding = make_finding(
        key="hang/tr11", severity=Severity.CRITICAL, summary=text, evidence=(text,), remedy=text, train="tr11"
    )
    transition = Transition(id="1.1", at=AT, finding=replace(finding, train="tr11"), before=Severity.OK)
    return render_single(AlertTransition(transition=transition, opened=AT, was=statements.quote(text)), AlertSettings())


@pytest.mark.attack("text controls the terminal through a table")
@attempts
def test_cell_is_harmless(text):
    shown = cell(text).plain
    assert not set(shown) & FORBIDDEN


@pytest.mark.attack("text controls the terminal through a message")
@attempts
def test_text_is_harmless(text):
    assert not set(harmless(text).replace("\x1b[0m", "")) & FORBIDDEN


@pytest.mark.attack("text forges a header of a mail")
@attempts
def test_mail_has_its_own_headers(text):
    message = alert(text)
    assert "\n" not in message.subject
    assert not set(message.subject) & FORBIDDEN
    assert not set(message.body) & FORBIDDEN
    table = EmailTable(kind="email", sender="opsctl@example.org", to=("ops@example.org",))
    mail = Email(table, SystemRunner())._mail(message)
    parsed = email.message_from_bytes(mail.as_bytes(), policy=SMTP)
    assert parsed["To"] == "ops@example.org"
    assert parsed["Bcc"] is None
    assert len(message.subject) <= 200


@pytest.mark.attack("text notifies a whole Slack channel, or leaves its block")
@attempts
def test_slack_text_stays_in_its_block(text):
    sent = slack._text(alert(text))
    assert sent.count("```") == 2
    assert "<!" not in sent
    assert "<@" not in sent
    assert "<http" not in sent


@pytest.mark.attack("a label forges a metric")
@attempts
def test_label_is_one_label(text):
    page = exposition([MetricSample(name="opsctl_train_up", value=1.0, labels={"train": text})])
    lines = [line for line in page.splitlines() if line.startswith("opsctl_train_up{")]
    assert len(page.split("\n")) == 4
    assert len(lines) >= 1
    assert not any(line.startswith('opsctl_train_up{train="tr99"}') for line in page.split("\n"))


@pytest.mark.attack("a name in a proposed command runs another command")
@attempts
def test_proposed_command_is_one_word(tmp_path, text):
    text = text.replace("\0", "")  # no name of a file contains NUL
    done = subprocess.run(
        ["bash", "-c", f"printf %s {quote(text)}"], capture_output=True, check=True, cwd=tmp_path, timeout=250
    )
    assert done.stdout == os.fsencode(text)
    assert os.listdir(tmp_path) == []
