"""Text that is safe to print: what programs, payloads, names and errors contain cannot control the terminal.

A terminal obeys codes in what it prints: it moves the cursor, rewrites lines that were printed before, sets the title
of its window or the clipboard, or shows text in another order than a program reads it. `harmless` shows such codes as
they are written in JSON, so the same function serves people and programs:

    "\\x1b[2J"   →   \\u001b[2J

All output of the command goes through `say`, `output.console` or `output.print_json`, which call it; a test finds any
other way. The names that rota accepts contain no such codes (`Checks.name`), but a store of an earlier version may.
"""

from __future__ import annotations

import re
from typing import Any

import typer

__all__ = ["harmless", "say"]

# control codes; direction codes; separators of lines; invisible tags and annotations; what is no character
_CODES = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff]"
)
_CODES_IN_LINES = re.compile(rf"(?![\n\t]){_CODES.pattern}")


def harmless(text: str, *, lines: bool = False) -> str:
    """Return text with its control and direction codes shown, not obeyed; with `lines`, \\n and \\t stay."""
    return (_CODES_IN_LINES if lines else _CODES).sub(_shown, text)


def _shown(code: re.Match[str]) -> str:
    if code[0] in "\n\t\r":
        return repr(code[0])[1:-1]
    units = code[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def say(text: object, *, err: bool = False, nl: bool = True, **style: Any) -> None:
    """Print text on standard output, or on standard error."""
    typer.secho(harmless(str(text), lines=True), err=err, nl=nl, **style)
