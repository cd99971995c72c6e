"""Calls of Slurm's commands that real commands cannot be made to show. The rest: tests/integration/slurm."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from opsctl.base.errors import InputError, Unreachable
from opsctl.base.model import JobSpec, LaunchPlan
from opsctl.base.ports import Completed, TimedOut
from opsctl.slurm.commands import TIMEOUT_S, Slurm

STDERR = Path(__file__).parents[2] / "corpus" / "stderr" / "22.05.8"
SPEC = JobSpec(name="t", nodes=1, processes_per_node=1, cpus_per_process=1, time_limit="5", tasks=3, partition="train")
PLAN = LaunchPlan(train="t", spec=SPEC, wrapper="", body="", nonce="n1")


@dataclass
class ScriptedRunner:
    """A runner that answers every command with the same output and records the calls."""

    out: str = ""
    err: str = ""
    code: int = 0
    late: bool = False
    calls: list[tuple[str, ...]] = field(default_factory=list)
    env: dict[str, str | None] = field(default_factory=dict)

    def run(self, argv, *, timeout, stdin="", env=None):
        assert timeout <= TIMEOUT_S
        self.calls.append(tuple(argv))
        self.env = dict(env or {})
        if self.late:
            raise TimedOut(argv, timeout)
        return Completed(argv=tuple(argv), code=self.code, out=self.out, err=self.err)


def submit(runner: ScriptedRunner) -> str:
    return Slurm(runner).submit(PLAN, script="/run/t/wrapper.slurm", output="/run/t/batch.log")


def test_late_command_is_unreachable():
    with pytest.raises(Unreachable, match=r"^squeue did not answer within 60 s$"):
        Slurm(ScriptedRunner(late=True)).jobs()


def test_late_submission_may_have_happened():
    with pytest.raises(Unreachable) as caught:
        submit(ScriptedRunner(late=True))
    assert caught.value.message == ("sbatch did not answer within 60 s: it is unknown whether the train was submitted")
    assert caught.value.hint == "launch again: opsctl first searches the queue for this submission"


def test_submission_with_unknown_answer_may_have_happened():
    with pytest.raises(Unreachable, match="sbatch answered 'hello': it is unknown"):
        submit(ScriptedRunner(out="hello\n"))


def test_cluster_after_the_id_is_removed():
    assert submit(ScriptedRunner(out="12;big\n")) == "12"


def test_submission_has_comment_log_and_directory():
    runner = ScriptedRunner(out="12\n")
    submit(runner)
    assert runner.calls == [
        (
            "sbatch",
            "--parsable",
            "--comment=opsctl:t:n1",
            "--output=/run/t/batch.log",
            "--open-mode=append",
            "--chdir=/run/t",
            "/run/t/wrapper.slurm",
        )
    ]


def test_environment_does_not_override_the_plan():
    runner = ScriptedRunner(out="12\n")
    submit(runner)
    assert runner.env["SBATCH_PARTITION"] is None
    assert runner.env["SBATCH_ARRAY_INX"] is None
    assert "SBATCH_ACCOUNT" not in runner.env  # the plan has no account, so the variable of the user applies


def test_all_jobs_take_a_single_command():
    runner = ScriptedRunner()
    Slurm(runner).jobs()
    assert len(runner.calls) == 1


@pytest.mark.parametrize("job", ["--user=root", "12 13", "12\n", "", "12_", "x", "12,13", "12_[1]x"])
@pytest.mark.parametrize("method", ["hold", "release", "cancel", "excluded", "end_time"])
def test_invalid_job_id_reaches_no_command(method, job):
    runner = ScriptedRunner()
    with pytest.raises(InputError, match="is not a job id"):
        getattr(Slurm(runner), method)(job)
    assert not runner.calls


@pytest.mark.parametrize("read", [Slurm.jobs, Slurm.nodes])
def test_garbage_is_not_an_empty_queue(read):
    with pytest.raises(Unreachable, match="printed an incomplete list: 'no such luck'"):
        read(Slurm(ScriptedRunner(out="\x00\x01\nno such luck\n")))


def test_truncated_list_is_refused():
    with pytest.raises(Unreachable, match="squeue printed an incomplete list"):
        Slurm(ScriptedRunner(out="12+12+3+RUNNING+"), mark="+").jobs()


@pytest.mark.parametrize("out", ["", "\n", "CLUSTER: name\n"])
def test_empty_queue_is_read(out):
    assert Slurm(ScriptedRunner(out=out)).jobs() == []


def test_no_jobs_need_no_command():
    runner = ScriptedRunner()
    assert Slurm(runner).past([]) == []
    assert not runner.calls


def test_readers_use_different_marks():
    assert Slurm(ScriptedRunner()).mark != Slurm(ScriptedRunner()).mark


def test_missing_accounting_is_no_past_and_no_accounts():
    disabled = ScriptedRunner(err=(STDERR / "past-without-accounting.txt").read_text(), code=1)
    assert Slurm(disabled).past(["12"]) == []
    none = ScriptedRunner(err=(STDERR / "accounts-without-accounting.txt").read_text(), code=1)
    assert Slurm(none).accounting("me", "c") is None


@dataclass
class ResumedNode:
    """Slurm 24.11 after RESUME: node001 is idle and Slurm still stores the reason of the drain."""

    state: str = "idle"

    def run(self, argv, *, timeout, stdin="", env=None):
        [columns] = [word for word in argv if word.startswith("--Format=")]
        values = {"NodeList": "node001", "StateComplete": self.state, "NodeAddr": "127.0.0.1", "User": "root"}
        values |= {"Timestamp": "1795333163", "Reason": "opsctl: gpu: Xid 79"}
        row = "".join(values[column.partition(":")[0]] + MARK for column in columns[len("--Format=") :].split(","))
        return Completed(argv=tuple(argv), code=0, out=row + "\n", err="")


MARK = "\x1fmark"


def test_node_in_service_has_no_reason():
    slurm = Slurm(ResumedNode(), mark=MARK)
    assert slurm.reasons() == []
    assert [node.reason for node in slurm.nodes()] == [""]


@pytest.mark.parametrize("state", ["idle+drain", "down", "idle+not_responding", "mixed+drain", "idle+maint", "novel"])
def test_node_out_of_service_keeps_its_reason(state):
    slurm = Slurm(ResumedNode(state), mark=MARK)
    assert [reason.text for reason in slurm.reasons()] == ["opsctl: gpu: Xid 79"]
    assert [node.reason for node in slurm.nodes()] == ["opsctl: gpu: Xid 79"]
