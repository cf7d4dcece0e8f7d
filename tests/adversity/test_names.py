"""Names are text that can be shown as it is; a store that has other names already opens, and shows them harmlessly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from rota import store
from rota.errors import FleetInvalid, GraphInvalid, InvalidInput
from rota.fleet.config.loader import load_fleet
from rota.fleet.worker_lock import hold_worker_id
from rota.graph import read_graph
from rota.kernel import Kernel
from rota.model.checks import ID_CHARS_MAX, Checks, is_path_part
from rota.model.work import ScheduleSpec
from rota.rpc import connect
from rota.rpc.handlers import RpcHandlers
from rota.service.dispatcher import Dispatcher
from rota.svg import text
from tests.cli.shell import Shell, make_shell
from tests.daemon.harness import make_token, serving

BAD = {
    "escape code": "\x1b[2J",
    "new line": "a\nb",
    "bell": "a\a",
    "delete": "a\x7f",
    "8-bit code": "\x9b2J",
    "direction": "\u202egnp",
    "isolate": "a\u2066b",
    "mark": "\u200fa",
    "line separator": "a\u2028b",
    "invisible tag": "a\U000e0041",
    "half a character": "a\ud800",
    "too long": "a" * (ID_CHARS_MAX + 1),
    "empty": "",
}
FINE = ["reader", "the reader", "rack/box", "lab.v2", "Überprüfung", "读者", "😀", "a" * ID_CHARS_MAX]

Door = Callable[[Kernel, int, str], object]

DOORS: dict[str, Door] = {
    "agent": lambda kernel, _, name: kernel.agents.create(name),
    "template": lambda kernel, _, name: kernel.agents.create("x", name),
    "project": lambda kernel, _, name: kernel.projects.create(name),
    "title of a project": lambda kernel, _, name: kernel.projects.create("other", name=name),
    "new title": lambda kernel, _, name: kernel.projects.update("lab", name=name),
    "workspace": lambda kernel, _, name: kernel.projects.add_workspace(name, "lab", "/tmp/x"),
    "limit": lambda kernel, _, name: kernel.contexts.create(bound_to="name", bound_id=name, budget=1, period_s=1.0),
    "event": lambda kernel, pid, name: kernel.journal.append(pid, name),
    "worker": lambda kernel, _, name: kernel.queue.claim(worker_id=name),
    "kind of slot": lambda kernel, _, name: kernel.queue.claim(worker_id="box", kinds=(name,)),
    "trigger": lambda kernel, pid, name: kernel.queue.enqueue(ScheduleSpec(pid, trigger=name)),
    "tag": lambda kernel, pid, name: kernel.queue.enqueue(ScheduleSpec(pid, tags=(name,))),
    "kind": lambda kernel, pid, name: kernel.queue.enqueue(ScheduleSpec(pid, kind=name)),
    "dimension": lambda kernel, pid, name: kernel.ledger.create(pid, {name: 1}),
    "budget": lambda kernel, _, name: kernel.ledger.set_budget("project", "lab", name, 1),
    "expected": lambda kernel, pid, name: kernel.queue.enqueue(ScheduleSpec(pid, expected={name: 1})),
    "graph": lambda kernel, pid, name: kernel.graphs.take("run", name, pid),
    "graph run": lambda kernel, pid, name: kernel.graphs.take(name[:64], "graph", pid),
    "token": lambda kernel, _, name: _create_token(kernel, name),
}


def _create_token(kernel: Kernel, name: str) -> object:
    handlers = RpcHandlers(kernel, Dispatcher(kernel))
    try:
        return handlers.call("system.token_create", name=name, scope="read")
    finally:
        handlers.close()


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    made = Kernel(store.open(":memory:"))
    made.projects.create("lab")
    yield made
    made.store.close()


@pytest.mark.parametrize("door", DOORS)
def test_every_door_refuses_names_that_cannot_be_shown(kernel: Kernel, door: str) -> None:
    pid = kernel.agents.create("reader", project_id="lab")
    for what, name in BAD.items():
        if (door, what) == ("graph run", "too long"):
            continue  # cut above
        before = kernel.journal.cursor()
        with pytest.raises(InvalidInput) as refused:
            DOORS[door](kernel, pid, name)
        assert str(refused.value).isprintable(), what
        assert kernel.journal.cursor() == before, what


@pytest.mark.parametrize("name", FINE)
@pytest.mark.parametrize("door", DOORS)
def test_every_door_accepts_text(kernel: Kernel, door: str, name: str) -> None:
    DOORS[door](kernel, kernel.agents.create("reader", project_id="lab"), name)


def test_a_daemon_refuses_them_too(tmp_path: Path) -> None:
    path = str(tmp_path / "rota.db")
    with serving(path) as served, connect(served.url, token=make_token(path, "admin")) as client:
        for create in (client.agents.create, client.projects.create):
            with pytest.raises(InvalidInput, match="must be printable"):
                create("\u202egnp")


@pytest.mark.parametrize("name", [name for name in BAD.values() if name and "\ud800" not in name])
def test_a_fleet_file_refuses_them(tmp_path: Path, name: str) -> None:
    file = tmp_path / "fleet.toml"
    written = '"' + "".join(f"\\U{ord(char):08X}" for char in name) + '"'
    for line in (
        f"name = {written}",
        f"worker_id = {written}",
        f"[projects.{written}]",
        f"[limits.{written}]\nrequests = {{budget = 1, period_s = 1}}",
        f"[agents.{written}]\ncommand = 'true'",
        f"[agents.x]\ncommand = 'true'\nkind = {written}",
        f"[slots]\n{written} = 1",
    ):
        file.write_text(line)
        with pytest.raises(FleetInvalid, match="printable characters"):
            load_fleet(file)


def test_a_project_becomes_no_path(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    for name in ("../../etc", "..", ".hidden", "a/b"):
        assert not is_path_part(name)
        file.write_text(f'[projects."{name}"]\nworkspaces = {{worktrees_of = ".", count = 1}}\n')
        with pytest.raises(FleetInvalid, match="worktrees are in a folder of this name"):
            load_fleet(file)
        file.write_text(f'[projects."{name}"]\nworkspaces = {{worktrees_of = ".", count = 1, folder = "trees"}}\n')
        load_fleet(file)


def test_the_id_of_a_worker_becomes_no_path(tmp_path: Path) -> None:
    folder = tmp_path / "store" / "workers"
    for worker_id in ("../../escape", "..", "/etc/passwd", "读" * 256):
        with hold_worker_id(str(folder), worker_id):
            assert len(list(folder.iterdir())) == 1
        next(folder.iterdir()).unlink()
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    with pytest.raises(InvalidInput, match="must be printable"):
        hold_worker_id(str(folder), "\x1b[2J").__enter__()


GRAPH = """
schema_version: 1
graph: {{name: {name}}}
lanes: {{main: {{type: event_loop}}}}
components: []
edges: []
"""


@pytest.mark.parametrize("name", ["\u202egnp", "\x9b2J", "a\u2028b"])
def test_a_graph_file_refuses_them(tmp_path: Path, name: str) -> None:
    file = tmp_path / "graph.yaml"
    written = '"' + "".join(f"\\U{ord(char):08X}" for char in name) + '"'
    file.write_text(GRAPH.format(name=written))
    with pytest.raises(GraphInvalid, match="an id of 1 to 128 printable characters"):
        read_graph(file)


def test_a_drawing_has_no_codes() -> None:
    drawn = text(0, 0, "<b>\x1b[2J\u202egnp\x9b")
    assert drawn.isprintable()
    assert "<b>" not in drawn


def test_a_check_says_what_was_wrong_without_the_code() -> None:
    checks = Checks("Agent", InvalidInput)
    with pytest.raises(InvalidInput, match=r"Agent.name must be printable, .* not 'a\\x1b\[2J'"):
        checks.name("name", "a\x1b[2J")


# --- stores of earlier versions ------------------------------------------------------------------

CODES = "evil\x1b]0;owned\a\x1b[2J\u202e"


@pytest.fixture
def rota(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return make_shell(monkeypatch, capsys)


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store in which an agent, a project and more have names with codes."""
    path = tmp_path / "rota.db"
    monkeypatch.setenv("ROTA_STORE", str(path))
    monkeypatch.setenv("COLUMNS", "300")
    kernel = Kernel(store.open(str(path)))
    kernel.projects.create("lab")
    kernel.projects.add_workspace("bench", "lab", "/tmp/bench")
    kernel.contexts.create(bound_to="name", bound_id="model", budget=1, period_s=60.0)
    pid = kernel.agents.create("reader", project_id="lab")
    kernel.ledger.create(pid, {"tokens": 10})
    kernel.queue.enqueue(ScheduleSpec(pid, draws_on=("model",), payload={"text": CODES}))
    kernel.journal.append(pid, "note", {"said": CODES})
    kernel.agents.pause(pid, "operator")
    kernel.store.close()
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA foreign_keys = OFF")
    for table, column in (
        ("agent_processes", "name"), ("agent_processes", "paused_by"), ("projects", "name"),
        ("workspaces", "workspace_id"), ("contexts", "bound_id"), ("agent_schedule_queue", "trigger"),
        ("agent_ledgers", "dim"),
    ):  # fmt: skip
        connection.execute(f"UPDATE {table} SET {column} = ?", (CODES,))
    connection.execute("UPDATE agent_events SET kind = ? WHERE kind = 'note'", (f"note{CODES}",))
    connection.close()
    return path


