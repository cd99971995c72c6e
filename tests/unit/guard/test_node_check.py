"""The node check before the trainer starts: the real script, with GPUs that answer from the corpus."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.guard.node_care import NodeCare
from opsctl.guard.node_check import NodeCheck, check_nodes
from opsctl.host.system import SystemClock, SystemRunner
from opsctl.nodes.exclusions import Exclusions
from opsctl.nodes.history import NodeHistory, NodeRecord
from opsctl.nodes.remote.fanout import Fanout, Local
from opsctl.settings.health import HealthSettings
from opsctl.state.events import AttemptStarted, Diagnosed, ExclusionDecided
from opsctl.state.site_dir import SiteDir
from tests.support.finalized_trains import QueuedTrain
from tests.support.made_nodes import render_smi

NODES = ("node001", "node002")
Check = Callable[..., NodeCheck]


@pytest.fixture
def check_with(train: QueuedTrain, tmp_path: Path) -> Check:
    """Both nodes are this machine; nvidia-smi prints `output`."""
    tools, site = tmp_path / "bin", SiteDir(tmp_path / ".site")
    tools.mkdir()
    runner = SystemRunner(env={"PATH": f"{tools}:{os.environ['PATH']}"})
    clock = SystemClock()

    def check(
        output: str,
        *,
        first: str = "",
        drain_max: int = 4,
        exclude_per_day: int = 4,
        history: type[NodeHistory] = NodeHistory,
        **guard: object,
    ) -> NodeCheck:
        (tmp_path / "says").write_text(output)
        for name, action in {
            "nvidia-smi": f'{first}\n[ "$*" != "-q -x" ] || cat {tmp_path}/says',
            "dmesg": "exit 0",
        }.items():
            (tools / name).write_text(f"#!/bin/sh\n{action}\n")
            (tools / name).chmod(0o755)
        care = NodeCare(
            site=HealthSettings(drain_max=drain_max, drain_percent=100, exclude_per_day=exclude_per_day),
            history=history(site=site, clock=clock),
            clock=clock,
            exclusions=Exclusions(site=site, clock=clock),
            reach=lambda jobs, idle: Fanout(shells=[Local(runner=runner, names=NODES)]),
        )
        rules = train.rules.model_copy(update={"node_check": True, "node_check_seconds": 60, **guard})
        return check_nodes(train.arrays, care, rules, train.start_attempt(), NODES)

    return check


def test_faulty_node_is_refused_and_diagnosed(check_with: Check, train: QueuedTrain) -> None:
    node_check = check_with(render_smi(2, bad=1, failure="Yes"))
    assert node_check.refusal.startswith("node[001-002] is faulty: gpu: remapped_rows: a row could not be remapped")
    [cause] = [event for event in train.arrays.journal.events() if isinstance(event, Diagnosed)]
    assert (cause.cause_kind, cause.suspects) == ("gpu", NODES)


@pytest.mark.parametrize(
    ("output", "first"),
    [
        (render_smi(2), ""),
        (render_smi(2, bad=1, pending="Yes"), ""),
        ("<nvidia_smi_log><gpu>", ""),
        ("NVIDIA-SMI has failed because it couldn't communicate with the driver.", "exit 9"),
        (render_smi(2, bad=1, failure="Yes"), "trap '' TERM; sleep 20 & wait"),
    ],
    ids=["well", "degraded", "half", "no-driver", "hangs"],
)
def test_healthy_degraded_or_unknown_node_is_accepted(
    check_with: Check, train: QueuedTrain, output: str, first: str
) -> None:
    assert check_with(output, first=first, node_check_seconds=2) == NodeCheck()
    assert train.event_kinds()[-1] is AttemptStarted


def test_verdicts_do_not_wait_for_the_history(check_with: Check) -> None:
    written = threading.Event()

    class SlowHistory(NodeHistory):
        def save(self, *_: object, **__: object) -> list[NodeRecord]:
            written.wait(250)
            return []

    assert check_with(render_smi(2, bad=1, failure="Yes"), history=SlowHistory).refusal
    written.set()


def test_check_is_skipped_without_gpus_or_when_disabled(check_with: Check) -> None:
    """The train requests no GPUs."""
    assert check_with(render_smi(2, bad=1, failure="Yes"), node_check=None) == NodeCheck()
    assert check_with(render_smi(2, bad=1, failure="Yes"), node_check=False) == NodeCheck()


@pytest.mark.parametrize(
    ("limit", "why"),
    [
        ("drain_max", "2 faulty nodes at once exceed the limit of 1"),
        ("exclude_per_day", "[health] exclude_per_day allows 1 in 24 h, with 0 excluded so far"),
    ],
)
def test_more_faulty_nodes_than_a_limit_are_accepted(check_with: Check, limit: str, why: str) -> None:
    """A node that the end of the attempt would not exclude would be refused by every queued task."""
    node_check = check_with(render_smi(2, bad=1, failure="Yes"), **{limit: 1})
    assert (node_check.refusal, node_check.concession.partition("), but ")[2]) == ("", why)


def test_last_task_starts_despite_a_faulty_node(check_with: Check, train: QueuedTrain) -> None:
    train.queue.rows.clear()
    node_check = check_with(render_smi(2, bad=1, failure="Yes"))
    assert node_check.concession.endswith("but no queued task could go on without it")
    last = train.arrays.journal.events()[-1]
    assert (type(last), last.excluded, last.nodes) == (ExclusionDecided, False, "node[001-002]")
