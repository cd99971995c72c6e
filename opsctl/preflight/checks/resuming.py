"""Whether the next task goes on where the last one ended: saving and loading of another trainer's checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from posixpath import normpath

from opsctl.base.units import format_duration, parse_slurm_minutes
from opsctl.calc.accelerators import ACCELERATORS, accelerator
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest, Problem, warning
from opsctl.preflight.step_estimate import estimate_step

SPARE = 1.5
"""A run that takes longer than its tasks by this factor is reported: times of steps are estimates."""
EVERY_TASK = ("Megatron", "GPT-NeoX", "nanotron")
"""Trainers that continue only from the directory of --load."""
SWITCHES = {"NeMo": "exp_manager.create_checkpoint_callback=True", "torchtitan": "--checkpoint.enable"}
"""By trainer: what switches checkpoints on."""


def save(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    recipe = request.recipe
    for shared in facts.shared_saves:
        place = "there as well" if shared.path == shared.other_path else f"to {shared.other_path}"
        yield warning(
            f"{shared.path} ({shared.reason}): train {shared.train} saves {place}: checkpoints and progress of one"
            " train would count for the other, and the trainer may resume from a checkpoint of the other train",
            "save to {{ checkpoint_dir }}, or to a directory with the name of the train",
        )
    if recipe.is_embedded or not recipe.trainer:
        return
    cost = f"a task's work of up to {request.spec.time_limit} is lost at its end"
    if recipe.trainer in EVERY_TASK and not recipe.save:
        yield warning(f"command: no {_flag(request, 'save')}: {cost}", "save to {{ checkpoint_dir }}")
    elif recipe.saves is False:
        yield warning(
            f"command: checkpoints are switched off: {cost}",
            f"switch them on: {SWITCHES.get(recipe.trainer, 'see its settings')}",
        )
    elif recipe.trainer in EVERY_TASK and recipe.save_every is None:
        yield warning(
            f"command: {_flag(request, 'save')} without {_flag(request, 'save_every')}: nothing is saved before the end"
            " of a task",
            "save every few hours: opsctl plan checkpoint",
        )
    elif recipe.trainer == "transformers" and recipe.save_every == 0:
        yield warning(f"command: save_strategy is no: {cost}", "set save_strategy = steps and save_steps")


def load(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    """Each task is a start of the trainer: without a checkpoint to load, each task starts at step 0."""
    recipe = request.recipe
    if recipe.trainer in EVERY_TASK and recipe.save and not recipe.load and not recipe.resumes:
        yield warning(
            f"command: {_flag(request, 'save')} without {_flag(request, 'load')}: each of {request.spec.tasks} tasks"
            " starts at step 0",
            f"add {_flag(request, 'load')} {recipe.save}: at the first start the directory may be empty",
        )
    elif recipe.trainer in EVERY_TASK and recipe.load and normpath(recipe.load) != normpath(recipe.save or "/"):
        yield warning(
            f"command: loads from {recipe.load} and saves to {recipe.save or 'nowhere'}: each of"
            f" {request.spec.tasks} tasks starts with the same checkpoint",
            "load from the directory of the saves; copy the first checkpoint there, or use --pretrained-checkpoint",
        )
    elif recipe.trainer == "NeMo" and recipe.save and not recipe.resumes:
        yield warning(
            f"command: exp_manager.resume_if_exists is not set: each of {request.spec.tasks} tasks starts at step 0",
            "set exp_manager.resume_if_exists=True and exp_manager.resume_ignore_no_checkpoint=True",
        )
    elif recipe.trainer == "transformers" and recipe.overwrites and not recipe.load:
        yield warning(
            "command: --overwrite_output_dir without --resume_from_checkpoint: each task ignores the checkpoints of the"
            " task before",
            "leave --overwrite_output_dir out",
        )


def _flag(request: LaunchRequest, setting: str) -> str:
    return request.recipe.name(setting)


def tasks(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Only a train of one task: a longer train shows in the queue that it goes on."""
    steps, limit_s = request.recipe.steps, 60 * (parse_slurm_minutes(request.spec.time_limit) or 0)
    if request.spec.tasks != 1 or not steps or not limit_s or request.spec.after:
        return
    done = facts.saved.step if facts.saved else 0
    step_s, basis = estimate_step(request, facts).step_s, "the whole run takes"
    if step_s is None:
        step_s, basis = _least_step_s(request, facts), "even at its peak speed the hardware needs"
    if step_s is not None and (needed_s := step_s * (steps - done)) > SPARE * limit_s:
        yield warning(
            f"[slurm] tasks = 1: {basis} {format_duration(needed_s)} for {steps - done} steps, and nothing is queued"
            f" after {format_duration(limit_s)}",
            f"set tasks = {int(-(-needed_s // limit_s))} or less: tasks run one after the other, and stop when the"
            " training is finished",
        )


def _least_step_s(request: LaunchRequest, facts: Facts) -> float | None:
    """Return the time of a step at the peak speed of the GPUs: 6 operations per parameter and token."""
    recipe, count = request.recipe, request.recipe.parameters()
    if not (count and recipe.global_batch and recipe.sequence and request.has_gpus):
        return None
    gpus = request.spec.nodes * max(request.ranks_per_node, request.gpus_per_node)
    kinds = [accelerator(facts.gpu)] if facts.gpu else list(ACCELERATORS.values())
    peak = max(kind.tflops for kind in kinds) * 1e12 * (2 if recipe.fp8 else 1)
    return 6 * count * recipe.global_batch * recipe.sequence / (gpus * peak)
