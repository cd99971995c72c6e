"""`opsctl init`, `opsctl config` and `opsctl completion`, without Slurm."""

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from opsctl.base.errors import InputError
from opsctl.cli import cli
from opsctl.settings.loader import find_site, load_site, load_train


def opsctl(*words: object) -> str:
    result = CliRunner().invoke(cli, [str(word) for word in words], standalone_mode=False, prog_name="opsctl")
    if result.exception:
        raise result.exception
    return result.output


def test_starters_are_valid(tmp_path):
    opsctl("init", "--dir", tmp_path)
    assert load_train(tmp_path / "train.toml").name == "my-run"
    assert load_site(tmp_path / "site.toml").engine == "slurm"


@pytest.mark.parametrize("name", ["train.toml", "site.toml"])
def test_starters_are_valid_with_every_comment_removed(tmp_path, name):
    """A commented line shows a default, so the line must be valid as well."""
    opsctl("init", "--dir", tmp_path)
    text = (tmp_path / name).read_text()
    bare = "\n".join(line.removeprefix("# ") if _is_setting(line) else line for line in text.splitlines())
    (tmp_path / name).write_text(bare)
    assert opsctl("config", "check", tmp_path / name).startswith(f"{tmp_path / name}: valid: ")


def _is_setting(line: str) -> bool:
    key = line.removeprefix("# ").split("=")[0].strip()
    return line.startswith("# ") and (key.startswith("[") or (key.isidentifier() and "=" in line)) and key != "command"


def test_interrupted_init_is_completed(tmp_path):
    opsctl("init", "--dir", tmp_path)
    whole = (tmp_path / "site.toml").read_bytes()
    (tmp_path / "site.toml").unlink()
    opsctl("init", "--dir", tmp_path)
    assert (tmp_path / "site.toml").read_bytes() == whole


def test_init_overwrites_nothing(tmp_path):
    (tmp_path / "site.toml").write_text("mine")
    with pytest.raises(InputError) as caught:
        opsctl("init", "--dir", tmp_path)
    assert caught.value.message == f"{tmp_path / 'site.toml'} already exists"
    assert [path.name for path in tmp_path.iterdir()] == ["site.toml"]


def test_valid_files_are_reported_as_valid(tmp_path):
    train = tmp_path / "t.toml"
    train.write_text('name = "t"\ncommand = ["x"]\n[slurm]\nnodes = 2\nprocesses_per_node = 4\ntime_limit = "9"\n')
    site = tmp_path / "s.toml"
    site.write_text('root = "/t"\n')
    assert opsctl("config", "check", train, site) == (
        f"{train}: valid: train t, 8 processes\n{site}: valid: a site with its trains in /t\n"
    )


def test_problems_of_all_files_are_listed(tmp_path):
    (tmp_path / "a.toml").write_text('root = "/t"\nrooot = 1\n')
    (tmp_path / "b.toml").write_text('name = "t"\ncommand = ["{{ x }}"]\n[slurm]\nnodes = 2\ntime_limit = "9"\n')
    with pytest.raises(InputError) as caught:
        opsctl("config", "check", tmp_path / "a.toml", tmp_path / "b.toml")
    assert "rooot: unknown key; did you mean 'root'?" in caught.value.message
    assert "{{ x }}: unknown; known: " in caught.value.message


def test_site_without_root_is_checked_as_a_site(tmp_path):
    (tmp_path / "s.toml").write_text(
        'rot = "/t"\nengine = "slurm"\n[cron]\ntime_zone = "Mars/Olympus"\ndrivers = ["x"]\n'
    )
    with pytest.raises(InputError) as caught:
        opsctl("config", "check", tmp_path / "s.toml")
    assert caught.value.message.splitlines()[1:] == [
        "  root: missing",
        "  [cron.drivers] 0: must be 'slurm', 'daemon' or 'export', got 'x'",
        "  [cron] time_zone: 'Mars/Olympus' is not a time zone, such as Europe/Paris",
        "  rot: unknown key; did you mean 'root'?",
    ]


def test_invalid_variable_name_is_reported_with_its_table(tmp_path):
    (tmp_path / "t.toml").write_text(
        'name = "t"\ncommand = ["x"]\n[slurm]\nnodes = 1\ntime_limit = "9"\n[environment]\n"A B" = "x"\n'
    )
    with pytest.raises(InputError) as caught:
        opsctl("config", "check", tmp_path / "t.toml")
    assert caught.value.message.splitlines()[1] == "  [environment] A B: 'A B' is not the name of a variable"


def test_train_schema_includes_the_embedded_trainer():
    schema = json.loads(opsctl("config", "schema", "train"))
    trainer = schema["$defs"][schema["properties"]["trainer"]["$ref"].rpartition("/")[2]]
    assert "steps" in trainer["properties"]
    assert trainer["additionalProperties"] is False
    text = json.dumps(schema)
    assert all(ref in schema["$defs"] for ref in _references(text))


def _references(text: str) -> list[str]:
    return [part.partition('"')[0] for part in text.split("#/$defs/")[1:]]


def test_site_schema_lists_required_keys():
    assert json.loads(opsctl("config", "schema", "site"))["required"] == ["root"]


def test_init_creates_the_directory(tmp_path):
    opsctl("init", "--dir", tmp_path / "new" / "run")
    assert (tmp_path / "new" / "run" / "train.toml").is_file()


@pytest.fixture
def config_home(tmp_path, monkeypatch):
    """An empty configuration directory and a separate working directory."""
    monkeypatch.delenv("OPSCTL_SITE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "config"


@pytest.mark.skipif(Path("/etc/opsctl/site.toml").exists(), reason="this machine has a site file of its own")
def test_init_writes_site_toml_to_the_configuration(config_home):
    output = opsctl("init")
    assert find_site() == config_home / "opsctl" / "site.toml"
    assert load_train(Path("train.toml")).name == "my-run"
    assert "opsctl launch train.toml --dry-run" in output


def test_init_writes_the_site_file_of_the_environment(config_home, monkeypatch, tmp_path):
    monkeypatch.setenv("OPSCTL_SITE", str(tmp_path / "our.toml"))
    opsctl("init")
    assert load_site(tmp_path / "our.toml").engine == "slurm"
    assert not config_home.exists()


def test_init_keeps_an_existing_site(config_home):
    site = config_home / "opsctl" / "site.toml"
    site.parent.mkdir(parents=True)
    site.write_text('root = "/t"\n')
    assert f"{site} already exists and is left as it is" in opsctl("init")
    assert site.read_text() == 'root = "/t"\n'
    assert Path("train.toml").exists()


def test_init_keeps_an_existing_train(config_home):
    Path("train.toml").write_text("mine")
    with pytest.raises(InputError) as caught:
        opsctl("init")
    assert caught.value.message == "train.toml already exists"
    assert not config_home.exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_calls_opsctl(shell):
    assert "_OPSCTL_COMPLETE" in opsctl("completion", shell)


def test_completion_script_is_valid_bash():
    assert (
        subprocess.run(
            ["bash", "-n"], input=opsctl("completion", "bash"), text=True, timeout=250, check=False
        ).returncode
        == 0
    )
