"""The look at nodes before the trainer starts, by the real script with cards that answer from the corpus."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.guard.node_care import NodeCare
from opsctl.guard.node_check import NodeCheck, check_nodes
from opsctl.host.system import SystemClock, SystemRunner
from opsctl.nodes.exclusions import Exclusions
from opsctl.nodes.history import NodeHistory
from opsctl.nodes.remote.fanout import Fanout
from opsctl.nodes.remote.local import Local
from opsctl.settings.health import HealthSettings
from opsctl.state.journal import EventKind
from opsctl.state.site_dir import SiteDir
from tests.support.finalized_trains import World
from tests.support.made_nodes import smi

NODES = ("node001", "node002")
Look = Callable[..., NodeCheck]


@pytest.fixture
def look(world: World, tmp_path: Path) -> Look:
    """Both nodes are this machine; their nvidia-smi prints what it is given."""
    tools, site = tmp_path / "bin", SiteDir(tmp_path / ".site")
    tools.mkdir()
    runner = SystemRunner(env={"PATH": f"{tools}:{os.environ['PATH']}"})
    clock = SystemClock()

    def check(says: str, *, first: str = "", most: int = 4, **guard: object) -> NodeCheck:
        (tmp_path / "says").write_text(says)
        for name, does in {
            "nvidia-smi": f'{first}\n[ "$*" != "-q -x" ] || cat {tmp_path}/says',
            "dmesg": "exit 0",
        }.items():
            (tools / name).write_text(f"#!/bin/sh\n{does}\n")
            (tools / name).chmod(0o755)
        care = NodeCare(
            site=HealthSettings(drain_max=most, drain_percent=100),
            history=NodeHistory(site=site, clock=clock),
            clock=clock,
            exclusions=Exclusions(site=site, clock=clock),
            reach=lambda jobs, idle: Fanout(shells=[Local(runner=runner, names=NODES)]),
        )
        rules = world.rules.model_copy(update={"node_check": True, "node_check_seconds": 60, **guard})
        return check_nodes(world.chain, care, rules, world.start_attempt(), NODES)

    return check


def test_a_faulty_node_is_refused_and_the_cause_written_down(look: Look, world: World) -> None:
    node_check = look(smi(2, bad=1, failure="Yes"))
    assert node_check.refusal.startswith("node[001-002] is faulty: gpu: remapped_rows: a row could not be remapped")
    [cause] = [event for event in world.chain.journal.events() if event.kind is EventKind.DIAGNOSED]
    assert (cause.data["class"], cause.data["suspects"]) == ("gpu", list(NODES))


@pytest.mark.parametrize(
    ("says", "first"),
    [
        (smi(2), ""),
        (smi(2, bad=1, pending="Yes"), ""),
        ("<nvidia_smi_log><gpu>", ""),
        ("NVIDIA-SMI has failed because it couldn't communicate with the driver.", "exit 9"),
        (smi(2, bad=1, failure="Yes"), "trap '' TERM; sleep 20 & wait"),
    ],
    ids=["well", "degraded", "half", "no-driver", "hangs"],
)
def test_neither_well_nor_degraded_nor_unknown_is_refused(look: Look, world: World, says: str, first: str) -> None:
    assert look(says, first=first, node_check_seconds=2) == NodeCheck()
    assert world.kinds()[-1] is EventKind.ATTEMPT_STARTED


def test_where_nobody_asks_for_it_nothing_is_looked_at(look: Look) -> None:
    """The train asks for no GPUs."""
    assert look(smi(2, bad=1, failure="Yes"), node_check=None) == NodeCheck()
    assert look(smi(2, bad=1, failure="Yes"), node_check=False) == NodeCheck()


def test_more_faulty_nodes_than_may_be_taken_out_are_no_reason_to_refuse(look: Look) -> None:
    node_check = look(smi(2, bad=1, failure="Yes"), most=1)
    assert (node_check.refusal, node_check.concession.partition("), but ")[2]) == (
        "",
        "2 faulty nodes at once exceed the limit of 1",
    )


def test_the_last_task_starts_all_the_same(look: Look, world: World) -> None:
    world.queue.rows.clear()
    node_check = look(smi(2, bad=1, failure="Yes"))
    assert node_check.concession.endswith("but no queued task could go on without it")
    last = world.chain.journal.events()[-1]
    assert (last.kind, last.data["excluded"], last.data["nodes"]) == (EventKind.QUARANTINED, False, "node[001-002]")
