"""Printing lines and tables with the few styles that short commands use.

rich takes longer to load than such a command takes to run. So a line with `[bold]`, `[dim]` or a colour, and a table
that fits the terminal, are printed here. Whatever else is printed, or asked of the console, goes to rich, which is
loaded then: live views, drawings, and tables that have to be folded.

What is printed cannot control the terminal: of codes, it gets only the styles below.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from rota.cli.terminal_text import harmless

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["PlainConsole", "escape", "text_width"]

_CODES = {
    "bold": "1", "dim": "2", "italic": "3", "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35",
    "cyan": "36",
}  # fmt: skip
_TAG = re.compile(r"(\\*)\[(/[a-z ]*|[a-z][a-z ]*)\]")  # as rich writes them: [bold red]…[/]
_RESET = "\x1b[0m"
_HANDLED = {"style", "markup", "end", "highlight", "soft_wrap"}  # options of `print` that are known here


def escape(text: str) -> str:
    """Return text in which nothing is taken for a style."""
    return re.sub(r"(\\*)(\[[a-z#/@][^\[]*?\])", lambda tag: f"{tag[1]}{tag[1]}\\{tag[2]}", text)


class PlainConsole:
    """A console for lines of text; for everything else it becomes rich's."""

    def __init__(self, make_rich: Callable[[], Console], *, stderr: bool = False) -> None:
        self._make_rich = make_rich
        self._stderr = stderr
        self._rich: Console | None = None

    def __getattr__(self, name: str) -> Any:
        if self._rich is None:
            self._rich = self._make_rich()
        return getattr(self._rich, name)

    @property
    def _stream(self) -> TextIO:
        return sys.stderr if self._stderr else sys.stdout

    def print(self, *what: Any, **options: Any) -> None:
        """Print lines of text, with styles in brackets unless `markup` is False."""
        if self._rich is not None or not all(isinstance(each, str) for each in what) or options.keys() - _HANDLED:
            self.__getattr__("print")(*what, **options)
            return
        text = " ".join(what)
        has_style = _has_styles(self._stream)
        parts = _parts(text) if options.get("markup") is not False else [(text, ())]
        outer = (options.get("style") or "").split()
        shown = "".join(_styled(part, (*outer, *styles), has_style=has_style) for part, styles in parts)
        self._stream.write(shown + options.get("end", "\n"))

    def print_table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
        """Print a table of texts, if it fits; returns whether it did."""
        lines = [list(columns), *(list(map(_plain, row)) for row in rows)]
        widths = [max(text_width(line[at]) for line in lines) for at in range(len(columns))]
        stream = self._stream
        if stream.isatty() and sum(widths) + 2 * (len(widths) - 1) > os.get_terminal_size(stream.fileno()).columns:
            return False
        has_style = _has_styles(stream)
        for number, line in enumerate(lines):
            padded = [text + " " * (width - text_width(text)) for text, width in zip(line, widths, strict=True)]
            joined = "  ".join(padded).rstrip()
            stream.write(_styled(joined, ("bold",) if number == 0 else (), has_style=has_style) + "\n")
        return True


def _has_styles(stream: TextIO) -> bool:
    if "NO_COLOR" in os.environ or os.environ.get("TERM") in ("dumb", "unknown"):
        return False
    return "FORCE_COLOR" in os.environ or stream.isatty()


def _styled(text: str, styles: Sequence[str], *, has_style: bool) -> str:
    text = harmless(text, lines=True)
    codes = [_CODES[style] for style in styles if style in _CODES]
    return f"\x1b[{';'.join(codes)}m{text}{_RESET}" if codes and text and has_style else text


def _parts(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the parts of a text with their styles."""
    styles: list[tuple[str, ...]] = []
    start = 0
    for tag in _TAG.finditer(text):
        slashes, name = tag[1], tag[2]
        yield text[start : tag.start()] + "\\" * (len(slashes) // 2), tuple(each for group in styles for each in group)
        start = tag.end()
        if len(slashes) % 2:  # an escaped bracket
            yield f"[{name}]", tuple(each for group in styles for each in group)
        elif not name.startswith("/"):
            styles.append(tuple(name.split()))
        elif styles:
            styles.pop()
    yield text[start:], tuple(each for group in styles for each in group)


def _plain(text: str) -> str:
    """Return a cell's text without styles."""
    return "".join(part for part, _ in _parts(text))


def text_width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )
