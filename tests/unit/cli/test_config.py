"""`opsctl config` and `opsctl completion`, which ask Slurm nothing."""

import json
import subprocess

import pytest
from click.testing import CliRunner

from opsctl.cli import cli
from opsctl.errors import InputError
from opsctl.settings.loader import load_site, load_train


def opsctl(*words: object) -> str:
    done = CliRunner().invoke(cli, [str(word) for word in words], standalone_mode=False, prog_name="opsctl")
    if done.exception:
        raise done.exception
    return done.output


def test_the_starters_are_valid_as_they_are(tmp_path):
    opsctl("config", "init", "--dir", tmp_path)
    assert load_train(tmp_path / "train.toml").name == "my-run"
    assert load_site(tmp_path / "site.toml").engine == "slurm"


@pytest.mark.parametrize("name", ["train.toml", "site.toml"])
def test_the_starters_are_valid_with_every_comment_taken_out(tmp_path, name):
    """What is commented out shows the default, so it must be what could stand there."""
    opsctl("config", "init", "--dir", tmp_path)
    text = (tmp_path / name).read_text()
    bare = "\n".join(line.removeprefix("# ") if _is_setting(line) else line for line in text.splitlines())
    (tmp_path / name).write_text(bare)
    assert opsctl("config", "check", tmp_path / name).startswith(f"{tmp_path / name}: fine: ")


def _is_setting(line: str) -> bool:
    key = line.removeprefix("# ").split("=")[0].strip()
    return line.startswith("# ") and (key.startswith("[") or (key.isidentifier() and "=" in line)) and key != "command"


def test_starters_of_a_call_that_was_cut_off_are_completed(tmp_path):
    opsctl("config", "init", "--dir", tmp_path)
    whole = (tmp_path / "site.toml").read_bytes()
    (tmp_path / "site.toml").unlink()
    opsctl("config", "init", "--dir", tmp_path)
    assert (tmp_path / "site.toml").read_bytes() == whole


def test_starters_overwrite_nothing(tmp_path):
    (tmp_path / "site.toml").write_text("mine")
    with pytest.raises(InputError) as caught:
        opsctl("config", "init", "--dir", tmp_path)
    assert caught.value.message == f"{tmp_path / 'site.toml'} is there already"
    assert [path.name for path in tmp_path.iterdir()] == ["site.toml"]


def test_files_that_are_fine_are_said_to_be(tmp_path):
    train = tmp_path / "t.toml"
    train.write_text('name = "t"\ncommand = ["x"]\n[slurm]\nnodes = 2\nprocesses_per_node = 4\ntime_limit = "9"\n')
    site = tmp_path / "s.toml"
    site.write_text('root = "/t"\n')
    assert opsctl("config", "check", train, site) == (
        f"{train}: fine: train t, 8 processes\n{site}: fine: a site with its trains below /t\n"
    )


def test_the_problems_of_all_files_are_said_together(tmp_path):
    (tmp_path / "a.toml").write_text('root = "/t"\nrooot = 1\n')
    (tmp_path / "b.toml").write_text('name = "t"\ncommand = ["{{ x }}"]\n[slurm]\nnodes = 2\ntime_limit = "9"\n')
    with pytest.raises(InputError) as caught:
        opsctl("config", "check", tmp_path / "a.toml", tmp_path / "b.toml")
    assert "rooot: unknown key; did you mean 'root'?" in caught.value.message
    assert "{{ x }}: unknown; known: " in caught.value.message


def test_a_site_that_lacks_its_root_is_still_taken_for_a_site(tmp_path):
    (tmp_path / "s.toml").write_text(
        'rot = "/t"\nengine = "slurm"\n[cron]\ntime_zone = "Mars/Olympus"\ndrivers = ["x"]\n'
    )
    with pytest.raises(InputError) as caught:
        opsctl("config", "check", tmp_path / "s.toml")
    assert caught.value.message.splitlines()[1:] == [
        "  root: missing",
        "  [cron.drivers] 0: Input should be 'slurm', 'daemon' or 'export', got 'x'",
        "  [cron] time_zone: 'Mars/Olympus' is not a time zone, such as Europe/Paris",
        "  rot: unknown key; did you mean 'root'?",
    ]


def test_a_key_that_is_wrong_in_itself_is_named_where_it_stands(tmp_path):
    (tmp_path / "t.toml").write_text(
        'name = "t"\ncommand = ["x"]\n[slurm]\nnodes = 1\ntime_limit = "9"\n[environment]\n"A B" = "x"\n'
    )
    with pytest.raises(InputError) as caught:
        opsctl("config", "check", tmp_path / "t.toml")
    assert caught.value.message.splitlines()[1] == "  [environment] A B: 'A B' is not the name of a variable"


def test_the_schema_of_a_train_knows_the_embedded_trainers_settings():
    schema = json.loads(opsctl("config", "schema", "train"))
    trainer = schema["$defs"][schema["properties"]["trainer"]["$ref"].rpartition("/")[2]]
    assert "steps" in trainer["properties"]
    assert trainer["additionalProperties"] is False
    text = json.dumps(schema)
    assert all(ref in schema["$defs"] for ref in _references(text))


def _references(text: str) -> list[str]:
    return [part.partition('"')[0] for part in text.split("#/$defs/")[1:]]


def test_the_schema_of_a_site_names_what_it_needs():
    assert json.loads(opsctl("config", "schema", "site"))["required"] == ["root"]


def test_starters_are_written_into_a_directory_that_is_made(tmp_path):
    opsctl("config", "init", "--dir", tmp_path / "new" / "run")
    assert (tmp_path / "new" / "run" / "train.toml").is_file()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_asks_opsctl(shell):
    assert "_OPSCTL_COMPLETE" in opsctl("completion", shell)


def test_the_completion_script_is_readable_to_bash():
    assert (
        subprocess.run(
            ["bash", "-n"], input=opsctl("completion", "bash"), text=True, timeout=100, check=False
        ).returncode
        == 0
    )
