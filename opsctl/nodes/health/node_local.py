"""Check this node with the standard library only: for Prolog, Epilog, HealthCheckProgram and LBNL's NHC.

    PYTHONPATH=/opt/opsctl python3 -P -S -m opsctl.nodes.health.node_local --settings /etc/opsctl/site.toml

Exit codes and the line of a failure are those of NHC. Unknown is no failure: a missing tool or a timeout never drains.
"""

import argparse
import json
import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from opsctl.base.errors import OpsctlError
from opsctl.base.nodesets import hostname
from opsctl.base.ports import Answer, Clock, Runner, TimedOut
from opsctl.base.tables import parse_toml
from opsctl.host.system import SystemClock, SystemRunner
from opsctl.nodes.health.node_state import CheckInput, CheckResult, CheckSeverity, Health, NodeBaseline, Verdict
from opsctl.nodes.health.snapshot import parse, render_script
from opsctl.nodes.health.verdict import judge
from opsctl.settings.thresholds import DEFAULTS, Thresholds
from opsctl.state.files import read_bounded

HEALTHY, FAILED, WRONG_USAGE, OWN_ERROR = 0, 1, 2, 3
DEFAULT_TIMEOUT_S = 5
EXTRA_TIMEOUT_S = 5
MAX_SETTINGS_BYTES = 1 << 20
OUTSIDE_OF_THE_JOB = frozenset({"prolog_slurmd", "epilog_slurmd"})
"""Values of SLURM_SCRIPT_CONTEXT of programs that have a job's environment but see all devices."""


def check_this_node(
    site: Thresholds,
    *,
    runner: Runner,
    clock: Clock,
    timeout_s: int = DEFAULT_TIMEOUT_S,
    busy: bool | None = None,
    cleared: float | None = None,
) -> Verdict:
    """Gather and judge the data of this node, without history. Raises nothing.

    `busy` is whether a job has the node; lines of the kernel log before `cleared`, a Unix time, are no evidence.
    """
    mark, node, sent_at = f"@@{secrets.token_hex(8)}", hostname(), clock.now()
    script = "GRACE=0\n" + render_script(mark, section_timeout_s=timeout_s, mounts=site.mounts)
    env = {"SLURM_JOB_ID": None} if os.environ.get("SLURM_SCRIPT_CONTEXT") in OUTSIDE_OF_THE_JOB else None
    answer = Answer(node=node, by="local")
    try:
        done = runner.run(("/bin/sh", "-s"), timeout=timeout_s + EXTRA_TIMEOUT_S, stdin=script, env=env)
        answer = replace(answer, code=done.code, out=done.out, err=done.err)
    except (OpsctlError, TimedOut) as error:
        answer = replace(answer, problem=str(error))
    snapshot = parse(answer, mark, sent_at=sent_at, answered_at=clock.now())
    return judge(snapshot, CheckInput(site=site, prior=NodeBaseline(cleared=cleared), busy=busy))


def read_thresholds(path: Path) -> Thresholds:
    """Return the values of [health] in site.toml that checks read. Raises OSError, ValueError."""
    table = parse_toml(read_bounded(path, MAX_SETTINGS_BYTES, follow=True).decode())
    section = table.get("health", {})
    values = {}
    for name, default in asdict(DEFAULTS).items():
        if name in section:
            values[name] = _convert(name, section[name], default)
    return Thresholds(**values)


def _convert(name: str, value: Any, default: Any) -> Any:
    if isinstance(default, tuple) and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and not isinstance(default, tuple | str)
    if is_number or (isinstance(default, str) and isinstance(value, str)):
        return value
    raise ValueError(f"[health] {name}: {value!r} is not of the form of {default!r}")


def _render(result: CheckResult) -> str:
    return f"{result.gpu} {result.evidence}" if result.gpu else result.evidence


def report(verdict: Verdict, *, only_faulty: bool = False, verbose: bool = False, as_json: bool = False) -> int:
    """Print the verdict; return the exit code."""
    if as_json:
        print(json.dumps(asdict(verdict), default=str))
    else:
        for result in verdict.evidence:  # as NHC prints failed checks, the worst first
            print(f"ERROR:  opsctl:  Health check failed:  {result.check}:  {_render(result)}")
        shown = {CheckSeverity.NOTE, CheckSeverity.UNKNOWN} if verbose else set()
        for result in verdict.results:
            if result.severity in shown:
                print(f"{result.severity.value}: {result.check}: {_render(result)}")
    if verdict.health is Health.UNKNOWN:
        unknown = [result.check for result in verdict.results if result.severity is CheckSeverity.UNKNOWN]
        print(f"opsctl: {verdict.node} is neither healthy nor bad: unknown: {', '.join(unknown)}", file=sys.stderr)
    failing = {Health.FAULTY} if only_faulty else {Health.FAULTY, Health.DEGRADED}
    return FAILED if verdict.health in failing else HEALTHY


def _parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="opsctl-node-local",
        description="Check this node with the standard library only. Exit 0 healthy or unknown, 1 failed, 2 wrong "
        "usage, 3 an error of this program; only 1 is evidence against the node.",
    )
    parser.add_argument("--settings", type=Path, help="site.toml with a table [health]")
    parser.add_argument(
        "--timeout", type=int, default=DEFAULT_TIMEOUT_S, help="seconds after which a slow tool is unknown (default: 5)"
    )
    parser.add_argument("--idle", action="store_true", help="no job has the node: processes on its GPUs are left over")
    parser.add_argument("--only-faulty", action="store_true", help="exit 0 for a node that is only degraded")
    parser.add_argument("--cleared", type=Path, help="ignore kernel lines before this file's last change: touch it")
    parser.add_argument("--verbose", "-v", action="store_true", help="print notes and unknown checks as well")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Check this node as the arguments say; return the exit code."""
    arguments = _parse_arguments(argv)
    try:
        site = read_thresholds(arguments.settings) if arguments.settings else DEFAULTS
        cleared = _read_time(arguments.cleared) if arguments.cleared else None
    except (OSError, ValueError) as error:
        print(f"opsctl: {error}", file=sys.stderr)
        return WRONG_USAGE
    verdict = check_this_node(
        site,
        runner=SystemRunner(),
        clock=SystemClock(),
        timeout_s=max(1, arguments.timeout),
        busy=False if arguments.idle else None,
        cleared=cleared,
    )
    return report(verdict, only_faulty=arguments.only_faulty, verbose=arguments.verbose, as_json=arguments.json)


def _read_time(path: Path) -> float | None:
    """Return when a file was last changed; None for a missing file."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


if __name__ == "__main__":
    try:
        CODE = main()
    except Exception as error:  # noqa: BLE001 (a prolog must not drain the node for an error of this program)
        print(f"opsctl: {type(error).__name__}: {error}", file=sys.stderr)
        CODE = OWN_ERROR
    sys.exit(CODE)
