"""`[alerts]` of site.toml: exact messages, without secrets."""

import pytest

from opsctl.alerts.channel_secrets import mask, reveal
from opsctl.alerts.outbox import Undelivered
from opsctl.base.errors import ConfigError
from opsctl.settings.loader import SiteSettings, load_site, parse

MAIL = {"kind": "email", "to": ["me@example.org"], "sender": "opsctl@example.org"}


def problems(**alerts):
    with pytest.raises(ConfigError) as caught:
        parse(SiteSettings, {"root": "/trains", "alerts": alerts}, "site.toml")
    return list(caught.value.problems)


def site(**alerts):
    return parse(SiteSettings, {"root": "/trains", "alerts": alerts}, "site.toml").alerts


def test_unknown_key_of_a_channel_names_its_table():
    assert problems(channels={"mail": {**MAIL, "passwrd": "hunter2"}}) == [
        "[alerts.channels.mail] passwrd: unknown key; did you mean 'password'?"
    ]


def test_unknown_kind_of_channel_shows_no_secret():
    [problem] = problems(channels={"mail": {"kind": "emial", "password": "hunter2"}})
    assert problem.startswith("[alerts.channels] mail: Input tag 'emial' found using 'kind' does not match")
    assert "hunter2" not in problem


def test_secret_of_wrong_type_is_not_shown():
    assert problems(channels={"mail": {**MAIL, "password": ["hunter2"]}}) == [
        "[alerts.channels.mail] password: must be text"
    ]


def test_route_to_unknown_channel_is_refused():
    assert problems(channels={"mail": MAIL}, routes=[{"channels": ["male"]}]) == [
        "alerts: no channel 'male' in [alerts.channels]; there are: mail"
    ]


def test_password_is_not_sent_in_clear():
    [problem] = problems(channels={"mail": {**MAIL, "server": "smtp.example.org", "user": "me"}})
    assert problem == (
        '[alerts.channels] mail: the password would go to smtp.example.org in clear: set tls = "starttls" or "tls"'
    )


@pytest.mark.parametrize(
    ("slack", "message"),
    [
        ({}, "needs either a webhook_file, or a token_file and a channel"),
        ({"webhook_file": "a", "token_file": "b"}, "needs either a webhook_file, or a token_file and a channel"),
        ({"token_file": "b"}, "a bot's token needs a channel to write to"),
    ],
)
def test_slack_needs_one_way_to_send(slack, message):
    assert problems(channels={"team": {"kind": "slack", **slack}}) == [f"[alerts.channels] team: {message}"]


@pytest.mark.parametrize("hours", ["22-07", "22:00", "25:00-07:00", "22:00-22:00"])
def test_invalid_quiet_hours_are_refused(hours):
    assert problems(channels={"mail": MAIL}, routes=[{"channels": ["mail"], "quiet": hours}]) == [
        f"[alerts.routes.0] quiet: {hours!r} is not a span of hours, such as 22:00-07:00"
    ]


def test_invalid_time_zone_is_refused():
    assert problems(time_zone="Mars/Olympus") == [
        "[alerts] time_zone: 'Mars/Olympus' is not a time zone, such as Europe/Paris"
    ]


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


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"password": "$NOT_THERE"}, "password: $NOT_THERE is not set in the environment"),
        ({"password_file": "/not/there"}, "password_file: /not/there: No such file or directory"),
    ],
)
def test_missing_secret_is_reported(fields, message):
    table = site(channels={"mail": {**MAIL, **fields}}).channels["mail"]
    with pytest.raises(Undelivered) as caught:
        reveal(table, "password")
    assert (caught.value.message, caught.value.is_permanent) == (message, True)


@pytest.mark.parametrize(
    ("text", "secret", "message"),
    [
        ("login hunter2 failed", "hunter2", "login *** failed"),
        (
            "GET /services/T0000/B0000/XXXXXXXX: 404",
            "https://hooks.example.org/services/T0000/B0000/XXXXXXXX",
            "GET /***/***/***/***: 404",
        ),
        ("hooks.example.org is down", "https://hooks.example.org/services/T0000", "hooks.example.org is down"),
        ("no answer from secretbot", "tgram://secretbot/12345678", "no answer from ***"),
        ("user joe:hunter2", "https://joe:hunter2@example.org/x", "user joe:***"),
        ("nothing in it", "", "nothing in it"),
        ("x" * 195 + "hunter2-is-secret", "hunter2-is-secret", "x" * 195 + "***"),
    ],
)
def test_parts_of_a_secret_are_masked(text, secret, message):
    assert mask(text, [secret]) == message
