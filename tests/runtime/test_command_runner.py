"""Any program as an agent: what it is given, what its end means, and that nothing of it stays."""

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
from rota.fleet.agent_settings import RunPlan
from rota.fleet.runners.command import CommandRunner
from rota.fleet.runners.environment import INLINE_BYTES_MAX
from rota.fleet.runners.resources import Workshop
from rota.model.work import Limits
from tests.host.support import dies, until, watch
from tests.runtime.lines import LIMITED, RecordingLine, Running, python, shell, work

PRINT_ENV = "import json, os, sys; print(json.dumps([dict(os.environ), sys.stdin.read(), os.getcwd()]))"


def env_of(line: RecordingLine) -> tuple[dict[str, str], str, str]:
    env, stdin, cwd = json.loads(line.text)
    return env, stdin, cwd


# --- what it is given ----------------------------------------------------------------------------------


def test_a_program_is_told_who_it_is_and_what_to_do(shop: Workshop, line: RecordingLine, tmp_path: Path) -> None:
    given = work(
        python(PRINT_ENV, env={"MINE": "1"}),
        {"url": "a page"},
        deadline=99.5,
        workspace=str(tmp_path),
        remaining={"tokens": 10, "cost-micro": 3},
        checkpoint={"next": 4},
    )
    outcome = CommandRunner(shop).run(given, line)
    env, stdin, cwd = env_of(line)
    assert outcome.exit_kind == "completed"
    assert json.loads(stdin) == json.loads(env["ROTA_PAYLOAD"]) == {"url": "a page"}
    assert cwd == str(tmp_path)
    told = {name: value for name, value in env.items() if name.startswith("ROTA_") and name != "ROTA_PAYLOAD"}
    told.pop("ROTA_MINDER", None)
    assert {
        "ROTA_SCHED_ID": "7", "ROTA_ATTEMPT": "2", "ROTA_TOKEN": "41", "ROTA_AGENT": "summarise",
        "ROTA_DEADLINE": "99.5", "ROTA_REMAINING_TOKENS": "10", "ROTA_REMAINING_COST_MICRO": "3",
        "ROTA_CHECKPOINT": '{"next":4}',
    }.items() <= told.items()  # fmt: skip
    assert env["MINE"] == "1"
    assert line.os_pid


def test_secrets_of_our_environment_stay_here_unless_they_are_named(
    shop: Workshop, line: RecordingLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "k")
    monkeypatch.setenv("OTHER_KEY", "o")
    runner = CommandRunner(shop)
    runner.run(work(python(PRINT_ENV, pass_env=("API_*",))), line)
    env, _, _ = env_of(line)
    assert env["API_KEY"] == "k"
    assert "OTHER_KEY" not in env
    other = RecordingLine()
    runner.run(work(python(PRINT_ENV)), other)
    assert "API_KEY" not in env_of(other)[0]


def test_a_long_payload_and_a_long_checkpoint_arrive_whole(shop: Workshop, line: RecordingLine) -> None:
    script = (
        "import os, sys, json\n"
        "saved = open(os.environ['ROTA_CHECKPOINT']).read()\n"
        "print(len(json.load(sys.stdin)['x']), len(saved), 'ROTA_PAYLOAD' in os.environ)"
    )
    given = work(python(script), {"x": "y" * 200_000}, checkpoint={"x": "y" * INLINE_BYTES_MAX})
    CommandRunner(shop).run(given, line)
    assert line.text == f"200000 {INLINE_BYTES_MAX + 8} False\n"


def test_a_program_that_reads_nothing_is_not_waited_for_and_one_may_be_given_nothing(
    shop: Workshop, line: RecordingLine
) -> None:
    assert CommandRunner(shop).run(work(shell("exit 0"), {"x": "y" * 200_000}), line).exit_kind == "completed"
    CommandRunner(shop).run(work(shell("wc -c", stdin="none"), {"x": 1}), line)
    assert line.text.strip() == "0"


# --- what its end means --------------------------------------------------------------------------------


def test_the_exit_code_is_the_outcome_and_the_end_of_the_output_is_kept(shop: Workshop, line: RecordingLine) -> None:
    runner = CommandRunner(shop)
    done = runner.run(work(shell("echo out; echo err >&2")), line)
    assert (done.exit_kind, done.outcome) == ("completed", None)
    assert done.result == {"exit_code": 0, "output_tail": "out\nerr\n"}
    assert done.usage["wall_s"] >= 1
    assert set(done.usage) == {"cpu_s", "wall_s"}
    failed = runner.run(work(shell("exit 3")), RecordingLine())
    assert (failed.exit_kind, failed.result["exit_code"]) == ("failed", 3)
    assert failed.result["error"] == "it ended with code 3"


def test_a_death_by_signal_is_a_crash(shop: Workshop, line: RecordingLine) -> None:
    outcome = CommandRunner(shop).run(work(shell("kill -SEGV $$")), line)
    assert (outcome.exit_kind, outcome.result["signal"], outcome.result["exit_code"]) == ("crashed", "SIGSEGV", None)


