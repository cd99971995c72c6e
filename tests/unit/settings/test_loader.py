"""site.toml and TRAIN.toml: exact messages, for that is what people read at the worst moment."""

from pathlib import Path

import pytest

from opsctl.errors import ConfigError
from opsctl.settings.loader import SiteSettings, TrainSettings, find_site, load_site, load_train, parse, state_home

SLURM = {"nodes": 2, "time_limit": "20:00:00"}


def problems(**given):
    with pytest.raises(ConfigError) as caught:
        parse(TrainSettings, {"name": "gpt", "slurm": SLURM, "command": ["x"], **given}, "t.toml")
    return list(caught.value.problems)


def test_a_small_train_is_complete():
    train = parse(TrainSettings, {"name": "gpt", "slurm": SLURM, "command": ["x"]}, "t.toml")
    assert (train.slurm.tasks, train.world_size, train.guard.short_attempts) == (10, 2, 3)


def test_an_unknown_key_is_refused_with_the_nearest_known_one():
    assert problems(slurm={**SLURM, "time_limt": "1"}) == ["[slurm] time_limt: unknown key; did you mean 'time_limit'?"]


def test_an_unknown_key_that_is_near_nothing_is_refused_with_all_that_are_known():
    assert problems(xyzzy=1) == [
        "xyzzy: unknown key; known: command, environment, guard, name, progress, publish, python, setup, slurm,"
        " trainer, watch"
    ]


def test_every_problem_is_reported_at_once():
    found = problems(name="a b", slurm={"nodes": 0, "tasks": "3"}, guard={"short_attempts": 0})
    assert [each.split(":")[0] for each in found] == [
        "name",
        "[slurm] nodes",
        "[slurm] time_limit",
        "[slurm] tasks",
        "[guard] short_attempts",
    ]


EITHER = "either `command` (any trainer) or a [trainer] table (the embedded trainer) is needed, not both"


def test_what_is_wrong_with_fields_together_is_told_beside_what_is_wrong_with_single_ones():
    """And not at the second attempt."""
    name = problems(name="a b")
    assert problems(name="a b", trainer={}) == [*name, EITHER]
    assert problems(name="a b", command=[]) == [*name, EITHER]
    found = problems(slurm={**SLURM, "nodes": 0}, publish={"to": "git", "max_file": "x"})
    assert found[-1] == "publish: to = git needs `remote`"
    assert [each.partition(":")[0] for each in found] == ["[slurm] nodes", "[publish] max_file", "publish"]


def test_of_fields_that_are_wrong_by_themselves_nothing_more_is_told():
    assert problems(command=5) == ["command: Input should be a valid tuple, got 5"]
    with pytest.raises(ConfigError) as caught:
        parse(TrainSettings, {"name": "gpt", "slurm": SLURM, "commnd": ["x"]}, "t.toml")
    assert caught.value.problems == ("commnd: unknown key; did you mean 'command'?",)


def test_all_tables_of_a_site_are_asked_what_is_wrong_with_them_at_once():
    mail = {"kind": "email", "to": ["x"], "sender": "a@b", "user": "u", "server": "far"}
    slack = {"kind": "slack", "webhook_file": "x", "token_file": "y", "api_url": 3}
    alerts = {"fallback": "gone", "repeat_hours": [0], "channels": {"m": mail, "s": slack},
              "routes": [{"channels": ["pager"]}, {"channels": ["m"], "level": "x"}]}  # fmt: skip
    disk = {"name": "a", "path": "/", "by": "du", "warning_percent": 99.0, "stale_minutes": -1.0}
    with pytest.raises(ConfigError) as caught:
        parse(SiteSettings, {"root": 5, "alerts": alerts, "filesystem": [disk]}, "site.toml")
    single = [problem for problem in caught.value.problems if ", got " in problem or "is not a mail address" in problem]
    assert len(single) == 5
    assert [problem for problem in caught.value.problems if problem not in single] == [
        "alerts: no channel 'gone', 'pager' in [alerts.channels]; there are: m, s; "
        "repeat_hours: every number must be more than 0",
        '[alerts.channels] m: the password would go to far in clear: set tls = "starttls" or "tls"',
        "[alerts.channels] s: needs either a webhook_file, or a token_file and a channel",
        "[filesystem] 0: by = du needs `limit` or `inode_limit`: du does not report a limit; "
        "critical_percent is below warning_percent",
    ]


def test_the_embedded_trainers_tables_are_asked_at_once_too(tmp_path):
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
def test_what_is_no_name_is_refused(name):
    assert problems(name=name) == [
        f"name: {name!r:.80} is not a name: 1 to 64 letters, digits, dots, dashes and underscores"
    ]


@pytest.mark.parametrize("name", ["a", "tr11-176B", "0", "a.b_c", "x" * 64])
def test_what_is_a_name_is_taken(name):
    assert parse(TrainSettings, {"name": name, "slurm": SLURM, "command": ["x"]}, "t").name == name


@pytest.mark.parametrize("field", ["partition", "account", "qos", "constraint", "reservation", "exclude"])
def test_white_space_in_what_becomes_a_directive_is_refused(field):
    assert problems(slurm={**SLURM, field: "a\n#SBATCH --uid=0"}) == [
        f"[slurm] {field}: 'a\\n#SBATCH --uid=0' contains white space or control characters, which would break the"
        " #SBATCH line"
    ]


