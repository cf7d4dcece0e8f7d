"""All tools, in the order in which they are listed."""

from __future__ import annotations

from collections.abc import Mapping

from rota.mcp.outlook_tools import OUTLOOK_TOOLS
from rota.mcp.run_tools import RUN_TOOLS
from rota.mcp.tool import Tool
from rota.mcp.work_tools import WORK_TOOLS
from rota.mcp.write_tools import WRITE_TOOLS

__all__ = ["TOOLS"]

TOOLS: Mapping[str, Tool] = {each.name: each for each in (*WORK_TOOLS, *OUTLOOK_TOOLS, *WRITE_TOOLS, *RUN_TOOLS)}
