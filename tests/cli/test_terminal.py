"""What programs, payloads and names contain cannot control the terminal that it is printed on."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from rota import store
from rota.cli import output
from rota.cli.log_lines import HarmlessFormatter
from rota.cli.panels import Look, Scene, scene_view
from rota.cli.terminal_text import harmless, say
from rota.cli.view import log_line
from rota.kernel import Kernel
from rota.model.agent_metadata import HIDDEN
from rota.model.work import ScheduleSpec
from rota.observe import EventText, ProjectReport
from rota.service import Dispatcher
from tests.cli.shell import Shell

CODES = "a\x1b]0;owned\a\x1b[2Jb\x9bc\u202ed\x7fe\rf\U000e0041"
SECRET = "sk-planted-6b1f"


def codes_in(text: str) -> set[str]:
    return {char for char in text if not char.isprintable()} - {"\n"}


def test_codes_are_shown_as_json_writes_them() -> None:
    assert harmless("\x1b[2J") == r"\u001b[2J"
    assert harmless("a\n\tb\r", lines=True) == "a\n\tb\\r"
    assert harmless("a\nb") == r"a\nb"
    assert codes_in(harmless(CODES)) == set()
    assert json.loads(f'"{harmless(CODES)}"') == CODES
    kept = "Überprüfung 读者 👩\u200d🔬 1\u202f000\u00a0€"  # joined, and with spaces that do not break
    assert harmless(kept) == kept


def test_what_is_said_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    say(CODES)
    say(CODES, err=True, fg="red")
    out, err = capsys.readouterr()
    assert codes_in(out) == codes_in(err) == set()


def test_a_console_obeys_its_own_codes_and_no_others() -> None:
    out = output.console(file=io.StringIO(), force_terminal=True, width=200, color_system="standard")
    table = Table("name")
    table.add_row(Text(CODES, style="red"))
    for printed in (CODES, Text(CODES), table, f"[bold]{CODES}[/]"):
        out.print(printed)
    out.rule(CODES)
    written = out.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[31m" in written
    assert codes_in(re.sub(r"\x1b\[[0-9;]*m", "", written)) == set()


def test_json_stays_json(capsys: pytest.CaptureFixture[str]) -> None:
    for indent in (None, 2):
        output.print_json({"name": CODES}, indent=indent)
        out = capsys.readouterr().out
        assert json.loads(out) == {"name": CODES}
        assert codes_in(out) == set()


def test_the_live_view_shows_codes() -> None:
    project = ProjectReport(
        project_id=CODES, weight=1_000, share=1.0, target=1.0, runs=1, failed=0, charged={}, seconds=1.0
    )
    stories = (EventText(event_id=1, at=0.0, text=CODES, tone="plain"),)
    scene = Scene(at=0.0, store=CODES, worker_id=CODES, policy=CODES, projects=(project,), stories=stories)
    out = output.console(file=io.StringIO(), width=120)
    out.print(scene_view(scene, Look(width=120)))
    assert codes_in(out.file.getvalue()) == set()  # type: ignore[attr-defined]
    assert "\n" not in log_line(EventText(event_id=1, at=0.0, text="x\n00:00:00Z forged", tone="plain"))


def test_a_log_line_cannot_be_forged() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(HarmlessFormatter("%(levelname)s %(message)s"))
    log = logging.getLogger("rota.test.terminal")
    log.addHandler(handler)
    log.propagate = False
    try:
        log.warning("agent %s failed", f"{CODES}\nERROR the store is gone")
        log.error("and so did this", exc_info=ValueError(CODES))
    finally:
        log.removeHandler(handler)
    written = stream.getvalue()
    assert codes_in(written) == set()
    assert not [line for line in written.splitlines() if line.startswith("ERROR the store")]
    assert "ValueError: a" in written


def test_the_output_of_a_program_is_shown_or_raw(path: Path) -> None:
    body = b"\x1b[31mred\x1b[0m\r\n\xff\ttab\n\xc2\x9b2J\n"
    kernel = Kernel(store.open(str(path)))
    kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("reader")))
    (entry,) = kernel.queue.claim(worker_id="w")
    assert entry.token is not None
    Dispatcher(kernel).logs.append(entry.sched_id, 1, entry.token, 0, body)
    kernel.store.close()
    command = [sys.executable, "-m", "rota", "logs", str(entry.sched_id), "--store", str(path)]
    shown, raw = (subprocess.run([*command, *more], capture_output=True, check=True) for more in ([], ["--raw"]))
    assert shown.stdout.decode() == "\\u001b[31mred\\u001b[0m\n\\xff\ttab\n\\u009b2J\n"
    assert raw.stdout == body


def test_an_event_is_one_line(rota: Shell, path: Path) -> None:
    kernel = Kernel(store.open(str(path)))
    pid = kernel.agents.create("reader")
    kernel.journal.append(pid, "note", {"said": f"{CODES}\n9 0.0 forged"})
    kernel.queue.enqueue(ScheduleSpec(pid))
    kernel.store.close()
    lines = rota("events").out.splitlines()
    assert len(lines) == 3
    assert codes_in("".join(lines)) == set()


def test_an_error_is_harmless(rota: Shell, path: Path) -> None:
    store.open(str(path)).close()
    for words in (
        ("agents", "show", CODES),
        ("projects", "show", CODES),
        ("enqueue", CODES),
        ("logs", "7", "--folder", CODES),
    ):
        refused = rota(*words)
        assert refused.code != 0
        assert codes_in(refused.err) == set(), words
        assert codes_in(rota(*words, "--json").err) == set(), words


def test_an_agents_variables_are_shown_without_values(rota: Shell, path: Path) -> None:
    kernel = Kernel(store.open(str(path)))
    settings = {"runner": "command", "argv": ["true"], "env": {"MODEL_KEY": SECRET}}
    pid = kernel.agents.create("reader", "command", metadata={"run": settings})
    kernel.agents.update(pid, metadata={"run": settings, "colour": "red"})
    kernel.queue.enqueue(ScheduleSpec(pid))
    kernel.store.close()
    shown = rota("agents", "show", "reader", "--json")
    assert shown.json["metadata"]["run"]["env"] == {"MODEL_KEY": HIDDEN}
    for words in (
        ("agents",),
        ("agents", "show", "1"),
        ("events", "--since", "0"),
        ("why", "1"),
        ("top", "--json"),
        ("agents", "end", "1"),
    ):
        answer = rota(*words)
        assert answer.code == 0, words
        assert SECRET not in answer.out + answer.err, words
        if words[0] in ("agents", "events"):
            assert SECRET not in rota(*words, "--json").out, words


# --- one door ------------------------------------------------------------------------------------

CLI = Path(output.__file__).parent
DOORS = ("output.py", "terminal_text.py")
# uses of sys.stdout and sys.stderr, looked at
STREAMS_MAX = {"__init__.py": 2, "logs.py": 1, "graph_runs.py": 2, "trace.py": 1}


def calls_past_the_door(tree: ast.AST) -> list[str]:
    found = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [name for name in found if name in ("print", "typer.echo", "typer.secho", "Console", "sys.stdout.write")]


@pytest.mark.parametrize("file", sorted(CLI.glob("*.py")), ids=lambda file: file.name)
def test_every_command_prints_through_one_door(file: Path) -> None:
    if file.name in DOORS:
        return
    text = file.read_text()
    assert calls_past_the_door(ast.parse(text)) == []
    assert text.count("sys.stdout.buffer.write") + text.count("sys.stderr.write") <= STREAMS_MAX.get(file.name, 0)
