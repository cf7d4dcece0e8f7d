"""The server: tools, resources and prompts for the caller at the other end of a connection.

The protocol is that of the official package; its low-level server leaves schemas and decoding to us, so that rota's
own structures are the only ones. Calls run on threads, because the scheduler API waits for its answers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any, TypeAlias, TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    GetPromptRequestParams,
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    Prompt,
    PromptArgument,
    PromptMessage,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from mcp_types import Tool as ToolLine

from rota.errors import Forbidden, InvalidInput, NotFound, RotaError, Unauthenticated
from rota.mcp.callers import Caller
from rota.mcp.prompts import DIAGNOSE, diagnosis
from rota.mcp.resources import PAGES, TEMPLATES, page_text
from rota.mcp.tool import Tool, refusal
from rota.mcp.tools import TOOLS

__all__ = ["LOST", "Context", "McpServer", "serve_stdio"]

LOST = "rota.lost"  # in the scope of an HTTP request: its token is no longer valid
CALLS_MAX = 256  # that run or wait at the same time, each on a thread
T = TypeVar("T")
Context: TypeAlias = ServerRequestContext[Any, Any]
Finder: TypeAlias = Callable[[Context], Caller]

_INSTRUCTIONS = """\
rota schedules the runs of a fleet of agents: who runs next, on whose budget, and by when. A job is an entry of its \
queue, with an id. Start with list_work and list_agents. `why` explains why an entry waits and what would start it. \
Answers are pages: `next_after` and `next_offset` lead to the next one. rota://glossary says what the words mean.
"""


class McpServer:
    """A server of the protocol; `find_caller` says who makes a request."""

    def __init__(self, find_caller: Finder) -> None:
        self._find_caller = find_caller
        self._limiter: anyio.CapacityLimiter | None = None
        self.lowlevel: Server[Any] = Server(
            "rota",
            version=version("rota"),
            title="rota, a scheduler for fleets of agents",
            instructions=_INSTRUCTIONS,
            get_tool_input_schema=lambda name: TOOLS[name].input_schema if name in TOOLS else None,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
        )

    async def _on_thread(self, context: Context, work: Callable[[Caller], T]) -> T:
        """Find the caller and do its work on a thread; a wait ends soon after its client has gone."""
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(CALLS_MAX)
        try:
            return await anyio.to_thread.run_sync(lambda: work(self._caller(context)), limiter=self._limiter)
        except Unauthenticated:
            if context.request is not None:
                context.request.scope[LOST] = True
            raise

    def _caller(self, context: Context) -> Caller:
        return replace(self._find_caller(context), check_wanted=anyio.from_thread.check_cancelled)

    # --- tools -----------------------------------------------------------------------------------

    async def _list_tools(self, context: Context, _params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=await self._answer(context, _offered))

    async def _call_tool(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
        wanted = TOOLS.get(params.name)
        if wanted is None:
            raise MCPError(code=INVALID_PARAMS, message=f"there is no tool {params.name}: tools/list lists them")
        try:
            result = await self._on_thread(context, partial(_call, wanted, params.arguments or {}))
        except RotaError as problem:
            return _failed(problem)
        text = msgspec.json.encode(result).decode()
        return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=result)

    # --- resources and prompts -------------------------------------------------------------------

    async def _list_resources(self, _context: Context, _params: PaginatedRequestParams | None) -> ListResourcesResult:
        pages = [
            Resource(
                uri=page.uri, name=page.uri.removeprefix("rota://"), description=page.about, mime_type=page.mime_type
            )
            for page in PAGES.values()
        ]
        return ListResourcesResult(resources=pages)

    async def _list_templates(
        self, _context: Context, _params: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        templates = [
            ResourceTemplate(
                uri_template=each.uri, name=each.parameter, description=each.about, mime_type=each.mime_type
            )
            for each in TEMPLATES
        ]
        return ListResourceTemplatesResult(resource_templates=templates)

    async def _read_resource(self, context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        uri = str(params.uri)
        text, mime_type = await self._answer(context, partial(page_text, uri=uri))
        return ReadResourceResult(contents=[TextResourceContents(uri=uri, text=text, mime_type=mime_type)])

    async def _list_prompts(self, _context: Context, _params: PaginatedRequestParams | None) -> ListPromptsResult:
        project = PromptArgument(name="project", description="Only this project, by id.", required=False)
        about = "Find out why work does not go on, with what is known now."
        prompt = Prompt(name=DIAGNOSE, title="Diagnose a stuck fleet", description=about, arguments=[project])
        return ListPromptsResult(prompts=[prompt])

    async def _get_prompt(self, context: Context, params: GetPromptRequestParams) -> GetPromptResult:
        if params.name != DIAGNOSE:
            raise MCPError(code=INVALID_PARAMS, message=f"there is no prompt {params.name}; there is {DIAGNOSE}")
        project = (params.arguments or {}).get("project") or None
        text = await self._answer(context, partial(diagnosis, project=project))
        message = PromptMessage(role="user", content=TextContent(type="text", text=text))
        return GetPromptResult(description="Diagnose a stuck fleet", messages=[message])

    async def _answer(self, context: Context, work: Callable[[Caller], T]) -> T:
        """Do work that has no place for an error in its result: the error is one of the protocol."""
        try:
            return await self._on_thread(context, work)
        except RotaError as problem:
            code = INVALID_PARAMS if isinstance(problem, InvalidInput | NotFound | Forbidden) else INTERNAL_ERROR
            raise MCPError(code=code, message=str(problem), data=_plain(problem.to_rpc_data())) from problem


def _offered(caller: Caller) -> list[ToolLine]:
    return [
        ToolLine(
            name=each.name,
            title=each.title,
            description=each.about,
            input_schema=each.input_schema,
            output_schema=each.output_schema,
            annotations=ToolAnnotations(
                read_only_hint=not each.writes,
                destructive_hint=each.name in ("cancel", "change") if each.writes else None,
                idempotent_hint=each.is_idempotent if each.writes else None,
                open_world_hint=False,
            ),
        )
        for each in TOOLS.values()
        if refusal(each, caller) is None
    ]


def _call(wanted: Tool, given: dict[str, Any], caller: Caller) -> dict[str, Any]:
    refused = refusal(wanted, caller)
    if refused is not None:
        raise refused
    return wanted.call(caller, given)


def _failed(problem: RotaError) -> CallToolResult:
    """Return an error as the model reads it: what happened and what to do, and the same as data."""
    body = _plain({"code": problem.code, "message": problem.message, **problem.to_rpc_data()})
    return CallToolResult(
        content=[TextContent(type="text", text=str(problem))], structured_content={"error": body}, is_error=True
    )


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    """Return data as JSON has it; an error's facts may be structures."""
    plain: dict[str, Any] = msgspec.to_builtins(data, str_keys=True, enc_hook=str)
    return plain


def serve_stdio(open_caller: Callable[[], Caller]) -> None:
    """Serve one client over standard input and output, until it closes them.

    The store is opened for the first request that needs it; if that fails, the next one tries again.
    """
    opened: list[Caller] = []
    opening = threading.Lock()

    def find_caller(_context: Context) -> Caller:
        with opening:
            if not opened:
                opened.append(open_caller())
            return opened[0]

    try:
        anyio.run(_serve_stdio, McpServer(find_caller))
    finally:
        for caller in opened:
            caller.api.close()


async def _serve_stdio(server: McpServer) -> None:
    async with stdio_server() as (reading, writing):
        await server.lowlevel.run(reading, writing, server.lowlevel.create_initialization_options())
