"""The contract of the Slurm port, on a real slurmctld."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.base.errors import MissingProgram, NotAllowed, SlurmError, Unreachable
from opsctl.base.model import Job, JobSpec, JobState, LaunchPlan
from opsctl.base.ports import Completed
from opsctl.diagnosis.request_stacks import request_by_signal
from opsctl.host.system import SystemClock, SystemRunner
from opsctl.sandbox.cluster import Sandbox
from opsctl.slurm.commands import Slurm
from tests.support.trains import until

HOSTILE = "new\nline | \"quoted\" $(touch owned) 'x'; é漢字 🚂\t\x1f\x1e"
PLAN = LaunchPlan(
    train="t",
    wrapper="",
    body="",
    nonce="n1",
    spec=JobSpec(name="t", nodes=1, processes_per_node=1, cpus_per_process=1, time_limit="10", tasks=4),
)


@pytest.fixture
def runner(slurm: Sandbox) -> SystemRunner:
    return SystemRunner(env=slurm.env())


@pytest.fixture
def commands(runner: SystemRunner) -> Iterator[Slurm]:
    """Slurm, whose queue is emptied after the test."""
    reader = Slurm(runner)
    yield reader
    for job in reader.jobs():
        reader.cancel(job.array)
    until(lambda: not [job for job in reader.jobs() if job.state.is_active])


@pytest.fixture
def sbatch(runner: SystemRunner) -> Callable[..., str]:
    """A function that submits a sleeping job and returns its id."""

    def submit(*options: str) -> str:
        argv = ("sbatch", "--parsable", "--output=/dev/null", "--mem=10", "--time=10", *options, "--wrap=sleep 600")
        done = runner.run(argv, timeout=250)
        assert done.code == 0, done.err
        return done.out.strip()

    return submit


def find_rows(reader: Slurm, array: str) -> dict[bool, Job]:
    """Return the rows of an array that have not ended: the waiting one as False, the running one as True."""
    return {job.state.is_active: job for job in reader.jobs() if job.array == array and not job.state.is_final}


def wait_for_running(reader: Slurm, array: str) -> Job:
    until(lambda: True in find_rows(reader, array))
    return find_rows(reader, array)[True]


def write_wrapper(directory: Path, *directives: str) -> str:
    script = directory / "wrapper.slurm"
    lines = ["#!/bin/bash", *(f"#SBATCH {directive}" for directive in directives), "pwd; sleep 600", ""]
    script.write_text("\n".join(lines))
    return str(script)


def test_submitted_array_is_found_by_its_comment(commands: Slurm, tmp_path: Path):
    script = write_wrapper(tmp_path, "--array=1-4%1", "--mem=10", "--time=10")
    array = commands.submit(PLAN, script=script, output=str(tmp_path / "batch.log"))
    assert {job.array for job in commands.jobs() if job.comment == "opsctl:t:n1"} == {array}
    until(lambda: (tmp_path / "batch.log").exists() and (tmp_path / "batch.log").read_text() == f"{tmp_path}\n")


def test_refused_submission_quotes_slurm(commands: Slurm, tmp_path: Path):
    script = write_wrapper(tmp_path, "--partition=nosuch")
    with pytest.raises(SlurmError) as caught:
        commands.submit(PLAN, script=script, output="/dev/null")
    assert caught.value.message.startswith("sbatch refused: invalid partition specified: nosuch")
    assert not isinstance(caught.value, Unreachable)


def test_waiting_tasks_share_a_row(commands: Slurm, sbatch):
    array = sbatch("--array=1-5%1")
    task = wait_for_running(commands, array)
    waiting = find_rows(commands, array)[False]
    assert (task.tasks, task.state) == ((1,), JobState.RUNNING)
    assert (waiting.tasks, waiting.state) == ((2, 3, 4, 5), JobState.PENDING)
    assert task.nodes.startswith("node")
    assert task.end - task.start == timedelta(minutes=10)


def test_held_array_waits_for_release(commands: Slurm, sbatch):
    array = sbatch("--array=1-3%1", "--begin=now+1hour")
    for _ in range(2):
        commands.hold(array)
    waiting = find_rows(commands, array)[False]
    assert waiting.is_held
    assert waiting.reason in {"JobHeldUser", "JobHeldAdmin"}
    for _ in range(2):
        commands.release(array)
    assert not find_rows(commands, array)[False].is_held


def test_cancelling_queued_tasks_leaves_the_running_task(commands: Slurm, sbatch):
    array = sbatch("--array=1-4%1")
    wait_for_running(commands, array)
    for _ in range(2):
        commands.cancel(array, queued_only=True)
    assert [(job.tasks, job.state) for job in find_rows(commands, array).values()] == [((1,), JobState.RUNNING)]
    commands.cancel(f"{array}_1")
    until(lambda: not find_rows(commands, array))
    commands.cancel(array)


def test_exclusion_replaces_the_earlier_one(commands: Slurm, sbatch):
    array = sbatch("--array=1-4%1")
    wait_for_running(commands, array)
    assert commands.excluded(array) == ""
    commands.exclude(array, "node[002-003]")
    assert commands.excluded(array) == "node[002-003]"
    commands.exclude(array, "node004")
    assert commands.excluded(array) == "node004"
    commands.exclude(array, "")
    assert commands.excluded(array) == ""


def test_exclusion_of_a_single_task_is_reported(commands: Slurm, sbatch):
    array = sbatch("--array=1-4%1", "--begin=now+1hour")
    commands.exclude(array, "node001")
    commands.exclude(f"{array}_3", "node002")
    assert commands.excluded(array) == "node[001-002]"


def test_node_that_does_not_exist_cannot_be_excluded(commands: Slurm, sbatch):
    with pytest.raises(SlurmError, match="Invalid node name specified"):
        commands.exclude(sbatch("--begin=now+1hour"), "nosuch")


def test_long_list_of_tasks_is_not_cut(commands: Slurm, sbatch):
    tasks = tuple(sorted(number * number for number in range(31)))
    array = sbatch("--hold", f"--array={','.join(map(str, tasks))}")
    assert find_rows(commands, array)[False].tasks == tasks


def test_names_and_comments_are_preserved(commands: Slurm, sbatch):
    hostile = sbatch("--hold", f"--job-name={HOSTILE}", f"--comment={HOSTILE}")
    long = sbatch("--hold", f"--job-name={'n' * 300}", "--comment=")
    forged = sbatch("--hold", f"--job-name=x\n{hostile}\x1f{hostile}\x1fN/A\x1fCOMPLETED\x1e\n{hostile}")
    jobs = {job.id: job for job in commands.jobs()}
    assert (jobs[hostile].name, jobs[hostile].comment) == (HOSTILE, HOSTILE)
    assert jobs[hostile].state is JobState.PENDING
    assert (jobs[long].name, jobs[long].comment) == ("n" * 300, "")
    assert jobs[forged].name.startswith(f"x\n{hostile}")
    assert not Path("owned").exists()


def test_end_moves_with_the_time_limit(commands: Slurm, runner: SystemRunner, sbatch):
    array = sbatch("--array=1-2%1")
    task = wait_for_running(commands, array)
    before = commands.end_time(f"{array}_1")
    assert before == task.end == commands.end_time(task.id)
    runner.run(("scontrol", "update", f"JobId={task.id}", "TimeLimit=20"), timeout=250)
    assert commands.end_time(f"{array}_1") - before == timedelta(minutes=10)


def test_job_that_does_not_run_has_no_end(commands: Slurm, sbatch):
    assert commands.end_time(sbatch("--hold")) is None
    assert commands.end_time("4000000") is None


def test_unknown_job_is_absent_not_finished(commands: Slurm):
    assert not [job for job in commands.jobs() if job.id == "4000000"]
    assert commands.excluded("4000000") == ""
    with pytest.raises(SlurmError, match="Invalid job id specified for job 4000000"):
        commands.hold("4000000")


def test_hold_and_release_of_an_ended_job_do_nothing(commands: Slurm, sbatch):
    job = sbatch()
    wait_for_running(commands, job)
    commands.cancel(job)
    until(lambda: not find_rows(commands, job))
    commands.hold(job)
    commands.release(job)


def test_squeue_settings_of_the_user_hide_nothing(slurm: Sandbox, commands: Slurm, sbatch):
    array = sbatch("--array=1-3", "--hold")
    settings = {
        "SQUEUE_USERS": "nobody",
        "SQUEUE_PARTITION": "",
        "SQUEUE_ARRAY": "1",
        "SQUEUE_STATES": "RUNNING",
        "SQUEUE_FORMAT": "%i",
        "SQUEUE_SORT": "?",
        "SLURM_TIME_FORMAT": "relative",
    }
    job = find_rows(Slurm(SystemRunner(env=slurm.env() | settings)), array)[False]
    assert job.tasks == (1, 2, 3)
    assert job.submitted is not None


def test_scancel_settings_of_the_user_keep_no_signal_from_the_ranks(
    slurm: Sandbox, runner: SystemRunner, commands: Slurm, tmp_path: Path
):
    logs = tmp_path / "logs"
    logs.mkdir()
    log = logs / "rank0.log"
    rank = f"trap 'echo stack >> {log}' USR2; echo ready >> {log}; while :; do sleep 0.1; done"
    batch = ("sbatch", "--parsable", "--output=/dev/null", "--mem=10", "--time=10")
    job = runner.run((*batch, f'--wrap=srun --mem=10 bash -c "{rank}"'), timeout=250).out.strip()
    until(log.exists)
    settings = {"SCANCEL_STATE": "PENDING", "SCANCEL_NAME": "another", "SCANCEL_USER": "nobody"}
    asked = Slurm(SystemRunner(env=slurm.env() | settings))
    [row] = find_rows(commands, job).values()
    problem = request_by_signal(
        lambda: asked.signal(row.id, "USR2"), logs, tmp_path, ranks=1, timeout_s=30, clock=SystemClock()
    )
    commands.cancel(job)
    assert problem == ""
    assert (tmp_path / "rank0.txt").read_text() == "stack\n"


def test_drained_node_shows_its_flags_and_its_reason(commands: Slurm, runner: SystemRunner):
    reason = 'opsctl: gpu: "q" | $(x) é'
    try:
        runner.run(("scontrol", "update", "NodeName=node003", "State=DRAIN", f"Reason={reason}"), timeout=250)
        nodes = {node.name: node for node in commands.nodes()}
    finally:
        runner.run(("scontrol", "update", "NodeName=node003", "State=RESUME"), timeout=250)
    assert sorted(nodes) == ["node001", "node002", "node003", "node004"]
    assert "DRAIN" in nodes["node003"].state.split("+")
    assert nodes["node003"].reason == reason
    assert (nodes["node001"].reason, bool(nodes["node001"].address)) == ("", True)


def test_limits_of_the_site_are_read(commands: Slurm):
    limits = commands.limits()
    assert (limits.priority, limits.accounting) == ("priority/multifactor", False)
    assert limits.version.count(".") == 2
    assert limits.max_array_size > 1
    assert [partition.nodes for partition in commands.partitions() if partition.is_default] == [4]


def test_without_accounting_there_is_no_past(commands: Slurm):
    assert commands.past(["1", "2_3"]) == []
    assert commands.accounting("root", "sandbox") is None


@dataclass(frozen=True)
class AsNobody:
    """A runner that runs programs as another user."""

    runner: SystemRunner

    def run(self, argv, **options) -> Completed:
        prefix = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
        done = self.runner.run((*prefix, *argv), **options)
        return Completed(argv=tuple(argv), code=done.code, out=done.out, err=done.err)


@pytest.mark.root
def test_team_mate_sees_the_train_but_cannot_change_it(commands: Slurm, runner: SystemRunner, sbatch):
    array = sbatch("--array=1-4%1")
    wait_for_running(commands, array)
    other = Slurm(AsNobody(runner))  # type: ignore[arg-type]  # a runner by its only method
    assert find_rows(other, array)[False].tasks == (2, 3, 4)
    attempts = (
        lambda: other.hold(array),
        lambda: other.release(array),
        lambda: other.cancel(array),
        lambda: other.cancel(array, queued_only=True),
        lambda: other.exclude(array, "node001"),
    )
    for attempt in attempts:
        with pytest.raises(NotAllowed):
            attempt()
    assert set(find_rows(commands, array)) == {False, True}


def test_commands_time_out_while_the_controller_is_down(slurm: Sandbox, tmp_path: Path):
    conf = tmp_path / "commands.conf"
    lines = Path(slurm.env()["SLURM_CONF"]).read_text().splitlines()
    conf.write_text("\n".join("SlurmctldPort=1" if line.startswith("SlurmctldPort=") else line for line in lines))
    down = Slurm(SystemRunner(env=slurm.env() | {"SLURM_CONF": str(conf)}))
    script = write_wrapper(tmp_path, "--time=1")
    lost = Slurm(SystemRunner(env={"SLURM_CONF": str(tmp_path / "nosuch.conf")}))  # Slurm waits a minute for the file
    commands = (
        down.jobs,
        down.nodes,
        down.partitions,
        down.limits,
        lambda: down.hold("1"),
        lambda: down.release("1"),
        lambda: down.exclude("1", "node001"),
        lambda: down.cancel("1"),
        lambda: down.cancel("1", queued_only=True),
        lambda: down.excluded("1"),
        lambda: down.end_time("1"),
        lambda: down.submit(PLAN, script=script, output="/dev/null"),
        lost.jobs,
    )

    def expect_unreachable(command: Callable[[], object]) -> None:
        with pytest.raises(Unreachable):
            command()

    with ThreadPoolExecutor(len(commands)) as pool:
        list(pool.map(expect_unreachable, commands))


def test_missing_slurm_program_is_named(tmp_path: Path):
    with pytest.raises(MissingProgram, match="squeue"):
        Slurm(SystemRunner(env={"PATH": str(tmp_path)})).jobs()


def test_nodes_that_slurm_configures_alike_are_of_one_kind(commands: Slurm) -> None:
    kinds = commands.kinds()
    assert list(kinds) == [f"node00{number}" for number in range(1, 5)]
    [kind] = set(kinds.values())
    assert "gpu:" in kind
    assert " CPUs, " in kind
