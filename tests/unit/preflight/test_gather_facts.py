"""Facts gathered from real files."""

import json
import os
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from opsctl.base.errors import MissingProgram
from opsctl.base.model import Job, JobState, Limits
from opsctl.base.ports import Completed, TimedOut
from opsctl.checkpoints.catalog import size_of
from opsctl.host.system import SystemRunner
from opsctl.launch.launch_plan import job_spec
from opsctl.nodes.health.node_state import Card
from opsctl.nodes.history import NodeRecord
from opsctl.preflight.checks import CHECKS
from opsctl.preflight.facts import ClusterFacts, Facts
from opsctl.preflight.gather_facts import LaunchPlace, gather, gather_cluster
from opsctl.preflight.problem import LaunchRequest, ProblemSeverity
from opsctl.preflight.recipe import Recipe, read_recipe
from opsctl.settings.loader import SiteSettings, TrainSettings, load_train, parse
from opsctl.settings.watch import Filesystem
from opsctl.slurm.commands import Slurm
from opsctl.state.run_dir import RunDir
from opsctl.state.switches import Switch, arm
from opsctl.trainer import manifest
from opsctl.trainer.indexed_corpus import write_corpus
from opsctl.trainer.manifest import Manifest
from tests.support.cases import read_cases, read_table

CORPUS = Path(__file__).parents[2] / "corpus"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LIMITS = Limits(version="22.05.8", cluster="c", max_array_size=1001, priority="", accounting=False)
TINY = Path(__file__).parents[3] / "examples" / "tiny-gpt.toml"
FOREIGN = read_table(__file__, "foreign")


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "trains" / "t")
    run.create()
    return run


@pytest.fixture
def gather_train(tmp_path, run):
    """A function that gathers the facts of a train, from a file or from its text."""

    def gather_facts(train, *, history=(), filesystems=(), slurm=None):
        if isinstance(train, str):
            (tmp_path / "t.toml").write_text(train)
            train = tmp_path / "t.toml"
        config = load_train(train)
        request = LaunchRequest(
            train=config, spec=job_spec(config, SiteSettings(root="/t")), recipe=read_recipe(config)
        )
        place = LaunchPlace(
            run=run,
            base=tmp_path,
            filesystems=filesystems,
            measured=tmp_path,
            history=history,
            runner=SystemRunner(),
            user="me",
            now=NOW,
        )
        return gather(request, place, slurm, {})

    return gather_facts


def test_embedded_corpus_is_relative_to_the_launch(gather_train, tmp_path):
    text = TINY.read_text().replace("../build", "build")
    assert gather_train(text).corpora[0].missing == ("corpus.bin", "corpus.idx")
    write_corpus([np.arange(50)], tmp_path / "build" / "demo" / "corpus", vocabulary=257)
    assert gather_train(text).corpora[0].tokens == 50


def test_foreign_files_are_relative_to_the_run_directory(gather_train, run):
    (run.path / "train.sh").write_text("NNODES=4\n")
    (run.path / "ds.json").write_text('{"train_batch_size": 16}')
    (run.path / "kill").touch()
    facts = gather_train(FOREIGN)
    assert facts.scripts == {"train.sh": "NNODES=4\n"}
    assert facts.files == {"./tok": False, "kill": True}
    assert facts.corpora[0].missing == ("corpus.bin", "corpus.idx")


def test_armed_switches_are_read(gather_train, run):
    arm(run, Switch.KILL, why="wrong rate")
    arm(run, Switch.SAVE, why="")
    assert [(switch.switch, switch.why) for switch in gather_train(TINY).switches] == [("kill", "wrong rate")]


def test_free_space_is_the_reliable_share(gather_train, tmp_path):
    here = os.statvfs(tmp_path)
    free = gather_train(TINY).free_space.free
    assert free == pytest.approx(here.f_bavail * here.f_frsize, rel=0.05)
    scratch = Filesystem(name="scratch", path=str(tmp_path), reliable_percent=80)
    free_space = gather_train(TINY, filesystems=(scratch,)).free_space
    assert (free_space.filesystem, free_space.free < free) == ("scratch", True)


