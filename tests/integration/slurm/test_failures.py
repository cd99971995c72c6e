"""Trains that fail at night, on a real Slurm, with one mail each. `pytest tests/integration/slurm/test_failures.py`"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller

from opsctl.model import JobState, Node
from opsctl.sandbox.cluster import Sandbox
from opsctl.state.journal import Event, EventKind, Journal
from opsctl.state.switches import Switch, path_of
from tests.support.gpu_nodes import GpuNodes, gpu_nodes
from tests.support.other_users import others_may_run
from tests.support.ports import HeldPort
from tests.support.trains import Trains, as_user, until

TRAINER = Path(__file__).parents[2] / "support" / "foreign_trainer.py"
NOBODY = 65534


class Mails:
    """A mail server that keeps what it takes."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.held = HeldPort()

    async def handle_DATA(self, server: object, session: object, envelope: Any) -> str:
        self.mails.append(message_from_bytes(envelope.content, policy=policy.default))  # type: ignore[arg-type]  # that policy makes EmailMessages
        return "250 taken"

    @property
    def toml(self) -> str:
        table = {"kind": "email", "server": "127.0.0.1", "port": self.held.number, "tls": "none", "sender": "o@e.org"}
        lines = [f"{key} = {json.dumps(value)}" for key, value in table.items()]
        return "\n".join(["[alerts.channels.mail]", 'to = ["oncall@e.org"]', *lines, ""])


class Night:
    """A train, its nodes, and the mail that people find in the morning."""

    def __init__(self, trains: Trains, nodes: GpuNodes, mails: Mails) -> None:
        self.trains, self.nodes, self.mails = trains, nodes, mails
        trains.site.write_text(trains.site.read_text() + mails.toml)

    def launch(self, *, last: int = 30, step_s: float = 0.1, guard: str = "", tasks: int = 6, nodes: int = 2) -> None:
        words = (sys.executable, "-P", str(TRAINER), str(self.trains.place), str(last), "5", "12", str(step_s))
        path = self.trains.toml(command=words, nodes=nodes, gpus_per_node=2, tasks=tasks, extra=(), more=guard)
        self.trains.opsctl("launch", path)

    @property
    def steps(self) -> list[tuple[str, str, int]]:
        """Attempt, first node and step of each step, in their order."""
        path = self.trains.place / "steps"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(attempt, node, int(step)) for attempt, node, step in (line.split() for line in lines)]

    @contextmanager
    def paused_after(self, number: int) -> Iterator[None]:
        """The block is carried out between that step and the next."""
        pause = self.trains.place / f"pause-{number + 1}"
        pause.touch()
        yield
        pause.unlink()

    def step(self, number: int) -> None:
        """Until that step was done."""
        until(lambda: any(step >= number for _, _, step in self.steps), seconds=250)

    def node_fails(self, name: str) -> None:
        """A row of one of its cards cannot be remapped any more, and whoever computes there finds out."""
        self.nodes.change_gpu(name, failure="Yes")
        (self.trains.place / f"bad-{name}").touch()

    def over(self, *, seconds: float = 250) -> None:
        """Until nothing runs, and nothing that waits can start."""
        until(lambda: all(job.is_held for job in self.trains.rows()), seconds=seconds)

    def events(self, kind: EventKind) -> list[Event]:
        return [event for event in Journal(self.trains.run(), self.trains.app.clock).events() if event.kind is kind]

    @property
    def finalized(self) -> list[tuple[str, str]]:
        return [
            (str(event.data["outcome"]), str(event.data["action"]))
            for event in self.events(EventKind.ATTEMPT_FINALIZED)
        ]

    def node(self, name: str) -> Node:
        return next(each for each in self.trains.app.scheduler.nodes() if each.name == name)

    def one_mail(self) -> str:
        """Its body, when the cycles that come later have had their say."""
        for _ in range(2):
            self.trains.opsctl("watch")
        subjects = [mail["Subject"] for mail in self.mails.mails]
        assert len(subjects) == 1, subjects
        return str(self.mails.mails[0]["Subject"]) + "\n" + self.mails.mails[0].get_content()


