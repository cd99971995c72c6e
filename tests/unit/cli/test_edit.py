"""`opsctl edit` without Slurm. The rest: tests/integration/slurm/test_queue_commands.py."""

import pytest
from click.testing import CliRunner

from opsctl.cli import cli
from opsctl.errors import ConfigError
from opsctl.state.run_dir import RunDir

TRAIN = 'name = "gpt"\ncommand = ["true"]\n[slurm]\nnodes = 1\ntime_limit = "9"\n'


@pytest.fixture
def edit(tmp_path, monkeypatch):
    """Return `edit(more)`: a dry run that appends the lines `more` to train.toml."""
    monkeypatch.setenv("OPSCTL_ROOT", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    run = RunDir(tmp_path / "gpt")
    run.create()
    run.write(run.config, TRAIN)

    def dry_run(more):
        changed = tmp_path / "changed.toml"
        changed.write_text(TRAIN + more)
        return CliRunner().invoke(cli, ["edit", "gpt", str(changed), "--dry-run"], standalone_mode=False)

    return dry_run


def test_secret_in_environment_is_refused(edit):
    result = edit('[environment]\nWANDB_API_KEY = "hunter2"\n')
    assert isinstance(result.exception, ConfigError)
    assert result.exception.problems == (
        "[environment] WANDB_API_KEY: would be readable by all in body.sh; put the value in a file and `source` it in"
        " [setup]",
    )
    assert "hunter2" not in result.output + result.exception.message


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM"])
def test_other_variables_may_be_changed(edit, name):
    result = edit(f'[environment]\n{name} = "4"\n')
    assert result.exception is None
    assert f"+export {name}=4" in result.output
