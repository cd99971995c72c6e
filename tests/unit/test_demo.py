"""The choices of examples/demo.py for machines of every speed."""

import importlib.util
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("demo", Path(__file__).parents[2] / "examples" / "demo.py")
demo = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(demo)


def end_attempts(changes: dict, task_s: float, *, step_s: float, start_s: float) -> list[str]:
    """Return how the attempts end: the first after its first checkpoint, the others at their limit or at the end."""
    step, steps, ends = changes["trainer.checkpoint.every"], changes["trainer.steps"], ["node-failed"]
    while step < steps:
        step += int((task_s - start_s) / step_s)
        ends.append("deadline" if step < steps else "finished")
        assert len(ends) < changes["slurm.tasks"]
    return ends


@pytest.mark.parametrize("pace", [0.7, 1.0, 1.4])
@pytest.mark.parametrize(("step_s", "start_s"), [(0.01, 2.0), (0.06, 7.0), (0.3, 15.0), (0.6, 70.0)])
def test_train_shows_a_crash_a_time_limit_and_the_end(step_s, start_s, pace):
    changes, task_s = demo.choose(step_s, start_s)
    start_s *= demo.FEWER_START if changes["slurm.processes_per_node"] == 1 else 1
    ends = end_attempts(changes, task_s, step_s=pace * step_s, start_s=start_s)
    assert (ends[0], ends[1], ends[-1]) == ("node-failed", "deadline", "finished")
    assert len(ends) <= 4


def test_slow_machine_gets_fewer_processes_and_a_smaller_model():
    changes, task_s = demo.choose(5.0, 80.0)
    assert (changes["slurm.processes_per_node"], changes["trainer.model.layers"]) == (1, 2)
    assert end_attempts(changes, task_s, step_s=5.0 * demo.SMALL_STEP, start_s=48.0)[-1] == "finished"


@pytest.mark.parametrize("task_s", [8.0, 20.0, 60.0, 400.0])
def test_limit_leaves_time_to_notice_a_lost_node(task_s):
    settings = demo.limit(task_s)
    limit_s = 60 * int(settings["slurm.time_limit"])
    assert limit_s - task_s >= demo.NOTICE_S
    assert limit_s - settings["trainer.limits.margin_s"] == pytest.approx(task_s, abs=0.5)
