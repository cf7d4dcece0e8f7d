"""The command runner: a program's input, its outcome, its output, how it is stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from rota.errors import StaleClaim
from rota.fleet.agent_settings import AgentSettings
from rota.fleet.runners.command import CommandRunner
from rota.fleet.runners.program import INLINE_BYTES_MAX
from rota.fleet.runners.resources import RunnerResources
from rota.model.work import Limits
from tests.host.support import dies, until, watch
from tests.runners.recording import LIMITED, RecordingChannel, Running, assignment, python, shell

PRINT_ENV = "import json, os, sys; print(json.dumps([dict(os.environ), sys.stdin.read(), os.getcwd()]))"


def env_of(channel: RecordingChannel) -> tuple[dict[str, str], str, str]:
    env, stdin, cwd = json.loads(channel.text)
    return env, stdin, cwd


# --- what it is given ----------------------------------------------------------------------------------


def test_a_program_gets_its_run_through_environment_and_stdin(
    resources: RunnerResources, channel: RecordingChannel, tmp_path: Path
) -> None:
    given = assignment(
        python(PRINT_ENV, env={"MINE": "1"}),
        {"url": "a page"},
        deadline=99.5,
        workspace=str(tmp_path),
        remaining={"tokens": 10, "cost-micro": 3},
        checkpoint={"next": 4},
    )
    outcome = CommandRunner(resources).run(given, channel)
    env, stdin, cwd = env_of(channel)
    assert outcome.exit_kind == "completed"
    assert json.loads(stdin) == json.loads(env["ROTA_PAYLOAD"]) == {"url": "a page"}
    assert cwd == str(tmp_path)
    told = {name: value for name, value in env.items() if name.startswith("ROTA_") and name != "ROTA_PAYLOAD"}
    assert {
        "ROTA_SCHED_ID": "7", "ROTA_ATTEMPT": "2", "ROTA_TOKEN": "41", "ROTA_AGENT": "summarise",
        "ROTA_DEADLINE": "99.5", "ROTA_REMAINING_TOKENS": "10", "ROTA_REMAINING_COST_MICRO": "3",
        "ROTA_CHECKPOINT": '{"next":4}',
    }.items() <= told.items()  # fmt: skip
    assert env["MINE"] == "1"
    assert channel.os_pid


def test_secrets_in_the_environment_are_not_passed_unless_named(
    resources: RunnerResources, channel: RecordingChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "k")
    monkeypatch.setenv("OTHER_KEY", "o")
    runner = CommandRunner(resources)
    runner.run(assignment(python(PRINT_ENV, pass_env=("API_*",))), channel)
    env, _, _ = env_of(channel)
    assert env["API_KEY"] == "k"
    assert "OTHER_KEY" not in env
    other = RecordingChannel()
    runner.run(assignment(python(PRINT_ENV)), other)
    assert "API_KEY" not in env_of(other)[0]


def test_a_long_payload_and_a_long_checkpoint_arrive_complete(
    resources: RunnerResources, channel: RecordingChannel
) -> None:
    script = (
        "import os, sys, json\n"
        "saved = open(os.environ['ROTA_CHECKPOINT']).read()\n"
        "print(len(json.load(sys.stdin)['x']), len(saved), 'ROTA_PAYLOAD' in os.environ)"
    )
    given = assignment(python(script), {"x": "y" * 200_000}, checkpoint={"x": "y" * INLINE_BYTES_MAX})
    CommandRunner(resources).run(given, channel)
    assert channel.text == f"200000 {INLINE_BYTES_MAX + 8} False\n"


def test_a_program_need_not_read_its_input_and_may_get_none(
    resources: RunnerResources, channel: RecordingChannel
) -> None:
    assert (
        CommandRunner(resources).run(assignment(shell("exit 0"), {"x": "y" * 200_000}), channel).exit_kind
        == "completed"
    )
    CommandRunner(resources).run(assignment(shell("wc -c", stdin="none"), {"x": 1}), channel)
    assert channel.text.strip() == "0"


# --- what its end means --------------------------------------------------------------------------------


def test_the_exit_code_is_the_outcome_and_the_end_of_the_output_is_kept(
    resources: RunnerResources, channel: RecordingChannel
) -> None:
    runner = CommandRunner(resources)
    done = runner.run(assignment(shell("echo out; echo err >&2")), channel)
    assert (done.exit_kind, done.outcome) == ("completed", None)
    assert done.result == {"exit_code": 0, "output_tail": "out\nerr\n"}
    assert done.usage["wall_s"] >= 1
    assert set(done.usage) == {"cpu_s", "wall_s"}
    failed = runner.run(assignment(shell("exit 3")), RecordingChannel())
    assert (failed.exit_kind, failed.result["exit_code"]) == ("failed", 3)
    assert failed.result["error"] == "exited with code 3"


def test_a_program_killed_by_a_signal_has_crashed(resources: RunnerResources, channel: RecordingChannel) -> None:
    outcome = CommandRunner(resources).run(assignment(shell("kill -SEGV $$")), channel)
    assert (outcome.exit_kind, outcome.result["signal"], outcome.result["exit_code"]) == ("crashed", "SIGSEGV", None)


@pytest.mark.parametrize(
    "settings",
    [
        AgentSettings(runner="command", argv=("no-such-program-here",)),
        AgentSettings(runner="command", argv=("/dev/null",)),
        AgentSettings(runner="command", argv=("/bin/true",), cwd="/no/such/folder"),
        AgentSettings(runner="command", argv=("/bin/true",), limits=Limits(memory_bytes=1)),
    ],
)
def test_a_program_that_cannot_start_fails_with_error_and_hint(
    resources: RunnerResources, channel: RecordingChannel, settings: AgentSettings
) -> None:
    outcome = CommandRunner(resources).run(assignment(settings), channel)
    assert (outcome.exit_kind, outcome.outcome) == ("failed", "spawn_failed")
    assert outcome.result["error"]
    assert outcome.result["hint"]
    assert channel.stop_handle is None


def test_a_program_over_its_cpu_limit_ends_as_over_cpu(resources: RunnerResources, channel: RecordingChannel) -> None:
    outcome = CommandRunner(resources).run(assignment(python("while True: pass", limits=Limits(cpu_s=1))), channel)
    assert (outcome.exit_kind, outcome.outcome) == ("failed", "over_cpu")
    assert outcome.usage["cpu_s"] >= 1


def test_a_shell_whose_program_was_over_its_cpu_limit_ends_as_over_cpu(
    resources: RunnerResources, channel: RecordingChannel
) -> None:
    settings = shell(f'"{sys.executable}" -c "while True: pass"; exit $?', limits=Limits(cpu_s=1))
    assert CommandRunner(resources).run(assignment(settings), channel).outcome == "over_cpu"


def test_a_memory_hog_is_stopped_by_the_limit_in_force(resources: RunnerResources, channel: RecordingChannel) -> None:
    settings = python("x = bytearray(200 * 1024 * 1024); print(len(x))", limits=Limits(memory_bytes=64 * 1024 * 1024))
    outcome = CommandRunner(resources).run(assignment(settings), channel)
    assert outcome.exit_kind == "failed"
    if resources.cgroups.support["memory"].works:
        assert outcome.outcome == "over_memory"
        assert channel.advisories == ()
    else:
        assert "MemoryError" in channel.text


def test_without_groups_limits_apply_to_each_process_and_an_advisory_says_so(
    resources: RunnerResources, channel: RecordingChannel
) -> None:
    settings = python("x = bytearray(600 * 1024 * 1024)", limits=LIMITED)
    outcome = CommandRunner(resources, use_groups=False).run(assignment(settings), channel)
    assert outcome.exit_kind == "failed"
    assert "MemoryError" in outcome.result["output_tail"]
    assert [advisory.split()[0] for advisory in channel.advisories] == ["memory_bytes", "processes"]


def test_a_fork_storm_stays_within_its_group_and_the_group_is_removed(
    resources: RunnerResources, channel: RecordingChannel
) -> None:
    if not resources.cgroups.support["processes"].works:
        pytest.skip("this machine has no control group for processes")
    script = """
