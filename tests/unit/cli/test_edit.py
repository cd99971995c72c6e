"""`opsctl edit` without Slurm. The rest: tests/integration/slurm/test_queue_commands.py."""

import pytest
from click.testing import CliRunner

from opsctl.base.errors import ConfigError
from opsctl.cli import cli
from opsctl.state.run_dir import RunDir

TRAIN = 'name = "gpt"\ncommand = ["true"]\n[slurm]\nnodes = 1\ntime_limit = "9"\n'


@pytest.fixture
def edit(tmp_path, monkeypatch):
    """Return `edit(more, *words)`: a dry run that appends the lines `more` to train.toml."""
    monkeypatch.setenv("OPSCTL_ROOT", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    run = RunDir(tmp_path / "gpt")
    run.create()
    run.write(run.config, TRAIN)

    def dry_run(more, *words):
        changed = tmp_path / "changed.toml"
        changed.write_text(TRAIN + more)
        return CliRunner().invoke(cli, ["edit", "gpt", str(changed), "--dry-run", *words], standalone_mode=False)

    return dry_run


def test_secret_in_environment_is_refused(edit):
    result = edit('[environment]\nWANDB_API_KEY = "hunter2"\n')
    assert isinstance(result.exception, ConfigError)
    (problem,) = result.exception.problems
    assert problem.startswith("[environment] WANDB_API_KEY: every user could read the value in body.sh\n")
    assert "hunter2" not in result.output + result.exception.message


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM"])
def test_other_variables_may_be_changed(edit, name):
    result = edit(f'[environment]\n{name} = "4"\n')
    assert result.exception is None
    assert f"+export {name}=4" in result.output


def test_edit_runs_preflight(edit):
    result = edit('[setup]\nlines = ["export HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz"]\n')
    assert "HF_TOKEN" in result.exception.problems[0]
    assert "hf_abc" not in result.output + result.exception.message


def test_allowed_error_is_a_warning_of_edit(edit):
    result = edit('[environment]\nHF_TOKEN = "x"\n', "--allow", "secrets")
    assert result.exception is None
    assert "gpt: warning (an error, allowed by --allow): [environment] HF_TOKEN" in result.stderr


def test_unknown_check_is_not_allowed(edit):
    result = edit("", "--allow", "secret")
    assert (result.exception.message, result.exception.hint) == (
        "--allow secret: there is no such check",
        "did you mean secrets?",
    )


def test_check_of_opsctl_itself_must_pass(edit):
    result = edit('[preflight]\nallow = ["extra"]\n')
    assert "[preflight] allow extra: this check must pass" in result.exception.message
