"""Graphs as islands: admitted whole or refused with what is missing, and failing closed."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from rota import store
from rota.cli import app
from rota.cli.graph_island import HEARTBEAT_S, _IslandClaim, admitted
from rota.clock import ManualClock
from rota.errors import GraphInvalid, IslandRefused, SchedAdmissionDenied, StaleClaim
from rota.graph import (
    ComponentRegistry,
    RuntimeRunner,
    RuntimeRunnerOptions,
    StopToken,
    compile_graph,
    component,
    island_ask,
    island_spec,
    load_text,
)
from rota.graph.spec import MEMORY_BYTES_MAX
from rota.host.thread_settings import allowed_cores
from rota.kernel import Kernel, ScheduleSpec
from rota.kernel.queue import Queue
from rota.model.core_grants import CoreAsk, CoreHost
from rota.model.cpu import CpuSettings
from rota.model.events import CoresGranted
from rota.service import Asker, CoreGrants, SchedulerApi, decide, this_host
from rota.service.outages import RETRY_S
from tests.host.support import until
from tests.postgres_server import PostgresServer

GRAPH = """
schema_version: 2
graph:
  name: voice
  island: {period_ms: 20, deadline_ms: 15, cores: "0-1"}
lanes:
  loop: {type: fixed_rate, hz: 100}
  other: {type: event_loop}
edges: []
components:
  - {id: mix, type: island.work, execution: {lane: loop, budget_ms: 3}, trigger_policy: {type: manual}}
  - {id: play, type: island.work, execution: {lane: other, budget_ms: 2}, trigger_policy: {type: manual}}
"""
NO_ISLAND = GRAPH.replace('  island: {period_ms: 20, deadline_ms: 15, cores: "0-1"}\n', "")
BOX = CoreHost(key="boot", name="box", cores=(0, 1), memory_bytes=1_000, slots=2)
PATIENCE_S = 30.0  # only a test that fails waits for so long
ASKER = Asker(1, 1, 1, "voice", None, 0.0)


def registry(work: Any = lambda: None) -> ComponentRegistry:
    made = ComponentRegistry()

    @component("island.work")
    def island_work() -> None:
        work()

    made.add(island_work)
    return made


def plan(text: str = GRAPH) -> Any:
    return compile_graph(load_text(text), registry())


def test_budgets_periods_deadline_and_cores_of_a_graph_become_one_request() -> None:
    ask = island_ask(plan())
    assert ask.island == "voice"
    assert [(one.name, one.budget_ns, one.period_ns, one.deadline_ns) for one in ask.reserved] == [
        ("mix", 3_000_000, 10_000_000, 15_000_000),  # its lane's period
        ("play", 2_000_000, 20_000_000, 15_000_000),  # the island's
    ]
    assert ask.cpu.cores == "0-1"
    granted = decide(BOX, (), ask, ASKER, [])
    assert [one.core for one in granted.reserved] == [0, 0]


def test_an_island_may_reserve_more_than_two_gibibytes_and_at_most_a_pebibyte() -> None:
    sized = GRAPH.replace("period_ms: 20,", "period_ms: 20, memory_bytes: SIZE,")
    assert island_ask(plan(sized.replace("SIZE", str(MEMORY_BYTES_MAX)))).memory_bytes == MEMORY_BYTES_MAX == 2**50
    with pytest.raises(GraphInvalid, match="memory_bytes"):
        plan(sized.replace("SIZE", str(MEMORY_BYTES_MAX + 1)))


def test_an_isolation_intent_becomes_a_leased_core() -> None:
    isolated = plan(GRAPH.replace("hz: 100}", "hz: 100, isolation_intent: exclusive}"))
    assert decide(BOX, (), island_ask(isolated), ASKER, []).leased == (1,)


def test_a_graph_that_does_not_fit_is_refused_with_every_shortage() -> None:
    big = GRAPH.replace('cores: "0-1"}', 'cores: "0", memory_bytes: 2000, slots: 9}').replace(
        "budget_ms: 3", "budget_ms: 9"
    )
    with pytest.raises(IslandRefused) as refused:
        decide(BOX, (), island_ask(plan(big)), ASKER, [])
    assert refused.value.data["missing"] == [
        "memory in bytes: 2,000 needed, 1,000 available",
        "slots: 9 needed, 2 available",
        "utilisation of core 0 in ppm: 1,000,000 needed, 950,000 available",
    ]


def test_a_component_without_a_bound_is_refused() -> None:
    with pytest.raises(IslandRefused, match="component play has no budget_ms"):
        island_ask(plan(GRAPH.replace(", budget_ms: 2", "")))
    with pytest.raises(IslandRefused, match="lane other of component play has no period"):
        island_ask(plan(GRAPH.replace("period_ms: 20, ", "")))
    with pytest.raises(IslandRefused, match="component mix needs 11 ms in a period of 10 ms"):
        island_ask(plan(GRAPH.replace("budget_ms: 3", "budget_ms: 11")))


def test_an_overrun_fails_closed() -> None:
    clock = ManualClock()
    made = registry(lambda: clock.advance(0.01))  # each invocation takes 10 ms
    compiled = compile_graph(load_text(GRAPH), made)
    result = RuntimeRunner(compiled, made, RuntimeRunnerOptions(steps=5, clock=clock, fails_closed=True)).run()
    assert not result.ok
    assert result.epochs == 1
    assert "the island stops" in result.errors[0]
    plain = compile_graph(load_text(NO_ISLAND), made)
    again = RuntimeRunner(plain, made, RuntimeRunnerOptions(steps=5, clock=clock)).run()
    assert again.ok  # without the island it is only counted


@pytest.mark.parametrize(
    ("lane", "period_s"),
    [("hz: 100, overrun_policy: skip_next}", 0.01), ("overrun_policy: skip_next}", 0.02)],
    ids=["at the rate of its lane", "at its own"],
)
def test_an_island_goes_by_the_clock(lane: str, period_s: float) -> None:
    """Its budgets are reserved in each period, so ticks that came faster would use more than was granted."""
    clock, began_at_s = ManualClock(), list[float]()
    made = registry(lambda: began_at_s.append(clock.monotonic()))
    compiled = compile_graph(load_text(GRAPH.replace("hz: 100}", lane)), made)
    assert compiled.diagnostics == ()  # the overrun policy applies
    runner = RuntimeRunner(compiled, made, RuntimeRunnerOptions(steps=2, clock=clock, fails_closed=True))
    thread = threading.Thread(target=runner.run)
    thread.start()
    clock.until_parked()  # with nothing to do until the next period
    clock.advance(period_s)
    thread.join(PATIENCE_S)
    assert began_at_s == [0, 0, period_s, period_s]


def test_a_graph_that_is_run_as_an_island_goes_by_the_clock_too() -> None:
    plain = load_text(NO_ISLAND)
    assert plain.graph.island is None
    lanes = [compile_graph(spec, registry()).lanes["loop"].spec for spec in (plain, island_spec(plain))]
    assert [lane.wall_clock_enabled for lane in lanes] == [False, True]
    declared = load_text(GRAPH)
    assert island_spec(declared) is declared


FILE = """
schema_version: 2
graph:
  name: voice
  island: {period_ms: 1000}