@pytest.mark.parametrize(
    "plan",
    [
        RunPlan(runner="command", argv=("no-such-program-here",)),
        RunPlan(runner="command", argv=("/dev/null",)),
        RunPlan(runner="command", argv=("/bin/true",), cwd="/no/such/folder"),
        RunPlan(runner="command", argv=("/bin/true",), env={"A": "nul \0"}),
        RunPlan(runner="command", argv=("/bin/true",), limits=Limits(memory_bytes=1)),
    ],
)
def test_what_cannot_be_started_says_why_and_never_began(shop: Workshop, line: RecordingLine, plan: RunPlan) -> None:
    outcome = CommandRunner(shop).run(work(plan), line)
    assert (outcome.exit_kind, outcome.outcome) == ("failed", "spawn_failed")
    assert outcome.result["error"]
    assert outcome.result["hint"]
    assert line.stops is None


def test_a_program_over_its_cpu_time_is_ended_and_says_so(shop: Workshop, line: RecordingLine) -> None:
    outcome = CommandRunner(shop).run(work(python("while True: pass", limits=Limits(cpu_s=1))), line)
    assert (outcome.exit_kind, outcome.outcome) == ("failed", "over_cpu")
    assert outcome.usage["cpu_s"] >= 1


def test_a_shell_whose_program_was_over_its_cpu_time_says_so_too(shop: Workshop, line: RecordingLine) -> None:
    plan = shell(f'"{sys.executable}" -c "while True: pass"; exit $?', limits=Limits(cpu_s=1))
    assert CommandRunner(shop).run(work(plan), line).outcome == "over_cpu"


def test_a_memory_hog_is_ended_by_the_limit_in_force(shop: Workshop, line: RecordingLine) -> None:
    plan = python("x = bytearray(200 * 1024 * 1024); print(len(x))", limits=Limits(memory_bytes=64 * 1024 * 1024))
    outcome = CommandRunner(shop).run(work(plan), line)
    assert outcome.exit_kind == "failed"
    if shop.cgroups.support["memory"].works:
        assert outcome.outcome == "over_memory"
        assert line.advisories == ()
    else:
        assert "MemoryError" in line.text


def test_without_groups_the_same_limits_hold_for_each_process_and_an_advisory_says_so(
    shop: Workshop, line: RecordingLine
) -> None:
    plan = python("x = bytearray(600 * 1024 * 1024)", limits=LIMITED)
    outcome = CommandRunner(shop, groups=False).run(work(plan), line)
    assert outcome.exit_kind == "failed"
    assert "MemoryError" in outcome.result["output_tail"]
    assert [advisory.split()[0] for advisory in line.advisories] == ["memory_bytes", "processes"]


def test_a_fork_storm_stays_within_its_group_and_the_group_is_gone_afterwards(
    shop: Workshop, line: RecordingLine
) -> None:
    if not shop.cgroups.support["processes"].works:
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
    outcome = CommandRunner(shop).run(work(python(script, limits=Limits(processes=40), stdin="none")), line)
    assert outcome.exit_kind == "completed"
    assert 0 < int(line.text) < 40
    assert not list(Path("/sys/fs/cgroup").glob(f"**/rota-{os.getpid()}-*"))


# --- output --------------------------------------------------------------------------------------------


def test_a_flood_is_bounded_and_its_end_is_there(shop: Workshop) -> None:
    line = RecordingLine(log_bytes=64 * 1024)
    script = "import sys\nfor n in range(400): sys.stdout.write('x' * 65536)\nprint('the end')"
    outcome = CommandRunner(shop).run(work(python(script)), line)
    assert outcome.result["output_tail"].endswith("the end\n")
    assert line.output.seen_bytes == 400 * 65536 + 8
    assert len(line.output.kept()) < 65 * 1024
    assert len(json.dumps(outcome.result)) < 64 * 1024


