"""`opsctl doctor --security`: each unsafe thing is made, reported, repaired by the command shown, and then ok."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from opsctl.cli import cli
from opsctl.preflight.security.checks import read_umask
from opsctl.preflight.security.permissions import quote
from opsctl.state.run_dir import RunDir
from opsctl.state.site_dir import SiteDir
from opsctl.state.trust import trust_settings, walk_components
from tests.support.cases import read_cases
from tests.support.other_users import NOBODY, open_to_other_users, skip_unless_others_may_run


@pytest.fixture
def home(tmp_path: Path, monkeypatch) -> Path:
    """A safe installation: a site file, a secret, a root with one train and a site directory."""
    tmp_path.chmod(0o755)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("PYTHONPATH", "SLURM_CONF", "LD_PRELOAD", "LD_LIBRARY_PATH", "BASH_ENV", "ENV"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
    (tmp_path / "hook").write_text("https://hooks.example.org/T/B/x\n")
    (tmp_path / "hook").chmod(0o600)
    site = tmp_path / "site.toml"
    site.write_text(
        f'engine = "sandbox"\nroot = "{tmp_path}/trains"\ntrust_parents = false\n'
        f'[alerts.channels.team]\nkind = "slack"\nwebhook_file = "{tmp_path}/hook"\n'
    )
    run = RunDir(tmp_path / "trains" / "tr11")
    run.create()
    run.config.write_text('command = ["true"]\n[slurm]\nnodes = 1\ntime_limit = "60"\n')
    run.main_log.write_text("step 1\n")
    SiteDir.of(tmp_path / "trains").create()
    return tmp_path


def check_security(home: Path) -> tuple[int, list[dict]]:
    words = ["--site", str(home / "site.toml"), "doctor", "--security", "--json"]
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    return done.return_value, json.loads(done.output)


def list_unsafe(home: Path) -> list[dict]:
    exit_code, rows = check_security(home)
    unsafe = [row for row in rows if row["severity"] == "unsafe"]
    assert exit_code == bool(unsafe)
    return unsafe


def repair(home: Path, row: dict) -> None:
    subprocess.run(["bash", "-c", row["advice"]], check=True, timeout=250, cwd=home)


def test_safe_installation_is_ok(home):
    exit_code, rows = check_security(home)
    assert [row for row in rows if row["severity"] != "ok"] == []
    assert exit_code == 0
    assert [row["check"] for row in rows] == [
        "site file", "secret", "umask", "trust_parents", "root", "site directory", "trains", "environment", "python",
    ]  # fmt: skip


@pytest.mark.parametrize(*read_cases(__file__, "unsafe"))
def test_unsafe_thing_is_reported_and_repaired(home, change, check, phrase):
    trust_settings(home / "other.toml")
    subprocess.run(["bash", "-ec", change], cwd=home, check=True)
    unsafe = [row for row in list_unsafe(home) if row["check"] == check]
    assert any(phrase in row["result"] for row in unsafe), unsafe
    for row in list_unsafe(home):
        repair(home, row)
    assert list_unsafe(home) == []


class TestForeignOwners:
    pytestmark = pytest.mark.root

    @pytest.mark.parametrize(
        ("name", "check"),
        [
            ("site.toml", "site file"),
            ("hook", "secret"),
            ("trains", "root"),
            ("trains/.site", "site directory"),
            ("trains/.site/alerts", "site directory"),
            ("trains/tr11/logs/main_log.txt", "trains"),
        ],
    )
    def test_owner_is_reported_and_repaired(self, home, name, check):
        os.chown(home / name, NOBODY, -1)
        if name == "trains":
            os.chown(home / name / ".site", NOBODY, -1)
        unsafe = list_unsafe(home)
        assert any(f"{name}: belongs to nobody" in row["result"] for row in unsafe if row["check"] == check), unsafe
        for row in unsafe:
            repair(home, row)
        for row in list_unsafe(home):  # the owner of the root may own the site directory, until the root is ours
            repair(home, row)
        assert list_unsafe(home) == []

    def test_group_of_switches_is_that_of_the_site(self, home):
        site = home / "site.toml"
        site.write_text('group = "users"\n' + site.read_text())
        switches = home / "trains" / "tr11" / "switches"
        os.chown(switches, -1, NOBODY)
        switches.chmod(0o2775)
        [row] = list_unsafe(home)
        assert "another group than users" in row["result"]
        repair(home, row)
        assert list_unsafe(home) == []

    def test_unknown_group_is_unknown(self, home):
        site = home / "site.toml"
        site.write_text('group = "no-such-group"\n' + site.read_text())
        (home / "trains" / "tr11" / "switches").chmod(0o2775)
        exit_code, rows = check_security(home)
        assert exit_code == 0
        assert [row["result"] for row in rows if row["severity"] == "unknown"] == [
            f"{home}/trains/tr11/switches: the group 'no-such-group' of site.toml does not exist on this machine"
        ]

    def test_closed_secret_is_unknown_to_another_user(self, home):
        """As a real user: the secret lies in root's home, and the root in a sticky directory."""
        open_to_other_users()
        skip_unless_others_may_run()
        place = Path("/tmp") / f"opsctl-security-{os.getpid()}"
        try:
            place.mkdir(mode=0o755)
            (place / "closed").mkdir(mode=0o700)
            site = place / "site.toml"
            site.write_text(
                f'root = "{place}/trains"\nengine = "sandbox"\n[alerts.channels.team]\nkind = "slack"\n'
                f'webhook_file = "{place}/closed/hook"\n'
            )
            (place / "trains").mkdir()
            (place / "trains").chmod(0o1777)
            argv = [sys.executable, "-P", "-m", "opsctl", "--site", str(site), "doctor", "--security", "--json"]
            env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONPATH": ":".join(filter(None, sys.path))}
            done = subprocess.run(
                argv, env=env, cwd="/", user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, text=True,
                timeout=250, check=False,
            )  # fmt: skip
            rows = json.loads(done.stdout)
        finally:
            subprocess.run(["rm", "-r", place], check=True)
        severities = {(row["check"], row["severity"]) for row in rows}
        assert ("secret", "unknown") in severities, done.stdout
        assert ("site directory", "unsafe") in severities
        assert ("root", "ok") in severities
        assert done.returncode == 1


