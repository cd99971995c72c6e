"""site.toml and TRAIN.toml: exact messages."""

from pathlib import Path

import paramiko
import pytest
from paramiko.config import SSHConfig

from opsctl.base.errors import ConfigError
from opsctl.host.system import SystemClock, state_home
from opsctl.nodes.remote.ssh import KnownHosts, Ssh
from opsctl.settings.alerts import EscalationTable, RouteTable
from opsctl.settings.health import HealthSettings, RemoteSettings
from opsctl.settings.loader import SiteSettings, TrainSettings, find_site, load_site, load_train, parse
from opsctl.settings.watch import CheckTable
from tests.support.cases import read_cases

SLURM = {"nodes": 2, "time_limit": "20:00:00"}


def problems(**fields):
    with pytest.raises(ConfigError) as caught:
        parse(TrainSettings, {"name": "gpt", "slurm": SLURM, "command": ["x"], **fields}, "t.toml")
    return list(caught.value.problems)


def test_minimal_train_is_complete():
    train = parse(TrainSettings, {"name": "gpt", "slurm": SLURM, "command": ["x"]}, "t.toml")
    assert (train.slurm.tasks, train.world_size, train.guard.short_attempts) == (10, 2, 3)


def test_unknown_key_suggests_the_nearest_key():
    assert problems(slurm={**SLURM, "time_limt": "1"}) == ["[slurm] time_limt: unknown key; did you mean 'time_limit'?"]


def test_unknown_key_without_a_neighbour_lists_all_keys():
    assert problems(xyzzy=1) == [
        "xyzzy: unknown key; known: command, container, environment, guard, hooks, keep, name, preflight, progress,"
        " publish, python, rollback, setup, slurm, trackers, trainer, watch"
    ]


def test_every_problem_is_reported_at_once():
    messages = problems(name="a b", slurm={"nodes": 0, "tasks": "3"}, guard={"short_attempts": 0})
    assert [message.split(":")[0] for message in messages] == [
        "name",
        "[slurm] nodes",
        "[slurm] time_limit",
        "[slurm] tasks",
        "[guard] short_attempts",
    ]


EITHER = "either `command` (any trainer) or a [trainer] table (the embedded trainer) is needed, not both"


def test_problems_of_fields_and_tables_are_reported_together():
    """Problems between fields are reported together with problems of single fields."""
    name = problems(name="a b")
    assert problems(name="a b", trainer={}) == [*name, EITHER]
    assert problems(name="a b", command=[]) == [*name, EITHER]
    messages = problems(slurm={**SLURM, "nodes": 0}, publish={"to": "git", "max_file": "x"})
    assert messages[-1] == "publish: to = git needs `remote`"
    assert [message.partition(":")[0] for message in messages] == ["[slurm] nodes", "[publish] max_file", "publish"]


def test_invalid_field_hides_problems_between_fields():
    assert problems(command=5) == ["command: must be a list, got 5"]
    with pytest.raises(ConfigError) as caught:
        parse(TrainSettings, {"name": "gpt", "slurm": SLURM, "commnd": ["x"]}, "t.toml")
    assert caught.value.problems == ("commnd: unknown key; did you mean 'command'?",)


def test_all_tables_of_a_site_are_checked_together():
    mail = {"kind": "email", "to": ["x"], "sender": "a@b", "user": "u", "server": "far"}
    slack = {"kind": "slack", "webhook_file": "x", "token_file": "y", "api_url": 3}
    alerts = {
        "fallback": "gone",
        "repeat_hours": [0],
        "channels": {"m": mail, "s": slack},
        "routes": [{"channels": ["pager"]}, {"channels": ["m"], "severity": "x"}],
    }
    disk = {"name": "a", "path": "/", "by": "du", "warning_percent": 99.0, "stale_minutes": -1.0}
    with pytest.raises(ConfigError) as caught:
        parse(SiteSettings, {"root": 5, "alerts": alerts, "filesystem": [disk]}, "site.toml")
    single = [problem for problem in caught.value.problems if ", got " in problem or "is not a mail address" in problem]
    assert len(single) == 5
    assert [problem for problem in caught.value.problems if problem not in single] == [
        "alerts: no channel 'gone', 'pager' in [alerts.channels]; there are: m, s",
        "alerts: repeat_hours: every number must be more than 0",
        '[alerts.channels] m: the password would go to far in clear: set tls = "starttls" or "tls"',
        "[alerts.channels] s: needs either a webhook_file, or a token_file and a channel",
        "[filesystem] 0: by = du needs `limit` or `inode_limit`: du does not report a limit; "
        "critical_percent is below warning_percent",
    ]


