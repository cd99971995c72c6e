"""`opsctl mcp`: tools for assistants, by the Model Context Protocol."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from opsctl.base.errors import InputError
from opsctl.cli.output import app_and_json, print_result, wants_json

if TYPE_CHECKING:
    from opsctl.app import App


@click.command()
@click.option("--actions", is_flag=True, help="Offer hold, release, ack, silence and save as well.")
@click.option("--list", "lists", is_flag=True, help="List the tools and exit.")
@app_and_json
def mcp(app: App, *, actions: bool, lists: bool) -> None:
    """Offer tools to assistants, by the Model Context Protocol.

    An MCP client starts this command and talks to it over stdin and stdout. The tools are commands of opsctl: status,
    why, report, logs, alerts, nodes, health and plan, with the rights of the user. These tools only read. --actions
    adds hold, release, ack, silence and save; their reasons are journalled with the words "(by opsctl mcp)".

    \b
    opsctl mcp
    opsctl mcp --actions
    opsctl mcp --list --json
    """
    from opsctl.base.extras import required  # noqa: PLC0415 (as above)
    from opsctl.cli.mcp.tool_table import offered_tools  # noqa: PLC0415 (only for this command)

    if lists or wants_json():
        tools = offered_tools(has_actions=actions).values()
        data = [{"name": tool.name, "acts": tool.acts, "arguments": tool.schema()} for tool in tools]
        print_result(data, "\n".join(f"{tool.name:<10}{tool.title}" for tool in tools))
        return
    if sys.stdin.isatty():
        raise InputError(
            "mcp: stdin is a terminal, but an MCP client has to start this command",
            hint='settings of the client: "command": "opsctl", "args": ["mcp"]; opsctl mcp --list shows the tools',
        )
    with required("mcp"):
        from opsctl.cli.mcp.mcp_server import build_server, serve  # noqa: PLC0415 (slow import, an extra)
    serve(build_server(runner=app.runner, program=app.program, has_actions=actions))
