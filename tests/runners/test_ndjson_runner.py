"""The ndjson runner: the handshake, every message, and every way the conversation can fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.clock import ManualClock
from rota.errors import RunnerProtocolBroken
from rota.fleet.agent_settings import AgentSettings
from rota.fleet.run_cpu import RunCpu
from rota.fleet.runners import protocol
from rota.fleet.runners.ndjson import EXIT_GRACE_S, IPC_TIMEOUT_S, NdjsonRunner
from rota.fleet.runners.resources import RunnerResources
from rota.host.thread_settings import allowed_cores
from rota.model.checks import RESULT_BYTES_MAX
from rota.model.cpu import CpuSettings
from rota.model.work import Limits
from tests.host.support import state_of, until
from tests.runners.recording import RecordingChannel, Running, assignment, python

HEAD = """
import json, sys
def hear(): return json.loads(sys.stdin.readline())
def say(**message): print(json.dumps(message), flush=True)
"""
READY = HEAD + "init = hear(); say(op='ready', pid=init['pid'])\n"


def raw(script: str, **fields: Any) -> AgentSettings:
    return python(HEAD + script, runner="ndjson", **fields)


def talking(script: str, **fields: Any) -> AgentSettings:
    return python(READY + script, runner="ndjson", **fields)


# --- messages --------------------------------------------------------------------------------------------


def test_an_agent_gets_init_and_sends_every_message(resources: RunnerResources, channel: RecordingChannel) -> None:
    settings = talking(
        "say(op='log', text='hello')\n"
        "say(op='iteration_start', iteration=1)\n"
        "say(op='tool_call', name='grep', arguments={'for': 'x'})\n"
        "say(op='iteration_done', iteration=1, tokens=10, cost_micro=5)\n"
        "say(op='chunk', text='par'); say(op='chunk', text='tial ')\n"
        "say(op='charge', dim='tokens', amount=7)\n"
        "say(op='heartbeat')\n"
        "say(op='checkpoint', state={'next': 2})\n"
        "say(op='emit', kind='page.read', payload={'pages': 3})\n"
        "say(op='throttled', retry_after_s=30, name='api')\n"
        "say(op='progress', fraction=0.4, text='reading')\n"
        "print('to stderr', file=sys.stderr)\n"
        "say(op='result', value={'init': init})\n"
        "say(op='exit', exit_kind='completed')\n"
    )
    given = assignment(settings, {"url": "u"}, deadline=9.0, remaining={"tokens": 1000}, checkpoint={"next": 1})
    outcome = NdjsonRunner(resources).run(given, channel)
    assert outcome.exit_kind == "completed"
    assert outcome.result["init"] == {
        "op": "init", "pid": 3, "sched_id": 7, "attempt": 2, "token": 41, "deadline": 9.0, "trigger": "manual",
        "payload": {"url": "u"}, "remaining": {"tokens": 1000}, "checkpoint": {"next": 1}, "agent": "summarise",
        "workspace": None,
    }  # fmt: skip
    assert channel.calls == [
        ("charge", {"tokens": 10, "cost_micro": 5}),
        ("charge", {"tokens": 7}),
        ("checkpoint", {"next": 2}),
        ("emit", "page.read", {"pages": 3}),
        ("throttled", 30.0, "api"),
        ("progress", 0.4, "reading"),
    ]
    for logged in ("hello", "iteration 1 starts", 'tool grep {"for":"x"}', "partial ", "to stderr"):
        assert logged in channel.text
    assert channel.os_pid


def test_a_limit_is_asked_and_settled(resources: RunnerResources, channel: RecordingChannel) -> None:
    settings = talking(
        "say(op='acquire', id=1, name='api', amounts={'tokens': 900, 'requests': 1}); acquired = hear()\n"
        "say(op='settle', id=2, key=acquired['key'], used={'tokens': 750}); settled = hear()\n"
        "say(op='acquire', id=3, name='full', amounts={'tokens': 1}, wait_s=0); refused = hear()\n"
        "say(op='result', value=[acquired, settled, refused['op'], refused['name']])\n"
        "say(op='exit')\n"
    )
    outcome = NdjsonRunner(resources).run(assignment(settings), channel)
    assert outcome.result == [
        {"op": "acquired", "id": 1, "key": "7"},
        {"op": "remaining", "id": 2, "remaining": channel.remaining()},
        "refused",
        "wait_timeout",
    ]
    asked = ("acquire", "api", {"tokens": 900, "requests": 1}, None)
    assert channel.calls == [asked, ("settle", "7", {"tokens": 750})]


def test_requests_are_answered_by_their_id(resources: RunnerResources, channel: RecordingChannel) -> None:
    channel.child_ended(1001, {"n": 1})
    settings = talking(
        "say(op='spawn', id='a', agent='reader', payload={'x': 1}, lent={'tokens': 5}, priority=4)\n"
        "spawned = hear()\n"
        "say(op='wait', id=2, children=[spawned['sched_id']])\n"
        "waited = hear()\n"
        "say(op='charge', id=3, amounts={'tokens': 100}); charged = hear()\n"
        "say(op='remaining', id=4); left = hear()\n"
        "say(op='result', value=[spawned, waited, charged, left]); say(op='exit')\n"
    )
    outcome = NdjsonRunner(resources).run(assignment(settings), channel)
    assert outcome.result == [
        {"op": "spawned", "id": "a", "sched_id": 1001},
        {
            "op": "waited", "id": 2,
            "children": [{"sched_id": 1001, "exit_kind": "completed", "outcome": None, "result": {"n": 1}}],
        },
        {"op": "remaining", "id": 3, "remaining": {"tokens": 900}},
        {"op": "remaining", "id": 4, "remaining": {"tokens": 900}},
    ]  # fmt: skip
    assert channel.calls[0] == ("spawn", "reader", {"x": 1}, {"tokens": 5}, {"priority": 4})


def test_messages_are_handled_while_the_agent_waits_for_a_child(
    resources: RunnerResources, channel: RecordingChannel
) -> None:
    settings = talking("say(op='wait', id=1, children=[5]); say(op='log', text='still here'); hear(); say(op='exit')\n")
    run = Running(NdjsonRunner(resources), assignment(settings), channel)
    channel.until_logged("still here")
    channel.child_ended(5, None)
    assert run.outcome().exit_kind == "completed"


def test_a_refused_request_gets_a_reply_and_the_run_continues(
    resources: RunnerResources, channel: RecordingChannel
) -> None:
    settings = talking(
        "say(op='spawn', id=1, agent='missing'); first = hear()\n"
        "say(op='charge', dim='tokens', amount=-5); second = hear()\n"
        "say(op='result', value=[first, second]); say(op='exit')\n"
    )
    outcome = NdjsonRunner(resources).run(assignment(settings), channel)
    first, second = outcome.result
    assert (first["op"], first["id"], first["of"], first["name"]) == ("refused", 1, "spawn", "kernel_unknown_pid")
    assert (second["id"], second["of"], second["name"]) == (None, "charge", "kernel_ledger_invalid_amount")
    assert "charge was refused" in channel.text


def test_yield_gives_up_the_slot(resources: RunnerResources, channel: RecordingChannel) -> None:
    settings = talking("say(op='checkpoint', state={'at': 1}); say(op='yield', after_s=2.5)\n")
    outcome = NdjsonRunner(resources).run(assignment(settings), channel)
    assert (outcome.exit_kind, outcome.yield_after_s) == ("completed", 2.5)


def test_an_exit_without_a_result_returns_its_fields(resources: RunnerResources, channel: RecordingChannel) -> None:
    settings = talking("say(op='exit', summary='read it', text='…', metadata={'pages': 3})\n")
    assert NdjsonRunner(resources).run(assignment(settings), channel).result == {
        "summary": "read it", "text": "…", "metadata": {"pages": 3},
    }  # fmt: skip


def test_a_large_init_reaches_a_slow_agent(resources: RunnerResources, channel: RecordingChannel) -> None:
    settings = talking("say(op='result', value=len(init['payload']['x'])); say(op='exit')\n")
    given = assignment(settings, {"x": "y" * 250_000}, checkpoint={"z": "z" * 250_000})
    assert NdjsonRunner(resources).run(given, channel).result == 250_000


def test_an_unknown_op_is_logged_and_ignored(resources: RunnerResources, channel: RecordingChannel) -> None:
    settings = talking("say(op='dance', with_='me'); say(op='log', text='on', extra=1); say(op='exit')\n")
    assert NdjsonRunner(resources).run(assignment(settings), channel).exit_kind == "completed"
    assert "ignored unknown op 'dance'" in channel.text


# --- how it can end ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "exit_kind", "error"),
    [
        ("", "crashed", "ended without an exit message: exited with code 0"),
        ("sys.exit(3)", "crashed", "ended without an exit message: exited with code 3"),
        ("import os; os.kill(os.getpid(), 9)", "crashed", "ended without an exit message: killed by SIGKILL"),
        ("say(op='exit'); sys.exit(2)", "failed", "sent 'exit', then exited with code 2"),
        ("say(op='yield'); sys.exit(2)", "failed", "sent 'yield', then exited with code 2"),
        ("say(op='exit', exit_kind='failed', summary='no network')", "failed", "no network"),
        ("say(op='exit', exit_kind='cancelled')", "cancelled", "the agent reported exit_kind 'cancelled'"),
        ("say(op='exit', exit_kind='crashed', text='oh')", "crashed", "oh"),
    ],
)
def test_the_final_message_and_the_exit_code_decide_the_outcome(
    resources: RunnerResources, channel: RecordingChannel, script: str, exit_kind: str, error: str
) -> None:
    outcome = NdjsonRunner(resources).run(assignment(talking("say(op='result', value='half')\n" + script)), channel)
    assert (outcome.exit_kind, outcome.result["error"]) == (exit_kind, error)
    assert outcome.result["result"] == "half"  # the partial result


def test_a_result_that_is_too_large_fails_the_run(resources: RunnerResources, channel: RecordingChannel) -> None:
    settings = talking(f"say(op='result', value='x' * {RESULT_BYTES_MAX}); say(op='exit')\n")
    outcome = NdjsonRunner(resources).run(assignment(settings), channel)
    assert (outcome.exit_kind, outcome.outcome) == ("failed", "result_too_large")
    assert len(json.dumps(outcome.result)) < RESULT_BYTES_MAX


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("print('Traceback or so', flush=True); hear()", "a line that is not a JSON object with an op"),
        ("print('[1, 2]', flush=True); hear()", "a line that is not a JSON object with an op"),
        ("say(op='charge', dim='tokens', amount='many'); hear()", "'charge' with an invalid field"),
        ("say(op='exit', exit_kind='splendid'); hear()", "'exit' with an invalid field"),
        ("sys.stdout.write('x' * 2_000_000); sys.stdout.flush(); hear()", "a line of more than"),
        (
            "sys.stdout.buffer.write(b'\\xff\\xfe\\n'); sys.stdout.flush(); hear()",
            "a line that is not a JSON object with an op",
        ),
    ],
)
def test_an_invalid_message_ends_the_run_as_protocol_broken(
    resources: RunnerResources, channel: RecordingChannel, script: str, error: str
) -> None:
    outcome = NdjsonRunner(resources).run(assignment(talking(script)), channel)
    assert (outcome.exit_kind, outcome.outcome) == ("failed", "protocol_broken")
    assert error in outcome.result["error"]
    assert outcome.result["name"] == RunnerProtocolBroken.name
    assert "line" in outcome.result


FOR_THE_LOG = {
    "say(op='log', msg='by msg')": "by msg\n",
    "say(op='log', content='by content', level=3)": "by content\n",
    "say(op='log', text='by text', msg='not this')": "by text\n",
    "say(op='log', text={'a': 1})": '{"a": 1}\n',
    "say(op='log', level='warning')": '{"level": "warning"}\n',
    "say(op='log')": "{}\n",
    "say(op='log', text='x', load=float('nan'))": "x\n",
    "say(op='log', msg='half \\ud83d')": "half ?\n",
    "say(op='chunk', content='a part')": "a part",
    "say(op='chunk', text=None)": "null",
    "say(op='tool_call', tool='grep', args={'for': 'x'})": 'tool grep {"for": "x"}\n',
    "say(op='tool_call', name='grep', args=['x'])": 'tool grep ["x"]\n',
    "say(op='tool_call', name=5)": "tool 5\n",
    "say(op='tool_call')": "tool ?\n",
    "say(op='iteration_start', iteration='first')": "iteration first starts\n",
    "say(op='progress', text='nearly')": "nearly\n",
    "say(op='heartbeat', pid='x')": "",
    "say(op='log', text='y' * 3_000_000)": "(cut: a message of more than 1,048,576 bytes)",
    'sys.stdout.buffer.write(b\'{"op":"log","text":"\\xff"}\\n\'); sys.stdout.flush()': "\ufffd\n",
}


@pytest.mark.parametrize("script", FOR_THE_LOG)
@pytest.mark.parametrize("head", ["READY", "HEAD"])
def test_a_message_that_is_only_for_the_log_never_ends_the_run(
    resources: RunnerResources, channel: RecordingChannel, script: str, head: str
) -> None:
    if head == "READY":
        settings = talking(f"{script}\nsay(op='exit')\n")
    else:
        settings = raw(f"init = hear()\n{script}\nsay(op='ready'); say(op='exit')\n")  # also before ready
    outcome = NdjsonRunner(resources).run(assignment(settings), channel)
    assert (outcome.exit_kind, outcome.outcome) == ("completed", None), outcome.result
    assert FOR_THE_LOG[script] in channel.text


def test_an_agent_over_its_cpu_limit_ends_as_over_cpu(resources: RunnerResources, channel: RecordingChannel) -> None:
    outcome = NdjsonRunner(resources).run(assignment(talking("while True: pass", limits=Limits(cpu_s=1))), channel)
    assert (outcome.exit_kind, outcome.outcome) == ("failed", "over_cpu")


# --- the handshake -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("say(op='charge', dim='tokens', amount=1); hear(); hear()", "answered init with 'charge'"),
        ("say(op='ready', pid=99); hear(); hear()", "sent ready with pid 99 instead of 3"),
        ("print('hello', flush=True); hear(); hear()", "a line that is not a JSON object with an op"),
        ("sys.exit(4)", "did not send ready: exited with code 4"),
        ("", "did not send ready: exited with code 0"),
    ],
)
def test_a_program_that_does_not_answer_ready_never_starts(
    resources: RunnerResources, channel: RecordingChannel, script: str, error: str
) -> None:
    outcome = NdjsonRunner(resources).run(assignment(raw(script)), channel)
    assert (outcome.exit_kind, outcome.outcome) == ("failed", "handshake_failed")
    assert error in outcome.result["error"]
    assert channel.stop_handle is None


def test_a_program_that_does_not_answer_in_time_never_starts() -> None:
    clock = ManualClock()
    channel = RecordingChannel()
    with RunnerResources(clock) as resources:
        runner = NdjsonRunner(resources)
        run = Running(runner, assignment(raw("print('here', file=sys.stderr, flush=True); hear(); hear()")), channel)
        channel.until_logged("here")
        clock.advance(IPC_TIMEOUT_S)
        outcome = run.outcome()
        runner.close()
    assert (outcome.outcome, outcome.result["name"]) == ("handshake_failed", "kernel_runner_ipc_timeout")
    assert channel.stop_handle is None


@pytest.mark.parametrize("waits", [False, True])
def test_a_program_that_its_cpu_settings_keep_from_running_has_longer_to_answer(tmp_path: Path, waits: bool) -> None:
    """As when ten start at once under the quota of their project; one that only waits has no more."""
    clock, channel, go = ManualClock(), RecordingChannel(), tmp_path / "go"
    starts = "hear()" if waits else f"while not os.path.exists({str(go)!r}): pass"
    script = f"""
