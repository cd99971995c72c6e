"""Start the server of the pages: socket, links, and the loop until Ctrl-C."""

import errno
import getpass
import os
import socket
from dataclasses import dataclass

from opsctl.app import App
from opsctl.base.errors import OpsctlError
from opsctl.base.extras import required
from opsctl.base.nodesets import hostname
from opsctl.dash.collect_site import collect_site
from opsctl.dash.connections import PatientProtocol, read_sockets
from opsctl.dash.page_access import PageAccess, Role
from opsctl.dash.refresher import Refresher
from opsctl.dash.train_detail import try_detail
from opsctl.dash.web_app import PageServer
from opsctl.state.run_dir import RunDir

with required("dash"):
    import uvicorn

FIRST_PORT, PORTS = 20_000, 10_000
LISTENS = "0A"
"""The state of a listening socket in /proc/net/tcp."""


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
        users = (uid for used, state, uid in read_sockets() if (used, state) == (port, LISTENS))
        owner = next(users, None) if error.errno == errno.EADDRINUSE else None
        hint = "another `opsctl dash` may be running; --port chooses another port, 0 a free one"
        if owner not in (None, os.geteuid()):
            hint = f"a program of uid {owner} listens there and would read your link: open none; take another --port"
        raise OpsctlError(f"{address}:{port}: {error.strerror}", hint=hint) from error
    return listener


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


def make_uvicorn(server: PageServer) -> uvicorn.Server:
    """Return the HTTP server, which is not started yet."""
    config = uvicorn.Config(
        server.build(),
        http=PatientProtocol,
        ws="none",
        log_config=None,
        log_level="critical",  # at Ctrl-C, streams of events are cut off, which is no error
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(config)


def serve(server: PageServer, listener: socket.socket) -> None:
    server.refresher.start()
    try:
        make_uvicorn(server).run(sockets=[listener])
    finally:
        server.refresher.stop()
