"""Redaction of configured secrets, of secrets in the environment and of text that has the form of a secret."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from opsctl.base.secret_formats import Secrets
from opsctl.publish.publisher import UnreadableSecret, gather_secrets
from opsctl.publish.staging import DeadlinePassed
from opsctl.settings.alerts import AlertSettings
from tests.support.cases import read_cases, read_table
from tests.unit.publish.conftest import EVENTS, Site

WEBHOOK = "https://hooks.example.org/services/T0001/B0002/zYxWvUtSrQpOnMlKjIhG"
PASSWORD = "pa/ss&w<rd"
TOKEN = "xoxb-1234567890-abcdefghij"


def alerts(tmp_path: Path) -> AlertSettings:
    (tmp_path / "webhook").write_text(WEBHOOK + "\n")
    (tmp_path / "password").write_text(PASSWORD + "\n")
    return TypeAdapter(AlertSettings).validate_python(
        {
            "channels": {
                "chat": {"kind": "slack", "webhook_file": str(tmp_path / "webhook")},
                "mail": {
                    "kind": "email",
                    "to": ("a@b.c",),
                    "sender": "a@b.c",
                    "password_file": str(tmp_path / "password"),
                },
                "bot": {"kind": "slack", "token": "$BOT_WORD", "channel": "#x"},
            }
        }
    )


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Secrets:
    monkeypatch.setenv("BOT_WORD", TOKEN)
    (tmp_path / "more").write_text("third secret\n\nexport SOURCED='by the body'\n")
    env = {"HF_TOKEN": "not-of-a-known-make", "WANDB_API_KEY": "0123456789abcdef", "TOKENIZER_PATH": "/data/tokenizer"}
    more = [str(tmp_path / "more")]
    return gather_secrets(alerts(tmp_path), more, of_process=env, of_train={"MY_PASSWORD": "of the train"})


PLANTED = [
    WEBHOOK,
    PASSWORD,
    json.dumps(PASSWORD),
    "pa/ss&amp;w&lt;rd",
    "pa%2Fss%26w%3Crd",
    "https:\\/\\/hooks.example.org\\/services\\/T0001\\/B0002\\/zYxWvUtSrQpOnMlKjIhG",
    "zYxWvUtSrQpOnMlKjIhG",
    TOKEN,
    "third secret",
    "by the body",
    "not-of-a-known-make",
    "0123456789abcdef",
    "of the train",
]


@pytest.mark.parametrize("planted", PLANTED)
def test_configured_secret_is_struck_out_in_all_forms(known: Secrets, planted: str) -> None:
    struck = known.strike_text(f"before {planted} after\n")
    assert planted not in struck
    assert struck.startswith("before ")
    assert struck.endswith(" after\n")


SECRET_FORMS = read_table(__file__, "secret_forms")


@pytest.mark.parametrize("planted", SECRET_FORMS)
def test_form_of_a_secret_is_struck_out(planted: str) -> None:
    assert Secrets(frozenset()).strike_text(f"<{planted}>") == "<***>"


@pytest.mark.parametrize(*read_cases(__file__, "value_of_a_secret_name_is_struck_out"))
def test_value_of_a_secret_name_is_struck_out(line: str, struck: str) -> None:
    assert Secrets(frozenset()).strike_text(line) == struck


INNOCENT = read_table(__file__, "innocent")


@pytest.mark.parametrize("line", INNOCENT)
def test_innocent_line_is_unchanged(known: Secrets, line: str) -> None:
    assert known.strike_text(line) == line


def test_unreadable_secret_stops_publishing(tmp_path: Path) -> None:
    rules = alerts(tmp_path)
    (tmp_path / "webhook").unlink()
    with pytest.raises(UnreadableSecret, match=r"a configured secret cannot be read: webhook_file: .*No such file"):
        gather_secrets(rules, [], of_train={}, of_process={})
    with pytest.raises(UnreadableSecret, match=r"secret cannot be read: /nowhere: No such file"):
        gather_secrets(AlertSettings(), ["/nowhere"], of_train={}, of_process={})


@given(before=st.binary(max_size=40), secret=st.binary(min_size=4, max_size=40), after=st.binary(max_size=40))
def test_secret_is_struck_out_in_any_surroundings(before: bytes, secret: bytes, after: bytes) -> None:
    assume(b"*" not in secret)
    struck, count = Secrets(frozenset({secret})).strike(before + secret + after + secret)
    assert secret not in struck
    assert count >= 1


def test_log_is_published_without_secrets(site: Site) -> None:
    site.write("logs/main_log.txt", "login with open sesame\nand hf_abcdefghijklmnopqrstuvwxyz012345\n")
    item = next(item for item in site.publish().items if item.name == "logs/main_log.txt")
    assert site.out()["logs/main_log.txt"] == b"login with ***\nand ***\n"
    assert item.struck == 2


def test_binary_with_a_secret_is_refused(site: Site) -> None:
    name = "metrics/tensorboard/events.out.tfevents.1"
    site.write(name, EVENTS + b"open sesame" + EVENTS)
    result = site.publish()
    assert [item.why for item in result.items if item.name == name] == [
        "holds a secret, which cannot be struck out of a binary file"
    ]
    assert name not in site.out()


def test_compressed_log_is_searched(site: Site) -> None:
    """A rotated log has a second member where it was appended to; other formats are not read."""
    calm, telling = gzip.compress(b"iteration 1\n" * 9), gzip.compress(b"login with open sesame\n")
    damaged = calm + telling[:10] + b"\xff" * 9
    files = {"calm.txt.1.gz": calm, "b.txt.2.gz": calm + telling, "damaged.gz": damaged, "c.txt.xz": b"\xfd7zXZ"}
    for name, data in files.items():
        site.write(f"logs/{name}", data)
    whys = {item.name: item.why for item in site.publish(files=("logs/*.gz", "logs/*.xz")).items}
    assert whys["logs/calm.txt.1.gz"] == ""
    assert whys["logs/b.txt.2.gz"] == "holds a secret, which cannot be struck out of a binary file"
    assert whys["logs/damaged.gz"].startswith("cannot be searched for secrets")
    assert whys["logs/c.txt.xz"] == "is compressed, and no secret in it would be found"
    assert {name for name in site.out() if name.startswith("logs/")} == {"logs/calm.txt.1.gz"}


def test_secret_in_the_report_is_struck_out(site: Site) -> None:
    site.report = "# open sesame\n"
    site.publish()
    assert site.out()["report.md"] == b"# ***\n"


def test_secret_is_not_cut_in_half(site: Site) -> None:
    secret = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEow\n" * 300 + "-----END RSA PRIVATE KEY-----\n"
    site.write("logs/main_log.txt", "x\n" * 5000 + secret + "after\n" * 50)
    site.publish(max_file="1K")
    text = site.out()["logs/main_log.txt"]
    assert b"MIIEow" not in text
    assert text.endswith(b"***\n" + b"after\n" * 50)


def test_new_secret_is_removed_from_published_files(site: Site) -> None:
    site.write("logs/pulse.log", "the word is abracadabra\n")
    site.write("metrics/tensorboard/events.out.tfevents.1", EVENTS + b"abracadabra")
    site.publish()
    assert b"abracadabra" in site.out()["logs/pulse.log"]
    site.known = frozenset({b"abracadabra"})
    site.publish()
    assert [name for name, data in site.out().items() if b"abracadabra" in data] == []
    assert "metrics/tensorboard/events.out.tfevents.1" not in site.out()


def test_new_secret_removes_copies_without_source(site: Site) -> None:
    site.write("logs/pulse.log", "the word is abracadabra\n")
    site.publish()
    (site.run.path / "logs/pulse.log").unlink()
    site.publish(max_file="1M")
    assert "logs/pulse.log" in site.out()
    site.known = frozenset({b"abracadabra"})
    result = site.publish(max_file="1M")
    assert "logs/pulse.log" not in site.out()
    assert [item.name for item in result.items if item.why.startswith("its source no longer exists")] == [
        "logs/pulse.log"
    ]


def test_pending_removal_survives_the_deadline(site: Site) -> None:
    site.write("logs/pulse.log", "the word is abracadabra\n")
    site.publish()
    (site.run.path / "logs/pulse.log").unlink()
    site.known = frozenset({b"abracadabra"})
    with pytest.raises(DeadlinePassed):
        site.publisher(seconds=0).publish()
    site.publish(max_file="1M")
    assert "logs/pulse.log" not in site.out()


def test_environment_does_not_change_the_digest(tmp_path: Path) -> None:
    def digest(env: dict[str, str]) -> str:
        return gather_secrets(AlertSettings(), [], of_train={}, of_process=env).digest

    assert digest({"HF_TOKEN": "not-of-a-known-make"}) == digest({})


def test_secret_digest_is_private(site: Site) -> None:
    site.publish()
    state = site.run.path / "publish" / "state.json"
    assert state.stat().st_mode & 0o777 == 0o600
    assert b"sesame" not in state.read_bytes()
