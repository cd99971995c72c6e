"""Incidents of the training chronicles, repeated on a real Slurm."""

import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from opsctl.actions.build_digest import build_digest
from opsctl.base.findings import Severity
from opsctl.base.model import JobState
from opsctl.monitor.watch_cycle import Watch
from opsctl.sandbox.cluster import Sandbox
from opsctl.telemetry.progress.effective_time import Bucket
from tests.support.guarded_trains import GuardedTrain, until
from tests.support.mounts import mounting
from tests.support.watched_trains import CountedApp, ForwardClock, app_of, cycle, find_finding, list_transitions

ROOT = Path(__file__).parents[3]
SPIKE = (ROOT / "tests/corpus/logs/tr1-13b.txt").read_text().splitlines()[:4]
LINE = (
    " iteration {step:8d}/  311541 | elapsed time per iteration (ms): 22306.6 | lm loss: {loss:.6E} |"
    " grad norm: 0.000 | number of nan iterations:   0 |"
)


@pytest.fixture
def clock() -> ForwardClock:
    return ForwardClock()


@pytest.fixture
def make(tmp_path: Path, slurm: Sandbox) -> Iterator[Callable[..., GuardedTrain]]:
    made: list[GuardedTrain] = []

    def train(watch: str = "") -> GuardedTrain:
        made.append(GuardedTrain(tmp_path, slurm))
        with made[-1].run.config.open("a") as file:
            file.write(f"[watch]\n{watch}\n")
        return made[-1]

    yield train
    for train in made:
        train.clear()


def take_step(train: GuardedTrain, app: CountedApp) -> None:
    """Log a step between two cycles: the first one records the begin of the attempt."""
    cycle(app, "hang")
    with train.run.main_log.open("a") as log:
        log.write(LINE.format(step=10, loss=2.5) + "\n")
    cycle(app, "hang")


def test_job_ended_with_nothing_queued(make, slurm, clock, tmp_path):
    train = make()
    app = app_of(tmp_path, slurm.env(), clock)
    train.submit("echo '[exiting program after 1190.0 minutes] datetime: 2021-08-08 01:00:51'", tasks=1)
    train.wait()
    first = cycle(app)
    assert list_transitions(first) == [("slurm_status/gpt", Severity.CRITICAL)]
    assert find_finding(first, "slurm_status/gpt").summary == "gpt has stopped: no task runs, and none is queued"
    clock.ahead = timedelta(minutes=10)
    assert list_transitions(cycle(app)) == []
    clock.ahead = timedelta(minutes=20)
    train.submit("touch begun; sleep 600", tasks=2)
    train.wait_for("begun")
    assert list_transitions(cycle(app)) == [("slurm_status/gpt", Severity.OK)]
    pulse = (train.run.logs / "pulse.log").read_text().splitlines()
    assert "PULSE: ***ALERT: gpt is not RUNNING or SCHEDULED! Alert someone at Eng WG***" in pulse[0]
    assert re.search(r"PULSE: gpt is running for 2[0-4]:\d\d", pulse[-2])
    assert "is waiting for the previous Job Array job to finish before scheduling a new one" in pulse[-1]


RANKS = f"""for rank in 0 1 2; do
RANK=$rank {shlex.quote(sys.executable)} - <<'PYTHON' &
import os, time, types
from opsctl.trainer.rank_process import answer_stack_requests
rank = os.environ["RANK"]
answer_stack_requests(os.environ, types.SimpleNamespace(node=os.environ["TRAIN_NODE"], rank=rank))
with open("rank-" + rank, "w") as file:
    file.write(str(os.getpid()))
def all_reduce(): time.sleep(600)
def read_batch(): time.sleep(600)
(read_batch if rank == "1" else all_reduce)()
PYTHON
done
wait
"""