def test_old_names_of_keys_are_read():
    old_keys = {"lemon_score": 3, "lemon_days": "2d"}
    assert parse(HealthSettings, old_keys, "") == HealthSettings(flaky_score=3, flaky_days=2)
    old = {"channels": ["m"], "level": "critical"}
    check = {"name": "c", "kind": "log", "file": "f", "pattern": "x", "level": "critical"}
    tables = [(RouteTable, old), (EscalationTable, {**old, "after_minutes": 1}), (CheckTable, check)]
    assert [parse(table, fields, "").severity for table, fields in tables] == ["critical"] * 3
    with pytest.raises(ConfigError, match="level: unknown key"):
        parse(RouteTable, {**old, "severity": "warning"}, "")


def test_all_tables_of_the_trainer_are_checked_together(tmp_path):
    path = tmp_path / "t.toml"
    path.write_text(
        'name = "gpt"\n[slurm]\nnodes = 1\ntime_limit = "9"\n[trainer]\nsteps = 0\n[trainer.optimizer]\nlr = 1.0\n'
        "min_lr = 2.0\nbeta = 3\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_train(path)
    assert "[trainer] optimizer: min_lr = 2 is above lr = 1" in caught.value.problems
    assert any(problem.startswith("[trainer] steps: ") for problem in caught.value.problems)


@pytest.mark.parametrize("name", ["a b", "a\nb", "a/b", "../a", "", ".a", "-a", "ä", "$(id)", "a'b", "x" * 65, "a\0"])
def test_invalid_name_is_refused(name):
    assert problems(name=name) == [
        f"name: {name!r:.80} is not a name: 1 to 64 letters, digits, dots, dashes and underscores"
    ]


@pytest.mark.parametrize("name", ["a", "tr11-176B", "0", "a.b_c", "x" * 64])
def test_valid_name_is_accepted(name):
    assert parse(TrainSettings, {"name": name, "slurm": SLURM, "command": ["x"]}, "t").name == name


@pytest.mark.parametrize("field", ["partition", "account", "qos", "constraint", "reservation", "exclude"])
def test_white_space_in_a_directive_is_refused(field):
    assert problems(slurm={**SLURM, field: "a\n#SBATCH --uid=0"}) == [
        f"[slurm] {field}: 'a\\n#SBATCH --uid=0' contains white space or control characters, which would break the"
        " #SBATCH line"
    ]


@pytest.mark.parametrize("limit", ["", "1h", "1:2:3:4", "-1", "1-", "UNLIMITED"])
def test_invalid_time_limit_is_refused(limit):
    assert problems(slurm={**SLURM, "time_limit": limit}) == [
        f"[slurm] time_limit: {limit!r} is not a time limit: minutes, MM:SS, HH:MM:SS or D-HH:MM:SS"
    ]


@pytest.mark.parametrize("path", ["code", "~/code", "$HOME/code"])
def test_relative_start_directory_is_refused(path):
    assert problems(setup={"directory": path}, slurm=SLURM) == [
        f"[setup] directory: {path!r} is relative: an absolute path is needed, since tasks start on other machines"
    ]


def test_invalid_sbatch_option_is_refused():
    assert problems(slurm={**SLURM, "extra": ["-x"]}) == [
        "[slurm.extra] 0: '-x' is not an #SBATCH option: one line that starts with --"
    ]


def test_train_has_exactly_one_trainer():
    literal = "either `command` (any trainer) or a [trainer] table (the embedded trainer) is needed, not both"
    assert problems(trainer={}) == [literal]
    assert problems(command=[]) == [literal]


def test_invalid_variable_name_is_refused():
    assert problems(environment={"A B": "x"})[0].endswith("'A B' is not the name of a variable")


def test_nul_byte_is_refused():
    assert problems(command=["a\0b"]) == ["[command] 0: contains a NUL byte, which cannot be passed to a program"]


@pytest.mark.parametrize(*read_cases(__file__, "duration_is_read_in_the_unit_of_its_key"))
def test_duration_is_read_in_the_unit_of_its_key(key, text, value):
    for given in (text, value):
        assert getattr(parse(SiteSettings, {"root": "/trains", "watch": {key: given}}, "s").watch, key) == value


def test_quoted_number_is_refused():
    assert problems(slurm={**SLURM, "nodes": "2"}) == ["[slurm] nodes: must be an integer, got '2'"]


def write(path, text):
    path.write_text(text)
    return path


def test_missing_file_names_the_init_command(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_train(tmp_path / "none.toml")
    assert caught.value.problems == ("no such file",)
    assert caught.value.hint == "opsctl init writes a first version"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"name = ", "not valid TOML: Invalid value (at end of document)"),
        (b"\xff\xfe", "not a text in UTF-8: byte 1 is no part of one"),
        (b"a = 1\na = 2\n", "not valid TOML: Cannot overwrite a value (at line 2, column 6)"),
        (b"a = " + b"[" * 5000, "not valid TOML: nested too deeply"),
    ],
)
def test_invalid_toml_is_refused(tmp_path, content, problem):
    (tmp_path / "t.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"t\.toml: 1 problem") as caught:
        load_train(tmp_path / "t.toml")
    assert caught.value.problems == (problem,)


def test_directory_is_no_settings_file(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_train(tmp_path)
    assert caught.value.problems == ("not a regular file",)


def test_trainer_settings_are_checked_with_the_rest(tmp_path):
    text = 'name = "a b"\n[slurm]\nnodes = 3\ntime_limit = "9"\n[trainer]\nsteps = 5\nstepz = 1\n'
    with pytest.raises(ConfigError) as caught:
        load_train(write(tmp_path / "t.toml", text))
    assert caught.value.problems[0] == "[trainer] stepz: unknown key; did you mean 'steps'?"
    assert len(caught.value.problems) == 2


def test_trainer_layout_is_checked_against_the_processes(tmp_path):
    text = 'name = "a"\n[slurm]\nnodes = 3\ntime_limit = "9"\n[trainer]\nsteps = 1\n[trainer.parallel]\npipeline = 2\n'
    with pytest.raises(ConfigError, match=r"\[trainer\] .*pipeline"):
        load_train(write(tmp_path / "t.toml", text))


def test_problem_in_a_nested_table_names_the_table(tmp_path):
    text = 'name = "a"\n[slurm]\nnodes = 1\ntime_limit = "9"\n[trainer]\nsteps = 1\n[trainer.model]\nlayerz = 2\n'
    with pytest.raises(ConfigError) as caught:
        load_train(write(tmp_path / "t.toml", text))
    assert caught.value.problems == ("[trainer.model] layerz: unknown key; did you mean 'layers'?",)


def test_root_may_hold_a_variable(monkeypatch):
    monkeypatch.setenv("WORK", "/scratch/me")
    assert SiteSettings(root="$WORK/trains").root_path == Path("/scratch/me/trains")


def test_site_needs_a_root(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_site(write(tmp_path / "site.toml", 'engine = "pbs"\n'))
    assert caught.value.problems == ("root: missing", "engine: must be 'slurm' or 'sandbox', got 'pbs'")


def test_site_of_the_environment_overrides_the_default(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("OPSCTL_SITE", raising=False)
    (tmp_path / "opsctl").mkdir()
    default = write(tmp_path / "opsctl" / "site.toml", 'root = "/t"\n')
    assert find_site() == default
    monkeypatch.setenv("OPSCTL_SITE", "/named.toml")
    assert find_site() == Path("/named.toml")


def test_state_home_follows_the_environment(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert state_home() == Path("/state/opsctl")


@pytest.mark.parametrize(*read_cases(__file__, "invalid_site_settings_are_refused"))
def test_invalid_site_settings_are_refused(table, message):
    with pytest.raises(ConfigError) as caught:
        parse(SiteSettings, {"root": "/trains", **table}, "site.toml")
    assert [problem.partition(", got")[0] for problem in caught.value.problems] == [message]


@pytest.mark.parametrize("end", ["", "\n"])
def test_new_host_key_is_added_after_a_partial_line(tmp_path, end):
    old, new = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
    file = tmp_path / "known_hosts"
    file.write_text(f"old {old.get_name()} {old.get_base64()}{end}")
    KnownHosts([file], accept_new=True).check("new", new)
    reread = KnownHosts([file])
    reread.check("old", old)
    reread.check("new", new)


@pytest.mark.parametrize("jump", ["login1,login2:2222", "login1:ssh", "a@b@c", "ssh://login1"])
def test_invalid_jump_host_is_reported(jump):
    ssh = Ssh(RemoteSettings(jump=jump), KnownHosts([]), SSHConfig(), SystemClock())
    answer = ssh.run("node001", ("true",), timeout=5)
    assert (answer.problem, answer.may_have_run) == (
        f"ssh: jump host {jump!r} is not of the form [user@]host[:port]",
        False,
    )
