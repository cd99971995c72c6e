"""The MCP server: tools.toml offered over stdin and stdout. The only module that imports the SDK."""

import json
from collections.abc import Sequence

import anyio
import anyio.to_thread
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from opsctl import __version__
from opsctl.base.ports import Runner
from opsctl.cli.mcp.call_tool import NOTICE, call_tool
from opsctl.cli.mcp.tool_table import AssistantTool, load_tools, offered_tools

MAX_CALLS = 2
"""Commands that run at the same time; later calls wait."""
INSTRUCTIONS = """\
opsctl keeps training runs (trains) going on a Slurm cluster. Begin with `status`; for a train that ended or is held, \
call `why`; `logs` only for lines that `why` does not show. `alerts` has the keys of alerts. Times are ISO 8601. null \
means unknown, which is neither good nor bad. exit_code: 0 done, 1 expected failure (of health: a bad node), 2 wrong \
input, 3 a bug, 75 Slurm did not answer, try again later. """


def build_server(*, runner: Runner, program: Sequence[str], has_actions: bool) -> Server[dict[str, object]]:
    """Return the server. Without `has_actions`, tools that change something do not exist."""
    offered = offered_tools(has_actions=has_actions)
    limiter = anyio.CapacityLimiter(MAX_CALLS)

    async def list_tools(
        _context: ServerRequestContext[dict[str, object]], _params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return ListToolsResult(tools=[describe(tool) for tool in offered.values()])

    async def call(_context: ServerRequestContext[dict[str, object]], params: CallToolRequestParams) -> CallToolResult:
        tool = offered.get(params.name)
        if tool is None:
            raise MCPError(code=INVALID_PARAMS, message=_explain_missing(params.name, offered))
        done = await anyio.to_thread.run_sync(
            lambda: call_tool(tool, params.arguments or {}, runner=runner, program=program),
            abandon_on_cancel=True,
            limiter=limiter,
        )
        data = done.as_data()
        text = json.dumps(data, indent=1)  # escapes non-ASCII text, so that no invisible character passes
        return CallToolResult(
            content=[TextContent(type="text", text=text)], structured_content=data, is_error=done.is_error
        )

    return Server(
        "opsctl",
        version=__version__,
        instructions=INSTRUCTIONS + NOTICE,
        on_list_tools=list_tools,
        on_call_tool=call,
    )


def describe(tool: AssistantTool) -> Tool:
    """Return the tool in the words of the protocol."""
    return Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.schema(),
        annotations=ToolAnnotations(
            title=tool.title,
            read_only_hint=not tool.acts,
            destructive_hint=False,
            idempotent_hint=True,
            open_world_hint=False,
        ),
    )


def _explain_missing(name: str, offered: dict[str, AssistantTool]) -> str:
    if name in load_tools():
        return f"{name}: this server only reads; a person must start `opsctl mcp --actions` to allow actions"
    return f"{name!r:.60}: no such tool; known: {', '.join(offered)}"


def serve(server: Server[dict[str, object]]) -> None:
    """Serve one client on stdin and stdout until it closes stdin."""

    async def run() -> None:
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    anyio.run(run)
