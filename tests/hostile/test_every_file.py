"""Every file of a train, as every kind of entry: no command hangs, ends or hides another train."""

import os
import subprocess
import sys

import pytest

from opsctl.state.run_dir import RunDir
from tests.hostile.conftest import needs_squeue
from tests.hostile.test_files import DEEP, WRONG
from tests.support.cases import read_table

FILES = read_table(__file__, "files")
KINDS = ("pipe", "link to a device", "deep JSON", "wrong types", "a sparse file of 1 GB", "a loop of links")


def plant(run: RunDir, name: str, kind: str) -> None:
    path = run.path / FILES[name]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    elif kind == "a loop of links":
        path.symlink_to(path.name)
    elif kind == "deep JSON":
        path.write_text(DEEP + "\n")
    elif kind == "wrong types":
        path.write_text("\n".join(WRONG) + "\n")
    else:
        with path.open("wb") as file:
            # A log is read as a whole by `metrics`, in a time that grows with its size.
            file.truncate(1 << 27 if name == "log" else 1 << 30)


COMMANDS = """
import resource, sys, time
from click.testing import CliRunner
from opsctl.cli import cli
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
KNOWN = {"NoneType", "SystemExit", "InputError", "ConfigError", "RunDirError", "Unreachable", "OpsctlError",
         "SlurmError", "MissingProgram", "MissingPackage", "UsageError"}
ALL = ["status"], ["status", "--json"], ["metrics"], ["watch", "--dry-run"], ["publish"], ["nodes"]
EACH = [["why"], ["logs"], ["logs", "--rank", "0"], ["report"], ["stacks"], ["checkpoint", "list"], ["hold"]]
commands = list(ALL) + [[*words, name] for name in sys.argv[1:] for words in EACH]
for words in commands:
    began = time.process_time()
    done = CliRunner().invoke(cli, words, standalone_mode=False, prog_name="opsctl")
    spent, error = time.process_time() - began, type(done.exception).__name__
    if error not in KNOWN or "bug in opsctl" in done.output:
        print("FAILED", words, error, done.exception, done.output[-300:])
    if words in (ALL[0], ALL[1], ALL[2], ALL[3]) and "tr11" not in done.output:
        print("HIDDEN", words, done.output[:300])
    if spent > 8:
        print("SLOW", words, spent)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
peak = int(status["VmHWM"].split()[0]) >> 10  # of this program alone: ru_maxrss begins with the parent's peak
if peak > 300:
    print("MEMORY", peak)
print("done")
"""


@needs_squeue
@pytest.mark.long
@pytest.mark.attack("a hostile file hangs, ends or fills a command for everybody")
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_file_stops_no_command(site, kind):
    """One train for each file, and an honest one."""
    site.train("tr11")
    names = [name.replace(" ", "-") for name in FILES]
    for train, name in zip(names, FILES, strict=True):
        plant(site.train(train), name, kind)
    argv = [sys.executable, "-P", "-c", COMMANDS, *names]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=550, check=False)
    assert done.stdout == "done\n", done.stdout + done.stderr
