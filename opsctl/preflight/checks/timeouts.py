"""Time limits and ports that a train sets to a fixed number."""

import re
from collections.abc import Iterator, Mapping

from opsctl.preflight.checks.duplicates import list_assigned, list_flags, list_variables
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest, Problem, warning
from opsctl.preflight.recipe import Recipe
from opsctl.preflight.step_estimate import estimate_step
from opsctl.preflight.trainer_settings import parse_whole

LEAST_S = 60
"""No collective of a large run may be limited to less: the first one waits for the slowest rank to load its data."""
FLAGS: Mapping[str, int] = {
    "distributed-timeout-minutes": 60,
    "distributed-timeout-seconds-after-init": 1,
    "ddp-timeout": 1,
    "comm.train-timeout-seconds": 1,
    "comm.init-timeout-seconds": 1,
    "dist-timeout": 1,
    "timeout": 1,
}
"""Time limits of collectives, and their unit in seconds."""
VARIABLES: Mapping[str, int] = {
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": 1,
    "TORCH_NCCL_TIMEOUT": 1,
    "NCCL_TIMEOUT": 1,
    "DEEPSPEED_TIMEOUT": 60,
    "TORCH_DISTRIBUTED_TIMEOUT": 1,
}
ENDPOINT = re.compile(r":(\d{1,5})/?$")
"""A fixed port at the end of an address."""


def timeouts(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """A rank that waits for a step, a save or slow data must not be taken for a hung rank."""
    step_s = estimate_step(request, facts).step_s
    for where, limit_s in _list_limits(request, facts):
        if step_s is not None and limit_s < step_s:
            yield warning(
                "timeouts.below_step", where=where, limit_s=limit_s, step_s=step_s, better_s=_minutes(10 * step_s)
            )
        elif limit_s < LEAST_S:
            yield warning("timeouts.short", where=where, limit_s=limit_s)
    if step_s is not None:
        yield from _own_limits(request, step_s)


def _own_limits(request: LaunchRequest, step_s: float) -> Iterator[Problem]:
    """Check the limits of opsctl that the user has set."""
    watch, guard = request.train.watch, request.train.guard
    if watch.hang_minutes is not None and 60 * watch.hang_minutes < 2 * step_s:
        yield warning("timeouts.hang", minutes=watch.hang_minutes, step_s=step_s)
    if "stop_grace_seconds" in guard.model_fields_set and guard.stop_grace_seconds < step_s:
        better_s = _minutes(2 * step_s)
        yield warning("timeouts.grace", grace_s=guard.stop_grace_seconds, step_s=step_s, better_s=better_s)


def _minutes(seconds: float) -> int:
    """Return the seconds of the next whole minute."""
    return int(-(-seconds // 60)) * 60


def _list_limits(request: LaunchRequest, facts: Facts) -> Iterator[tuple[str, float]]:
    for name, unit_s in FLAGS.items():
        yield from ((where, count * unit_s) for where, count in list_flags(request, name))
    yield from _list_limits_of_files(request.recipe)
    for name, unit_s in VARIABLES.items():
        yield from ((where, count * unit_s) for where, count in list_variables(request, [name], facts.scripts))


def _list_limits_of_files(recipe: Recipe) -> Iterator[tuple[str, float]]:
    """Yield the limits in scripts and settings files; flags of the command itself are read before."""
    for field, limit_s in (
        ("limit_minutes", 60 * (recipe.limit_minutes or 0)),
        ("limit_seconds", recipe.limit_seconds),
    ):
        name = recipe.names.get(field, "")
        if limit_s and name.removeprefix("--") not in recipe.flags:
            yield f"command: {name}", limit_s


def ports(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """opsctl gives each attempt a free port: a port of one's own may still be in use by the attempt before."""
    places = []
    if parse_whole(request.train.environment.get("MASTER_PORT", "")):
        places.append(f"[environment] MASTER_PORT = {request.train.environment['MASTER_PORT']}")
    recipe = request.recipe
    if recipe.port:
        places.append(f"command: {recipe.names['port']} {recipe.port}")
    if (match := ENDPOINT.search(recipe.endpoint)) and int(match[1]):
        places.append(f"command: {recipe.names['endpoint']} {recipe.endpoint}")
    for where, port in list_assigned({**request.texts, **facts.scripts}, ["MASTER_PORT"]):
        if port:
            places.append(f"{where}={port}")
    for place in places:
        yield warning("ports.fixed", place=place)
