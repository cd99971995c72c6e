"""Start the server of the pages: socket, links, and the loop until Ctrl-C."""

import asyncio
import contextlib
import errno
import getpass
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from opsctl.app import App
from opsctl.base.errors import OpsctlError
from opsctl.base.extras import required
from opsctl.base.nodesets import hostname
from opsctl.dash.collect_site import collect_site
from opsctl.dash.page_access import PageAccess, Role
from opsctl.dash.refresher import Refresher
from opsctl.dash.train_detail import try_detail
from opsctl.dash.web_app import PageServer
from opsctl.state.files import read_text
from opsctl.state.run_dir import RunDir

with required("dash"):
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

FIRST_PORT, PORTS = 20_000, 10_000
REQUEST_WITHIN_S = 5.0
"""From the start of a connection to the end of the headers of its first request."""
LISTENS = "0A"
"""The state of a listening socket in /proc/net/tcp."""
MAX_TABLE_BYTES = 16 << 20
"""About 100,000 sockets."""


def own_port() -> int:
    """Return the default port of this user, the same at every start, so that bookmarks stay valid."""
    return FIRST_PORT + os.geteuid() % PORTS


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLinks:
    view: str
    act: str
    """Empty without actions."""
    ssh: str
    """The command that makes the page reachable from another machine."""


def open_socket(address: str, port: int) -> socket.socket:
    """Return a listening socket. Raises OpsctlError if the port is taken."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        owner = _find_listener(port) if error.errno == errno.EADDRINUSE else None
        hint = "another `opsctl dash` may be running; --port chooses another port, 0 a free one"
        if owner not in (None, os.geteuid()):
            hint = f"a program of uid {owner} listens there and would read your link: open none; take another --port"
        raise OpsctlError(f"{address}:{port}: {error.strerror}", hint=hint) from error
    return listener


def _find_listener(port: int) -> int | None:
    """Return the uid that listens on a port of this machine; None if unknown."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            rows = [line.split() for line in read_text(Path(table), MAX_TABLE_BYTES).splitlines()[1:]]
            uids = [int(row[7]) for row in rows if row[3] == LISTENS and int(row[1].rpartition(":")[2], 16) == port]
            if uids:
                return uids[0]
    return None


def make_links(access: PageAccess, port: int, prefix: str, *, address: str = "127.0.0.1") -> PageLinks:
    """Return the links, whose fragment browsers never send.

    They name the address of the socket: `localhost` is first ::1, where any other user can listen on the same port.
    """
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(address, f"[{address}]" if ":" in address else address)  # noqa: S104 (names an address, binds none)
    base = f"http://127.0.0.1:{port}{prefix}/"
    return PageLinks(
        view=f"{base}#token={access.token(Role.VIEW)}",
        act=f"{base}#token={access.token(Role.ACT)}" if access.acts else "",
        ssh=f"ssh -N -L 127.0.0.1:{port}:{host}:{port} {getpass.getuser()}@{hostname()}",
    )


def make_server(app: App, access: PageAccess, *, every_s: float, prefix: str) -> PageServer:
    """Return the pages of the site with a view that is refreshed in the background."""
    refresher = Refresher(
        collect=lambda: collect_site(app),
        read_detail=lambda train: try_detail(app, RunDir(app.root / train)),
        clock=app.clock,
        every_s=every_s,
    )
    return PageServer(app=app, access=access, refresher=refresher, prefix=prefix)


class ImpatientProtocol(H11Protocol):
    """Ends connections that send no whole request in time: every user of the machine can open them."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self.loop.call_later(REQUEST_WITHIN_S, self._end_without_request)

    def _end_without_request(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.abort()


def make_uvicorn(server: PageServer) -> uvicorn.Server:
    """Return the HTTP server, which is not started yet."""
    config = uvicorn.Config(
        server.build(),
        http=ImpatientProtocol,
        ws="none",
        log_config=None,
        log_level="critical",  # at Ctrl-C, streams of events are cut off, which is no error
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
        limit_concurrency=500,
    )
    return uvicorn.Server(config)


def serve(server: PageServer, listener: socket.socket) -> None:
    server.refresher.start()
    try:
        make_uvicorn(server).run(sockets=[listener])
    finally:
        server.refresher.stop()
