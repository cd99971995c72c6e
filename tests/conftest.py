"""Settings for all tests."""

import json
import os
import re
import signal
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# There is no deadline, as the duration of an example depends on the load of the machine. The examples are the same in
# every run, so that a test fails only after a change; `pytest --hypothesis-profile=others` draws new ones.
settings.register_profile("anywhere", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("others", settings.get_profile("anywhere"), derandomize=False, print_blob=True)
settings.load_profile("anywhere")

CALLER = re.compile(
    r"LINES|COLUMNS|NO_COLOR|FORCE_COLOR|CLICOLOR\w*|TTY_\w+|(GIT_)?PAGER|LESS|BASH_ENV|ENV|CDPATH|LANGUAGE|LC_\w+"
    r"|(HTTPS?|ALL|FTP|NO)_PROXY|XDG_(CONFIG|STATE|DATA)_\w+"
    r"|(SLURM|SBATCH|SALLOC|SRUN|SQUEUE|SINFO|SACCT|SCANCEL|SCONTROL|OPSCTL|TRAIN)D?_\w+",
    re.IGNORECASE,
)
"""Variables of the terminal, the language, the proxies, the settings and the job of whoever starts the tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--skips", type=Path, help="add what this run skips to FILE and print the table of all runs so far"
    )


def pytest_configure() -> None:
    """Reset the umask, the Ctrl-C handler and the variables that pytest inherited.

    A shell that starts pytest in the background makes it ignore SIGINT, and the programs that tests interrupt would
    inherit this. A strict umask would hide files from the other users of the tests. Tests that are about a variable
    set the variable.
    """
    for name in filter(CALLER.fullmatch, list(os.environ)):
        del os.environ[name]
    os.environ["LANG"] = "C.UTF-8"  # messages of programs in English
    os.fsync = lambda _handle: None  # no test cuts the power, and a disk takes 5 ms for each of 50,000 calls
    os.umask(0o022)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the files with a long test first, so that no worker waits for them at the end, and skip what needs root."""
    long_files = {item.path for item in items if item.get_closest_marker("long")}
    items.sort(key=lambda item: item.path not in long_files)
    if os.geteuid() == 0:
        return
    for item in items:
        if item.get_closest_marker("root"):
            item.add_marker(pytest.mark.skip(reason="needs root: allow sudo without a password, for make test"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print one table of what was not tested: how many tests or files, why, and what to install or type."""
    counts: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        if isinstance(report.longrepr, tuple):
            counts[report.longrepr[2].removeprefix("Skipped: ")] += 1
    earlier_runs: Path | None = config.getoption("--skips")
    if earlier_runs is not None:
        counts.update(json.loads(earlier_runs.read_text()) if earlier_runs.exists() else {})
        earlier_runs.parent.mkdir(exist_ok=True)
        earlier_runs.write_text(json.dumps(counts))
    if not counts:
        return
    terminalreporter.section(f"not tested: {counts.total()}")
    for reason, count in counts.most_common():
        terminalreporter.write_line(f"{count:5}  {reason}")
