"""What Slurm and bash get, for a reviewer to read. It shows every change; other tests tell right from wrong.

After a change that is meant: `python tests/integration/shell/golden/test_golden.py` writes the files anew.
"""

from pathlib import Path

import pytest

from opsctl.launch.launch_plan import job_spec, make_plan
from opsctl.settings.loader import SiteSettings, TrainSettings, load_train, parse
from opsctl.state.run_dir import RunDir

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[3] / "examples"
SITE = parse(SiteSettings, {"root": "/scratch/trains", "slurm": {"partition": "gpu", "account": "llm"}}, "site.toml")


def hostile() -> TrainSettings:
    """Whatever may be hostile in a train that is valid."""
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


def rendered() -> dict[str, str]:
    trains = {"tiny-gpt": load_train(EXAMPLES / "tiny-gpt.toml"), "hostile": hostile()}
    files = {}
    for name, train in trains.items():
        spec = job_spec(train, SITE, after="1234" if name == "hostile" else "")
        run = RunDir(SITE.root_path / train.name)
        python, site_file = "/opt/opsctl/bin/python", Path("/etc/opsctl/site.toml")
        made = make_plan(train, spec, run, nonce="0", python=python, site_file=site_file)
        files |= {f"{name}.wrapper.slurm": made.wrapper, f"{name}.body.sh": made.body}
    return files


@pytest.mark.parametrize(("name", "text"), rendered().items(), ids=rendered())
def test_what_is_rendered_is_as_it_was_reviewed(name: str, text: str) -> None:
    assert (HERE / name).read_text() == text, "if that is meant: python tests/integration/shell/golden/test_golden.py"


if __name__ == "__main__":
    for file, content in rendered().items():
        (HERE / file).write_text(content)