def test_a_program_that_closes_its_output_early_goes_on(shop: Workshop, line: RecordingLine, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    plan = shell(f"exec >&- 2>&-; read line < {tmp_path}/go; echo done > {proof}; exit 4")
    os.mkfifo(tmp_path / "go")
    run = Running(CommandRunner(shop), work(plan), line)
    (tmp_path / "go").write_text("go\n")
    assert run.outcome().result["exit_code"] == 4
    assert proof.read_text() == "done\n"


def test_a_child_that_holds_the_output_is_ended_with_its_session(shop: Workshop, line: RecordingLine) -> None:
    outcome = CommandRunner(shop).run(work(shell("sleep 1000 & setsid sleep 1000 & echo started")), line)
    assert (outcome.exit_kind, line.text) == ("completed", "started\n")


def test_an_output_that_a_stranger_holds_does_not_hold_the_run(
    shop: Workshop, line: RecordingLine, tmp_path: Path
) -> None:
    """A terminal multiplexer is handed the descriptors of its clients over a socket, and keeps them."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        script = (
            "import socket, sys\n"
            "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
            "print('before', flush=True)\n"
            "socket.send_fds(s, [b'x'], [1]); s.recv(1)"
        )
        run = Running(CommandRunner(shop), work(python(script, str(tmp_path / "s"))), line)
        client, _ = server.accept()
        with client:
            _, fds, _, _ = socket.recv_fds(client, 1, 1)
            client.send(b"x")
        try:
            assert run.outcome().exit_kind == "completed"  # while we hold its output
            assert line.text == "before\n"
        finally:
            os.close(fds[0])


# --- stopping ------------------------------------------------------------------------------------------


def test_a_program_is_not_asked_but_terminated_and_its_whole_group_with_it(shop: Workshop, line: RecordingLine) -> None:
    run = Running(CommandRunner(shop), work(shell("sleep 1000 & echo ready $!; wait")), line)
    line.until_logged("ready")
    child = watch(int(line.text.split()[1]))
    assert line.ask_to_stop() is False  # there is no way to tell it
    assert line.stops is not None
    assert line.stops.terminate()
    outcome = run.outcome()
    assert (outcome.exit_kind, outcome.result["signal"]) == ("cancelled", "SIGTERM")
    assert dies(child)
    assert line.stops.terminate() is False  # it has ended


def test_who_ignores_term_is_killed(shop: Workshop, line: RecordingLine) -> None:
    run = Running(CommandRunner(shop), work(shell("trap '' TERM; echo ready; while :; do sleep 1; done")), line)
    line.until_logged("ready")
    assert line.stops is not None
    assert line.stops.terminate()
    assert line.stops.kill()
    assert run.outcome().result["signal"] == "SIGKILL"


def test_when_the_minder_is_lost_the_run_is_lost_and_the_next_one_runs(shop: Workshop, line: RecordingLine) -> None:
    runner = CommandRunner(shop)
    run = Running(runner, work(shell("echo ready; sleep 1000")), line)
    line.until_logged("ready")
    assert line.os_pid is not None
    program = watch(line.os_pid)
    minder = shop.minder
    os.kill(minder.pid, signal.SIGKILL)
    outcome = run.outcome()
    assert (outcome.exit_kind, outcome.outcome) == ("crashed", "lost")
    assert dies(program)
    until(lambda: minder.is_lost)
    assert runner.run(work(shell("exit 0")), RecordingLine()).exit_kind == "completed"


def test_a_line_that_breaks_ends_the_program(shop: Workshop) -> None:
    line = RecordingLine()

    def broken(_data: bytes) -> None:
        raise StaleClaim("the claim is another's")

    line.on_log = broken
    outcome = CommandRunner(shop).run(work(shell("echo x; sleep 1000")), line)
    assert (outcome.exit_kind, outcome.outcome) == ("crashed", "lost")
    assert line.os_pid is not None
    assert not Path(f"/proc/{line.os_pid}").exists()


# --- usage ---------------------------------------------------------------------------------------------


def printing(*documents: Any, usage: Any, code: int = 0) -> RunPlan:
    """A stand-in for a coding agent's program: it prints what such a program prints."""
    text = "\n".join(json.dumps(document) for document in documents)
    return python(f"import sys; print({text!r}); print('a warning', file=sys.stderr); sys.exit({code})", usage=usage)


def test_usage_the_answer_and_a_failure_are_read_from_the_output(shop: Workshop, line: RecordingLine) -> None:
    said = {
        "type": "result",
        "is_error": False,
        "result": "Done.",
        "total_cost_usd": 0.5,
        "usage": {"output_tokens": 9},
    }
    done = CommandRunner(shop).run(work(printing(said, usage="claude")), line)
    assert done.exit_kind == "completed"
    assert done.result["text"] == "Done."
    assert {"tokens": 9, "cost_micro": 500_000}.items() <= done.usage.items()
    assert "a warning" in line.text
    failed = CommandRunner(shop).run(work(printing(said | {"is_error": True}, usage="claude")), RecordingLine())
    assert failed.exit_kind == "failed"
    assert failed.usage["tokens"] == 9  # what it used, it used


def test_no_usage_is_an_advisory_in_the_result_and_no_failure(shop: Workshop, line: RecordingLine) -> None:
    outcome = CommandRunner(shop).run(work(shell("echo hello", usage={"tokens": "usage.total"})), line)
    assert outcome.exit_kind == "completed"
    assert "no usage found" in outcome.result["advisories"][0]
    assert "tokens" not in outcome.usage


def test_a_failed_program_is_still_read(shop: Workshop, line: RecordingLine) -> None:
    outcome = CommandRunner(shop).run(work(printing({"tokens": 5}, usage="generic", code=2)), line)
    assert (outcome.exit_kind, outcome.result["exit_code"], outcome.usage["tokens"]) == ("failed", 2, 5)
