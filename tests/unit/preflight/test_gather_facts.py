"""What is found out, from real files."""

import json
import os
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from opsctl.errors import MissingProgram
from opsctl.host.system import SystemRunner
from opsctl.launch.launch_plan import job_spec
from opsctl.nodes.history import Card, NodeRecord
from opsctl.ports import Completed, TimedOut
from opsctl.preflight import corpus_files
from opsctl.preflight.checks import settings
from opsctl.preflight.facts import Facts
from opsctl.preflight.gather_facts import LaunchPlace, gather, gather_cluster
from opsctl.preflight.problem import LaunchRequest
from opsctl.preflight.recipe import read_recipe
from opsctl.scheduler.slurm import Slurm
from opsctl.settings.loader import SiteSettings, TrainSettings, load_train, parse
from opsctl.settings.watch import Filesystem
from opsctl.state.run_dir import RunDir
from opsctl.state.switches import Switch, arm
from opsctl.trainer import manifest
from opsctl.trainer.indexed_corpus import write_corpus
from opsctl.trainer.manifest import Manifest

CORPUS = Path(__file__).parents[2] / "corpus"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
TINY = Path(__file__).parents[3] / "examples" / "tiny-gpt.toml"
FOREIGN = """name = "t"
command = ["bash", "train.sh", "--deepspeed_config", "ds.json", "--data-path", "corpus", "--kill-switch-path", "kill",
           "--tokenizer-name-or-path", "./tok"]
[slurm]
nodes = 2
time_limit = "60"
gpus_per_node = 8
"""


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "trains" / "t")
    run.create()
    return run


@pytest.fixture
def look(tmp_path, run):
    """What is gathered for the train in a file, or of this text."""

    def do(train, *, history=(), filesystems=(), slurm=None):
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

    return do


@pytest.mark.parametrize("vocabulary", [257, 70_000])
def test_a_corpus_is_known_by_its_header(tmp_path, vocabulary):
    documents = [np.arange(5), np.arange(1000), np.arange(7)]
    write_corpus(documents, tmp_path / "c", vocabulary=vocabulary, facts={"tokenizer": "bytes"})
    corpus_facts = corpus_files.read(tmp_path / "c", "c")
    assert (corpus_facts.tokens, corpus_facts.width, corpus_facts.vocabulary) == (
        1012,
        2 if vocabulary < 65500 else 4,
        vocabulary,
    )
    assert (corpus_facts.tokenizer, corpus_facts.missing, corpus_facts.problem) == ("bytes", (), "")


def test_a_corpus_whose_data_were_cut_short_is_told(tmp_path):
    write_corpus([np.arange(1000)], tmp_path / "c", vocabulary=257)
    os.truncate(tmp_path / "c.bin", 1500)
    assert corpus_files.read(tmp_path / "c", "c").problem == "c.bin has 1500 bytes, but its index records 2000"


def test_a_corpus_whose_index_was_cut_short_is_told(tmp_path):
    write_corpus([np.arange(1000)], tmp_path / "c", vocabulary=257)
    os.truncate(tmp_path / "c.idx", 40)
    assert (
        corpus_files.read(tmp_path / "c", "c").problem
        == "c.idx has 40 bytes, and should have 62: the file is truncated"
    )


def test_what_is_no_index_is_told(tmp_path):
    (tmp_path / "c.bin").touch()
    (tmp_path / "c.idx").write_text("hello")
    assert corpus_files.read(tmp_path / "c", "c").problem == "c.idx is not an index in Megatron's format"


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ({"type": "BPE", "vocab": {"a": 0, "b": 7}}, 11),
        ({"type": "Unigram", "vocab": [["a", 0.0]] * 20}, 20),
        ({"type": "BPE"}, None),
    ],
)
def test_a_tokenizer_knows_one_token_more_than_its_highest_number(tmp_path, model, known):
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": model, "added_tokens": [{"id": 10}]}))
    assert corpus_files.tokenizer_size(tmp_path) == known


def test_a_corpus_of_the_embedded_trainer_lies_where_launch_is_typed(look, tmp_path):
    assert look(TINY).corpora[0].missing == ("corpus.bin", "corpus.idx")
    write_corpus([np.arange(50)], tmp_path / "build" / "demo" / "corpus", vocabulary=257)
    assert look(TINY).corpora[0].tokens == 50


def test_what_a_foreign_command_names_is_looked_for_in_the_run_directory(look, run):
    (run.path / "train.sh").write_text("NNODES=4\n")
    (run.path / "ds.json").write_text('{"train_batch_size": 16}')
    (run.path / "kill").touch()
    facts = look(FOREIGN)
    assert (facts.scripts, facts.deepspeed) == ({"train.sh": "NNODES=4\n"}, {"train_batch_size": 16})
    assert facts.files == {"./tok": False, "kill": True}
    assert facts.corpora[0].missing == ("corpus.bin", "corpus.idx")