def test_umask_of_everybody_is_reported(home):
    before = os.umask(0)
    try:
        unsafe = list_unsafe(home)
    finally:
        os.umask(before)
    assert [row["check"] for row in unsafe] == ["umask"]
    done = subprocess.run(
        ["bash", "-c", f"umask 000; {unsafe[0]['advice']}; umask"], capture_output=True, text=True, check=True,
        env={"HOME": str(home)},
    )  # fmt: skip
    assert done.stdout == "0022\n"
    assert (home / ".profile").read_text() == "umask 022\n"


@pytest.mark.root
def test_umask_matters_for_a_shared_group(home):
    group, before = os.getegid(), os.umask(0o002)
    try:
        own_group = list_unsafe(home)
        os.setegid(NOBODY)
        shared_group = list_unsafe(home)
    finally:
        os.setegid(group)
        os.umask(before)
    assert own_group == []
    assert [row["result"] for row in shared_group] == ["002: the group nogroup can write new files"]


def test_hidden_umask_is_unknown(tmp_path):
    (tmp_path / "status").write_text("Name:\tbash\n")
    assert read_umask(tmp_path / "status") is None
    assert read_umask(tmp_path / "missing") is None


@pytest.mark.parametrize(*read_cases(__file__, "variable_is_reported_and_repaired"))
def test_variable_is_reported_and_repaired(home, monkeypatch, variable, value, phrase):
    (home / "open").mkdir()
    (home / "open").chmod(0o777)
    (home / "sticky").mkdir()
    (home / "sticky").chmod(0o1777)
    monkeypatch.setenv(variable, value.format(home=home))
    unsafe = [row for row in list_unsafe(home) if row["check"] == "environment"]
    assert any(phrase.format(home=home) in row["result"] for row in unsafe), unsafe
    for command in dict.fromkeys(row["advice"] for row in unsafe):
        value = subprocess.run(
            ["bash", "-c", f'{command} && printf %s "${{{variable}-}}"'], capture_output=True, text=True, check=True
        ).stdout
        monkeypatch.setenv(variable, value)
    assert list_unsafe(home) == []


def test_way_through_links_is_walked(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a/../second")
    (tmp_path / "second").symlink_to(tmp_path / "a")
    names = [str(place.relative_to(tmp_path)) for place in walk_components(tmp_path / "link" / "b") if place > tmp_path]
    assert names == ["link", "a", "second", "a", "a/b"]
    (tmp_path / "loop").symlink_to("loop")
    assert len(list(walk_components(tmp_path / "loop"))) < 200


@pytest.mark.parametrize("name", ["a b", "it's", "$(id)", "a\nb", "\x1b[2J", os.fsdecode(b"\xff'"), "\u202egpj"])
def test_quoted_name_is_one_harmless_word(name):
    word = quote(name)
    assert word.isprintable()
    done = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True)
    assert done.stdout == os.fsencode(name)
