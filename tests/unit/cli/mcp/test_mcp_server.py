"""The MCP server in this process: which tools exist, and what they say about themselves."""

from typing import Any

import pytest

pytest.importorskip("mcp")

import anyio
from mcp import Client, MCPError

from opsctl.cli.mcp.mcp_server import build_server
from opsctl.host.system import SystemRunner

READING = {"status", "why", "report", "logs", "alerts", "nodes", "health", "plan"}
ACTING = {"hold", "release", "ack", "silence", "save"}


async def use(client: Any) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(tools) == READING
    assert all(tool.annotations.read_only_hint for tool in tools.values())
    for name in ACTING:
        with pytest.raises(MCPError, match="a person must start `opsctl mcp --actions`"):
            await client.call_tool(name, {"train": "t"})
    with pytest.raises(MCPError, match="'cancel': no such tool"):
        await client.call_tool("cancel", {"train": "t"})


async def use_actions(client: Any) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert {name for name, tool in tools.items() if not tool.annotations.read_only_hint} == ACTING
    assert not any(tool.annotations.destructive_hint for tool in tools.values())


@pytest.mark.parametrize("has_actions", [False, True])
def test_actions_exist_only_on_request(has_actions: bool) -> None:
    async def run() -> None:
        server = build_server(runner=SystemRunner(), program=["false"], has_actions=has_actions)
        async with Client(server) as client:
            await (use_actions if has_actions else use)(client)

    anyio.run(run)