def test_hang_while_slurm_reports_running(make, slurm, clock, tmp_path):
    train = make("hang_minutes = 10\nstacks_seconds = 40\nhang_cancels = true")
    train.run.config.write_text(train.run.config.read_text().replace("nodes = 1", "nodes = 1\nprocesses_per_node = 3"))
    app = app_of(tmp_path, slurm.env(), clock)
    line = LINE.format(step=10, loss=2.5)
    array = train.submit(
        f"export PYTHONPATH={shlex.quote(str(ROOT))}\n[ $SLURM_ARRAY_TASK_ID = 2 ] && sleep 600\n{RANKS}", tasks=2
    )
    for rank in "012":
        train.wait_for(f"rank-{rank}")
    assert cycle(app).findings  # the first cycle records the begin of the attempt
    with train.run.main_log.open("a") as log:
        log.write(f"{line}\n")
    assert find_finding(cycle(app), "hang/gpt").severity is Severity.OK
    clock.ahead = timedelta(minutes=9)
    with train.run.main_log.open("a") as log:
        log.write("NCCL WARN still waiting, which is no sign of life\n")
    assert find_finding(cycle(app), "hang/gpt").severity is Severity.OK
    clock.ahead = timedelta(minutes=11)
    report = cycle(app)
    assert list_transitions(report) == [("hang/gpt", Severity.CRITICAL)]
    finding = find_finding(report, "hang/gpt")
    hang = r"gpt hangs at step 10 \(training\): no sign of life for 11m( \d+s)? \(limit 10m\)"
    assert re.fullmatch(hang, finding.summary), finding.summary
    node = train.task(1).nodes
    assert re.match(rf"1 rank \(node {node}: 1\) in read_batch at", finding.evidence[0])
    assert re.match(rf"2 ranks \(node {node}: 0,2\) in all_reduce at", finding.evidence[1])
    assert finding.done == (f"asked the guard of {array}_1.0 to end the ranks",)
    [directory] = (train.run.attempt(f"{array}_1.0").path / "evidence").iterdir()
    assert len(list(directory.glob("node*.txt"))) == 3
    until(train.run.attempt(f"{array}_1.1").start.exists)  # on the same nodes
    end = train.end(1)
    assert (end["outcome"], end["action"], end["cause"]) == ("hung", "continue", "hang")
    summary, _, cause = end["why"].partition("; hang: ")
    assert summary == finding.summary
    assert cause.startswith(f"the attempt hung, odd: 1 rank (node {node}: 1) in read_batch at ")
    assert end["done"] == [f"recorded {node} as the odd one of a hang, 1 in 28 days"]
    assert list_transitions(cycle(app)) == [("hang/gpt", Severity.OK)]
    digest = build_digest(app, app.clock.now() - timedelta(days=1))
    [summed_up] = digest.trains
    assert (summed_up.train, summed_up.problem, digest.problems) == ("gpt", "", ())
    assert f"{array}_1.0 hung, continue: " in summed_up.actions[-1]
    assert Bucket.HANG in dict(summed_up.losses)


def test_stopped_rank_is_named_first(make, slurm, clock, tmp_path):
    train = make("hang_minutes = 10\nstacks_seconds = 5")
    train.run.config.write_text(train.run.config.read_text().replace("nodes = 1", "nodes = 1\nprocesses_per_node = 3"))
    app = app_of(tmp_path, slurm.env(), clock)
    train.submit(f"export PYTHONPATH={shlex.quote(str(ROOT))}\n{RANKS}", tasks=1)
    for rank in "012":
        train.wait_for(f"rank-{rank}")
    until(lambda: (train.run.path / "rank-1").read_text().isdecimal())
    take_step(train, app)
    os.kill(int((train.run.path / "rank-1").read_text()), signal.SIGSTOP)
    clock.ahead = timedelta(minutes=11)
    finding = find_finding(cycle(app, "hang"), "hang/gpt")
    silent = f"rank 1 on {train.task(1).nodes} does not answer: stopped by a signal (T)"
    assert finding.evidence[0] == silent
    assert finding.summary.endswith(f"; {silent}")


PY_SPY = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")


@pytest.mark.skipif(PY_SPY is None, reason="needs py-spy: pip install py-spy")
def test_py_spy_reads_the_stacks_of_silent_ranks(make, slurm, clock, tmp_path):
    train = make(f"hang_minutes = 10\nstacks_seconds = 0\npy_spy = '{PY_SPY}'")
    app = app_of(tmp_path, slurm.env(), clock)
    body = 'import time\ndef deaf(): time.sleep(600)\nopen("begun", "w").close()\ndeaf()'
    array = train.submit(f"RANK=0 {shlex.quote(sys.executable)} -c '{body}'")
    train.wait_for("begun")
    take_step(train, app)
    clock.ahead = timedelta(minutes=11)
    finding = find_finding(cycle(app, "hang"), "hang/gpt")
    assert finding.severity is Severity.CRITICAL
    assert re.match(r"1 rank \(node node\d+: 0\) in deaf at <string>:2$", finding.evidence[0])
    [directory] = (train.run.attempt(f"{array}_1.0").path / "evidence").iterdir()
    text = (directory / "py-spy.txt").read_text()
    assert f"== node {train.task(1).nodes} rank 0 pid " in text
    assert "deaf (<string>:2)" in text


def test_hang_is_only_reported_without_hang_cancels(make, slurm, clock, tmp_path):
    train = make("hang_minutes = 10\nstacks_seconds = 0")
    app = app_of(tmp_path, slurm.env(), clock)
    train.submit("touch begun; sleep 600")
    train.wait_for("begun")
    take_step(train, app)
    clock.ahead = timedelta(minutes=11)
    finding = find_finding(cycle(app, "hang"), "hang/gpt")
    assert (finding.severity, finding.done) == (Severity.CRITICAL, ())
    assert train.task(1).state is JobState.RUNNING