import os, signal
made = 0
for _ in range(300):
    try:
        if os.fork() == 0:
            signal.pause()
        made += 1
    except BlockingIOError:
        break
print(made)
"""
    outcome = CommandRunner(resources).run(
        assignment(python(script, limits=Limits(processes=40), stdin="none")), channel
    )
    assert outcome.exit_kind == "completed"
    assert 0 < int(channel.text) < 40
    assert not list(Path("/sys/fs/cgroup").glob(f"**/rota-{os.getpid()}-*"))


# --- output --------------------------------------------------------------------------------------------


def test_a_flood_is_bounded_and_its_end_is_kept(resources: RunnerResources) -> None:
    channel = RecordingChannel(log_bytes=64 * 1024)
    script = "import sys\nfor n in range(400): sys.stdout.write('x' * 65536)\nprint('the end')"
    outcome = CommandRunner(resources).run(assignment(python(script)), channel)
    assert outcome.result["output_tail"].endswith("the end\n")
    assert channel.output.seen_bytes == 400 * 65536 + 8
    assert len(channel.output.kept()) < 65 * 1024
    assert len(json.dumps(outcome.result)) < 64 * 1024


def test_a_program_that_closes_its_output_early_continues(
    resources: RunnerResources, channel: RecordingChannel, tmp_path: Path
) -> None:
    proof = tmp_path / "proof"
    settings = shell(f"exec >&- 2>&-; read line < {tmp_path}/go; echo done > {proof}; exit 4")
    os.mkfifo(tmp_path / "go")
    run = Running(CommandRunner(resources), assignment(settings), channel)
    (tmp_path / "go").write_text("go\n")
    assert run.outcome().result["exit_code"] == 4
    assert proof.read_text() == "done\n"


def test_a_child_that_holds_the_output_is_killed_with_its_session(
    resources: RunnerResources, channel: RecordingChannel
) -> None:
    outcome = CommandRunner(resources).run(assignment(shell("sleep 1000 & setsid sleep 1000 & echo started")), channel)
    assert (outcome.exit_kind, channel.text) == ("completed", "started\n")


def test_an_output_held_open_by_an_unrelated_process_does_not_delay_the_end(
    resources: RunnerResources, channel: RecordingChannel, socket_folder: Path
) -> None:
    """A terminal multiplexer receives the descriptors of its clients over a socket and keeps them."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(socket_folder / "s"))
        server.listen()
        script = (
            "import socket, sys\n"
            "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
            "print('before', flush=True)\n"
            "socket.send_fds(s, [b'x'], [1]); s.recv(1)"
        )
        run = Running(CommandRunner(resources), assignment(python(script, str(socket_folder / "s"))), channel)
        client, _ = server.accept()
        with client:
            _, fds, _, _ = socket.recv_fds(client, 1, 1)
            client.send(b"x")
        try:
            assert run.outcome().exit_kind == "completed"  # while we hold its output
            assert channel.text == "before\n"
        finally:
            os.close(fds[0])


