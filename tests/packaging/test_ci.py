"""The workflow, the Containerfile and the lock, checked without running them."""

import itertools
import re
import shlex
import subprocess
import tomllib

import pytest
import yaml

from tests.packaging.conftest import ROOT

WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
LOCK = (ROOT / "requirements" / "dev.txt").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def list_workflow_steps():
    return list(itertools.chain.from_iterable(job["steps"] for job in WORKFLOW["jobs"].values()))


SCRIPTS = [step["run"] for step in list_workflow_steps() if "run" in step]


def test_workflow_covers_supported_versions():
    jobs = WORKFLOW["jobs"]
    pythons = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)}
    assert set(jobs["check"]["strategy"]["matrix"]["python"]) == pythons
    assert jobs["test"]["strategy"]["matrix"]["image"] == ["debian:12", "debian:13", "ubuntu:24.04"]


def test_workflow_runs_existing_targets():
    assert all(("run" in step) != ("uses" in step) for step in list_workflow_steps())
    lines = "\n".join(SCRIPTS).splitlines()
    targets = {shlex.split(line)[1] for line in lines if line.startswith("make ")}
    assert targets == {"check", "test", "demo", "docs", "lowest", "audit"}
    assert targets <= TARGETS


@pytest.mark.parametrize("script", SCRIPTS)
def test_workflow_script_is_shell(script):
    subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=250)


def test_containerfile_copies_existing_files():
    text = (ROOT / "Containerfile").read_text().replace("\\\n", " ")
    words = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    assert {word for word, _ in words} <= {"FROM", "RUN", "COPY", "USER", "WORKDIR", "CMD"}
    for word, rest in words:
        if word == "COPY":
            assert (ROOT / rest.split()[0]).exists()
        if word == "RUN":
            subprocess.run(["bash", "-n"], input=rest, text=True, check=True, timeout=250)


def test_lock_names_no_index():
    assert re.findall(r"(?m)^--?[a-z].*|\w+://\S+", LOCK) == []


def test_every_locked_package_has_hashes():
    entries = re.split(r"\n(?=[a-z0-9])", LOCK.strip())
    assert len(entries) > 50
    assert [entry.partition(" ")[0] for entry in entries if "--hash=sha256:" not in entry] == []


def test_lock_holds_the_core_dependencies():
    locked = set(re.findall(r"(?m)^([a-z0-9-]+)==", LOCK))
    wanted = {re.split(r"[<>=!~;\[ ]", line)[0].lower().replace("_", "-") for line in PROJECT["dependencies"]}
    assert wanted <= locked
    assert not {"torch", "deepspeed", "triton"} & locked