def test_percentages_give_no_free_space(gather_train, tmp_path):
    quota = Filesystem(
        name="work", path=str(tmp_path), by="command", command=("echo", "85%"), pattern=r"(?P<percent>\d+)%"
    )
    facts = gather_train(TINY, filesystems=(quota,))
    assert (facts.free_space, facts.unknown) == (None, {"free space of work": "only percentages are known"})


def test_newest_checkpoint_is_read_from_its_manifest(gather_train, run):
    for step in (50, 100):
        path = run.checkpoints / manifest.directory_name(step)
        path.mkdir()
        record = Manifest(
            step=step,
            consumed_samples=0,
            topology={"pipeline": 2},
            model={"layers": 4},
            precision="bf16",
            save_s=3.0,
            files={"a": manifest.FileRecord(size=10, sha256="")},
        )
        manifest.write_manifest(path, record)
    facts = gather_train(TINY)
    saved = facts.saved
    assert (saved.step, facts.saved_count, size_of(saved), saved.save_s) == (100, 2, 10, 3.0)
    assert (saved.topology, saved.model) == ({"pipeline": 2}, {"layers": 4})


def test_step_time_is_read_from_the_log(gather_train, run):
    line = "iteration {}/ 150 | elapsed time per iteration (s): {} | lm loss: 2.0E+00 |\n"
    run.main_log.write_text("".join(line.format(n, 0.5) for n in range(1, 6)) + line.format(6, 30))
    assert gather_train(TINY).step_s == 0.5


def test_versions_come_from_the_last_attempt(gather_train, run):
    for name, version in (("1_1.0", "2.14.3"), ("1_2.0", "2.18.1")):
        repro = run.attempt(name).repro
        repro.mkdir(parents=True)
        (repro / "packages.txt").write_text(f"torch==2.1.0\nnvidia-nccl-cu12=={version}\n-e git+x\n")
        os.utime(repro.parent, (int(version[2:4]), int(version[2:4])))
    assert gather_train(FOREIGN).versions == {"torch": "2.1.0", "nccl": "2.18.1"}


def test_versions_come_from_the_trains_interpreter(gather_train, tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"torch": "2.7.0", "nvidia-nccl-cu12": "2.26.2"}\'\n')
    python.chmod(0o755)
    text = TINY.read_text().replace('name = "tiny-gpt"', f'name = "tiny-gpt"\npython = "{python}"')
    assert gather_train(text).versions == {"torch": "2.7.0", "nccl": "2.26.2"}


def test_nodes_have_their_last_observation(gather_train):
    card = Card(uuid="GPU-1", serial="", bus="", name="NVIDIA H100 80GB HBM3")
    records = [NodeRecord(node="n1", cards=(card,), driver="535.1", shm_kb=100), NodeRecord(node="n2")]
    facts = gather_train(FOREIGN, history=records)
    assert [(node.node, node.gpu_names, node.driver, node.shm_kb) for node in facts.observed_nodes] == [
        ("n1", ("NVIDIA H100 80GB HBM3",), "535.1", 100),
        ("n2", (), "", None),
    ]
    assert facts.gpu == "H100"


def test_excluded_nodes_are_left_out(gather_train):
    records = [NodeRecord(node="n1", driver="535.1"), NodeRecord(node="n2", driver="470.1")]
    facts = gather_train(FOREIGN + 'exclude = "n2"\n', history=records).observed_nodes
    assert [node.node for node in facts] == ["n1"]


def test_innermost_file_system_is_chosen(gather_train, tmp_path):
    outer = Filesystem(name="outer", path=str(tmp_path))
    inner = Filesystem(name="inner", path=str(tmp_path / "trains"))
    beside = Filesystem(name="beside", path=str(tmp_path / "elsewhere, with a long name"))
    Path(beside.path).mkdir()
    assert gather_train(TINY, filesystems=(outer, inner, beside)).free_space.filesystem == "inner"
    assert gather_train(TINY, filesystems=(beside,)).free_space.filesystem == "beside"