def test_switches_that_are_armed_are_seen(look, run):
    arm(run, Switch.KILL, why="wrong rate")
    arm(run, Switch.SAVE, why="")
    assert [(switch.switch, switch.why) for switch in look(TINY).switches] == [("kill", "wrong rate")]


def test_room_is_that_of_the_file_system_less_what_cannot_be_relied_upon(look, tmp_path):
    here = os.statvfs(tmp_path)
    free = look(TINY).free_space.free
    assert free == pytest.approx(here.f_bavail * here.f_frsize, rel=0.05)
    scratch = Filesystem(name="scratch", path=str(tmp_path), reliable_percent=80)
    free_space = look(TINY, filesystems=(scratch,)).free_space
    assert (free_space.filesystem, free_space.free < free) == ("scratch", True)


def test_figures_that_are_shares_say_nothing_of_room(look, tmp_path):
    quota = Filesystem(
        name="work", path=str(tmp_path), by="command", command=("echo", "85%"), pattern=r"(?P<percent>\d+)%"
    )
    facts = look(TINY, filesystems=(quota,))
    assert (facts.free_space, facts.unknown) == (None, {"free space of work": "only percentages are known"})


def test_the_newest_checkpoint_is_known_by_its_manifest(look, run):
    for step in (50, 100):
        path = run.checkpoints / manifest.directory_name(step)
        path.mkdir()
        held = Manifest(
            step=step,
            consumed_samples=0,
            topology={"pipeline": 2},
            model={"layers": 4},
            precision="bf16",
            save_s=3.0,
            files={"a": manifest.FileRecord(size=10, sha256="")},
        )
        manifest.write_manifest(path, held)
    saved = look(TINY).saved
    assert (saved.step, saved.count, saved.size, saved.save_s) == (100, 2, 10, 3.0)
    assert (saved.topology, saved.model) == ({"pipeline": 2}, {"layers": 4})


def test_the_time_of_a_step_is_the_logs(look, run):
    line = "iteration {}/ 150 | elapsed time per iteration (s): {} | lm loss: 2.0E+00 |\n"
    run.main_log.write_text("".join(line.format(n, 0.5) for n in range(1, 6)) + line.format(6, 30))
    assert look(TINY).step_s == 0.5


def test_versions_are_those_of_the_last_attempt(look, run):
    for name, version in (("1_1.0", "2.14.3"), ("1_2.0", "2.18.1")):
        repro = run.attempt(name).repro
        repro.mkdir(parents=True)
        (repro / "packages.txt").write_text(f"torch==2.1.0\nnvidia-nccl-cu12=={version}\n-e git+x\n")
        os.utime(repro.parent, (int(version[2:4]), int(version[2:4])))
    assert look(FOREIGN).versions == {"torch": "2.1.0", "nccl": "2.18.1"}


def test_another_interpreter_is_asked_what_it_has(look, tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"torch": "2.7.0", "nvidia-nccl-cu12": "2.26.2"}\'\n')
    python.chmod(0o755)
    text = TINY.read_text().replace('name = "tiny-gpt"', f'name = "tiny-gpt"\npython = "{python}"')
    assert look(text).versions == {"torch": "2.7.0", "nccl": "2.26.2"}


def test_nodes_are_as_they_were_seen_last(look):
    card = Card(uuid="GPU-1", serial="", bus="", name="NVIDIA H100 80GB HBM3")
    records = [NodeRecord(node="n1", cards=(card,), driver="535.1", shm_kb=100), NodeRecord(node="n2")]
    facts = look(FOREIGN, history=records)
    assert [(node.node, node.gpus, node.driver, node.shm_kb) for node in facts.observed_nodes] == [
        ("n1", ("NVIDIA H100 80GB HBM3",), "535.1", 100),
        ("n2", (), "", None),
    ]
    assert facts.gpu == "H100"


def test_nodes_that_the_train_will_not_get_are_not_asked_about(look):
    records = [NodeRecord(node="n1", driver="535.1"), NodeRecord(node="n2", driver="470.1")]
    facts = look(FOREIGN + 'exclude = "n2"\n', history=records).observed_nodes
    assert [node.node for node in facts] == ["n1"]


