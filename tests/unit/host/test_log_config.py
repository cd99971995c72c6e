"""Log records on the terminal: their form, their level, and no secrets."""

import logging
import re

import pytest

from opsctl.host import log_config
from tests.support.cases import read_cases, read_table

SECRETS = read_table(__file__, "secrets")
HIDDEN = ("1234567890", "zYxWvUtSrQpOnMlKjIhG", "correct-horse", "hf_abc", "0123456789abcdef", "eyJhbGci")


@pytest.fixture(autouse=True)
def _configured():
    log_config.configure(None)
    yield
    logging.getLogger("opsctl").handlers.clear()


def test_line_holds_utc_level_component_message(capsys):
    logging.getLogger("opsctl.guard.supervisor").warning("node %s is lost", "node017")
    line = capsys.readouterr().err
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ WARNING guard     node node017 is lost\n", line)


@pytest.mark.parametrize(*read_cases(__file__, "component_is_short"))
def test_component_is_short(name, component):
    assert log_config.component_of(name) == component


def test_terminal_shows_warnings_only(capsys):
    logging.getLogger("opsctl.cron").info("job started")
    logging.getLogger("opsctl.cron").warning("job failed")
    captured = capsys.readouterr()
    assert ("job started" in captured.err, "job failed" in captured.err, captured.out) == (False, True, "")


def test_progress_is_shown_unless_a_level_is_chosen(capsys):
    log_config.show_progress()
    logging.getLogger("opsctl.cron").info("first")
    log_config.configure("error")
    log_config.show_progress()
    logging.getLogger("opsctl.cron").info("second")
    err = capsys.readouterr().err
    assert ("first" in err, "second" in err) == (True, False)


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
def test_secret_is_masked(capsys, secret):
    logging.getLogger("opsctl.alerts").warning("cannot send by %s now", secret)
    err = capsys.readouterr().err
    assert "***" in err
    assert "cannot send by" in err
    assert not [part for part in HIDDEN if part in err]


def test_secret_of_the_environment_is_masked(capsys, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "plain-looking-word")
    log_config.configure(None)
    logging.getLogger("opsctl.guard").warning("wandb refuses plain-looking-word")
    assert "wandb refuses ***" in capsys.readouterr().err


def test_secret_in_an_exception_is_masked(capsys):
    try:
        raise ConnectionError(f"refused: {SECRETS['smtp password']}")
    except ConnectionError as error:
        try:
            raise RuntimeError(f"again: {SECRETS['slack webhook']}") from error
        except RuntimeError:
            logging.getLogger("opsctl.alerts").exception("delivery failed")
    err = capsys.readouterr().err
    assert "ConnectionError: refused: smtps://***@mail.example.org:465" in err
    assert "RuntimeError: again: ***" in err
    assert not [part for part in HIDDEN if part in err]


def test_message_cannot_forge_a_line_or_control_the_terminal(capsys):
    logging.getLogger("opsctl.watchdogs").warning(
        "name: %s", "x\x1b[2J\n2026-01-01T00:00:00Z INFO    guard     all well"
    )
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith(r"name: x\x1b[2J")
    assert lines[1].startswith("    2026")


def test_long_record_is_cut(capsys):
    logging.getLogger("opsctl.guard").warning("x" * 1_000_000)
    assert len(capsys.readouterr().err) < 20_000


def test_wrong_arguments_and_a_closed_terminal_raise_nothing(capsys, monkeypatch):
    logging.getLogger("opsctl.guard").warning("%d nodes", "many")
    assert "%d nodes" in capsys.readouterr().err
    monkeypatch.setattr("sys.stderr", None)
    logging.getLogger("opsctl.guard").warning("nobody reads this")