@pytest.mark.parametrize("limit", ["", "1h", "1:2:3:4", "-1", "1-", "UNLIMITED"])
def test_what_is_no_time_limit_is_refused(limit):
    assert problems(slurm={**SLURM, "time_limit": limit}) == [
        f"[slurm] time_limit: {limit!r} is not a time limit: minutes, MM:SS, HH:MM:SS or D-HH:MM:SS"
    ]


@pytest.mark.parametrize("path", ["code", "~/code", "$HOME/code"])
def test_a_directory_to_start_in_is_absolute(path):
    assert problems(setup={"directory": path}, slurm=SLURM) == [
        f"[setup] directory: {path!r} is relative: an absolute path is needed, since tasks start on other machines"
    ]


def test_an_sbatch_option_is_one_line_with_two_dashes():
    assert problems(slurm={**SLURM, "extra": ["-x"]}) == [
        "[slurm.extra] 0: '-x' is not an sbatch option: one line that starts with --"
    ]


def test_a_train_has_one_trainer():
    literal = "either `command` (any trainer) or a [trainer] table (the embedded trainer) is needed, not both"
    assert problems(trainer={}) == [literal]
    assert problems(command=[]) == [literal]


def test_a_variable_has_a_name_that_a_shell_knows():
    assert problems(environment={"A B": "x"})[0].endswith("'A B' is not the name of a variable")


def test_a_nul_byte_is_refused():
    assert problems(command=["a\0b"]) == ["[command] 0: contains a NUL byte, which cannot be passed to a program"]


def test_a_number_in_quotes_is_no_number():
    assert problems(slurm={**SLURM, "nodes": "2"}) == ["[slurm] nodes: Input should be a valid integer, got '2'"]


def write(path, text):
    path.write_text(text)
    return path


def test_a_file_that_is_not_there_says_how_to_get_one(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_train(tmp_path / "none.toml")
    assert caught.value.problems == ("no such file",)
    assert caught.value.hint == "opsctl config init writes a first version"


@pytest.mark.parametrize("content", [b"name = ", b"\xff\xfe", b"a = 1\na = 2\n"])
def test_a_file_that_is_no_toml_is_a_problem_of_the_users(tmp_path, content):
    (tmp_path / "t.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"t\.toml: 1 problem"):
        load_train(tmp_path / "t.toml")


def test_the_embedded_trainers_settings_are_checked_with_the_rest(tmp_path):
    text = 'name = "a b"\n[slurm]\nnodes = 3\ntime_limit = "9"\n[trainer]\nsteps = 5\nstepz = 1\n'
    with pytest.raises(ConfigError) as caught:
        load_train(write(tmp_path / "t.toml", text))
    assert caught.value.problems[0] == "[trainer] stepz: unknown key; did you mean 'steps'?"
    assert len(caught.value.problems) == 2


def test_the_embedded_trainers_layout_is_checked_against_the_processes(tmp_path):
    text = 'name = "a"\n[slurm]\nnodes = 3\ntime_limit = "9"\n[trainer]\nsteps = 1\n[trainer.parallel]\npipeline = 2\n'
    with pytest.raises(ConfigError, match=r"\[trainer\] .*pipeline"):
        load_train(write(tmp_path / "t.toml", text))


def test_a_problem_in_the_trainers_nested_tables_names_them(tmp_path):
    text = 'name = "a"\n[slurm]\nnodes = 1\ntime_limit = "9"\n[trainer]\nsteps = 1\n[trainer.model]\nlayerz = 2\n'
    with pytest.raises(ConfigError) as caught:
        load_train(write(tmp_path / "t.toml", text))
    assert caught.value.problems == ("[trainer.model] layerz: unknown key; did you mean 'layers'?",)


def test_the_root_of_a_site_may_hold_a_variable(monkeypatch):
    monkeypatch.setenv("WORK", "/scratch/me")
    assert SiteSettings(root="$WORK/trains").root_path == Path("/scratch/me/trains")


def test_a_site_needs_a_root(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_site(write(tmp_path / "site.toml", 'engine = "pbs"\n'))
    assert caught.value.problems == ("root: missing", "engine: Input should be 'slurm' or 'sandbox', got 'pbs'")


def test_the_site_that_is_named_goes_before_the_one_that_is_found(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("OPSCTL_SITE", raising=False)
    (tmp_path / "opsctl").mkdir()
    users = write(tmp_path / "opsctl" / "site.toml", 'root = "/t"\n')
    assert find_site() == users
    monkeypatch.setenv("OPSCTL_SITE", "/named.toml")
    assert find_site() == Path("/named.toml")


def test_state_lies_where_the_user_says(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert state_home() == Path("/state/opsctl")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (
            {"cron": {"time_zone": "Mars/Olympus"}},
            "[cron] time_zone: 'Mars/Olympus' is not a time zone, such as Europe/Paris",
        ),
        ({"publish": {"max_file": "9" * 400}}, f"[publish] max_file: '{'9' * 39} is too large a size"),
        (
            {"remote": {"known_hosts": []}},
            "[remote] known_hosts: Tuple should have at least 1 item after validation, not 0",
        ),
    ],
)
def test_what_a_site_cannot_mean_is_said_and_no_bug_of_ours(table, said):
    with pytest.raises(ConfigError) as caught:
        parse(SiteSettings, {"root": "/trains", **table}, "site.toml")
    assert [problem.partition(", got")[0] for problem in caught.value.problems] == [said]