@contextmanager
def night(slurm: Sandbox, more: str = "") -> Iterator[Night]:
    mails = Mails()
    controller = Controller(mails, hostname="127.0.0.1", port=mails.held.number, ready_timeout=60)
    controller.start()
    try:
        with gpu_nodes(slurm, more=more) as (trains, nodes):
            yield Night(trains, nodes, mails)
    finally:
        controller.stop()
        mails.held.let_go()


def test_a_train_whose_gpu_fails_at_night_finishes_on_the_other_nodes(slurm: Sandbox) -> None:
    with night(slurm) as it:
        with it.paused_after(18):
            it.launch()
            it.step(18)
            bad = it.steps[-1][1]
            it.node_fails(bad)
        it.over()
        assert it.finalized[-3:] == [
            ("crashed", "exclude-nodes"),
            ("exited", "continue"),
            ("finished", "cancel-queued"),
        ]
        lost = [step for _, _, step in it.steps if [number for _, _, number in it.steps].count(step) > 1]
        assert set(range(1, 31)) == {step for _, _, step in it.steps}
        assert len(set(lost)) < 5, "beyond the last checkpoint"
        failed = it.events(EventKind.DIAGNOSED)[0].data["attempt"]
        attempts = [attempt for attempt, _, _ in it.steps]
        assert bad not in {node for attempt, node, _ in it.steps[attempts.index(failed) + attempts.count(failed) :]}
        seen = it.node(bad)
        assert "DRAIN" in seen.state
        assert seen.reason.startswith(f"opsctl: remapped_rows: GPU-{bad}-1 a row could not be remapped")
        mail = it.one_mail()
        for words in (
            f"WARNING: failures/t/{failed}", f"t goes on without {bad}", "uncorrectable memory error of a GPU",
            "rank 0", "RuntimeError: CUDA error: uncorrectable ECC error encountered",
            f"excluded {bad} for queued tasks",
            f"drained {bad}: opsctl: remapped_rows", "What to do now", "opsctl why t",
        ):  # fmt: skip
            assert words in " ".join(mail.split()), (words, mail)


def test_who_is_no_administrator_has_the_node_excluded_and_the_train_finishes_too(slurm: Sandbox) -> None:
    can = os.geteuid() == 0 and others_may_run()
    with night(slurm, "" if can else 'drain = "never"') as it:
        with it.paused_after(8):
            if can:
                os.chown(it.trains.place, NOBODY, NOBODY)
                text = as_user(NOBODY, NOBODY, lambda: str(it.launch(last=15)))
                assert text == "None"
            else:
                it.launch(last=15)
            it.step(8)
            bad = it.steps[-1][1]
            it.node_fails(bad)
        it.over()
        assert it.finalized == [("crashed", "exclude-nodes"), ("finished", "cancel-queued")]
        assert it.node(bad).state == "IDLE"
        assert bad not in {node for attempt, node, _ in it.steps if attempt != it.steps[0][0]}
        report = (it.trains.root / ".site/nodes/report.txt").read_text()
        assert "a row could not be remapped" in report
        if can:
            assert len(it.mails.mails) == 1
        mail = " ".join(str(it.mails.mails[0].get_content()).split())
        assert f"{bad} is not drained; the report for the administrators is in" in mail


def test_a_bug_ends_held_with_its_age_kept_after_the_attempts_that_were_to_be_tried(slurm: Sandbox) -> None:
    with night(slurm) as it:
        (it.trains.place / "bug").touch()
        # Its age counts from when it waits for nodes, so something has them first.
        others = it.trains.toml("others", command=("sleep", "600"), nodes=4, gpus_per_node=2, tasks=1, extra=())
        it.trains.opsctl("launch", others)
        until(lambda: it.trains.rows("others")[0].state is JobState.RUNNING)
        it.launch(guard="short_attempts = 3\nfault_attempts = 3", nodes=1)
        waiting = until(lambda: next((job for job in it.trains.rows() if job.state.is_waiting and job.accrued), None))
        it.trains.opsctl("cancel", "others")
        until(lambda: any(job.state.is_active for job in it.trains.rows()))
        it.over()
        assert it.finalized == [("crashed", "continue"), ("crashed", "continue"), ("crashed", "hold-queued")]
        [held] = it.trains.rows()
        assert (held.is_held, held.tasks) == (True, (4, 5, 6))
        assert held.accrued == waiting.accrued
        mail = " ".join(it.one_mail().split())
        for words in (
            "CRITICAL: failures/t/", "t is held: ", "code: an error in the training program",
            "KeyError: 'learning_rate'",
            "held what is queued of t", "opsctl release t",
        ):  # fmt: skip
            assert words in mail, (words, mail)


