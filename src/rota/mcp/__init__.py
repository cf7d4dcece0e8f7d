"""Agents as clients: a server of the Model Context Protocol over the scheduler API. It needs the extra `mcp`.

    serve_stdio       serve one client over standard input and output: `rota mcp`
    McpHttpServer     serve many clients over streamable HTTP: `rota mcp --listen`, `rota serve --mcp`
    TOOLS             what they may call

Names are loaded on first use: the protocol's package takes more than a second to load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.lazy import exports

if TYPE_CHECKING:
    from rota.mcp.callers import AgentApi, Caller, caller_of
    from rota.mcp.http import McpHttpServer, McpLimits
    from rota.mcp.server import serve_stdio
    from rota.mcp.tools import TOOLS
    from rota.mcp.upstream import Upstream, upstream_of

__all__ = [
    "TOOLS",
    "AgentApi",
    "Caller",
    "McpHttpServer",
    "McpLimits",
    "Upstream",
    "caller_of",
    "serve_stdio",
    "upstream_of",
]

__getattr__ = exports(
    __name__,
    {
        "callers": ("AgentApi", "Caller", "caller_of"),
        "http": ("McpHttpServer", "McpLimits"),
        "server": ("serve_stdio",),
        "tools": ("TOOLS",),
        "upstream": ("Upstream", "upstream_of"),
    },
)
