"""Commands inside a run wait while its store is away, and what they report counts once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rota import store
from rota.cli import connection
from rota.errors import StoreUnavailable
from rota.kernel import Kernel, ScheduleSpec
from rota.kernel.runs import Runs
from rota.rpc import connect
from rota.service import outages
from rota.store.socket_paths import RUN_FOLDER_PREFIX
from tests.cli.shell import Shell


class Outage:
    """A store that cannot be opened the first few times."""

    def __init__(self, failures: int, **data: Any) -> None:
        self.left, self._data, self._open = failures, data, connection._open

    def open(self, *arguments: Any, **options: Any) -> Any:
        if self.left > 0:
            self.left -= 1
            raise StoreUnavailable("PostgreSQL at db cannot be reached: refused", **self._data)
        return self._open(*arguments, **options)


@pytest.fixture
def run(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """A run that the environment names, as for a program."""
    kernel = Kernel(store.open(str(path)))
    pid = kernel.agents.create("coder")
    kernel.ledger.create(pid, {"tokens": 100})
    kernel.queue.enqueue(ScheduleSpec(pid))
    (entry,) = kernel.queue.claim(worker_id="box", max_n=1)
    kernel.store.close()
    monkeypatch.setenv("ROTA_SCHED_ID", str(entry.sched_id))
    monkeypatch.setenv("ROTA_TOKEN", str(entry.token))
    monkeypatch.setattr(outages, "RETRY_S", 0.01)
    return entry.sched_id


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    "words",
    [
        ("charge", "tokens=5"),
        ("checkpoint", '{"page": 3}'),
        ("progress", "40%"),
        ("heartbeat",),
        ("emit", "review.done"),
        ("complete",),
    ],
    ids=lambda words: words[0],
)
def test_a_command_in_a_run_waits_for_a_store_that_is_away(
    rota: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    outage = Outage(3)
    monkeypatch.setattr(connection, "_open", outage.open)
    answer = rota(*words)
    assert (answer.code, outage.left) == (0, 0)
    assert answer.err.count("rota: PostgreSQL at db cannot be reached: refused; waiting for it") == 1
    assert answer.err.count("rota: connected again") == 1


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("words", [("emit", "review.done"), ("complete",)], ids=lambda words: words[0])
def test_what_may_have_been_executed_is_not_made_again_if_twice_is_not_once(
    rota: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    outage = Outage(1, may_be_executed=True)
    monkeypatch.setattr(connection, "_open", outage.open)
    assert rota(*words).code != 0
    outage.left = 1
    assert rota("checkpoint", "{}").code == 0


@pytest.mark.usefixtures("run")
def test_a_charge_whose_response_was_lost_is_made_again_and_counts_once(
    rota: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge = Runs.charge
    lost: list[Any] = []

    def lose(runs: Runs, *args: Any, **kwargs: Any) -> Any:
        lines = charge(runs, *args, **kwargs)
        if not lost:
            lost.append(lines)
            raise StoreUnavailable("the response was lost", may_be_executed=True)
        return lines

    monkeypatch.setattr(Runs, "charge", lose)
    assert rota("charge", "tokens=5", "--json").json["lines"]["tokens"]["used"] == 5
    assert rota("charge", "tokens=5", "--json").json["lines"]["tokens"]["used"] == 10


@pytest.mark.usefixtures("run")
def test_an_event_from_outside_a_run_does_not_wait(rota: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROTA_SCHED_ID")
    monkeypatch.setattr(connection, "_open", Outage(1).open)
    assert "cannot be reached" in rota("emit", "deploy.finished").err


@pytest.mark.usefixtures("run")
def test_a_store_that_does_not_exist_is_not_waited_for(rota: Shell, path: Path) -> None:
    assert "there is no store" in rota("progress", "1%", "--store", path.with_name("other.db")).err


def test_the_socket_of_a_supervisor_that_has_ended_is_not_called_a_daemon(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / RUN_FOLDER_PREFIX}x/rota.sock"
    with connect(address, retry_s=0.0) as client, pytest.raises(StoreUnavailable) as found:
        client.journal.cursor()
    assert found.value.message.startswith(f"the supervisor of this run cannot be reached at {address}: ")
    assert "daemon" not in str(found.value)
    assert found.value.data["closed"]