def test_a_guard_that_cannot_find_out_leaves_a_healthy_train_alone(slurm: Sandbox) -> None:
    """nvidia-smi hangs, the site's directory is a file, and a rank's log is one that cannot be read to its end."""
    with night(slurm) as it:
        for name in ("node001", "node002", "node003", "node004"):
            it.nodes.set_output(name, "smi", "", first="trap '' TERM; sleep 30 & wait; sleep 30")
        it.trains.root.mkdir()
        (it.trains.root / ".site").write_text("")
        with it.paused_after(7):
            it.launch(last=15, guard="node_check_seconds = 1\ndiagnosis_seconds = 1", nodes=1)
            it.step(7)
            os.mkfifo(it.trains.run().attempt_logs(it.steps[0][0]) / "node001-9.log")
            (it.trains.place / "mute").touch()
        until(lambda: it.finalized)
        (it.trains.place / "mute").unlink()
        it.over()
        assert (it.finalized[0], it.finalized[-1]) == (("crashed", "continue"), ("finished", "cancel-queued"))
        says = it.events(EventKind.DIAGNOSED)[0].data["says"]
        assert says == "the diagnosis failed: no answer within 1 s"
        assert {step for _, _, step in it.steps} == set(range(1, 16))
        assert it.mails.mails == []


def test_a_node_that_is_faulty_is_refused_before_the_trainer_starts(slurm: Sandbox) -> None:
    with night(slurm) as it:
        it.nodes.set_kernel_log("node001", "xid-79-154")
        it.launch(last=5)
        it.over()
        assert it.finalized == [("node-refused", "exclude-nodes"), ("finished", "cancel-queued")]
        assert "node001" not in {node for _, node, _ in it.steps}
        assert it.node("node001").reason.startswith("opsctl: xid: Xid 79 (the GPU has fallen off the bus)")
        mail = " ".join(it.one_mail().split())
        assert "t goes on without node001" in mail
        assert "Xid 79 (the GPU has fallen off the bus)" in mail


def test_a_faulty_node_that_the_train_cannot_do_without_is_used_and_told(slurm: Sandbox) -> None:
    with night(slurm) as it:
        it.nodes.set_kernel_log("node001", "xid-79-154")
        it.launch(last=5, nodes=4)
        it.over()
        assert it.finalized == [("finished", "cancel-queued")]
        assert it.node("node001").state == "IDLE"
        mail = " ".join(it.one_mail().split())
        assert "CRITICAL" in mail
        assert "started on node001 anyway: with node001 excluded 3 nodes are left" in mail


def test_nodes_are_given_back_to_what_is_queued_and_a_release_excludes_others(slurm: Sandbox) -> None:
    with night(slurm) as it:
        it.trains.opsctl("launch", it.trains.toml())
        (array,) = it.trains.arrays()
        scheduler, chain = it.trains.app.scheduler, it.trains.app.chain(it.trains.run())
        chain.exclude("node[001-002]", needed=1, until=it.trains.app.clock.now())
        assert scheduler.excluded(array) == "node[001-002]"
        it.trains.opsctl("watch")
        assert scheduler.excluded(array) == ""
        path_of(it.trains.run(), Switch.PAUSE).touch()
        text = it.trains.opsctl("release", "t", "--exclude", "node[002-003]")
        assert "excluded now: node[002-003]" in text
        assert scheduler.excluded(array) == "node[002-003]"
        refused = it.trains.refusal("release", "t", "--exclude", "node[001,004]")
        assert refused.message == f"with node[001-004] excluded 0 nodes are left, and array {array} needs 1"
