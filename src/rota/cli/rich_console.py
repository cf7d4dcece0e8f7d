"""rich's console, for live views, drawings and tables that have to be folded."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from rota.cli.terminal_text import harmless

__all__ = ["PIPE_COLUMNS", "rich_console"]

PIPE_COLUMNS = 160  # the width where output is not a terminal


class _HarmlessConsole(Console):
    """A console that shows the codes in a text; of codes, a terminal gets only its own styles and cursor moves."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield the parts of what is printed."""
        for part in super().render(renderable, options):
            if part.control or part.text.isprintable() or part.text == "\n":
                yield part
            else:
                yield Segment(harmless(part.text, lines=True), part.style)


def rich_console(*, stderr: bool = False, **options: Any) -> Console:
    """Return the console for standard output or standard error."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stderr or stream.isatty() or "COLUMNS" in os.environ else PIPE_COLUMNS
    return _HarmlessConsole(**{"width": width, "highlight": False, "emoji": False, "stderr": stderr, **options})
