"""`[alerts]` of site.toml: exact messages, without secrets."""

import tomllib
from pathlib import Path

import pytest

from opsctl.alerts.channel_secrets import mask, reveal
from opsctl.alerts.outbox import Undelivered
from opsctl.base.errors import ConfigError
from opsctl.settings.loader import SiteSettings, load_site, parse
from tests.support.cases import read_cases

CASES = tomllib.loads((Path(__file__).parents[2] / "corpus" / "alerts" / "settings.toml").read_text())
MAIL = {"kind": "email", "to": ["me@example.org"], "sender": "opsctl@example.org"}


def problems(**alerts):
    with pytest.raises(ConfigError) as caught:
        parse(SiteSettings, {"root": "/trains", "alerts": alerts}, "site.toml")
    return list(caught.value.problems)


def site(**alerts):
    return parse(SiteSettings, {"root": "/trains", "alerts": alerts}, "site.toml").alerts


def test_unknown_kind_of_channel_shows_no_secret():
    [problem] = problems(channels={"mail": {"kind": "emial", "password": "hunter2"}})
    assert problem.startswith("[alerts.channels] mail: kind 'emial' is unknown; did you mean 'email'?")
    assert "hunter2" not in problem


@pytest.mark.parametrize("secret", ["password", "password_file"])
def test_printed_settings_hide_secrets(secret):
    assert "hunter2" not in str(site(channels={"mail": {**MAIL, "password": "hunter2"}}))


def test_clear_secret_in_a_readable_file_is_refused(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text(
        'root = "/trains"\n[alerts.channels.mail]\nkind = "email"\nto = ["a@b"]\nsender = "c@d"\npassword = "hunter2"\n'
    )
    path.chmod(0o640)
    with pytest.raises(ConfigError) as caught:
        load_site(path)
    assert caught.value.problems == (
        "alerts.channels.mail.password: a secret in clear, in a file that other users can read",
    )
    assert caught.value.hint == "put the secret into a file, as with password_file, or chmod 600 this file"
    path.chmod(0o600)
    assert load_site(path)


def test_variable_name_is_no_secret(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text('root = "/trains"\n[alerts]\nping_url = "$PING"\n')
    path.chmod(0o644)
    assert load_site(path)


def test_secret_comes_from_file_variable_or_value(tmp_path, monkeypatch):
    (tmp_path / "secret").write_text("from-file\n")
    monkeypatch.setenv("SMTP_PASSWORD", "from-variable")
    file = str(tmp_path / "secret")
    secrets = [{"password_file": file}, {"password": "$SMTP_PASSWORD"}, {"password": "itself"}, {}]
    tables = [site(channels={"mail": {**MAIL, **secret}}).channels["mail"] for secret in secrets]
    assert [reveal(table, "password") for table in tables] == ["from-file", "from-variable", "itself", ""]


@pytest.mark.parametrize(*read_cases(__file__, "missing_secret_is_reported"))
def test_missing_secret_is_reported(fields, message):
    table = site(channels={"mail": {**MAIL, **fields}}).channels["mail"]
    with pytest.raises(Undelivered) as caught:
        reveal(table, "password")
    assert (caught.value.message, caught.value.is_permanent) == (message, True)


@pytest.mark.parametrize("case", CASES["refused"], ids=lambda case: case["problem"])
def test_mistake_in_the_settings_is_named(case):
    assert problems(**case["alerts"]) == [case["problem"]]


@pytest.mark.parametrize("case", CASES["masked"], ids=lambda case: case["text"])
def test_parts_of_a_secret_are_masked(case):
    assert mask(case["text"], [case["secret"]]) == case["shown"]


def test_secret_behind_a_long_text_is_masked():
    assert mask("x" * 195 + "hunter2-is-secret", ["hunter2-is-secret"]) == "x" * 195 + "***"
