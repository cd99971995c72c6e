"""Trains that fail at night on a real Slurm, with one mail for each failure."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any, TypeVar

from aiosmtpd.controller import Controller

from opsctl.base.model import JobState, Node
from opsctl.sandbox.cluster import Sandbox
from opsctl.state.events import AttemptFinalized, Diagnosed, Event
from opsctl.state.journal import Journal
from opsctl.state.switches import Switch, path_of
from tests.support.gpu_nodes import GpuNodes, gpu_nodes
from tests.support.other_users import others_may_run
from tests.support.ports import HeldPort
from tests.support.trains import Trains, as_user, read_node, until

E = TypeVar("E", bound=Event)

TRAINER = Path(__file__).parents[2] / "support" / "foreign_trainer.py"
NOBODY = 65534


class Mails:
    """A mail server that keeps the mails it accepts."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.held = HeldPort()

    async def handle_DATA(self, server: object, session: object, envelope: Any) -> str:
        self.mails.append(message_from_bytes(envelope.content, policy=policy.default))  # type: ignore[arg-type]  # the default policy makes EmailMessages
        return "250 taken"

    @property
    def toml(self) -> str:
        table = {"kind": "email", "server": "127.0.0.1", "port": self.held.number, "tls": "none", "sender": "o@e.org"}
        lines = [f"{key} = {json.dumps(value)}" for key, value in table.items()]
        return "\n".join(["[alerts.channels.mail]", 'to = ["oncall@e.org"]', *lines, ""])


class Night:
    """A train, its nodes, and the mails sent about them."""

    def __init__(self, trains: Trains, nodes: GpuNodes, mails: Mails) -> None:
        self.trains, self.nodes, self.mails = trains, nodes, mails
        trains.site.write_text(trains.site.read_text() + mails.toml)

    def launch(self, *, last: int = 30, step_s: float = 0.1, guard: str = "", tasks: int = 6, nodes: int = 2) -> None:
        words = (sys.executable, "-P", str(TRAINER), str(self.trains.place), str(last), "5", "12", str(step_s))
        path = self.trains.toml(command=words, nodes=nodes, gpus_per_node=2, tasks=tasks, extra=(), more=guard)
        self.trains.opsctl("launch", path)

    @property
    def steps(self) -> list[tuple[str, str, int]]:
        """Return attempt, first node and number of each step, in order."""
        path = self.trains.place / "steps"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(attempt, node, int(step)) for attempt, node, step in (line.split() for line in lines)]

    @contextmanager
    def paused_after(self, number: int) -> Iterator[None]:
        """Run the block between this step and the next."""
        pause = self.trains.place / f"pause-{number + 1}"
        pause.touch()
        yield
        pause.unlink()

    def wait_for_step(self, number: int) -> None:
        """Wait until this step is done."""
        until(lambda: any(step >= number for _, _, step in self.steps), seconds=250)

    def break_node(self, name: str) -> None:
        """Break a GPU of the node: a row cannot be remapped, and a trainer that computes there fails."""
        self.nodes.change_gpu(name, failure="Yes")
        (self.trains.place / f"bad-{name}").touch()

    def wait_until_over(self, *, seconds: float = 250) -> None:
        """Wait until no task runs and no waiting task can start."""
        until(lambda: all(job.is_held for job in self.trains.rows()), seconds=seconds)

    def events(self, kind: type[E]) -> list[E]:
        return [
            event for event in Journal(self.trains.run(), self.trains.app.clock).events() if isinstance(event, kind)
        ]

    @property
    def finalized(self) -> list[tuple[str, str]]:
        return [(event.outcome, event.action) for event in self.events(AttemptFinalized)]

    def node(self, name: str) -> Node:
        return read_node(self.trains, name)

    def read_only_mail(self) -> str:
        """Run two more watch cycles and return subject and body of the single mail."""
        for _ in range(2):
            self.trains.opsctl("watch")
        subjects = [mail["Subject"] for mail in self.mails.mails]
        assert len(subjects) == 1, subjects
        return str(self.mails.mails[0]["Subject"]) + "\n" + self.mails.mails[0].get_content()