def test_hung_task_whose_guard_does_not_react_is_cancelled(make, slurm, clock, tmp_path):
    train = make("hang_minutes = 10\nstacks_seconds = 0\nhang_cancels = true")
    app = app_of(tmp_path, slurm.env(), clock)
    array = train.submit("touch begun; sleep 600")
    train.wait_for("begun")
    take_step(train, app)
    for process in psutil.process_iter(["cmdline"]):
        if (process.info["cmdline"] or [])[-2:] == ["opsctl.start_guard", str(train.run.path)]:
            process.suspend()
    done = []
    for minutes in (11.0, 11.5, 13.0):
        clock.ahead = timedelta(minutes=minutes)
        done.append(find_finding(cycle(app, "hang"), "hang/gpt").done)
    asked, cancelled = f"asked the guard of {array}_1.0 to end the ranks", f"cancelled {array}_1, so that"
    assert done[:2] == [(asked,), ()]
    assert done[2][0].startswith(cancelled)
    until(lambda: not train.task(1).state.is_active)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    with mounting(place, "size=64m,nr_inodes=1000"):
        yield place


@pytest.mark.root
def test_filling_disk_is_reported_and_resolved(make, slurm, clock, tmp_path, small_disk):
    train = make()
    shutil.rmtree(train.run.checkpoints)
    train.run.checkpoints.symlink_to(small_disk)
    app = app_of(tmp_path, slurm.env(), clock, more=f'[[filesystem]]\nname = "scratch"\npath = "{small_disk}"')
    train.submit("touch begun; sleep 600")
    train.wait_for("begun")
    assert find_finding(cycle(app, "fs_quota"), "fs_quota/scratch").severity is Severity.OK
    (small_disk / "step1").mkdir()
    (small_disk / "step1/model").write_bytes(bytes(56 << 20))
    report = cycle(app, "fs_quota")
    assert list_transitions(report) == [("fs_quota/scratch", Severity.WARNING)]
    finding = find_finding(report, "fs_quota/scratch")
    assert finding.summary == f"scratch ({small_disk}): 87.5 % of the space used (56 MiB of 64 MiB); warning at 85 %"
    assert finding.lines[-1].startswith("root: 56 MiB, ")
    (small_disk / "step2").mkdir()
    with pytest.raises(OSError, match="No space"):
        (small_disk / "step2/model").write_bytes(bytes(56 << 20))
    assert list_transitions(cycle(app, "fs_quota")) == [("fs_quota/scratch", Severity.CRITICAL)]
    for path in small_disk.iterdir():
        shutil.rmtree(path)
    assert list_transitions(cycle(app, "fs_quota")) == [("fs_quota/scratch", Severity.OK)]


def test_loss_spike_from_2_77_to_8_7(make, slurm, clock, tmp_path):
    train = make()
    app = app_of(tmp_path, slurm.env(), clock)
    train.submit("touch begun; sleep 600")
    train.wait_for("begun")

    def write_log(*lines: str) -> None:
        with train.run.main_log.open("a") as log:
            log.write("".join(f"{line}\n" for line in lines))

    write_log(*(LINE.format(step=step, loss=2.77 + (step % 70) / 3000) for step in range(28000, 29020, 10)))
    assert find_finding(cycle(app, "loss"), "loss/gpt").severity is Severity.OK
    write_log(*SPIKE)
    report = cycle(app, "loss")
    assert list_transitions(report) == [("loss/gpt", Severity.WARNING)]
    assert "spiked from 2.78 to 8.716 at step 29050" in find_finding(report, "loss/gpt").summary
    write_log(
        *(LINE.format(step=step, loss=2.8 + 4 * 0.94 ** ((step - 29100) / 10)) for step in range(29100, 29400, 10))
    )
    assert list_transitions(cycle(app, "loss")) == [("loss/gpt", Severity.CRITICAL)]
    write_log(*(LINE.format(step=step, loss=2.77 + (step % 70) / 3000) for step in range(29550, 29650, 10)))
    assert list_transitions(cycle(app, "loss")) == [("loss/gpt", Severity.OK)]


def test_watch_remembers_findings_between_processes(make, slurm, clock, tmp_path):
    train = make()
    app = app_of(tmp_path, slurm.env(), clock)
    train.submit("exit 1", tasks=1)
    train.wait()
    watching = Watch(app=app)
    assert list_transitions(watching.cycle()) == [("slurm_status/gpt", Severity.CRITICAL)]
    assert list_transitions(watching.cycle()) == []
    assert list_transitions(Watch(app=app).cycle()) == []