def test_a_quota_of_a_directory_goes_before_what_is_merely_on_the_same_device(look, tmp_path):
    outer = Filesystem(name="outer", path=str(tmp_path))
    inner = Filesystem(name="inner", path=str(tmp_path / "trains"))
    beside = Filesystem(name="beside", path=str(tmp_path / "elsewhere, with a long name"))
    Path(beside.path).mkdir()
    assert look(TINY, filesystems=(outer, inner, beside)).free_space.filesystem == "inner"
    assert look(TINY, filesystems=(beside,)).free_space.filesystem == "beside"


def test_what_du_has_not_measured_is_unknown_and_no_du_is_begun(look, tmp_path):
    slow = Filesystem(name="slow", path=str(tmp_path), by="du", limit=10**12)
    assert look(TINY, filesystems=(slow,)).unknown == {
        "free space of slow": "opsctl watch has not measured this file system yet"
    }
    (tmp_path / "du-slow").write_text(f"B 1000\t{tmp_path}\nI 10\t{tmp_path}\n")
    os.utime(tmp_path / "du-slow", (0, 0))
    assert look(TINY, filesystems=(slow,)).free_space.free == 10**12 - 1000
    assert not (tmp_path / "du-slow.running").exists()


def test_names_that_no_file_can_have_are_only_not_looked_at(look):
    long = "/" + "x" * 300
    text = FOREIGN.replace('"corpus"', f'"{long}", "--save", "{long}"').replace('"kill"', f'"{long}"')
    facts = look(text.replace('"./tok"', f'"{long}"'))
    assert (facts.files, facts.tokenizers, facts.free_space.filesystem) == ({}, {long: None}, "/")
    assert "File name too long" in facts.corpora[0].problem


def test_looking_changes_nothing(look, tmp_path, run):
    before = sorted(tmp_path.rglob("*"))
    look(TINY)
    look(FOREIGN)
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "t.toml"])


SHORT = """name = "t"
command = {command}
[slurm]
nodes = 1
time_limit = "60"
gpus_per_node = 8
[setup]
{setup}
"""


@pytest.mark.parametrize(
    ("command", "setup", "found"),
    [
        (["python", "train.py"], "", [("train.py", True)]),
        (["python", "gone.py"], "", [("gone.py", False)]),
        (["python", "/gone/train.py", "--data", "/gone/corpus"], "", [("/gone/train.py", False)]),
        (["python", "train.py"], 'directory = "CODE"', []),
        (["python", "train.py"], 'directory = "/gone"', [("train.py", True)]),
        (["python", "train.py"], 'lines = ["cd CODE"]', []),
        (["python", "-m", "train", "--config=conf/a.yaml"], "", [("conf/a.yaml", True)]),
        (["bash", "-c", "exec python -u train.py $@"], "", [("train.py", True)]),
        (["python", "own.py"], "", []),
        (["python", "{{ run_dir }}/train.py", "$CODE/train.py", "train", "conf"], "", []),
        (["apptainer", "exec", "a.sif", "python", "train.py"], "", []),
    ],
)
def test_files_that_are_not_where_the_trainer_starts_are_told(look, run, command, setup, found):
    tmp_path = run.path.parents[1]
    for name in ("train.py", "train", "conf/a.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (run.path / "own.py").touch()
    strays = look(SHORT.format(command=json.dumps(command), setup=setup.replace("CODE", str(tmp_path)))).misplaced_paths
    assert [(stray.path, stray.here) for stray in strays] == [
        (path, str(tmp_path) if here else "") for path, here in found
    ]


def test_a_pyxis_container_has_its_own_files(look, tmp_path):
    (tmp_path / "train.py").touch()
    text = SHORT.format(command='["python", "train.py"]', setup="")
    assert look(text).misplaced_paths
    assert not look(text.replace("nodes = 1", 'nodes = 1\nextra = ["--container-image=a.sqsh"]')).misplaced_paths


def test_a_directory_to_start_in_that_is_gone_is_told(look):
    assert look(SHORT.format(command='["python"]', setup='directory = "/gone"')).files == {"/gone": False}


def test_of_a_trainer_of_which_nothing_is_known_no_workers_are_made_up(look, tmp_path):
    look(SHORT.format(command='["python"]', setup=""))
    config = load_train(tmp_path / "t.toml")
    request = LaunchRequest(train=config, spec=job_spec(config, SiteSettings(root="/t")), recipe=read_recipe(config))
    assert list(settings.cpus(request, Facts(now=NOW, user="me"))) == []


@dataclass(frozen=True)
class Recorded:
    """Answers as real commands did, on a cluster with nothing in it; sacctmgr fails in this way."""

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
def test_accounting_that_cannot_be_asked_is_told_and_all_else_is_asked(look, fails, account, unavailable):
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
    assert set(unavailable) <= set(look(FOREIGN, slurm=cluster_facts).unknown.values())
