"""Short commands are quick because they load little. What they load is counted: a count is the same on any machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from rota import cli, store
from rota.cli import app
from rota.kernel import Kernel, ScheduleSpec

HEAVY = (
    *("pydantic", "rich", "msgspec", "apsw", "asyncio"),
    *("rota.kernel", "rota.service", "rota.policy", "rota.tick", "rota.model"),
)
MODULES_MAX = 180  # on top of Python's own; typer brings most of them

# What only other commands need: live views, clients, daemons, the supervisor, graphs, the cores
UNUSED = (
    *("hashlib", "socket", "ctypes"),  # quick ones of Python, but a tenth of what a short command costs
    *("rich", "asyncio", "uvloop", "http", "ssl", "importlib.metadata", "multiprocessing", "concurrent"),
    *("rota.rpc", "rota.tick", "rota.graph", "rota.cores", "rota.observe", "rota.sim", "rota.host", "rota.app"),
)
COMMAND_MODULES_MAX = 320


def loaded_by(*words: str) -> set[str]:
    """The modules that a command loads and a bare Python does not."""
    program = "import sys; sys.argv = ['rota', *sys.argv[1:]]\nbefore = set(sys.modules)\n"
    program += "try:\n from rota.cli import main; main()\nexcept SystemExit as end: assert not end.code, end.code\n"
    program += "sys.stderr.write(' '.join(set(sys.modules) - before))"
    ran = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    assert ran.stdout
    return set(ran.stderr.split())


def among(loaded: set[str], forbidden: tuple[str, ...]) -> list[str]:
    """Those of the modules that are forbidden, or inside a package that is."""
    return sorted(name for name in loaded if any(name == each or name.startswith(f"{each}.") for each in forbidden))


def test_help_loads_few_modules() -> None:
    assert len(loaded_by("--help")) <= MODULES_MAX


@pytest.mark.parametrize(
    "words",
    [("--help",), ("enqueue", "--help"), ("db", "prune", "--help"), ("help", "why"), ("--version",)],
    ids=" ".join,
)
def test_help_loads_nothing_that_only_work_needs(words: tuple[str, ...]) -> None:
    assert among(loaded_by(*words), HEAVY) == []


@pytest.mark.parametrize(
    "words",
    [
        ("queue",), ("ps",), ("enqueue", "bob"), ("show", "1"), ("change", "1", "--priority", "3"), ("cancel", "1"),
        ("events",),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_short_command_loads_nothing_that_only_others_need(words: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    kernel = Kernel(store.open(str(path)))
    kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("bob")))
    kernel.store.close()
    loaded = loaded_by(*words, "--store", str(path))
    assert among(loaded, UNUSED) == []
    assert len(loaded) <= COMMAND_MODULES_MAX
    assert words[0] not in ("queue", "ps") or among(loaded, ("rota.kernel.kernel", "rota.policy")) == []
    assert words[0] != "show" or among(loaded, ("rota.kernel.kernel", "rota.kernel.completion")) == []


def test_an_explanation_loads_policies_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    kernel = Kernel(store.open(str(path)))
    kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("bob")))
    kernel.store.close()
    loaded = loaded_by("why", "1", "--store", str(path))
    assert among(loaded, tuple(each for each in UNUSED if each != "rota.host")) == []
    assert "rota.host.spawning" not in loaded
    rare = ("rota.model.agent_settings", "rota.service.policy_session", "rota.service.run_logs")
    assert among(loaded, (*rare, "logging", "json", "pickle", "dataclasses")) == []


def test_a_command_is_made_only_when_it_is_used() -> None:
    loaded = loaded_by("version")
    assert among(loaded, ("rota.cli.entry_changes", "rota.cli.graph", "rota.cli.serve")) == []


def leaves(group: Any, path: str = "") -> dict[str, Any]:
    """Every command, by its words."""
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        words = f"{path} {name}".strip()
        found |= leaves(command, words) if hasattr(command, "commands") else {words: command}
    return found


def test_every_command_speaks_json_and_has_a_sentence_for_everything() -> None:
    commands = leaves(get_command(app))
    assert {"enqueue", "ps", "queue", "why", "cancel", "retry", "pause", "resume", "events", "doctor"} <= set(commands)
    for words, command in commands.items():
        options = {option for param in command.params for option in param.opts}
        # graph commands have several forms, JSON among them; a schema is JSON anyway
        of_graphs = words.startswith("graph ") and ("--format" in options or words == "graph schema")
        assert "--json" in options or of_graphs or words in ("serve", "web", "mcp", "help"), words
        assert command.help.endswith("."), words
        assert all(param.help for param in command.params), words


# --- as a process of its own ---------------------------------------------------------------------


def run(*words: str, path: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"ROTA_STORE": str(path)}
    command = [sys.executable, "-c", "from rota.cli import main; main()", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_the_real_command_ends_with_the_documented_number(tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    assert run("agents", "create", "bob", path=path).stdout == "1\n"
    refused = run("why", "7", path=path)
    assert (refused.returncode, refused.stdout) == (3, "")
    hint = "Check the id; `rota queue --state all` lists the entries."
    assert refused.stderr == f"rota: no entry has sched_id 7. {hint}\n"
    assert run("fly", path=path).returncode == 2


def test_an_interrupt_inside_a_wait_for_a_lock_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python then raises what `release` says of a lock that the waiting thread did not get again."""

    def interrupted(**_: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            threading.Lock().release()

    monkeypatch.setattr(cli, "app", interrupted)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130


def test_following_prints_what_comes_and_ends_when_it_is_interrupted(tmp_path: Path) -> None:
    kernel = Kernel(store.open(str(tmp_path / "rota.db")))
    kernel.agents.create("bob")
    environment = os.environ | {"ROTA_STORE": str(tmp_path / "rota.db")}
    command = [sys.executable, "-c", "from rota.cli import main; main()", "events", "--follow", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as rota:
        assert rota.stdout is not None
        assert rota.stderr is not None
        assert "kernel.process.created" in rota.stdout.readline()
        kernel.journal.append(None, "mine.note", {"text": "news"})
        assert '"text":"news"' in rota.stdout.readline()
        rota.send_signal(signal.SIGINT)
        assert (rota.wait(60), rota.stderr.read()) == (130, "")
    kernel.store.close()


def test_output_that_nobody_reads_any_more_is_no_error(tmp_path: Path) -> None:
    kernel = Kernel(store.open(str(tmp_path / "rota.db")))
    for number in range(2_000):
        kernel.journal.append(None, "mine.note", {"text": "x" * 100, "number": number})
    kernel.store.close()
    environment = os.environ | {"ROTA_STORE": str(tmp_path / "rota.db")}
    command = [sys.executable, "-c", "from rota.cli import main; main()", "events", "--since", "0", "-n", "2000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as rota:
        assert rota.stdout is not None
        assert rota.stderr is not None
        rota.stdout.readline()
        rota.stdout.close()
        assert (rota.stderr.read(), rota.wait(60)) == ("", 1)  # quietly