lanes: {loop: {type: event_loop}}
edges: []
components:
  - {id: tick, type: rota.input, execution: {lane: loop, budget_ms: BUDGET}}
"""


@pytest.mark.parametrize(("budget", "code"), [(500, 0), (999, 1)])
def test_the_command_admits_or_refuses_the_whole_graph(tmp_path: Path, budget: int, code: int) -> None:
    file, database = tmp_path / "voice.yaml", tmp_path / "rota.db"
    file.write_text(FILE.replace("BUDGET", str(budget)))
    shown = CliRunner().invoke(app, ["graph", "run", str(file), "--store", str(database), "--input", "tick=1"])
    assert (shown.exit_code != 0) == bool(code), shown.output
    kernel = Kernel(store.open(str(database)))
    entry = kernel.queue.get(1)
    if code:
        assert "999,000 needed, 950,000 available" in shown.output + str(shown.exception)
        assert (entry.exit_kind, "999,000 needed" in entry.result["error"]) == ("failed", True)
    else:
        assert CoresGranted.kind in [event.kind for event in kernel.journal.tail(0, 1000)]
        assert (entry.exit_kind, entry.result) == ("completed", None)
    kernel.store.close()


@pytest.mark.parametrize(
    ("body", "code", "exit_kind", "error"),
    [
        ("pass", 0, "completed", None),
        ("raise ValueError('no \\0 \\ud800 sound')", 1, "failed", "ValueError: no \ufffd ? sound"),
        ("signal.raise_signal(signal.SIGTERM)", 128 + 15, "cancelled", "stop requested"),
        ("[signal.raise_signal(signal.SIGINT) for _ in range(2)]", 130, "cancelled", "interrupted"),
    ],
)
def test_the_entry_of_an_island_ends_as_its_graph_did(
    tmp_path: Path, body: str, code: int, exit_kind: str, error: str | None
) -> None:
    """It was completed whenever the command itself raised no error."""
    module, file, database = tmp_path / "sound.py", tmp_path / "voice.yaml", str(tmp_path / "rota.db")
    module.write_text(
        f"import signal\nfrom rota.graph import component\n\n@component('sound')\ndef sound() -> None:\n    {body}\n"
    )
    at = "execution: {lane: loop, budget_ms: 500}"
    more = f"  - {{id: play, type: sound, {at}, trigger_policy: {{type: manual}}}}\n"
    file.write_text(FILE.replace("BUDGET", "100") + more)
    words = ["graph", "run", str(file), "--store", database, "-c", str(module), "--input", "tick=1"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
    try:
        assert CliRunner().invoke(app, words).exit_code == code
    finally:
        signal.signal(signal.SIGINT, before)
    kernel = Kernel(store.open(database))
    entry = kernel.queue.get(1)
    assert (entry.exit_kind, entry.state) == (exit_kind, "completed")
    assert (error in entry.result["error"]) if error else entry.result is None
    assert CoreGrants(kernel).status().hosts == []
    kernel.store.close()


@pytest.mark.skipif(len(allowed_cores()) < 2, reason="a lease needs two cores")
def test_the_command_keeps_off_the_cores_that_runs_have_leased(tmp_path: Path) -> None:
    database, before = str(tmp_path / "rota.db"), allowed_cores()
    kernel = Kernel(store.open(database))
    kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("build")))
    (run,) = kernel.queue.claim(worker_id="box")
    lease = CoreGrants(kernel).grant(run.sched_id, run.token or 0, this_host(), CoreAsk(cpu=CpuSettings(lease=1)))
    anywhere = GRAPH.replace(', cores: "0-1"', "")
    with admitted(plan(anywhere), database, StopToken(), quiet=True):
        assert allowed_cores() == before - set(lease.leased)
    assert allowed_cores() == before
    kernel.store.close()


def test_an_island_whose_process_is_killed_leaves_no_entry_that_a_worker_would_claim(tmp_path: Path) -> None:
    database = str(tmp_path / "rota.db")
    process = admitted(plan(), database, StopToken(), quiet=True)
    process.__enter__()
    kernel = Kernel(store.open(database))
    kernel.queue.gc_dispatched(0, kernel.clock.now() + 1)  # as when its claim has expired
    entry = kernel.queue.get(1)
    assert (entry.state, entry.exit_kind, entry.outcome) == ("completed", "crashed", "claim_expired")
    assert kernel.queue.claim(worker_id="w", max_n=1) == []
    with pytest.raises(StaleClaim):
        process.__exit__(None, None, None)
    kernel.store.close()


def test_an_island_keeps_its_cores_through_a_restart_of_postgresql(
    socket_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And whatever the run does meanwhile: it may wait for entries, or compute, for longer than its claim lasts."""
    clock, stop = ManualClock(), StopToken()
    with PostgresServer(socket_folder / "server") as server:
        url = f"{server.dsn()}&schema=rota"
        with admitted(plan(), url, stop, quiet=True, clock=clock):
            kernel = Kernel(store.open(url))
            expires_at = kernel.queue.get(1).claim_expires_at or 0.0
            clock.until_parked()
            server.stop()
            clock.advance(HEARTBEAT_S)
            until(lambda: "waiting for the store" in capsys.readouterr().err)
            server.start()

            def is_extended() -> bool:
                clock.advance(RETRY_S)
                return (kernel.queue.get(1).claim_expires_at or 0.0) > expires_at

            until(is_extended)
            assert not stop.is_set
        assert kernel.queue.get(1).exit_kind == "completed"
        assert kernel.journal.tail(0, 1000)[-1].kind == "kernel.sched.completed"
        kernel.store.close()