# --- stopping ------------------------------------------------------------------------------------------


def test_a_program_takes_no_stop_request_and_sigterm_reaches_its_whole_group(
    resources: RunnerResources, channel: RecordingChannel
) -> None:
    run = Running(CommandRunner(resources), assignment(shell("sleep 1000 & echo ready $!; wait")), channel)
    channel.until_logged("ready")
    child = watch(int(channel.text.split()[1]))
    assert channel.request_stop() is False  # it takes no messages
    assert channel.stop_handle is not None
    assert channel.stop_handle.terminate()
    outcome = run.outcome()
    assert (outcome.exit_kind, outcome.result["signal"]) == ("cancelled", "SIGTERM")
    assert dies(child)
    assert channel.stop_handle.terminate() is False  # it has ended


def test_a_program_that_ignores_sigterm_is_killed(resources: RunnerResources, channel: RecordingChannel) -> None:
    run = Running(
        CommandRunner(resources), assignment(shell("trap '' TERM; echo ready; while :; do sleep 1; done")), channel
    )
    channel.until_logged("ready")
    assert channel.stop_handle is not None
    assert channel.stop_handle.terminate()
    assert channel.stop_handle.kill()
    assert run.outcome().result["signal"] == "SIGKILL"


def test_when_the_reaper_is_lost_the_run_is_lost_and_the_next_one_runs(
    resources: RunnerResources, channel: RecordingChannel
) -> None:
    runner = CommandRunner(resources)
    run = Running(runner, assignment(shell("echo ready; sleep 1000")), channel)
    channel.until_logged("ready")
    assert channel.os_pid is not None
    program = watch(channel.os_pid)
    reaper = resources.reaper
    os.kill(reaper.pid, signal.SIGKILL)
    outcome = run.outcome()
    assert (outcome.exit_kind, outcome.outcome) == ("crashed", "lost")
    assert dies(program)
    until(lambda: reaper.is_lost)
    assert runner.run(assignment(shell("exit 0")), RecordingChannel()).exit_kind == "completed"