import os
init = hear(); print('here', os.getpid(), file=sys.stderr, flush=True)
{starts}
say(op='ready', pid=init['pid']); say(op='exit', exit_kind='completed')
"""
    cpu = RunCpu(owners=(), usable=allowed_cores(), own=CpuSettings())
    with RunnerResources(clock) as resources:
        runner = NdjsonRunner(resources)
        run = Running(runner, assignment(raw(script), cpu=cpu), channel)
        channel.until(lambda: channel.text.endswith("\n"))
        pid = int(channel.text.split()[1])
        until(lambda: not waits or state_of(pid) == "S")
        clock.advance(IPC_TIMEOUT_S)
        clock.until_parked()
        go.touch()
        outcome = run.outcome()
        runner.close()
    assert (outcome.exit_kind, outcome.outcome) == (("failed", "handshake_failed") if waits else ("completed", None))


def test_a_program_that_cannot_start_ends_as_spawn_failed(
    resources: RunnerResources, channel: RecordingChannel
) -> None:
    outcome = NdjsonRunner(resources).run(
        assignment(AgentSettings(runner="ndjson", argv=("no-such-program-here",))), channel
    )
    assert (outcome.exit_kind, outcome.outcome) == ("failed", "spawn_failed")


# --- stopping ------------------------------------------------------------------------------------------


def test_an_agent_is_asked_to_stop_and_may_save_its_work(resources: RunnerResources, channel: RecordingChannel) -> None:
    settings = talking(
        "say(op='log', text='working'); stop = hear()\n"
        "say(op='checkpoint', state={'stop': stop}); say(op='exit', exit_kind='cancelled', summary='as asked')\n",
        stop_grace_s=3.0,
    )
    run = Running(NdjsonRunner(resources), assignment(settings), channel)
    channel.until_logged("working")
    assert channel.request_stop("preempted")
    outcome = run.outcome()
    assert (outcome.exit_kind, outcome.result["error"]) == ("cancelled", "as asked")
    assert channel.calls == [("checkpoint", {"stop": {"op": "stop", "reason": "preempted", "grace_s": 3.0}})]
    assert channel.stop_handle is not None
    assert channel.stop_handle.request_stop("again") is False  # the run has finished


def test_an_agent_that_ignores_a_stop_request_is_terminated(
    resources: RunnerResources, channel: RecordingChannel
) -> None:
    run = Running(
        NdjsonRunner(resources),
        assignment(talking("import signal\nsay(op='log', text='deaf'); signal.pause()")),
        channel,
    )
    channel.until_logged("deaf")
    assert channel.request_stop()
    assert channel.stop_handle is not None
    assert channel.stop_handle.terminate()
    assert run.outcome().exit_kind == "cancelled"


def test_an_agent_that_never_reads_costs_no_time(resources: RunnerResources, channel: RecordingChannel) -> None:
    settings = talking(
        "for n in range(3000): say(op='charge', id='x' * 100, amounts={'tokens': 1})\nsay(op='exit')\n"
    )  # some 400 KB of replies: more than the pipe holds
    assert NdjsonRunner(resources).run(assignment(settings), channel).exit_kind == "completed"
    assert len(channel.calls) == 3000


def test_a_program_that_does_not_exit_after_its_final_message_is_killed_and_the_message_counts() -> None:
    clock = ManualClock()
    channel = RecordingChannel()
    with RunnerResources(clock) as resources:
        runner = NdjsonRunner(resources)
        script = (
            "import signal\n"
            "say(op='result', value=1); say(op='exit')\n"
            "sys.stdin.read(); print('end of input', file=sys.stderr, flush=True); signal.pause()"
        )
        run = Running(runner, assignment(talking(script)), channel)
        channel.until_logged("end of input")  # its input was closed
        clock.advance(EXIT_GRACE_S)
        outcome = run.outcome()
        runner.close()
    assert (outcome.exit_kind, outcome.result) == ("completed", 1)


# --- the protocol by itself ----------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=30)), st.integers(1, 7))
def test_lines_are_the_same_however_they_are_cut(parts: list[bytes], cut: int) -> None:
    text = b"\n".join(parts)
    whole, pieces = protocol.LineSplitter(), protocol.LineSplitter()
    expected = whole.feed(text)
    got = [each for at in range(0, len(text), cut) for each in pieces.feed(text[at : at + cut])]
    assert got == expected
    assert pieces.rest() == whole.rest()


@given(st.binary(max_size=80))
def test_any_line_is_a_message_an_unknown_op_or_a_typed_error(text: bytes) -> None:
    decoded = decode(text)
    assert isinstance(decoded, RunnerProtocolBroken | protocol.AgentMessage) or decoded not in protocol.OPS


def decode(text: bytes) -> Any:
    try:
        return protocol.decode(text)
    except RunnerProtocolBroken as problem:
        return problem


def test_every_message_of_the_table_is_known() -> None:
    assert {
        "ready", "log", "iteration_start", "iteration_done", "charge", "chunk", "tool_call", "heartbeat", "checkpoint",
        "throttled", "yield", "spawn", "wait", "result", "exit", "remaining", "progress",
        "acquire", "settle", "emit",
    } == protocol.OPS  # fmt: skip
