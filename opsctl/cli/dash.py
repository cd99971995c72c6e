"""`opsctl dash`: the trains of a site on a web page."""

import ipaddress
import re
from datetime import timedelta
from functools import partial
from pathlib import Path

import click

from opsctl.app import App
from opsctl.base.errors import InputError
from opsctl.cli.dependent_option import dependent_option
from opsctl.cli.options import Duration
from opsctl.cli.output import app_and_json, print_result, write_file
from opsctl.host.system import state_home

server_option = partial(dependent_option, not_with=("--static",))
"""An option of the server; --static starts none."""
PREFIX = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")


@click.command()
@server_option("--port", type=click.IntRange(0, 65535), help="Port (default: one of your own; 0: a free one).")
@server_option("--listen", default="127.0.0.1", show_default=True, help="Address to listen on.")
@server_option("--server-name", "hosts", multiple=True, help="Name of the server in links of a proxy; repeatable.")
@server_option("--prefix", default="", help="Path prefix behind a proxy, such as /node/login1/8400.")
@server_option("--actions", is_flag=True, help="Allow actions: Ack, Hold, Release, Rollback and others.")
@server_option(
    "--every",
    type=Duration(minimum=timedelta(seconds=5)),
    default="30s",
    show_default=True,
    help="Time between two queries of Slurm.",
)
@server_option("--new-token", is_flag=True, help="Make new links; earlier links and sessions end.")
@click.option("--static", "directory", type=click.Path(path_type=Path), help="Write the pages to a directory and exit.")
@app_and_json
def dash(
    app: App,
    *,
    port: int | None,
    listen: str,
    hosts: tuple[str, ...],
    prefix: str,
    actions: bool,
    every: timedelta,
    new_token: bool,
    directory: Path | None,
) -> None:
    """Show all trains on a web page, for phone, desk and wall.

    Serves the page on this machine until Ctrl-C. Prints a link with a secret token, and the ssh command that makes
    the page reachable from elsewhere. All viewers share one query of Slurm; without a viewer Slurm is not
    asked. With --actions a second link allows the actions of the commands, with your permissions.

    \b
    opsctl dash
    opsctl dash --actions --port 8400
    opsctl dash --listen 0.0.0.0 --server-name ood.example.org --prefix /node/login1/8400 --port 8400
    opsctl dash --static public/
    """
    if directory:
        _write_files(app, directory)
        return
    _check_names(listen, hosts, prefix)
    from opsctl.dash.page_access import PageAccess, load_secret  # noqa: PLC0415 (after the checks of the options)
    from opsctl.dash.serve_pages import make_links, make_server, open_socket, own_port, serve  # noqa: PLC0415 (as above)

    secret = load_secret(state_home() / "dash", renew=new_token)
    access = PageAccess(secret=secret, acts=actions, hosts=frozenset(map(str.lower, hosts)))
    prefix = prefix.rstrip("/")
    with open_socket(listen, own_port() if port is None else port) as listener:
        links = make_links(access, listener.getsockname()[1], prefix, address=listen)
        with_actions = f"with actions: {links.act}\n" if links.act else ""
        print_result(links, f"read-only:    {links.view}\n{with_actions}from another machine, first run: {links.ssh}")
        serve(make_server(app.as_viewer(), access, every_s=every.total_seconds(), prefix=prefix), listener)


def _check_names(listen: str, hosts: tuple[str, ...], prefix: str) -> None:
    """Check where the server listens and how it is reached. Raises InputError."""
    if prefix.rstrip("/") and not PREFIX.fullmatch(prefix.rstrip("/")):
        raise InputError(f"--prefix {prefix!r:.80}: not a path such as /node/login1/8400")
    try:
        is_loopback = ipaddress.ip_address(listen).is_loopback
    except ValueError:
        raise InputError(
            f"--listen {listen!r:.80}: not an IP address, such as 127.0.0.1", hint="--port sets the port"
        ) from None
    if not is_loopback and not hosts:
        raise InputError(
            f"--listen {listen}: others on the network can reach this address, without encryption",
            hint="give the name of the proxy in front with --server-name, or listen on 127.0.0.1 and use ssh -L",
        )


def _write_files(app: App, directory: Path) -> None:
    from opsctl.dash.pages import render_files  # noqa: PLC0415 (slow import: templates)

    pages = render_files(app)
    for name, text in pages.items():
        write_file(directory / name, text, with_parents=True)
    text = f"{directory}: {len(pages)} pages; open {directory / 'index.html'}"
    print_result({"directory": str(directory), "files": sorted(pages)}, text)