def test_an_error_of_the_channel_ends_the_program(resources: RunnerResources) -> None:
    channel = RecordingChannel()

    def broken(_data: bytes) -> None:
        raise StaleClaim("another worker has the claim")

    channel.on_log = broken
    outcome = CommandRunner(resources).run(assignment(shell("echo x; sleep 1000")), channel)
    assert (outcome.exit_kind, outcome.outcome) == ("crashed", "lost")
    assert channel.os_pid is not None
    assert not Path(f"/proc/{channel.os_pid}").exists()


# --- usage ---------------------------------------------------------------------------------------------


def printing(*documents: Any, usage: Any, code: int = 0) -> AgentSettings:
    """Settings for a program that prints what a coding agent prints."""
    text = "\n".join(json.dumps(document) for document in documents)
    return python(f"import sys; print({text!r}); print('a warning', file=sys.stderr); sys.exit({code})", usage=usage)


def test_usage_answer_and_failure_are_read_from_the_output(
    resources: RunnerResources, channel: RecordingChannel
) -> None:
    document = {
        "type": "result",
        "is_error": False,
        "result": "Done.",
        "total_cost_usd": 0.5,
        "usage": {"output_tokens": 9},
    }
    done = CommandRunner(resources).run(assignment(printing(document, usage="claude")), channel)
    assert done.exit_kind == "completed"
    assert done.result["text"] == "Done."
    assert {"tokens": 9, "cost_micro": 500_000}.items() <= done.usage.items()
    assert "a warning" in channel.text
    failed = CommandRunner(resources).run(
        assignment(printing(document | {"is_error": True}, usage="claude")), RecordingChannel()
    )
    assert failed.exit_kind == "failed"
    assert failed.usage["tokens"] == 9  # usage counts even if the run failed


def test_missing_usage_is_an_advisory_in_the_result_and_no_failure(
    resources: RunnerResources, channel: RecordingChannel
) -> None:
    outcome = CommandRunner(resources).run(assignment(shell("echo hello", usage={"tokens": "usage.total"})), channel)
    assert outcome.exit_kind == "completed"
    assert "no usage found" in outcome.result["advisories"][0]
    assert "tokens" not in outcome.usage


def test_usage_of_a_failed_program_is_read(resources: RunnerResources, channel: RecordingChannel) -> None:
    outcome = CommandRunner(resources).run(assignment(printing({"tokens": 5}, usage="generic", code=2)), channel)
    assert (outcome.exit_kind, outcome.result["exit_code"], outcome.usage["tokens"]) == ("failed", 2, 5)
