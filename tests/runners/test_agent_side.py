"""`rota.agent`, used by real programs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import rota.agent
from rota.fleet.agent_settings import AgentSettings
from rota.fleet.runners.ndjson import NdjsonRunner
from rota.fleet.runners.resources import RunnerResources
from tests.runners.recording import RecordingChannel, Running, assignment

HEAD = "from rota.agent import *\n"


def agent(script: str, **fields: Any) -> AgentSettings:
    path = {"PYTHONPATH": str(Path(rota.agent.__file__).parents[1])}
    return AgentSettings(runner="ndjson", argv=(sys.executable, "-c", HEAD + script), env=path, **fields)


def test_an_agent_in_a_few_lines(resources: RunnerResources, channel: RecordingChannel) -> None:
    script = """
with connect() as run:
    print("printed goes to the log")
    run.log("logged")
    left = run.charge(tokens=100)
    run.checkpoint({"next": 1})
    run.throttled(30, "api")
    run.heartbeat()
    child = run.spawn("reader", lent={"tokens": 5}, page=3)
    (ended,) = run.wait([child])
    run.result([run.payload, run.key, run.saved, left, run.remaining(), run.should_stop, ended["result"], run.deadline])
"""
    channel.child_ended(1004, "read")
    given = assignment(agent(script), {"url": "u"}, checkpoint={"next": 0}, deadline=5.0)
    outcome = NdjsonRunner(resources).run(given, channel)
    assert outcome.result == [{"url": "u"}, "7:2:41", {"next": 0}, {"tokens": 900}, {"tokens": 900}, False, "read", 5.0]
    assert [calls[0] for calls in channel.calls] == ["charge", "checkpoint", "throttled", "spawn", "wait_for"]
    assert channel.calls[3] == ("spawn", "reader", {"page": 3}, {"tokens": 5}, {})
    assert "printed goes to the log\n" in channel.text
    assert "logged\n" in channel.text


def test_what_is_acquired_is_settled_at_the_end_of_its_block(
    resources: RunnerResources, channel: RecordingChannel
) -> None:
    script = """
with connect() as run:
    with run.acquire("api", tokens=900, requests=1) as acquired:
        acquired.settle(tokens=750)
    with run.acquire("api", requests=1):
        pass
    run.acquire("api", tokens=5).throttled(30)
    try:
        run.acquire("full", tokens=5, wait_s=0)
    except TimeoutError as problem:
        run.result(str(problem))
"""
    outcome = NdjsonRunner(resources).run(assignment(agent(script)), channel)
    assert outcome.result.startswith("the limit full did not have what was asked")
    assert channel.calls == [
        ("acquire", "api", {"tokens": 900, "requests": 1}, None),
        ("settle", "7", {"tokens": 750}),
        ("acquire", "api", {"requests": 1}, None),
        ("settle", "7", {}),
        ("acquire", "api", {"tokens": 5}, None),
        ("throttled", 30.0, "api"),
        ("settle", "7", {"tokens": 0}),
    ]


def test_an_exception_fails_the_run_with_its_traceback_in_the_log(
    resources: RunnerResources, channel: RecordingChannel
) -> None:
    outcome = NdjsonRunner(resources).run(
        assignment(agent("with connect() as run: raise ValueError('bad page')")), channel
    )
    assert (outcome.exit_kind, outcome.result["error"]) == ("failed", "ValueError: bad page")
    assert "Traceback" in channel.text


def test_sys_exit_ends_the_run_according_to_its_code(resources: RunnerResources, channel: RecordingChannel) -> None:
    runner = NdjsonRunner(resources)
    assert runner.run(assignment(agent("with connect() as run: raise SystemExit")), channel).exit_kind == "completed"
    assert runner.run(assignment(agent("with connect() as run: raise SystemExit(3)")), channel).exit_kind == "failed"


def test_a_stop_request_wakes_an_agent_that_waits_for_it(resources: RunnerResources, channel: RecordingChannel) -> None:
    script = """
with connect() as run:
    run.log("working")
    run.wait_for_stop()
    run.checkpoint({"why": run.stop_reason})
    run.raise_if_stopped()
"""
    run = Running(NdjsonRunner(resources), assignment(agent(script)), channel)
    channel.until_logged("working")
    assert channel.request_stop("drain")
    outcome = run.outcome()
    assert (outcome.exit_kind, outcome.result["error"]) == ("cancelled", "drain")
    assert channel.calls == [("checkpoint", {"why": "drain"})]


def test_yielding_leaves_the_block(resources: RunnerResources, channel: RecordingChannel) -> None:
    script = "with connect() as run:\n run.yield_back(1.5)\n run.result('never')"
    outcome = NdjsonRunner(resources).run(assignment(agent(script)), channel)
    assert (outcome.yield_after_s, outcome.result) == (1.5, None)


def test_a_refused_request_raises_an_error_with_its_name(resources: RunnerResources, channel: RecordingChannel) -> None:
    script = """
with connect() as run:
    names = []
    for act in (lambda: run.spawn("missing"), lambda: run.charge(tokens=-1), lambda: run.wait([9], wait_s=0.001)):
        try:
            act()
        except (RefusedError, TimeoutError) as problem:
            names.append([type(problem).__name__, getattr(problem, "name", None)])
    run.result(names)
"""
    assert NdjsonRunner(resources).run(assignment(agent(script)), channel).result == [
        ["RefusedError", "kernel_unknown_pid"],
        ["RefusedError", "kernel_ledger_invalid_amount"],
        ["TimeoutError", None],
    ]


def test_threads_may_send_requests_concurrently(resources: RunnerResources, channel: RecordingChannel) -> None:
    script = """
from concurrent.futures import ThreadPoolExecutor
with connect() as run:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: run.charge(tokens=1), range(100)))
    run.result(run.remaining())
"""
    assert NdjsonRunner(resources).run(assignment(agent(script)), channel).result == {"tokens": 900}


def test_connect_without_a_supervisor_raises_an_error_that_names_the_cause() -> None:
    env = {"PYTHONPATH": str(Path(rota.agent.__file__).parents[1]), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", HEAD + "connect()"], env=env, input=b"", capture_output=True, check=False
    )
    assert b"NotSupervised: no init message on standard input" in done.stderr


def test_rota_agent_imports_only_the_standard_library() -> None:
    script = "import sys, rota.agent; print(sorted(m for m in sys.modules if m.split('.')[0] in ('rota', 'msgspec')))"
    env = {"PYTHONPATH": str(Path(rota.agent.__file__).parents[1]), "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['rota', 'rota.agent']"