def test_unmeasured_du_is_unknown_and_starts_no_du(gather_train, tmp_path):
    slow = Filesystem(name="slow", path=str(tmp_path), by="du", limit=10**12)
    assert gather_train(TINY, filesystems=(slow,)).unknown == {
        "free space of slow": "opsctl watch has not measured this file system yet"
    }
    (tmp_path / "du-slow").write_text(f"B 1000\t{tmp_path}\nI 10\t{tmp_path}\n")
    os.utime(tmp_path / "du-slow", (0, 0))
    assert gather_train(TINY, filesystems=(slow,)).free_space.free == 10**12 - 1000
    assert not (tmp_path / "du-slow.running").exists()


@pytest.mark.parametrize("save", ["--save-folder=PLACE/x", "-x a.yaml", "--save PLACE/y"])
def test_free_space_is_that_of_the_save_directory(gather_train, tmp_path, run, save):
    (tmp_path / "big").mkdir()
    (run.path / "a.yaml").write_text(f"save_dir: {tmp_path}/big/z\n")
    words = save.replace("PLACE", f"{tmp_path}/big").split()
    text = FOREIGN.replace('"./tok"]', f'"./tok", {json.dumps(words)[1:]}')
    big = Filesystem(name="big", path=str(tmp_path / "big"))
    assert gather_train(text, filesystems=(big,)).free_space.filesystem == "big"


def test_too_long_paths_are_unknown(gather_train):
    long = "/" + "x" * 300
    text = FOREIGN.replace('"corpus"', f'"{long}", "--save", "{long}"').replace('"kill"', f'"{long}"')
    facts = gather_train(text.replace('"./tok"', f'"{long}"'))
    assert (facts.files, facts.tokenizers, facts.free_space.filesystem) == ({}, {long: None}, "/")
    assert "File name too long" in facts.corpora[0].problem


def test_gathering_changes_no_file(gather_train, tmp_path, run):
    before = sorted(tmp_path.rglob("*"))
    gather_train(TINY)
    gather_train(FOREIGN)
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "t.toml"])


SHORT = read_table(__file__, "short")


