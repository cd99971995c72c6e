"""A process that runs one watch cycle for every line of its input, and prints one line of JSON as the answer.

`python -m tests.endurance.soak.watcher SITE PROGRAMS`
"""

import json
import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import psutil

from opsctl.alerts.ledger import summarize
from opsctl.base.findings import Severity
from opsctl.host.system import SystemRunner
from opsctl.monitor.steady_clock import SteadyClock
from opsctl.monitor.watch_cycle import Watch
from opsctl.settings.loader import load_site
from tests.support.watched_trains import CountedApp, CountingRunner, ForwardClock


def main(site: Path, programs: str) -> None:
    clock = ForwardClock()
    steady = SteadyClock(clock)
    app = CountedApp(site=load_site(site), site_path=site, clock=steady, runner=SystemRunner())
    counting = CountingRunner(env={"PATH": f"{programs}:{os.environ['PATH']}"})
    object.__setattr__(app, "counting", counting)
    watching = Watch(app=app)
    for line in sys.stdin:
        clocks = json.loads(line)
        clock.ahead, clock.skew = timedelta(seconds=clocks["ahead_s"]), timedelta(seconds=clocks["skew_s"])
        steady.boot = clocks["node"]
        counting.programs.clear()
        fields = cycle(watching)
        fields |= {"programs": counting.programs, "memory": psutil.Process().memory_info().rss}
        print(json.dumps(fields, default=str), flush=True)  # noqa: T201 (the answer)


def cycle(watching: Watch) -> dict[str, object]:
    try:
        report = watching.cycle()
    except BaseException:  # noqa: BLE001 (the answer must hold every cause)
        return {"died": traceback.format_exc()}
    entries = watching.app.alerting.ledger.entries()
    transitions = [summarize(transition) for transition in report.transitions]
    failed = [finding.summary for finding in report.findings if "a bug in opsctl" in finding.summary]
    wrong = [reconciled.error for reconciled in report.reconciled if reconciled.error]
    return {
        "open": {key: entry.severity for key, entry in entries.items() if entry.severity is not Severity.OK},
        "transitions": transitions,
        "problems": [*report.problems, *wrong],
        "bugs": failed,
        "seconds": report.seconds,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
