"""Directives, command lines and templates. `pytest tests/unit/test_render.py`"""

import shlex

import pytest
from jinja2 import UndefinedError

from opsctl.base.errors import ConfigError, InputError
from opsctl.base.model import JobSpec
from opsctl.launch.render import command_line, directives, read_job_variables, render, templates_dir
from tests.support.cases import read_table
from tests.support.hostile_words import HOSTILE_WORDS

SMALL = {"name": "gpt", "nodes": 2, "processes_per_node": 4, "cpus_per_process": 3, "time_limit": "2:00:00", "tasks": 5}


def test_job_is_a_serial_array_without_requeue() -> None:
    assert directives(JobSpec(**SMALL)) == [
        "--job-name=gpt",
        "--array=1-5%1",
        "--nodes=2",
        "--ntasks-per-node=4",
        "--cpus-per-task=3",
        "--time=2:00:00",
        "--no-requeue",
    ]


def test_every_setting_has_its_directive() -> None:
    settings = read_table(__file__, "every_setting")
    spec = JobSpec(**SMALL, **settings["spec"], extra=("--switches=1", "--comment-is-not-this"))
    assert directives(spec)[6:] == settings["directives"]


def test_niceness_zero_is_written() -> None:
    assert "--nice=0" in directives(JobSpec(**SMALL, nice=0))


@pytest.mark.parametrize("field", ["name", "partition", "constraint", "exclude", "after", "time_limit"])
def test_newline_never_becomes_a_directive(field: str) -> None:
    with pytest.raises(InputError, match="contains white space, which would start another #SBATCH option"):
        JobSpec(**{**SMALL, field: "x\n#SBATCH --uid=0"})


def test_words_arrive_unchanged() -> None:
    assert shlex.split(command_line(HOSTILE_WORDS)) == HOSTILE_WORDS


def test_placeholder_becomes_a_variable_of_the_attempt() -> None:
    assert command_line(["--stop={{ stop_request }}", "{{nodes}}"]) == '--stop="${TRAIN_STOP_REQUEST:-}" "${NNODES:-}"'


def test_text_around_a_placeholder_is_quoted() -> None:
    assert command_line(["$x {{ attempt }} `y`"]) == "'$x '\"${TRAIN_ATTEMPT:-}\"' `y`'"


def test_known_value_is_inserted_literally() -> None:
    assert command_line(["{{ a }}/{{ attempt }}"], {"a": "{{ nodes }}"}) == "'{{ nodes }}/'\"${TRAIN_ATTEMPT:-}\""


def test_unknown_placeholder_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        command_line(["{{ nodez }}", "x{{ Attempt }}"], {"python": "p"})
    known = ", ".join(sorted([*read_job_variables()["placeholders"], "python"]))
    assert caught.value.problems == (
        f"{{{{ Attempt }}}}: unknown; known: {known}",
        f"{{{{ nodez }}}}: unknown; known: {known}",
    )


def test_template_with_an_undefined_name_fails() -> None:
    with pytest.raises(UndefinedError):
        render("slurm/body.sh.j2", name="gpt")


def test_templates_exist() -> None:
    assert (templates_dir() / "slurm" / "body.sh.j2").is_file()