COMMANDS = [
    ("agents",), ("agents", "show", "1"), ("projects",), ("projects", "show", "lab"), ("limits",), ("queue",), ("ps",),
    ("projects", "workspaces", "list", "lab"), ("why", "1"), ("show", "1"), ("events", "--since", "0"),
    ("ledger", "show", "1"), ("db", "check"), ("doctor",), ("ledger", "grant", "1", CODES, "5"), ("top", "--json"),
]  # fmt: skip


def is_harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize("command", COMMANDS)
def test_an_old_store_is_shown_harmlessly(rota: Shell, command: tuple[str, ...]) -> None:
    shown = rota(*command)
    assert is_harmless(shown.out), ascii(shown.out)
    assert is_harmless(shown.err), ascii(shown.err)
    if command[0] not in ("top", "db", "doctor"):
        for_programs = rota(*command, "--json")
        assert is_harmless(for_programs.out), ascii(for_programs.out)
        assert for_programs.code == shown.code


def test_an_old_store_can_be_repaired(old: Path) -> None:
    kernel = Kernel(store.open(str(old)))
    assert kernel.check() == []
    (agent,) = kernel.agents.find(CODES)
    assert kernel.ledger.update_grant(agent.pid, CODES, 20).granted == 20
    kernel.projects.update("lab", name="the lab")
    kernel.projects.remove_workspace(CODES)
    kernel.terminate(agent.pid, "completed")
    kernel.store.close()
