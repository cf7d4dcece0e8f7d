"""The console of short commands prints what rich would print, without loading it."""

from __future__ import annotations

import io
import os

import pytest
from rich.console import Console
from rich.markup import escape as rich_escape
from rich.text import Text

from rota.cli import output
from rota.cli.plain_console import PlainConsole, escape, text_width


class Terminal(io.StringIO):
    """A standard output that is a terminal."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    made = Terminal()
    monkeypatch.setattr(PlainConsole, "_stream", made)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(os, "get_terminal_size", lambda _number: os.terminal_size((30, 10)))
    return made


def no_rich() -> Console:
    raise AssertionError("rich was loaded")


MARKED = [
    "plain", "[bold]entry 7[/] is [red]failed[/]", "[bold]a [dim]b[/] c[/]", r"\[bold] is no style", "[1] and [ x ]",
    escape("a [bold] name"), escape(r"C:\[dim]"), "[bold red]both[/bold red]",
]  # fmt: skip


@pytest.mark.parametrize("text", MARKED)
def test_markup_is_read_as_rich_reads_it(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    PlainConsole(no_rich).print(text)
    assert capsys.readouterr().out == f"{Text.from_markup(text).plain}\n"
    PlainConsole(no_rich).print(text, markup=False)
    assert capsys.readouterr().out == f"{text}\n"


@pytest.mark.parametrize("text", ["a [bold] name", r"C:\[dim]", "[link=x]", "[/]", "[1]", "a[b", r"\\[red]"])
def test_texts_are_escaped_as_rich_escapes_them(text: str) -> None:
    assert escape(text) == rich_escape(text)


def test_a_terminal_gets_styles_and_no_other_codes(terminal: Terminal) -> None:
    PlainConsole(no_rich).print("[bold]a\x1b[2Jb[/] c", style="dim")
    assert terminal.getvalue() == "\x1b[2;1ma\\u001b[2Jb\x1b[0m\x1b[2m c\x1b[0m\n"


@pytest.mark.parametrize("variable", ["NO_COLOR", "TERM"])
def test_styles_can_be_switched_off(terminal: Terminal, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "dumb")
    PlainConsole(no_rich).print("[bold]a[/]")
    assert terminal.getvalue() == "a\n"


def test_a_table_is_aligned_also_with_wide_letters(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("name", "count"), [("读者", 1), ("a [bold] one", 22), (None, True)], empty="nothing")
    assert capsys.readouterr().out.splitlines() == [
        "name          count",
        "读者          1",
        "a [bold] one  22",
        "–             yes",
    ]
    assert text_width("e\u0301读") == 3
    output.print_table(("name",), [], empty="nothing")
    assert capsys.readouterr().out == "nothing\n"


def test_a_table_that_does_not_fit_the_terminal_is_folded_by_rich(terminal: Terminal) -> None:
    made: list[Console] = []

    def make_rich() -> Console:
        made.append(Console(file=terminal, width=30))
        return made[0]

    console = PlainConsole(make_rich)
    assert console.print_table(("name", "count"), [["x" * 23, "1"]]) is True
    assert console.print_table(("name", "count"), [["x" * 24, "1"]]) is False
    assert made == []
    console.print(Text("rich"))
    assert (len(made), terminal.getvalue().splitlines()[-1]) == (1, "rich")
