"""`opsctl alerts` as a user runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.alerts import dispatch
from opsctl.app import build
from opsctl.base.findings import Severity
from tests.support.cases import read_cases, read_table
from tests.support.findings import make_finding

SITE = read_table(__file__, "site")


class Shell:
    def __init__(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        self.root = tmp_path / "trains"
        self.root.mkdir()
        self.site = tmp_path / "site.toml"
        self.site.write_text(SITE.format(root=self.root))

    def opsctl(self, *argv, code=0):
        program = Path(sys.executable).parent / "opsctl"
        done = subprocess.run(
            [program, "--site", self.site, *argv], capture_output=True, text=True, check=False, env=os.environ
        )
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stdout + done.stderr

    def see(self, severity):
        finding = make_finding(key="hang/gpt", severity=severity, summary="no step for 30 min", train="gpt")
        return build(self.site).alerting.ledger.record([finding])


@pytest.fixture
def shell(tmp_path, monkeypatch):
    return Shell(tmp_path, monkeypatch)


def test_nothing_is_open(shell):
    assert shell.opsctl("alerts", "list") == "no open alerts\n"
    assert json.loads(shell.opsctl("alerts", "list", "--json")) == {
        "open": [],
        "silences": [],
        "undelivered": [],
        "abandoned": [],
    }


def test_open_alert_is_listed_with_its_acknowledgement(shell):
    shell.see(Severity.CRITICAL)
    shell.opsctl("alerts", "ack", "hang/gpt", "--reason", "on it")
    line = shell.opsctl("alerts", "list").splitlines()[1]
    assert line.split()[:2] == ["hang/gpt", "critical"]
    assert "no step for 30 min" in line
    assert ": on it" in line
    [entry] = json.loads(shell.opsctl("alerts", "list", "--json"))["open"]
    assert (entry["key"], entry["severity"], entry["acknowledged"]["reason"]) == ("hang/gpt", "critical", "on it")


def test_silence_is_listed_effective_and_ended(shell):
    output = shell.opsctl("alerts", "silence", "hang/*", "--for", "1d12h", "--reason", "maintenance")
    assert output.startswith("hang/*: silenced until ")
    assert shell.see(Severity.CRITICAL) == []
    assert ": maintenance\n" in shell.opsctl("alerts", "list")
    assert shell.opsctl("alerts", "silence", "hang/*", "--end") == "hang/*: no longer silenced\n"
    assert len(shell.see(Severity.CRITICAL)) == 1


def test_dry_run_changes_nothing(shell):
    shell.see(Severity.CRITICAL)
    shell.opsctl("alerts", "silence", "hang/*", "--reason", "maintenance", "--dry-run")
    assert shell.opsctl("alerts", "ack", "hang/gpt", "--reason", "x", "--dry-run").startswith("hang/gpt: would be ack")
    listed = json.loads(shell.opsctl("alerts", "list", "--json"))
    assert (listed["silences"], listed["open"][0]["acknowledged"]) == ([], None)


@pytest.mark.parametrize("duration", ["4", "h", "4 hours", "0h", "-1h", ""])
def test_bad_duration_is_refused(shell, duration):
    message = shell.opsctl("alerts", "silence", "x", "--reason", "y", f"--for={duration}", code=2)
    assert f"'--for': {duration!r} is not a duration, such as 90s, 10m, 1h30m or 2d" in message


def test_silence_of_over_a_year_is_refused(shell):
    message = shell.opsctl("alerts", "silence", "x", "--reason", "y", "--for=999d", code=2)
    assert "'--for': '999d' is more than 366d" in message


def test_silence_needs_a_reason(shell):
    output = shell.opsctl("alerts", "silence", "x", code=2)
    assert output == "opsctl: --reason is required; it is recorded with the silence\n"


def test_inactive_silence_cannot_be_ended(shell):
    shell.opsctl("alerts", "silence", "hang/*", "--reason", "maintenance")
    output = shell.opsctl("alerts", "silence", "hagn/*", "--end", code=2)
    assert output == "opsctl: no silence of 'hagn/*' is in force; silences in force: hang/*\n"


def test_unknown_alert_cannot_be_acknowledged(shell):
    assert "no alert 'hang/gpt'" in shell.opsctl("alerts", "ack", "hang/gpt", "--reason", "x", code=2)


def test_alerts_test_reports_the_delivery_of_each_channel(shell):
    output = shell.opsctl("alerts", "test", code=1).splitlines()
    assert output == ["file: delivered", "mail: not delivered: localhost:1: [Errno 111] Connection refused"]
    assert "[opsctl] TEST: alerts reach you by file" in (shell.root / "alerts.txt").read_text()
    results = json.loads(shell.opsctl("alerts", "test", "--json", code=1))
    assert [result["delivered"] for result in results] == [True, False]


def test_alerts_test_works_on_a_new_site(shell):
    shell.site.write_text(f'root = "{shell.root}/new"\n')
    assert shell.opsctl("alerts", "test") == "log: delivered\n"


def test_undelivered_alert_is_listed(shell):
    shell.see(Severity.CRITICAL)
    dispatch.send_alerts(build(shell.site).alerting)
    assert (
        "not delivered yet by mail: [opsctl] CRITICAL: gpt: no step for 30 min "
        "(1 attempt: localhost:1: [Errno 111] Connection refused)\n"
    ) in shell.opsctl("alerts", "list")


@pytest.mark.parametrize(*read_cases(__file__, "doctor_finds_an_unusable_ping_url"))
def test_doctor_finds_an_unusable_ping_url(shell, setting, problem):
    shell.site.write_text(f'root = "{shell.root}"\n[alerts]\n{setting}\n')
    shell.site.chmod(0o600)
    output = shell.opsctl("doctor", code=1)
    assert problem in output
    assert "sekret" not in output


def test_doctor_finds_a_wrong_webhook_without_showing_it(shell):
    shell.site.write_text(
        SITE.format(root=shell.root) + '[alerts.channels.team]\nkind = "slack"\nwebhook = "hooks.slack.com/sekret"\n'
    )
    shell.site.chmod(0o600)
    output = shell.opsctl("doctor", code=1)
    assert "webhook: must start with https://" in output
    assert "sekret" not in output


def test_exposed_secret_is_reported_once_and_used(shell, tmp_path):
    url = tmp_path / "url"
    url.write_text("json://127.0.0.1:1/sesame")
    url.chmod(0o644)
    text = f'kind = "apprise"\nurl_file = "{url}"\n'
    shell.site.write_text(f'root = "{shell.root}"\n[alerts.channels.a]\n{text}[alerts.channels.b]\n{text}')
    output = shell.opsctl("alerts", "test", code=1)
    assert output.count(f"others can read {url}\n        chmod 600 {url}\n") == 1
    assert output.count("not delivered: ") == 2
    assert "sesame" not in output
    url.chmod(0o600)
    assert list(dispatch.find_exposed_secrets(build(shell.site).alerting)) == []


def test_alert_is_shown_with_its_evidence(shell):
    evidence = tuple(f"line {number}" for number in range(9))
    finding = make_finding(
        key="hang/gpt", severity=Severity.CRITICAL, summary="it hangs", evidence=evidence, rollback="to step 7"
    )
    build(shell.site).alerting.ledger.record([finding])
    shown = shell.opsctl("alerts", "show", "hang/gpt")
    assert "  line 8\n" in shown
    assert "\nto step 7\n" in shown


def test_duty_needs_a_roster_and_shows_the_shifts(shell):
    assert "no duty roster is configured" in shell.opsctl("alerts", "duty", code=2)
    roster = '[alerts.duty]\npeople = { anna = ["file"] }\nrota = ["anna"]\nbegin = "2026-01-05"\n'
    shell.site.write_text(SITE.format(root=shell.root) + roster)
    assert shell.opsctl("alerts", "duty").count(": anna\n") == 5


def test_digest_is_printed_and_sent(shell):
    shell.see(Severity.CRITICAL)
    assert "no step for 30 min (hang/gpt)" in shell.opsctl("digest")
    assert shell.opsctl("digest").startswith("# [opsctl] Digest since ")
    assert json.loads(shell.opsctl("digest", "--json"))["trains"] == []
    assert shell.opsctl("digest", "--send", "file") == "file: delivered\n"
    assert "Digest since " in (shell.root / "alerts.txt").read_text()
    assert "no channel 'gone'" in shell.opsctl("digest", "--send", "gone", code=2)


def test_silence_in_advance_is_listed_with_its_begin(shell):
    shell.opsctl("alerts", "silence", "*", "--at", "2099-03-01 12:00+00:00", "--for", "6h", "--reason", "power")
    listed = shell.opsctl("alerts", "list")
    assert "silenced from 2099-03-01 12:00 until 2099-03-01 18:00 UTC: *" in listed
    assert "--at is in the past" in shell.opsctl(
        "alerts", "silence", "*", "--at", "2020-03-01", "--reason", "power", code=2
    )


def test_accepted_level_is_journalled_and_remembered(shell):
    finding = make_finding(key="throughput/gpt", severity=Severity.CRITICAL, summary="38 % slower", train="gpt")
    build(shell.site).alerting.ledger.record([finding])
    argv = ("alerts", "accept", "throughput/gpt", "--reason", "a smaller batch")
    assert json.loads(shell.opsctl(*argv, "--dry-run", "--json"))["dry_run"]
    accepted = shell.root / ".site/watch/accepted/throughput%2Fgpt.json"
    assert not accepted.exists()
    said = "throughput/gpt: the current level is accepted; the next watch cycle learns the level anew\n"
    assert shell.opsctl(*argv) == said
    assert json.loads(accepted.read_text())["reason"] == "a smaller batch"
    (journal,) = (shell.root / ".site/alerts").glob("journal-*.jsonl")
    record = json.loads(journal.read_text().splitlines()[-1])
    assert (record["kind"], record["key"], record["reason"]) == ("accept", "throughput/gpt", "a smaller batch")


def test_alert_without_a_level_is_not_accepted(shell):
    shell.see(Severity.CRITICAL)
    error = shell.opsctl("alerts", "accept", "hang/gpt", "--reason", "on it", code=2)
    assert "hang/gpt: has no level to accept" in error
