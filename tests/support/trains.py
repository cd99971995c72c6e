"""A site on the shared sandbox, and commands run on it."""

import grp
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from opsctl.app import App, build
from opsctl.base.errors import OpsctlError
from opsctl.base.model import Job, Node
from opsctl.cli import cli
from opsctl.sandbox.cluster import Sandbox
from opsctl.state.events import Event
from opsctl.state.journal import Journal
from opsctl.state.run_dir import RunDir
from tests.support.other_users import skip_unless_others_may_run

HELD = ("--hold",)
"""Options of trains that only have to be in the queue."""

LOG_LINE = re.compile(r"^\d{4}-\d\d-\d\dT[\d:]+Z (DEBUG|INFO|WARNING|ERROR) .*\n(    .*\n)*", re.MULTILINE)
"""A record of the log, with its further lines."""


class Trains:
    """The trains of one test, below their own root."""

    def __init__(self, place: Path, group: str = "") -> None:
        self.place = place
        self.site = place / "site.toml"
        self.root = place / "trains"
        self.site.write_text(f'root = "{self.root}"\ngroup = "{group}"\n')

    @property
    def app(self) -> App:
        return build(self.site)

    def toml(self, name: str = "t", command: tuple[str, ...] = ("true",), more: str = "", **slurm: Any) -> Path:
        """Write a TRAIN.toml of one node, held in the queue unless `extra` is replaced."""
        table = {"nodes": 1, "time_limit": "5", "tasks": 3, "extra": HELD, "memory_per_node": "10", **slurm}
        lines = [f"name = {_toml(name)}", f"command = {_toml(command)}", "[slurm]"]
        lines += [f"{key} = {_toml(value)}" for key, value in table.items()]
        path = self.place / f"{name}.toml"
        path.write_text("\n".join([*lines, "[guard]", "poll_seconds = 0.1", more]) + "\n")
        return path

    def opsctl(self, *words: object, app: App | None = None) -> str:
        """Run a command and return its output, stderr included, without log lines. Raises the error of the command."""
        arguments = ["--site", str(self.site), *map(str, words)]
        done = CliRunner().invoke(cli, arguments, obj=app, standalone_mode=False)
        if done.exception:
            raise done.exception
        return LOG_LINE.sub("", done.output)

    def refusal(self, *words: object) -> OpsctlError:
        with pytest.raises(OpsctlError) as caught:
            self.opsctl(*words)
        return caught.value

    def run(self, name: str = "t") -> RunDir:
        return RunDir(self.root / name)

    def kinds(self, name: str = "t") -> list[type[Event]]:
        return [type(event) for event in Journal(self.run(name), self.app.clock).events()]

    def rows(self, name: str = "t") -> list[Job]:
        """Return the queued and running jobs of this name."""
        return [job for job in self.app.slurm.jobs() if job.name == name and not job.state.is_final]

    def arrays(self, name: str = "t") -> set[str]:
        return {job.array for job in self.rows(name)}


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value) if isinstance(value, int) else "'" + value + "'"


@contextmanager
def trains_on(sandbox: Sandbox, group: str = "") -> Iterator[Trains]:
    """Provide trains on `sandbox` in a directory that other users can reach; cancel their jobs at the end."""
    with tempfile.TemporaryDirectory(prefix="opsctl-trains-") as name, pytest.MonkeyPatch.context() as patch:
        Path(name).chmod(0o755)
        for key, value in sandbox.env().items():
            patch.setenv(key, value)
        trains = Trains(Path(name), group)
        yield trains
        slurm = trains.app.slurm
        mine = {job.array for job in slurm.jobs() if f"opsctl:{job.name}:" in job.comment}
        for array in mine:
            slurm.cancel(array)
        until(lambda: not [job for job in slurm.jobs() if job.array in mine and not job.state.is_final])
        for node in slurm.nodes():
            if node.reason.startswith("Kill task failed"):  # a rank ended late, as on a busy machine
                slurm.resume(node.name)


def until(holds: Callable[[], Any], *, seconds: float = 250) -> Any:
    """Wait until `holds` returns a true value, and return this value."""
    deadline = time.monotonic() + seconds
    while not (value := holds()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)
    return value


def await_idle(trains: Trains) -> None:
    """Wait until no node completes an earlier job: short jobs want idle nodes at once."""
    until(
        lambda: not [node for node in trains.app.slurm.nodes() if "COMPLETING" in node.state or "ALLOC" in node.state]
    )


def read_node(trains: Trains, name: str) -> Node:
    """Return the node as soon as no earlier job completes on it: its state shows that as well."""
    nodes = trains.app.slurm.nodes
    return until(lambda: next((node for node in nodes() if node.name == name and "COMPLETING" not in node.state), None))


def find_group() -> str:
    """Return a group that this user may give a directory to: `users` for root, for tests with other users."""
    return "users" if os.geteuid() == 0 else grp.getgrgid(os.getegid()).gr_name


def as_user(uid: int, gid: int, do: Callable[[], str]) -> str:
    """Call `do` as another user of this machine and return its text, or the message and hint of its error."""
    skip_unless_others_may_run()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([gid])
            os.setgid(gid)
            os.setuid(uid)
            os.environ["HOME"] = "/nonexistent"
            text = do()
            code = 0
        except OpsctlError as error:
            text = f"{type(error).__name__}: {error.message} | {error.hint}"
        except BaseException as error:  # noqa: BLE001 - a child of a test must not go on as a second test
            text = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, text.encode())
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text
