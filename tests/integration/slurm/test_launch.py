"""`opsctl launch` on a real slurmctld."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from opsctl.base.errors import ConfigError, InputError, RunDirError, SlurmError
from opsctl.sandbox.cluster import Sandbox
from opsctl.state.events import Created, SubmitRefused, Submitted, Submitting
from tests.support.mounts import mounting
from tests.support.trains import Trains, as_user, until


def test_launch_submits_one_array_and_journals_each_step(trains: Trains) -> None:
    result = json.loads(trains.opsctl("launch", trains.toml(), "--json"))
    assert trains.arrays() == {result["array"]}
    assert trains.kinds() == [Created, Submitting, Submitted]
    assert [len(job.tasks) for job in trains.rows()] == [3]


def test_options_override_the_file(trains: Trains) -> None:
    trains.opsctl("launch", trains.toml(), "--tasks", 2, "--exclude", "node[003-004]", "--nice", 5)
    assert [len(job.tasks) for job in trains.rows()] == [2]
    assert trains.app.slurm.excluded(trains.arrays().pop()) == "node[003-004]"


def test_dry_run_shows_the_scripts_and_changes_nothing(trains: Trains) -> None:
    text = trains.opsctl("launch", trains.toml(), "--dry-run")
    assert "#SBATCH --array=1-3%1\n" in text
    assert "srun --kill-on-bad-exit=1" in text
    assert (trains.root.exists(), trains.arrays()) == (False, set())


def test_launch_writes_what_the_dry_run_showed(trains: Trains) -> None:
    shown = json.loads(trains.opsctl("launch", trains.toml(), "--dry-run", "--json"))
    trains.opsctl("launch", trains.toml())
    assert shown["wrapper"] == trains.run().wrapper.read_text()
    assert shown["body"] == trains.run().body.read_text()


def test_all_problems_are_reported_and_nothing_is_written(trains: Trains) -> None:
    path = trains.toml(nodes=9, partition="mian", tasks=5000, more="[setup]\nlines = ['if']")
    error = trains.refusal("launch", path)
    assert isinstance(error, ConfigError)
    assert [problem.splitlines()[0] for problem in error.problems[:2]] == [
        "[slurm] partition: there is no 'mian' here; did you mean 'main'? there are: main, cpu",
        "[slurm] tasks = 5000: this Slurm takes 1000 in one array at most",
    ]
    assert error.problems[2].startswith("[setup] lines: bash: ")
    assert not trains.root.exists()


def test_second_launch_is_refused_with_advice(trains: Trains) -> None:
    path = trains.toml()
    trains.opsctl("launch", path)
    (array,) = trains.arrays()
    error = trains.refusal("launch", path)
    assert isinstance(error, InputError)
    assert error.message == f"t: is queued already, as array {array}"
    assert error.hint == (
        f"to add tasks: launch with --after {array}; to change the queued tasks: opsctl edit t; to start over:"
        " opsctl cancel t"
    )
    assert trains.arrays() == {array}


def test_train_gets_more_tasks_after_its_last_array(trains: Trains) -> None:
    path = trains.toml()
    first = json.loads(trains.opsctl("launch", path, "--json"))["array"]
    second = json.loads(trains.opsctl("launch", path, "--after", first, "--json"))["array"]
    assert trains.arrays() == {first, second}
    assert f"afterany:{first}" in _scontrol(second)
    for job in (first, f"{second}_1"):  # with either dependency, two tasks of the train could run at once
        error = trains.refusal("launch", path, "--after", job)
        assert error.message == f"t: is queued already, as array {second}"


def test_adding_tasks_does_not_change_queued_tasks(trains: Trains) -> None:
    first = json.loads(trains.opsctl("launch", trains.toml(), "--json"))["array"]
    before = trains.run().body.read_text()
    error = trains.refusal("launch", trains.toml(command=("false",)), "--after", first)
    assert error.message == "t: this launch would change the files of the queued tasks"
    assert error.hint == "run opsctl edit t TRAIN.toml to change them, then launch again"
    assert trains.run().body.read_text() == before


def test_waiting_for_an_unknown_job_is_refused(trains: Trains) -> None:
    assert trains.refusal("launch", trains.toml(), "--after", "999999").problems == (
        "--after 999999: no such job in the queue, so the train would start at once\n"
        "    -> find the job with squeue, or leave --after out",
    )


@pytest.mark.parametrize(("flag", "switch"), [((), "kill"), (("--pause",), "pause")])
def test_armed_switch_refuses_the_launch(trains: Trains, flag: tuple[str, ...], switch: str) -> None:
    path = trains.toml()
    trains.opsctl("launch", path)
    trains.opsctl("cancel", "t")
    trains.opsctl("kill-switch", "arm", "t", "--reason", "bad loss", *flag)
    error = trains.refusal("launch", path)
    problem, remedy = error.problems[0].splitlines()
    assert problem.startswith(f"t: the {switch} switch is armed since ")
    assert problem.endswith(": bad loss")
    assert remedy.split() == ["->", "opsctl", "kill-switch", "disarm", "t", *flag]
    trains.opsctl(*remedy.split()[2:])
    trains.opsctl("launch", path)
    assert len(trains.arrays()) == 1


def test_relaunch_keeps_the_earlier_files(trains: Trains) -> None:
    trains.opsctl("launch", trains.toml())
    trains.opsctl("cancel", "t")
    until(lambda: not trains.rows())
    trains.opsctl("launch", trains.toml(command=("false",)))
    assert len(trains.arrays()) == 1
    assert "'true'" in (trains.run().revisions / "0001" / "train.toml").read_text()


def test_refusal_by_slurm_is_journalled(trains: Trains) -> None:
    path = trains.toml(extra=("--constraint=nosuchfeature",))
    assert isinstance(trains.refusal("launch", path), SlurmError)
    assert trains.kinds() == [Created, Submitting, SubmitRefused]
    trains.opsctl("launch", trains.toml())
    assert len(trains.arrays()) == 1


def test_root_writable_by_others_is_refused(trains: Trains) -> None:
    trains.root.mkdir()
    trains.root.chmod(0o775)
    error = trains.refusal("launch", trains.toml())
    assert isinstance(error, RunDirError)
    assert f"{trains.root}: mode 0775 lets others write" in error.message
    assert list(trains.root.iterdir()) == []


@pytest.mark.parametrize("name", ["a b", "$(id)", "x" * 300, "é"])
def test_invalid_train_name_is_refused(trains: Trains, name: str) -> None:
    path = trains.toml()
    path.write_text(path.read_text().replace("'t'", f"'{name}'", 1))
    assert "is not a name" in trains.refusal("launch", path).message


def test_root_with_special_characters_works(slurm: Sandbox, trains: Trains) -> None:
    trains.root = trains.place / "tr %j ü'$(id)"
    trains.site.write_text(f'root = "{trains.root}"\n')
    trains.opsctl("launch", trains.toml(command=("echo", "hello"), extra=(), tasks=1))
    until(lambda: trains.run().main_log.exists() and "hello" in trains.run().main_log.read_text())


@pytest.mark.root
def test_full_disk_leaves_no_half_written_train(trains: Trains) -> None:
    trains.root.mkdir(mode=0o755)
    with mounting(trains.root, "size=64k,mode=755"):
        (trains.root / "filler").write_bytes(b"x" * 60 * 1024)
        error = trains.refusal("launch", trains.toml(command=("echo", "x" * 30_000)))
        assert isinstance(error, RunDirError)
        assert "No space left on device" in error.message
        assert (trains.run().exists, trains.arrays()) == (False, set())
        left = {path.parent for path in trains.run().path.rglob("*") if path.is_file()}
        assert left <= {trains.run().journal}  # the journal, if the launch began one


@pytest.mark.root
def test_root_without_write_permission_is_reported(trains: Trains) -> None:
    trains.root.mkdir()
    path = trains.toml()
    trains.opsctl("launch", path, "--dry-run")  # imports all modules, which the other user may not be able to read
    text = as_user(65534, 65534, lambda: trains.opsctl("launch", path))
    assert text.startswith(f"RunDirError: {trains.run().path}: Permission denied | is it there, may you write there")
    assert not trains.run().path.exists()


@pytest.mark.root
def test_train_name_of_another_user_is_refused(trains: Trains) -> None:
    trains.opsctl("launch", trains.toml())
    os.chown(trains.run().path, 65534, 65534)
    error = trains.refusal("launch", trains.toml())
    assert error.message == f"{trains.run().path}: belongs to nobody; only the owner can launch this train"
    os.chown(trains.run().path, 0, 0)


def _scontrol(array: str) -> str:
    argv = ("scontrol", "show", "job", array)
    return subprocess.run(argv, capture_output=True, text=True, timeout=250, check=True).stdout


def test_unreachable_slurm_changes_nothing(trains: Trains, tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(
        "ClusterName=gone\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=1\nAuthType=auth/none\n"
        "SlurmctldTimeout=2\nMessageTimeout=2\nTCPTimeout=1\nNodeName=n1\nPartitionName=main Nodes=n1\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
        error = trains.refusal("launch", trains.toml())
    assert error.exit_code == 75
    assert not trains.root.exists()