def test_an_island_that_has_lost_its_cores_stops(tmp_path: Path) -> None:
    """Another run may have them: after a failover of the store, or a stop of its process for longer than its claim."""
    database, clock, stop = str(tmp_path / "rota.db"), ManualClock(), StopToken()
    kernel = Kernel(store.open(database))
    process = admitted(plan(), database, stop, quiet=True, clock=clock)
    process.__enter__()
    kernel.queue.gc_dispatched(0, kernel.clock.now() + 1)
    clock.until_parked()
    clock.advance(HEARTBEAT_S)
    until(lambda: stop.is_set)
    with pytest.raises(StaleClaim, match="island voice has lost its cores: token"):
        process.__exit__(None, None, None)
    assert stop.reason == "island voice has lost its cores"
    kernel.store.close()


class _Raced(Queue):
    """A worker takes whatever it may as soon as it is enqueued."""

    def enqueue(self, spec: ScheduleSpec) -> int:
        sched_id = super().enqueue(spec)
        assert self.claim(worker_id="box", max_n=1) == []
        return sched_id


def test_a_supervisor_does_not_take_the_entry_of_an_island() -> None:
    """One that runs agents of the graph's name took it: the island was refused here and ran there."""
    kernel = Kernel(store.open(":memory:"))
    api = SimpleNamespace(agents=kernel.agents, queue=_Raced(kernel.env))
    claim = _IslandClaim(cast("SchedulerApi", api), "voice", StopToken(), ManualClock())
    assert kernel.queue.get(claim.sched_id).token == claim.token


def test_an_island_that_may_not_run_leaves_no_entry() -> None:
    kernel = Kernel(store.open(":memory:"))
    kernel.agents.pause(kernel.agents.create("voice"), by="anna")
    with pytest.raises(SchedAdmissionDenied):
        _IslandClaim(cast("SchedulerApi", kernel), "voice", StopToken(), ManualClock())
    assert kernel.queue.get(1).state == "cancelled"
