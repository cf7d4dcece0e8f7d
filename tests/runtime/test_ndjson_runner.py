"""A program that speaks ndjson: the handshake, every message, and every way the conversation can go wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.clock import ManualClock
from rota.errors import RunnerProtocolBroken
from rota.fleet.agent_settings import RunPlan
from rota.fleet.runners import protocol
from rota.fleet.runners.ndjson import EXIT_GRACE_S, IPC_TIMEOUT_S, NdjsonRunner
from rota.fleet.runners.resources import Workshop
from rota.model.checks import RESULT_BYTES_MAX
from rota.model.work import Limits
from tests.runtime.lines import RecordingLine, Running, python, work

HEAD = """
import json, sys
def hear(): return json.loads(sys.stdin.readline())
def say(**message): print(json.dumps(message), flush=True)
"""
READY = HEAD + "init = hear(); say(op='ready', pid=init['pid'])\n"


def raw(script: str, **fields: Any) -> RunPlan:
    return python(HEAD + script, runner="ndjson", **fields)


def talking(script: str, **fields: Any) -> RunPlan:
    return python(READY + script, runner="ndjson", **fields)


# --- the story -----------------------------------------------------------------------------------------


def test_an_agent_is_told_who_it_is_and_says_what_it_does(shop: Workshop, line: RecordingLine) -> None:
    plan = talking(
        "say(op='log', text='hello')\n"
        "say(op='iteration_start', iteration=1)\n"
        "say(op='tool_call', name='grep', arguments={'for': 'x'})\n"
        "say(op='iteration_done', iteration=1, tokens=10, cost_micro=5)\n"
        "say(op='chunk', text='par'); say(op='chunk', text='tial ')\n"
        "say(op='charge', dim='tokens', amount=7)\n"
        "say(op='heartbeat')\n"
        "say(op='checkpoint', state={'next': 2})\n"
        "say(op='throttled', retry_after_s=30, name='api')\n"
        "print('to stderr', file=sys.stderr)\n"
        "say(op='result', value={'init': init})\n"
        "say(op='exit', exit_kind='completed')\n"
    )
    given = work(plan, {"url": "u"}, deadline=9.0, remaining={"tokens": 1000}, checkpoint={"next": 1})
    outcome = NdjsonRunner(shop).run(given, line)
    assert outcome.exit_kind == "completed"
    assert outcome.result["init"] == {
        "op": "init", "pid": 3, "sched_id": 7, "attempt": 2, "token": 41, "deadline": 9.0, "trigger": "manual",
        "payload": {"url": "u"}, "remaining": {"tokens": 1000}, "checkpoint": {"next": 1},
    }  # fmt: skip
    assert line.said == [
        ("charge", {"tokens": 10, "cost_micro": 5}),
        ("charge", {"tokens": 7}),
        ("checkpoint", {"next": 2}),
        ("throttled", 30.0, "api"),
    ]
    for logged in ("hello", "iteration 1 begins", 'tool grep {"for":"x"}', "partial ", "to stderr"):
        assert logged in line.text
    assert line.os_pid


def test_questions_are_answered_by_their_id(shop: Workshop, line: RecordingLine) -> None:
    line.child_ended(1001, {"n": 1})
    plan = talking(
        "say(op='spawn', id='a', agent='reader', payload={'x': 1}, lent={'tokens': 5}, priority=4)\n"
        "spawned = hear()\n"
        "say(op='wait', id=2, children=[spawned['sched_id']])\n"
        "waited = hear()\n"
        "say(op='charge', id=3, amounts={'tokens': 100}); charged = hear()\n"
        "say(op='remaining', id=4); left = hear()\n"
        "say(op='result', value=[spawned, waited, charged, left]); say(op='exit')\n"
    )
    outcome = NdjsonRunner(shop).run(work(plan), line)
    assert outcome.result == [
        {"op": "spawned", "id": "a", "sched_id": 1001},
        {
            "op": "waited", "id": 2,
            "children": [{"sched_id": 1001, "exit_kind": "completed", "outcome": None, "result": {"n": 1}}],
        },
        {"op": "remaining", "id": 3, "remaining": {"tokens": 900}},
        {"op": "remaining", "id": 4, "remaining": {"tokens": 900}},
    ]  # fmt: skip
    assert line.said[0] == ("spawn", "reader", {"x": 1}, {"tokens": 5}, {"priority": 4})


def test_while_it_waits_for_a_child_it_is_still_heard(shop: Workshop, line: RecordingLine) -> None:
    plan = talking("say(op='wait', id=1, children=[5]); say(op='log', text='still here'); hear(); say(op='exit')\n")
    run = Running(NdjsonRunner(shop), work(plan), line)
    line.until_logged("still here")
    line.child_ended(5, None)
    assert run.outcome().exit_kind == "completed"


def test_what_is_refused_is_said_and_the_run_goes_on(shop: Workshop, line: RecordingLine) -> None:
    plan = talking(
        "say(op='spawn', id=1, agent='nobody'); first = hear()\n"
        "say(op='charge', dim='tokens', amount=-5); second = hear()\n"
        "say(op='result', value=[first, second]); say(op='exit')\n"
    )
    outcome = NdjsonRunner(shop).run(work(plan), line)
    first, second = outcome.result
    assert (first["op"], first["id"], first["of"], first["name"]) == ("refused", 1, "spawn", "kernel_unknown_pid")
    assert (second["id"], second["of"], second["name"]) == (None, "charge", "kernel_ledger_invalid_amount")
    assert "charge was refused" in line.text


def test_yield_gives_the_slot_back(shop: Workshop, line: RecordingLine) -> None:
    plan = talking("say(op='checkpoint', state={'at': 1}); say(op='yield', after_s=2.5)\n")
    outcome = NdjsonRunner(shop).run(work(plan), line)
    assert (outcome.exit_kind, outcome.back_in_s) == ("completed", 2.5)


def test_an_exit_without_a_result_returns_its_own_words(shop: Workshop, line: RecordingLine) -> None:
    plan = talking("say(op='exit', summary='read it', text='…', metadata={'pages': 3})\n")
    assert NdjsonRunner(shop).run(work(plan), line).result == {
        "summary": "read it", "text": "…", "metadata": {"pages": 3},
    }  # fmt: skip


def test_a_large_init_reaches_an_agent_that_takes_its_time(shop: Workshop, line: RecordingLine) -> None:
    plan = talking("say(op='result', value=len(init['payload']['x'])); say(op='exit')\n")
    given = work(plan, {"x": "y" * 250_000}, checkpoint={"z": "z" * 250_000})
    assert NdjsonRunner(shop).run(given, line).result == 250_000


def test_what_it_does_not_know_is_logged_and_passed_over(shop: Workshop, line: RecordingLine) -> None:
    plan = talking("say(op='dance', with_='me'); say(op='log', text='on', extra=1); say(op='exit')\n")
    assert NdjsonRunner(shop).run(work(plan), line).exit_kind == "completed"
    assert "op 'dance' is not known here" in line.text


# --- how it can end ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "exit_kind", "error"),
    [
        ("", "crashed", "it ended without a last word: code 0"),
        ("sys.exit(3)", "crashed", "it ended without a last word: it ended with code 3"),
        ("import os; os.kill(os.getpid(), 9)", "crashed", "it ended without a last word: it was ended by SIGKILL"),
        ("say(op='exit'); sys.exit(2)", "failed", "it said 'exit', and then it ended with code 2"),
        ("say(op='yield'); sys.exit(2)", "failed", "it said 'yield', and then it ended with code 2"),
        ("say(op='exit', exit_kind='failed', summary='no network')", "failed", "no network"),
        ("say(op='exit', exit_kind='cancelled')", "cancelled", "it says that it cancelled"),
        ("say(op='exit', exit_kind='crashed', text='oh')", "crashed", "oh"),
    ],
)
def test_the_last_word_and_the_exit_code_are_the_outcome(
    shop: Workshop, line: RecordingLine, script: str, exit_kind: str, error: str
) -> None:
    outcome = NdjsonRunner(shop).run(work(talking("say(op='result', value='half')\n" + script)), line)
    assert (outcome.exit_kind, outcome.result["error"]) == (exit_kind, error)
    assert outcome.result["result"] == "half"  # what there was of it


def test_a_result_that_is_too_large_fails_the_run(shop: Workshop, line: RecordingLine) -> None:
    plan = talking(f"say(op='result', value='x' * {RESULT_BYTES_MAX}); say(op='exit')\n")
    outcome = NdjsonRunner(shop).run(work(plan), line)
    assert (outcome.exit_kind, outcome.outcome) == ("failed", "result_too_large")
    assert len(json.dumps(outcome.result)) < RESULT_BYTES_MAX


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("print('Traceback or so', flush=True); hear()", "a line that is not JSON"),
        ("print('[1, 2]', flush=True); hear()", "a line that is not JSON"),
        ("say(op='charge', dim='tokens', amount='many'); hear()", "'charge' with a field that cannot be"),
        ("say(op='exit', exit_kind='splendid'); hear()", "'exit' with a field that cannot be"),
        ("sys.stdout.write('x' * 2_000_000); sys.stdout.flush(); hear()", "a line of more than"),
        ("sys.stdout.buffer.write(b'\\xff\\xfe\\n'); sys.stdout.flush(); hear()", "a line that is not JSON"),
    ],
)
def test_what_is_no_message_ends_the_run_with_a_typed_failure(
    shop: Workshop, line: RecordingLine, script: str, error: str
) -> None:
    outcome = NdjsonRunner(shop).run(work(talking(script)), line)
    assert (outcome.exit_kind, outcome.outcome) == ("failed", "protocol_broken")
    assert error in outcome.result["error"]
    assert outcome.result["name"] == RunnerProtocolBroken.name
    assert "line" in outcome.result


def test_an_agent_over_its_cpu_time_says_so(shop: Workshop, line: RecordingLine) -> None:
    outcome = NdjsonRunner(shop).run(work(talking("while True: pass", limits=Limits(cpu_s=1))), line)
    assert (outcome.exit_kind, outcome.outcome) == ("failed", "over_cpu")


# --- the handshake -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("say(op='log', text='first'); hear(); hear()", "answered init with 'log'"),
        ("say(op='ready', pid=99); hear(); hear()", "ready as agent 99, and not 3"),
        ("print('hello', flush=True); hear(); hear()", "a line that is not JSON"),
        ("sys.exit(4)", "it did not say ready: it ended with code 4"),
        ("", "did not say ready: it ended with code 0"),
    ],
)
def test_who_does_not_answer_as_an_agent_never_began(
    shop: Workshop, line: RecordingLine, script: str, error: str
) -> None:
    outcome = NdjsonRunner(shop).run(work(raw(script)), line)
    assert (outcome.exit_kind, outcome.outcome) == ("failed", "handshake_failed")
    assert error.removeprefix("it ") in outcome.result["error"]
    assert line.stops is None


def test_who_does_not_answer_in_time_never_began() -> None:
    clock = ManualClock()
    line = RecordingLine()
    with Workshop(clock) as shop:
        runner = NdjsonRunner(shop)
        run = Running(runner, work(raw("print('here', file=sys.stderr, flush=True); hear(); hear()")), line)
        line.until_logged("here")
        clock.advance(IPC_TIMEOUT_S)
        outcome = run.outcome()
        runner.close()
    assert (outcome.outcome, outcome.result["name"]) == ("handshake_failed", "kernel_runner_ipc_timeout")
    assert line.stops is None


def test_what_cannot_be_started_says_why(shop: Workshop, line: RecordingLine) -> None:
    outcome = NdjsonRunner(shop).run(work(RunPlan(runner="ndjson", argv=("no-such-program-here",))), line)
    assert (outcome.exit_kind, outcome.outcome) == ("failed", "spawn_failed")


# --- stopping ------------------------------------------------------------------------------------------


def test_an_agent_is_asked_to_stop_and_may_save_its_work(shop: Workshop, line: RecordingLine) -> None:
    plan = talking(
        "say(op='log', text='working'); stop = hear()\n"
        "say(op='checkpoint', state={'stop': stop}); say(op='exit', exit_kind='cancelled', summary='as asked')\n",
        stop_grace_s=3.0,
    )
    run = Running(NdjsonRunner(shop), work(plan), line)
    line.until_logged("working")
    assert line.ask_to_stop("preempted")
    outcome = run.outcome()
    assert (outcome.exit_kind, outcome.result["error"]) == ("cancelled", "as asked")
    assert line.said == [("checkpoint", {"stop": {"op": "stop", "reason": "preempted", "grace_s": 3.0}})]
    assert line.stops is not None
    assert line.stops.ask("again") is False  # it is over


def test_who_does_not_listen_is_terminated(shop: Workshop, line: RecordingLine) -> None:
    run = Running(NdjsonRunner(shop), work(talking("import signal\nsay(op='log', text='deaf'); signal.pause()")), line)
    line.until_logged("deaf")
    assert line.ask_to_stop()
    assert line.stops is not None
    assert line.stops.terminate()
    assert run.outcome().exit_kind == "cancelled"


def test_an_agent_that_never_reads_costs_no_time(shop: Workshop, line: RecordingLine) -> None:
    plan = talking(
        "for n in range(3000): say(op='charge', id='x' * 100, amounts={'tokens': 1})\nsay(op='exit')\n"
    )  # some 400 KB of answers: more than the pipe holds
    assert NdjsonRunner(shop).run(work(plan), line).exit_kind == "completed"
    assert len(line.said) == 3000


def test_who_has_said_the_last_word_and_does_not_end_is_killed_and_its_word_counts() -> None:
    clock = ManualClock()
    line = RecordingLine()
    with Workshop(clock) as shop:
        runner = NdjsonRunner(shop)
        script = (
            "import signal\n"
            "say(op='result', value=1); say(op='exit')\n"
            "sys.stdin.read(); print('end of input', file=sys.stderr, flush=True); signal.pause()"
        )
        run = Running(runner, work(talking(script)), line)
        line.until_logged("end of input")  # it was told that nothing more comes
        clock.advance(EXIT_GRACE_S)
        outcome = run.outcome()
        runner.close()
    assert (outcome.exit_kind, outcome.result) == ("completed", 1)


# --- the protocol by itself ----------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=30)), st.integers(1, 7))
def test_lines_are_the_same_however_they_are_cut(parts: list[bytes], cut: int) -> None:
    text = b"\n".join(parts)
    whole, pieces = protocol.Lines(), protocol.Lines()
    expected = whole.feed(text)
    got = [each for at in range(0, len(text), cut) for each in pieces.feed(text[at : at + cut])]
    assert got == expected
    assert pieces.rest() == whole.rest()


@given(st.binary(max_size=80))
def test_whatever_a_line_is_it_is_a_message_an_unknown_op_or_a_typed_error(text: bytes) -> None:
    said = understood(text)
    assert isinstance(said, RunnerProtocolBroken | protocol.Said) or said not in protocol.OPS


def understood(text: bytes) -> Any:
    try:
        return protocol.decode(text)
    except RunnerProtocolBroken as problem:
        return problem


def test_every_message_of_the_table_is_known() -> None:
    assert {
        "ready", "log", "iteration_start", "iteration_done", "charge", "chunk", "tool_call", "heartbeat", "checkpoint",
        "throttled", "yield", "spawn", "wait", "result", "exit", "remaining",
    } == protocol.OPS  # fmt: skip