@pytest.mark.parametrize(*read_cases(__file__, "misplaced_files_of_the_command_are_found"))
def test_misplaced_files_of_the_command_are_found(gather_train, run, command, setup, expected):
    tmp_path = run.path.parents[1]
    for name in ("train.py", "train", "conf/a.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (run.path / "own.py").touch()
    misplaced = gather_train(
        SHORT.format(command=json.dumps(command), setup=setup.replace("CODE", str(tmp_path)))
    ).misplaced_paths
    assert [(path.path, path.here) for path in misplaced] == [
        (path, str(tmp_path) if here else "") for path, here in expected
    ]


def test_container_has_its_own_files(gather_train, tmp_path):
    (tmp_path / "train.py").touch()
    text = SHORT.format(command='["python3", "train.py"]', setup="")
    assert gather_train(text).misplaced_paths
    assert not gather_train(
        text.replace("nodes = 1", 'nodes = 1\nextra = ["--container-image=a.sqsh"]')
    ).misplaced_paths


def test_missing_start_directory_is_found(gather_train):
    assert gather_train(SHORT.format(command='["python3"]', setup='directory = "/gone"')).files == {"/gone": False}


def test_unknown_trainer_has_no_workers(gather_train, tmp_path):
    text = SHORT.format(command='["python3"]', setup="")
    gather_train(text.replace("gpus_per_node = 8", "gpus_per_node = 8\ncpus_per_process = 16"))
    config = load_train(tmp_path / "t.toml")
    request = LaunchRequest(train=config, spec=job_spec(config, SiteSettings(root="/t")), recipe=read_recipe(config))
    assert list(CHECKS["cpus"](request, Facts(now=NOW, user="me"))) == []


@dataclass(frozen=True)
class Recorded:
    """Answers with recorded output of an empty cluster. sacctmgr fails with `fails`."""

    fails: str | Exception

    def run(self, argv, *, timeout, stdin="", env=None):
        if argv[0] == "sacctmgr" and isinstance(self.fails, Exception):
            raise self.fails
        if argv[0] == "sacctmgr":
            return Completed(argv=argv, code=1, out="", err=(CORPUS / "stderr/22.05.8" / self.fails).read_text())
        config = (CORPUS / "scontrol/22.05.8/config.txt").read_text()
        return Completed(argv=argv, code=0, out=config if argv[-1] == "config" else "", err="")


@pytest.mark.parametrize(
    ("fails", "account", "unavailable"),
    [
        (MissingProgram("sacctmgr: is not on PATH"), "", ["sacctmgr: is not on PATH"]),
        (TimedOut(("sacctmgr",), 10), "llm", ["sacctmgr did not answer within 10 s"]),
        ("accounts-without-accounting.txt", "llm", ["this Slurm has no accounting and accepts any name"]),
        ("accounts-without-accounting.txt", "", []),
    ],
)
def test_failing_accounting_is_unavailable_alone(gather_train, fails, account, unavailable):
    text = FOREIGN + (f'account = "{account}"\n' if account else "")
    spec = job_spec(parse(TrainSettings, tomllib.loads(text), "t.toml"), SiteSettings(root="/t"))
    cluster_facts = gather_cluster(Slurm(Recorded(fails)), spec, "me")
    assert (
        cluster_facts.accounting,
        cluster_facts.limits.max_array_size,
        list(cluster_facts.unavailable.values()),
    ) == (
        None,
        1001,
        unavailable,
    )
    assert set(unavailable) <= set(gather_train(FOREIGN, slurm=cluster_facts).unknown.values())


@pytest.mark.parametrize(*read_cases(__file__, "directory_of_another_queued_train_is_known", state=JobState))
def test_directory_of_another_queued_train_is_known(gather_train, tmp_path, theirs, state, is_shared):
    text = """name = "{}"
command = ["python", "train.py", "--output_dir", "{}"]
[slurm]
nodes = 1
time_limit = "60"
"""
    other = RunDir(tmp_path / "trains" / "other")
    other.create()
    other.config.write_text(text.format("other", (tmp_path / theirs).resolve()))
    job = Job(id="7", array="7", name="other", user="me", state=state, comment="opsctl:other:n1")
    own = Job(id="8", array="8", name="t", user="me", state=JobState.PENDING, comment="opsctl:t:n2")
    slurm = ClusterFacts(partitions=(), limits=LIMITS, nodes=(), jobs=(job, own))
    facts = gather_train(text.format("t", tmp_path / "outputs"), slurm=slurm)
    assert [shared.train for shared in facts.shared_saves] == ["other"] * is_shared
    (tmp_path / "own.toml").write_text(text.format("t", tmp_path / "outputs"))
    train = load_train(tmp_path / "own.toml")
    request = LaunchRequest(train=train, spec=job_spec(train, SiteSettings(root="/t")), recipe=Recipe())
    assert [problem.severity for problem in CHECKS["save"](request, facts)] == [ProblemSeverity.WARNING] * is_shared


LLAMA = {
    "model_type": "llama",
    "vocab_size": 264,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "max_position_embeddings": 64,
}


BEGINS_WITH_WEIGHTS = read_table(__file__, "begins_with_weights")


def test_weights_are_compared_with_the_model(tmp_path, gather_train):
    """The path is relative to the TRAIN.toml, as those of the corpora."""
    train = BEGINS_WITH_WEIGHTS.replace("HIDDEN", "32")
    assert "has neither model.safetensors" in gather_train(train).weights_problem
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "model.safetensors").touch()
    (tmp_path / "hf" / "config.json").write_text(json.dumps(LLAMA))
    assert not gather_train(train).weights_problem
    other = BEGINS_WITH_WEIGHTS.replace("HIDDEN", "64")
    assert "hidden is 32 there and 64 here" in gather_train(other).weights_problem
    assert not gather_train(TINY).weights_problem
