"""Save the stacks of a hung attempt before its ranks are ended, as far as possible within a few seconds."""

import logging
import threading
from collections.abc import Mapping

from opsctl.base.ports import Clock, Runner
from opsctl.diagnosis.py_spy import TIMEOUT_S, dump_stacks
from opsctl.diagnosis.request_stacks import request_by_file
from opsctl.guard.attempt_record import expand_nodes
from opsctl.guard.escalation import reads_stop_request
from opsctl.nodes.remote.fanout import Fanout
from opsctl.slurm.job_environment import own_job
from opsctl.slurm.steps import InJob
from opsctl.state.files import make_directories
from opsctl.state.run_dir import Attempt, RunDir
from opsctl.telemetry.progress.train_settings import read_settings

log = logging.getLogger(__name__)
PY_SPY_S = TIMEOUT_S + 2
"""The next start waits for the stacks no longer than this: until a node that does not answer is given up."""


def save_stacks(run: RunDir, attempt: Attempt, runner: Runner, env: Mapping[str, str], clock: Clock) -> None:
    """Save the stacks of all ranks below the attempt's `evidence`. Raises nothing: the hung attempt ends anyway."""
    settings = read_settings(run)
    target = attempt.path / "evidence" / f"hang-{clock.now():%Y%m%dT%H%M%S}"
    try:
        make_directories(target)
        if settings and reads_stop_request(run):  # other trainers do not answer the file
            ranks = settings.world_size
            request_by_file(attempt, target, ranks=ranks, timeout_s=settings.watch.stacks_seconds, clock=clock)
    except OSError as error:
        log.warning("stacks could not be stored: %s", error)

    def run_py_spy() -> None:
        nodes = expand_nodes(env)
        ways = Fanout(shells=[InJob(runner=runner, jobs=dict.fromkeys(nodes, own_job(env)))])
        dump = dump_stacks(settings.watch.py_spy if settings else "", attempt.name, nodes, ways)
        for problem in dump.problems:
            log.warning("no stacks: %s", problem)
        try:
            dump.save(target)
        except OSError as error:
            log.warning("stacks could not be stored: %s", error)

    thread = threading.Thread(target=run_py_spy, daemon=True)
    thread.start()
    thread.join(PY_SPY_S)