@contextmanager
def make_night(slurm: Sandbox, more: str = "") -> Iterator[Night]:
    mails = Mails()
    controller = Controller(mails, hostname="127.0.0.1", port=mails.held.number, ready_timeout=60)
    controller.start()
    try:
        with gpu_nodes(slurm, more=more) as (trains, nodes):
            yield Night(trains, nodes, mails)
    finally:
        controller.stop()
        mails.held.let_go()


def test_train_with_a_failed_gpu_finishes_on_other_nodes(slurm: Sandbox) -> None:
    with make_night(slurm) as night:
        with night.paused_after(18):
            night.launch()
            night.wait_for_step(18)
            bad = night.steps[-1][1]
            night.break_node(bad)
        night.wait_until_over()
        assert night.finalized[-3:] == [
            ("crashed", "exclude-nodes"),
            ("exited", "continue"),
            ("finished", "cancel-queued"),
        ]
        lost = [step for _, _, step in night.steps if [number for _, _, number in night.steps].count(step) > 1]
        assert set(range(1, 31)) == {step for _, _, step in night.steps}
        assert len(set(lost)) < 5, "beyond the last checkpoint"
        failed = night.events(Diagnosed)[0].attempt
        attempts = [attempt for attempt, _, _ in night.steps]
        assert bad not in {node for attempt, node, _ in night.steps[attempts.index(failed) + attempts.count(failed) :]}
        node = night.node(bad)
        assert "DRAIN" in node.state
        assert node.reason.startswith(f"opsctl: remapped_rows: GPU-{bad}-1 a row could not be remapped")
        mail = night.read_only_mail()
        for words in (
            f"failures/t/{failed}",
            f"t continues without {bad}",
            "uncorrectable memory error of a GPU",
            "rank 0",
            "RuntimeError: CUDA error: uncorrectable ECC error encountered",
            f"excluded {bad} for queued tasks",
            f"drained {bad}: opsctl: remapped_rows",
            "What to do now",
            "opsctl why t",
        ):
            assert words in " ".join(mail.split()), (words, mail)


def test_without_drain_rights_the_node_is_excluded(slurm: Sandbox, tmp_path: Path) -> None:
    may_become_nobody = os.geteuid() == 0 and others_may_run()
    with make_night(slurm, "" if may_become_nobody else 'drain = "never"') as night:
        with night.paused_after(8):
            if may_become_nobody:
                os.chown(night.trains.place, NOBODY, NOBODY)
                text = as_user(NOBODY, NOBODY, lambda: str(night.launch(last=15)))
                assert text == "None"
                # root trusts no settings in the directory of another user
                night.trains.site = Path(shutil.copy(night.trains.site, tmp_path))
            else:
                night.launch(last=15)
            night.wait_for_step(8)
            bad = night.steps[-1][1]
            night.break_node(bad)
        night.wait_until_over()
        assert night.finalized == [("crashed", "exclude-nodes"), ("finished", "cancel-queued")]
        assert night.node(bad).state == "IDLE"
        assert bad not in {node for attempt, node, _ in night.steps if attempt != night.steps[0][0]}
        report = (night.trains.root / ".site/nodes/report.txt").read_text()
        assert "a row could not be remapped" in report
        if may_become_nobody:
            assert len(night.mails.mails) == 1
        mail = " ".join(str(night.mails.mails[0].get_content()).split())
        assert f"{bad} is not drained; the report for the administrators is in" in mail


def test_train_with_a_bug_is_held_with_its_age(slurm: Sandbox) -> None:
    with make_night(slurm) as night:
        (night.trains.place / "bug").touch()
        # The age counts from when the train waits for nodes, so another train occupies them first.
        others = night.trains.toml("others", command=("sleep", "600"), nodes=4, gpus_per_node=2, tasks=1, extra=())
        night.trains.opsctl("launch", others)
        until(lambda: night.trains.rows("others")[0].state is JobState.RUNNING)
        night.launch(guard="short_attempts = 3\nfault_attempts = 3", nodes=1)
        waiting = until(
            lambda: next((job for job in night.trains.rows() if job.state.is_waiting and job.accrued), None)
        )
        night.trains.opsctl("cancel", "others")
        until(lambda: any(job.state.is_active for job in night.trains.rows()))
        night.wait_until_over()
        assert night.finalized == [("crashed", "continue"), ("crashed", "continue"), ("crashed", "hold-queued")]
        [held] = night.trains.rows()
        assert (held.is_held, held.tasks) == (True, (2, 3, 4, 5, 6))
        assert held.accrued == waiting.accrued
        mail = " ".join(night.read_only_mail().split())
        for words in (
            "failures/t/",
            "t is held: ",
            "an error in the training program",
            "KeyError: 'learning_rate'",
            "held the queued tasks of t",
            "opsctl release t",
        ):
            assert words in mail, (words, mail)


