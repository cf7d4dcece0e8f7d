"""`rota hooks` and `rota db retention`, as an operator sees them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rota import store
from rota.fleet.config.loader import load_fleet
from rota.fleet.fleet_run import FleetRun
from rota.kernel import Kernel
from rota.service.dispatcher import Dispatcher
from tests.cli.shell import Shell
from tests.fleet.receiver import receiving
from tests.host.support import PATIENCE_S

FLEET = """
[hooks.pager]
on = ["failed", "deploy.*"]
post = "URL/secret-path"
max_attempts = 1
[hooks.notes]
on = ["failed"]
command = ["sh", "-c", "exit 3"]
max_attempts = 1
"""


@contextmanager
def running(path: Path, text: str) -> Iterator[None]:
    """Run a fleet on the store that the commands use."""
    file = path.parent / "fleet.toml"
    file.write_text(text)
    fleet = FleetRun(Dispatcher(Kernel(store.open(str(path)))), load_fleet(file))
    thread = threading.Thread(target=fleet.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        fleet.supervisor.kill()
        thread.join(PATIENCE_S)
        fleet.api.close()


@pytest.fixture(autouse=True)
def outside_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROTA_SCHED_ID", raising=False)


def test_a_test_goes_through_the_hook_and_its_deliveries_are_listed(rota: Shell, path: Path) -> None:
    with receiving() as receiver, running(path, FLEET.replace("URL", receiver.url)):
        sent = rota("hooks", "test", "pager", "--wait", "60s")
        assert (sent.code, sent.out) == (0, "hook pager: delivered in attempt 1 (entry 1)\n")
        assert receiver.bodies[0]["summary"] == "this is a test of the hook pager"
        failed = rota("hooks", "test", "notes", "--wait", "60s")
        assert failed.code == 1
        assert "hook notes: not delivered:" in failed.out
        notes, pager = rota("hooks", "--json").json["hooks"]
        assert (pager["on"], pager["to"], pager["delivered"]) == (["failed", "deploy.*"], f"POST {receiver.url}", 1)
        assert (notes["to"], notes["failed"], notes["delivered_at"]) == ("sh", 1, None)
        table = rota("hooks", "list").out
        assert "secret" not in table
        assert receiver.url in table


def test_without_a_supervisor_a_test_says_so(rota: Shell, path: Path) -> None:
    with running(path, FLEET.replace("URL", "http://127.0.0.1:9")):
        pass
    waited = rota("hooks", "test", "pager", "--wait", "0.05s")
    assert waited.code != 0
    assert "no supervisor has sent the test of hook pager" in waited.err
    assert "rota run fleet.toml" in waited.err
    assert "there is no hook 'x'" in rota("hooks", "test", "x").err


def test_a_store_without_hooks_says_where_they_come_from(rota: Shell) -> None:
    rota("agents", "create", "bob")
    assert rota("hooks").out == "no hooks: a fleet file has them, as [hooks.NAME]\n"


def test_what_is_kept_is_shown_and_changed(rota: Shell) -> None:
    rota("agents", "create", "bob")
    first = rota("db", "retention").out.splitlines()[0]
    assert first == "kept: finished entries for 7 days, at most 100,000; events for 7 days, at most 1,000,000"
    changed = rota("db", "retention", "--entries", "12h", "--events-max", 500, "--by", "anna").out.splitlines()
    assert (
        changed[0]
        == "kept: finished entries for 12 hours, at most 100,000; events for 7 days, at most 500 (set by anna)"
    )
    assert changed[-1] == "no daemon or supervisor has looked yet"
    assert not rota("db", "retention", "--off", "--json").json["setting"]["enabled"]
    assert "kept: everything is kept" in rota("doctor").out
    assert rota("db", "retention", "--entries", "soon").code != 0
