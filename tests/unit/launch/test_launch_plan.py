"""From settings to a launch plan, without side effects."""

import json
from pathlib import Path

import pytest

from opsctl.base.errors import ConfigError, InputError
from opsctl.launch.launch_plan import job_spec, make_plan, render_body, trainer_json
from opsctl.launch.rank_wrapper import start_on_node
from opsctl.settings.loader import SiteSettings, TrainSettings, parse
from opsctl.state.run_dir import RunDir

RUN = RunDir(Path("/trains/gpt"))
SITE = SiteSettings(root="/trains")


def test_site_defaults_fill_missing_settings(train):
    site = parse(
        SiteSettings, {"root": "/t", "slurm": {"partition": "gpu", "account": "llm", "qos": "long"}}, "site.toml"
    )
    spec = job_spec(train(partition="debug"), site)
    assert (spec.partition, spec.account, spec.qos) == ("debug", "llm", "long")


def test_options_override_the_file(train):
    spec = job_spec(train(tasks=3, nice=1), SITE, tasks=9, nice=0, after="12")
    assert (spec.tasks, spec.nice, spec.after) == (9, 0, "12")


def test_excluded_nodes_are_added_to_those_of_the_file(train):
    assert job_spec(train(exclude="node[001-002]"), SITE, exclude="node003,node002").exclude == "node[001-003]"


def test_invalid_node_list_is_refused(train):
    with pytest.raises(InputError, match=r"'node\[1' is not a node list"):
        job_spec(train(), SITE, exclude="node[1")


def test_plan_is_deterministic(train):
    spec = job_spec(train(), SITE)
    first, second = (make_plan(train(), spec, RUN, nonce="n", python="/py", site_file=None) for _ in range(2))
    assert first == second
    assert first.comment == "opsctl:gpt:n"


def test_directives_precede_every_command(train):
    text = make_plan(train(), job_spec(train(), SITE), RUN, nonce="n", python="/py", site_file=None).wrapper
    lines = text.splitlines()
    commands = [number for number, line in enumerate(lines) if line and not line.startswith("#")]
    last = max(number for number, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert last < commands[0]


def test_embedded_trainer_uses_its_own_python(train):
    embedded = parse(
        TrainSettings,
        {"name": "gpt", "python": "/env/bin/python", "trainer": {}, "slurm": {"nodes": 1, "time_limit": "9"}},
        "train.toml",
    )
    text = render_body(embedded, RUN, python="/opsctl/python")
    assert "    /env/bin/python -P -m opsctl.trainer /trains/gpt/trainer.json || code=$?" in text
    assert start_on_node("/opsctl/python", RUN.rank_wrapper) + " --logs" in text


def test_braces_in_a_path_are_literal():
    embedded = parse(
        TrainSettings, {"name": "gpt", "trainer": {}, "slurm": {"nodes": 1, "time_limit": "9"}}, "train.toml"
    )
    assert "'/t/{{ x }}/gpt/trainer.json'" in render_body(embedded, RunDir(Path("/t/{{ x }}/gpt")), python="/py")


def test_unknown_placeholder_is_refused(train):
    with pytest.raises(
        ConfigError, match=r"command: 1 problem\n  {{ minutes }}: unknown; known: attempt, checkpoint_dir, "
    ):
        render_body(train({"command": ["x", "{{ minutes }}"]}), RUN, python="/py")


def test_relative_data_path_is_made_absolute():
    embedded = {
        "name": "gpt",
        "trainer": {"seed": 1, "data": {"prefix": "data/c"}},
        "slurm": {"nodes": 1, "time_limit": "9"},
    }
    written = json.loads(trainer_json(parse(TrainSettings, embedded, "t"), Path("/here")))
    assert written == {"seed": 1, "data": {"prefix": "/here/data/c"}}


def test_stages_and_weights_are_found_from_anywhere():
    stages = [{"from_sample": 5, "blend": [{"prefix": "late", "weight": 1.0}]}]
    embedded = {
        "name": "t",
        "trainer": {
            "steps": 1,
            "weights": "hf",
            "data": {"stages": stages},
            "evaluation": {"sets": [{"name": "a", "prefix": "b"}]},
        },
        "slurm": {"nodes": 1, "time_limit": "9"},
    }
    written = json.loads(trainer_json(parse(TrainSettings, embedded, "t"), Path("/here")))
    assert written["weights"] == "/here/hf"
    assert written["evaluation"]["sets"] == [{"name": "a", "prefix": "/here/b"}]
    assert written["data"]["stages"][0]["blend"] == [{"prefix": "/here/late", "weight": 1.0}]


def test_foreign_trainer_has_no_trainer_json(train):
    assert trainer_json(train(), Path("/here")) == ""