def test_guard_without_evidence_leaves_the_train_alone(slurm: Sandbox) -> None:
    """nvidia-smi hangs, the site directory is a file, and the log of a rank is a pipe, which is passed over."""
    with make_night(slurm) as night:
        for name in ("node001", "node002", "node003", "node004"):
            night.nodes.set_output(name, "smi", "", first="trap '' TERM; sleep 30 & wait; sleep 30")
        night.trains.root.mkdir()
        (night.trains.root / ".site").write_text("")
        with night.paused_after(7):
            night.launch(last=15, guard="node_check_seconds = 1\ndiagnosis_seconds = 1", nodes=1)
            night.wait_for_step(7)
            os.mkfifo(night.trains.run().attempt_logs(night.steps[0][0]) / "node001-9.log")
            (night.trains.place / "mute").touch()
        until(lambda: night.finalized)
        (night.trains.place / "mute").unlink()
        night.wait_until_over()
        assert (night.finalized[0], night.finalized[-1]) == (("crashed", "continue"), ("finished", "cancel-queued"))
        diagnosis = night.events(Diagnosed)[0].says
        assert diagnosis == "a rank exited with an error"
        assert {step for _, _, step in night.steps} == set(range(1, 16))
        assert night.mails.mails == []


def test_faulty_node_is_refused_before_the_trainer_starts(slurm: Sandbox) -> None:
    with make_night(slurm) as night:
        night.nodes.set_kernel_log("node001", "xid-79-154")
        night.launch(last=5)
        night.wait_until_over()
        assert night.finalized == [("node-refused", "exclude-nodes"), ("finished", "cancel-queued")]
        assert "node001" not in {node for _, node, _ in night.steps}
        assert night.node("node001").reason.startswith("opsctl: xid: Xid 79 (the GPU has fallen off the bus)")
        mail = " ".join(night.read_only_mail().split())
        assert "t continues without node001" in mail
        assert "Xid 79 (the GPU has fallen off the bus)" in mail


def test_indispensable_faulty_node_is_used_and_reported(slurm: Sandbox) -> None:
    with make_night(slurm) as night:
        night.nodes.set_kernel_log("node001", "xid-79-154")
        night.launch(last=5, nodes=4)
        night.wait_until_over()
        assert night.finalized == [("finished", "cancel-queued")]
        assert night.node("node001").state == "IDLE"
        mail = " ".join(night.read_only_mail().split())
        assert "CRITICAL" in mail
        assert "started on node001 anyway: with node001 excluded 3 nodes are left" in mail


def test_expired_exclusion_ends_and_release_excludes_more(slurm: Sandbox) -> None:
    with make_night(slurm) as night:
        night.trains.opsctl("launch", night.trains.toml())
        (array,) = night.trains.arrays()
        slurm, arrays = night.trains.app.slurm, night.trains.app.arrays(night.trains.run())
        arrays.exclude("node[001-002]", needed=1, until=night.trains.app.clock.now())
        assert slurm.excluded(array) == "node[001-002]"
        night.trains.opsctl("watch")
        assert slurm.excluded(array) == ""
        path_of(night.trains.run(), Switch.PAUSE).touch()
        text = night.trains.opsctl("release", "t", "--exclude", "node[002-003]")
        assert "excluded now: node[002-003]" in text
        assert slurm.excluded(array) == "node[002-003]"
        refused = night.trains.refusal("release", "t", "--exclude", "node[001,004]")
        assert refused.message == f"with node[001-004] excluded 0 nodes are left, and array {array} needs 1"
