"""Rendered scripts for a reviewer to read. This test shows every change; other tests judge the scripts.

After an intended change, `python tests/integration/shell/golden/test_golden.py` writes the files anew.
"""

from pathlib import Path
from typing import get_args

import pytest

import opsctl
from opsctl.launch.launch_plan import job_spec, make_plan
from opsctl.settings.container import ContainerRuntime
from opsctl.settings.loader import SiteSettings, TrainSettings, load_train, parse
from opsctl.state.run_dir import RunDir

PACKAGE = str(Path(opsctl.__file__).resolve().parent)
HERE = Path(__file__).parent
EXAMPLES = HERE.parents[3] / "examples"
SITE = parse(SiteSettings, {"root": "/scratch/trains", "slurm": {"partition": "gpu", "account": "llm"}}, "site.toml")

RUNTIMES = get_args(ContainerRuntime)


def make_hostile_train() -> TrainSettings:
    """Return a valid train whose settings are as hostile as possible."""
    return parse(
        TrainSettings,
        {
            "name": "x-1.y_z",
            "command": ["run it", "$(id)", "it's", "{{ stop_request }}", "new\nline", ""],
            "slurm": {"nodes": 1, "time_limit": "1-02:03:04", "extra": ["--switches=1@5:00"], "exclude": "n[1-3]"},
            "environment": {"A": "`id` \"$x\" 'y'", "B": "ü\n"},
            "setup": {"modules": ["cuda/12", "x;y"], "lines": ["source /opt/env", "ulimit -c 0"]},
        },
        "train.toml",
    )


def make_container_train(runtime: str) -> TrainSettings:
    """Return a train in a container, with settings as hostile as possible."""
    return parse(
        TrainSettings,
        {
            "name": runtime,
            "command": ["python", "train.py", "{{ python }}", "it's"],
            "slurm": {"nodes": 1, "time_limit": "10"},
            "environment": {"A": "x y"},
            "setup": {"directory": "/work/my code"},
            "container": {
                "runtime": runtime,
                "image": "/images/it's $(id).sqsh",
                "mounts": ["/data:/da ta:ro"],
                "options": ['--env=X=$(id)"$PWD"', "--nv"],
            },
        },
        "train.toml",
    )


def render_all() -> dict[str, str]:
    trains = {"tiny-gpt": load_train(EXAMPLES / "tiny-gpt.toml"), "hostile": make_hostile_train()}
    trains |= {runtime: make_container_train(runtime) for runtime in RUNTIMES}
    files = {}
    for name, train in trains.items():
        spec = job_spec(train, SITE, after="1234" if name == "hostile" else "")
        run = RunDir(SITE.root_path / train.name)
        python, site_file = "/opt/opsctl/bin/python", Path("/etc/opsctl/site.toml")
        plan = make_plan(train, spec, run, nonce="0", python=python, site_file=site_file)
        files[f"{name}.body.sh"] = plan.body.replace(PACKAGE, "/opt/opsctl/lib/opsctl")
        if name not in RUNTIMES:
            files[f"{name}.wrapper.slurm"] = plan.wrapper
    return files


@pytest.mark.parametrize(("name", "text"), render_all().items(), ids=render_all())
def test_rendered_scripts_are_as_reviewed(name: str, text: str) -> None:
    assert (HERE / name).read_text() == text, (
        "for an intended change run: python tests/integration/shell/golden/test_golden.py"
    )


if __name__ == "__main__":
    for file, content in render_all().items():
        (HERE / file).write_text(content)
