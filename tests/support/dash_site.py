"""A site whose Slurm answers from memory and counts its calls, and a server of its pages on loopback."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import uvicorn

from opsctl.app import App, build
from opsctl.base.errors import Unreachable
from opsctl.base.findings import Severity
from opsctl.base.model import Job, JobState, Limits, Node
from opsctl.base.statements import state
from opsctl.dash.page_access import PageAccess, Role
from opsctl.dash.serve_pages import make_server, make_uvicorn, open_socket
from opsctl.dash.web_app import PageServer
from opsctl.host.system import SystemClock
from opsctl.state.events import AttemptFinalized, AttemptStarted, Submitted, Submitting
from opsctl.state.journal import Journal, actor
from opsctl.state.run_dir import RunDir
from tests.support.findings import make_finding

LINE = (
    " iteration {0}/ 1000 | elapsed time per iteration (s): 2.0 | global batch size: 64 | lm loss: {1}"
    " | TFLOPs: 150.0 |\n"
)


@dataclass
class CountedSlurm:
    """The queue and the nodes; `calls` counts what would be squeue and sinfo."""

    rows: list[Job] = field(default_factory=list)
    tiles: list[Node] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    is_away: bool = False
    held: list[str] = field(default_factory=list)

    def jobs(self) -> list[Job]:
        self.calls.append("squeue")
        if self.is_away:
            raise Unreachable("squeue did not answer")
        return self.rows

    def nodes(self) -> list[Node]:
        self.calls.append("sinfo")
        return self.tiles

    def limits(self) -> Limits:
        raise Unreachable("not asked in these tests")

    def hold(self, job: str) -> None:
        self.held.append(job)


@dataclass
class DashSite:
    app: App
    slurm: CountedSlurm

    def run(self, name: str) -> RunDir:
        return RunDir(self.app.root / name)


def make_site(place: Path, trains: tuple[str, ...] = ("tr11", "tr12"), *, steps: int = 300) -> DashSite:
    """Return a site with running trains, three queued tasks each, on one node each."""
    root = place / "trains"
    site_file = place / "site.toml"
    site_file.write_text(f'root = "{root}"\ntrust_parents = true\n[alerts]\nwarning_looks = 1\n')
    app, slurm = build(site_file), CountedSlurm()
    app.__dict__["slurm"] = slurm  # where the cached property keeps it
    for number, name in enumerate(trains, 1):
        make_train(RunDir(root / name), str(number), steps)
        slurm.rows += list_rows(name, str(number))
        slurm.tiles.append(Node(name=f"node{number:03}", state="ALLOCATED", address=f"node{number:03}"))
    return DashSite(app, slurm)


def make_alerted_site(place: Path) -> DashSite:
    """Return a site of two trains; a critical alert of the first is open."""
    site = make_site(place)
    finding = make_finding(key="hang/tr11", severity=Severity.CRITICAL, train="tr11", is_certain=True)
    says = state("queue.over", train="tr11", why="no step for 31 min")
    site.app.alerting.ledger.record([replace(finding, says=says)])
    return site


def make_train(run: RunDir, array: str, steps: int) -> None:
    run.create()
    run.config.write_text('command = ["x"]\n[slurm]\nnodes = 1\ntime_limit = "60"\n')
    journal = Journal(run, SystemClock())
    journal.append(Submitting(nonce="n1", tasks=5, after=""))
    journal.append(Submitted(nonce="n1", array=array))
    journal.append(AttemptStarted(attempt=f"{array}_1.0", nodes="node001"))
    journal.append(AttemptFinalized(attempt=f"{array}_1.0", outcome="crashed", action="continue", why="exit code 1"))
    run.main_log.write_text("".join(LINE.format(step, 2 + 10 / step) for step in range(1, steps + 1)))


def list_rows(name: str, array: str) -> list[Job]:
    now = SystemClock().now()
    shared = {"array": array, "name": name, "user": actor(), "comment": f"opsctl:{name}:n1"}
    running = Job(
        **shared,
        id=f"{array}1",
        tasks=(2,),
        state=JobState.RUNNING,
        nodes=f"node{int(array):03}",
        start=now - timedelta(minutes=5),
        end=now + timedelta(hours=1),
    )
    return [running, Job(**shared, id=array, tasks=(3, 4, 5), state=JobState.PENDING, reason="Dependency")]


@dataclass
class Visitor:
    """A browser without a page: one cookie, one Host."""

    port: int
    server: PageServer
    cookie: str = ""
    host: str = "localhost"

    def ask(self, path: str, *, method: str = "GET", body: str = "", **headers: str) -> tuple[int, str, HTTPResponse]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=250)
        sent = {"Host": f"{self.host}:{self.port}"} | ({"Cookie": self.cookie} if self.cookie else {})
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body=body.encode() if body else None, headers=sent)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text, answer

    def enter(self, role: Role) -> Visitor:
        """Exchange the token of a role for a cookie."""
        status, text, answer = self.ask("/session", method="POST", body=self.server.access.token(role))
        assert status == 200, text
        self.cookie = (answer.getheader("Set-Cookie") or "").partition(";")[0]
        return self


@contextmanager
def serving(site: DashSite, *, acts: bool = False, prefix: str = "", every_s: float = 3600.0) -> Iterator[Visitor]:
    """Serve the pages of a site in a thread; yield a visitor without a cookie."""
    access = PageAccess(secret=b"s" * 32, acts=acts, hosts=frozenset({"ood.example.org"}))
    server = make_server(site.app, access, every_s=every_s, prefix=prefix)
    listener = open_socket("127.0.0.1", 0)
    program = make_uvicorn(server)
    server.refresher.start()
    thread = threading.Thread(target=program.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield Visitor(port=listener.getsockname()[1], server=server)
    finally:
        stop(program, server, thread)
        listener.close()


def stop(program: uvicorn.Server, server: PageServer, thread: threading.Thread) -> None:
    server.refresher.stop()
    program.should_exit = True
    until = time.monotonic() + 250
    while thread.is_alive() and time.monotonic() < until:
        thread.join(0.1)
    assert not thread.is_alive(), "the server has not stopped"
