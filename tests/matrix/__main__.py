"""Run opsctl's tests on the Slurm of several suites: python -m tests.matrix [--suite SUITE] [--shell]"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.matrix.mirror import CannotBuild
from tests.matrix.roots import VENV, WORK, Root, unpacked

SUITES = ("bookworm", "trixie", "sid")
TESTS = (
    "tests/integration/shell/golden",
    "tests/integration/shell",
    "tests/unit/slurm",
    "tests/unit/sandbox",
    "tests/integration/slurm",
)
TEST_LIMIT_S = 3600
PROGRAMS = ("debootstrap", "unshare", "chroot", "tar", "git", "ip")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The test results on one Slurm version."""

    suite: str
    slurm: str
    python: str = ""
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    problem: str = ""

    @property
    def is_good(self) -> bool:
        return not self.problem and self.passed > 0 and self.failed == 0


def main() -> int:
    options = parse_arguments()
    problem = find_problem()
    if problem:
        print(f"make matrix: {problem}", file=sys.stderr)
        return 2
    logs = Path(options.logs or tempfile.mkdtemp(prefix="opsctl-matrix-logs-"))
    logs.mkdir(parents=True, exist_ok=True)
    results = []
    for suite in options.suite or SUITES:
        print(f"{suite}: log in {logs}/{suite}.log", flush=True)
        try:
            with unpacked(suite, log=logs / f"{suite}.log") as root:
                if options.build:
                    continue
                results.append(run_in_root(root, options, logs))
        except CannotBuild as error:
            results.append(Result(suite=suite, slurm="?", problem=str(error)))
        print(render_table(results[-1:]), flush=True)
    if len(results) > 1:
        print(render_table(results))
    return 0 if all(result.is_good for result in results) else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description="Run opsctl's tests on several Slurms.")
    parser.add_argument("--suite", action="append", help=f"one suite of the archive (default: {', '.join(SUITES)})")
    parser.add_argument("--shell", action="store_true", help="open a shell in the root instead")
    parser.add_argument("--build", action="store_true", help="only build the roots that the cache lacks")
    parser.add_argument("--logs", help="directory for the logs (default: a new one below /tmp)")
    parser.add_argument("tests", nargs="*", help=f"arguments for pytest (default: {' '.join(TESTS)})")
    return parser.parse_args()


def find_problem() -> str:
    """Return why the matrix cannot run here, or an empty text."""
    if os.geteuid() != 0:
        return "needs root, to build and enter the roots: sudo make matrix"
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    return f"not installed: {', '.join(missing)}" if missing else ""


def run_in_root(root: Root, options: argparse.Namespace, logs: Path) -> Result:
    root.copy_tree()
    version = root.slurm_version()
    pip = [f"{VENV}/bin/pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation", "-e", WORK]
    code = root.run(pip, limit_s=300, output=logs / f"{root.suite}.log")
    if code:
        return Result(suite=root.suite, slurm=version, problem=f"opsctl cannot be installed: exit code {code}")
    if options.shell:
        code = root.run(["bash"], limit_s=None, directory=WORK)
        return Result(suite=root.suite, slurm=version, passed=1, problem="" if code == 0 else f"exit code {code}")
    return run_tests(root, version, options.tests, logs)


def run_tests(root: Root, version: str, wanted: list[str], logs: Path) -> Result:
    began = time.monotonic()
    argv = [
        f"{VENV}/bin/pytest",
        "-q",
        "-n",
        "2",
        "--dist",
        "loadfile",
        "-m",
        "not torch",
        "-p",
        "no:cacheprovider",
        "--junitxml=/tmp/matrix.xml",
        *(wanted or TESTS),
    ]
    code = root.run(argv, limit_s=TEST_LIMIT_S, directory=WORK, output=logs / f"{root.suite}.log", env={"CI": "true"})
    seconds = time.monotonic() - began
    report = root.path / "tmp/matrix.xml"
    if not report.exists():
        return Result(suite=root.suite, slurm=version, problem=f"pytest left no report: exit code {code}")
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    for case in bad:
        print(f"  failed on {version}: {case.get('classname')}::{case.get('name')}")
    for reason in sorted({str(case.find("skipped").get("message")) for case in skipped}):  # type: ignore[union-attr]  # every skipped case has the element
        print(f"  skipped on {version}: {reason}")
    python = next((root.path / VENV.lstrip("/") / "lib").glob("python3*")).name.removeprefix("python")
    problem = f"pytest: exit code {code}" if code not in (0, 1) else ""
    return Result(
        suite=root.suite,
        slurm=version,
        python=python,
        passed=len(cases) - len(bad) - len(skipped),
        failed=len(bad),
        skipped=len(skipped),
        seconds=seconds,
        problem=problem,
    )


def render_table(results: list[Result]) -> str:
    lines = [f"{'suite':10} {'Slurm':10} {'Python':7} {'passed':>6} {'failed':>6} {'skipped':>7} {'seconds':>7}"]
    for result in results:
        lines.append(
            f"{result.suite:10} {result.slurm:10} {result.python:7} {result.passed:6} {result.failed:6}"
            f" {result.skipped:7} {result.seconds:7.0f}  {result.problem}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
