"""The library for agents that are programs, used as such programs use it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import rota.agent
from rota.fleet.agent_settings import RunPlan
from rota.fleet.runners.ndjson import NdjsonRunner
from rota.fleet.runners.resources import Workshop
from tests.runtime.lines import RecordingLine, Running, work

HEAD = "from rota.agent import *\n"


def agent(script: str, **fields: Any) -> RunPlan:
    path = {"PYTHONPATH": str(Path(rota.agent.__file__).parents[1])}
    return RunPlan(runner="ndjson", argv=(sys.executable, "-c", HEAD + script), env=path, **fields)


def test_an_agent_in_a_few_lines(shop: Workshop, line: RecordingLine) -> None:
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
    line.child_ended(1004, "read")
    given = work(agent(script), {"url": "u"}, checkpoint={"next": 0}, deadline=5.0)
    outcome = NdjsonRunner(shop).run(given, line)
    assert outcome.result == [{"url": "u"}, "7:2:41", {"next": 0}, {"tokens": 900}, {"tokens": 900}, False, "read", 5.0]
    assert [said[0] for said in line.said] == ["charge", "checkpoint", "throttled", "spawn", "wait_for"]
    assert line.said[3] == ("spawn", "reader", {"page": 3}, {"tokens": 5}, {})
    assert "printed goes to the log\n" in line.text
    assert "logged\n" in line.text


def test_an_exception_fails_the_run_with_its_traceback_in_the_log(shop: Workshop, line: RecordingLine) -> None:
    outcome = NdjsonRunner(shop).run(work(agent("with connect() as run: raise ValueError('bad page')")), line)
    assert (outcome.exit_kind, outcome.result["error"]) == ("failed", "ValueError: bad page")
    assert "Traceback" in line.text


def test_sys_exit_is_what_its_code_says(shop: Workshop, line: RecordingLine) -> None:
    runner = NdjsonRunner(shop)
    assert runner.run(work(agent("with connect() as run: raise SystemExit")), line).exit_kind == "completed"
    assert runner.run(work(agent("with connect() as run: raise SystemExit(3)")), line).exit_kind == "failed"


def test_an_agent_that_is_asked_to_stop_hears_it_while_it_waits(shop: Workshop, line: RecordingLine) -> None:
    script = """
with connect() as run:
    run.log("working")
    run.wait_for_stop()
    run.checkpoint({"why": run.stop_reason})
    run.raise_if_stopped()
"""
    run = Running(NdjsonRunner(shop), work(agent(script)), line)
    line.until_logged("working")
    assert line.ask_to_stop("drain")
    outcome = run.outcome()
    assert (outcome.exit_kind, outcome.result["error"]) == ("cancelled", "drain")
    assert line.said == [("checkpoint", {"why": "drain"})]


def test_yielding_leaves_the_block(shop: Workshop, line: RecordingLine) -> None:
    script = "with connect() as run:\n run.yield_back(1.5)\n run.result('never')"
    outcome = NdjsonRunner(shop).run(work(agent(script)), line)
    assert (outcome.back_in_s, outcome.result) == (1.5, None)


def test_what_is_refused_is_raised_with_its_name(shop: Workshop, line: RecordingLine) -> None:
    script = """
with connect() as run:
    names = []
    for act in (lambda: run.spawn("nobody"), lambda: run.charge(tokens=-1), lambda: run.wait([9], wait_s=0.001)):
        try:
            act()
        except (RefusedError, TimeoutError) as problem:
            names.append([type(problem).__name__, getattr(problem, "name", None)])
    run.result(names)
"""
    assert NdjsonRunner(shop).run(work(agent(script)), line).result == [
        ["RefusedError", "kernel_unknown_pid"],
        ["RefusedError", "kernel_ledger_invalid_amount"],
        ["TimeoutError", None],
    ]


def test_threads_may_ask_at_once(shop: Workshop, line: RecordingLine) -> None:
    script = """
from concurrent.futures import ThreadPoolExecutor
with connect() as run:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: run.charge(tokens=1), range(100)))
    run.result(run.remaining())
"""
    assert NdjsonRunner(shop).run(work(agent(script)), line).result == {"tokens": 900}


def test_run_by_hand_it_says_what_is_missing() -> None:
    env = {"PYTHONPATH": str(Path(rota.agent.__file__).parents[1]), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", HEAD + "connect()"], env=env, input=b"", capture_output=True, check=False
    )
    assert b"NotSupervised: nobody said init" in done.stderr


def test_it_imports_nothing_but_the_standard_library() -> None:
    script = "import sys, rota.agent; print(sorted(m for m in sys.modules if m.split('.')[0] in ('rota', 'msgspec')))"
    env = {"PYTHONPATH": str(Path(rota.agent.__file__).parents[1]), "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['rota', 'rota.agent']"
