"""The output of runs whose supervisor is at a daemon: sent in pieces, read and followed from anywhere."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rota import Rota, store
from rota.errors import Forbidden, SchedUnknownId
from rota.fleet import FleetRun, load_fleet
from rota.fleet.runners.context import RunContext
from rota.fleet.supervisor import Supervisor
from rota.kernel import Kernel, ScheduleSpec
from rota.model.work import Backoff, Limits
from rota.rpc import Client, connect
from rota.rpc.daemon.transport import DaemonLimits
from rota.service.api import SchedulerApi
from rota.service.dispatcher import Dispatcher
from tests.daemon.harness import Served, make_token, serving
from tests.fleet.log_follower import Follower, all_of

PATIENCE_S = 30.0

NDJSON = """
import sys
from rota.agent import connect
with connect() as run:
    print("printed")
    print("to stderr", file=sys.stderr)
    run.log("logged")
"""


@contextmanager
def running(supervisor: Supervisor) -> Iterator[None]:
    thread = threading.Thread(target=supervisor.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        supervisor.drain()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def until(happened: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S * 100)):
        if happened():
            return
        pause.wait(0.01)
    raise AssertionError("it did not happen")


def test_each_kind_of_agent_through_a_daemon(served: Served, client: Client, tmp_path: Path) -> None:
    """The supervisor is at the daemon, over each transport; the reader is there too, with a token of scope read."""
    with connect(served.url, token=make_token(served.path, "read")) as reader:
        follow_each_kind(client, reader, tmp_path, served.unix)
    assert not (tmp_path / "elsewhere" / "rota-logs").exists()  # the supervisor needs no folder


def test_each_kind_of_agent_over_a_file(tmp_path: Path) -> None:
    """The supervisor and the reader are two users of the file."""
    path = str(tmp_path / "rota.db")
    api, reader = (Dispatcher(Kernel(store.open(path))) for _ in range(2))
    follow_each_kind(api, reader, tmp_path, path)
    api.close()
    reader.close()


def follow_each_kind(api: SchedulerApi, reader: SchedulerApi, tmp_path: Path, address: str) -> None:
    """Run a command, an ndjson program and a function; follow the first one, and read what all of them printed."""
    os.mkfifo(tmp_path / "gate")
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "elsewhere" / "fleet.toml"
    path.write_text(
        f"""
        store = "{address}"
        slots = 3
        [agents.command]
        command = ["sh", "-c", "echo one; echo warned >&2; read line < {tmp_path}/gate; echo two $line"]
        [agents.program]
        ndjson = ["{sys.executable}", "{tmp_path}/program.py"]
        [agents.function]
        function = "printing_functions:printing"
        """
    )
    (tmp_path / "elsewhere" / "printing_functions.py").write_text("def printing():\n    print('from a function')\n")
    (tmp_path / "program.py").write_text(NDJSON)
    fleet = FleetRun(api, load_fleet(path))
    command, program, function = (
        api.queue.enqueue(ScheduleSpec(api.agents.find(name)[0].pid)) for name in ("command", "program", "function")
    )
    follower = Follower(reader, command)
    follower.until_notice("waiting for entry 1 to start")
    with running(fleet.supervisor):
        follower.until_shown("one\nwarned\n")
        assert not reader.logs.read(command).ended
        (tmp_path / "gate").write_text("three\n")
        assert follower.ended() == "one\nwarned\ntwo three\n"
        assert follower.notices[-1] == "entry 1 succeeded"
        for sched_id in (program, function):
            api.queue.wait(sched_id, PATIENCE_S)
    assert all_of(reader, function) == "from a function\n"
    assert sorted(all_of(reader, program).splitlines()) == ["logged", "printed", "to stderr"]
    assert sorted(path.name for path in (tmp_path / "rota.db-logs").iterdir()) == ["1.1.log", "2.1.log", "3.1.log"]


def test_a_supervisor_keeps_a_copy_where_it_is_told_to(served: Served, tmp_path: Path) -> None:
    with Rota(served.unix) as rota:

        @rota.agent
        def prints() -> None:
            print("hello")

        job = prints.enqueue()
        rota.run(until_idle=True, logs=str(tmp_path / "copies"))
        assert all_of(rota.api, job.sched_id) == "hello\n"
        assert (tmp_path / "copies" / "1.1.log").read_text().endswith("\nhello\n")
        rota.run(until_idle=True, logs_max=0)
        quiet = prints.enqueue()
        rota.run(until_idle=True, logs_max=0)
        assert rota.api.logs.read(quiet.sched_id).total_bytes == 0


def test_an_outage_of_the_daemon_costs_nothing_that_fits_in_the_log(tmp_path: Path) -> None:
    text, _ = printed_through_an_outage(tmp_path, "during\n", log_bytes=1_000)
    assert text == "before\nduring\nafter\n"


def test_an_outage_costs_log_bytes_and_never_the_run(tmp_path: Path) -> None:
    text, notices = printed_through_an_outage(tmp_path, "x" * 999 + "\n", log_bytes=40)
    assert text.startswith("before\nxxxxxxxxxxxxx\n… ")
    assert text.endswith("x\nafter\n")
    dropped = int(text.partition("… ")[2].partition(" bytes dropped …")[0].replace(",", ""))
    kept = len(text.partition("\n… ")[0]) + len(text.rpartition(" …\n")[2])
    assert kept + dropped == len("before\n") + 1_000 + len("after\n")
    assert notices == ["entry 1 succeeded"]


def printed_through_an_outage(tmp_path: Path, during: str, *, log_bytes: int) -> tuple[str, list[str]]:
    """Print while the daemon is there, while it is away, and when it is back; return the log and the follower's end."""
    path, gates = tmp_path / "rota.db", [threading.Event(), threading.Event()]
    printed = threading.Event()
    first = Served(str(path), http=False)
    with Rota(first.unix) as rota:

        @rota.agent(limits=Limits(log_bytes=log_bytes))
        def prints() -> None:
            print("before")
            assert gates[0].wait(PATIENCE_S)
            print(during, end="")
            printed.set()
            assert gates[1].wait(PATIENCE_S)
            print("after")

        job = prints.enqueue()
        supervisor = rota.supervisor(1, heartbeat_s=0.2)
        thread = threading.Thread(target=supervisor.run, daemon=True)
        thread.start()
        until(lambda: rota.api.logs.read(job.sched_id).total_bytes == len("before\n"))
        first.stop()
        gates[0].set()
        assert printed.wait(PATIENCE_S)
        with serving(path, http=False):
            follower = Follower(rota.api, job.sched_id)
            gates[1].set()
            rota.api.queue.wait(job.sched_id, PATIENCE_S)
            follower.ended()
            until(lambda: rota.api.logs.read(job.sched_id, offset=-6).data == b"after\n")
            supervisor.drain()
            thread.join(PATIENCE_S)
            return all_of(rota.api, job.sched_id), follower.notices


def test_a_retried_entry_is_followed_into_its_next_attempt(served: Served) -> None:
    tries, goes_on = [], threading.Event()
    with Rota(served.unix) as rota, served.client() as reader:

        @rota.agent(max_attempts=2)
        def flaky() -> None:
            tries.append(1)
            print("attempt", len(tries))
            assert goes_on.wait(PATIENCE_S)
            if len(tries) == 1:
                raise ValueError("not yet")

        job = flaky.enqueue(options={"backoff": Backoff(base_s=0.0)})
        with running(rota.supervisor(1)):
            follower = Follower(reader, job.sched_id)
            follower.until_shown("attempt 1\n")
            goes_on.set()
            text = follower.ended()
        assert text.startswith("attempt 1\n")
        assert text.endswith("ValueError: not yet\nattempt 2\n")
        assert follower.notices[-2:] == [
            "attempt 1 of entry 1 has ended: ValueError: not yet; attempt 2 follows",
            "entry 1 succeeded in attempt 2",
        ]
        once = Follower(reader, job.sched_id, 1, goes_on=False)
        assert once.ended() + "attempt 2\n" == text
        assert once.notices == ["attempt 1 of entry 1 has ended: ValueError: not yet"]


def test_a_token_of_other_projects_is_refused_their_logs(served: Served) -> None:
    with served.client() as client:
        for name in ("mine", "theirs"):
            client.projects.create(name)
            client.queue.enqueue(ScheduleSpec(client.agents.create(name, project_id=name)))
        mine, theirs = client.queue.claim(worker_id="w", max_n=2)
        for entry in (mine, theirs):
            assert entry.token is not None
            client.logs.append(entry.sched_id, 1, entry.token, 0, b"secret")
        token = make_token(served.path, "read", projects=("mine",))
        own = client.supervision.access_token(mine.sched_id, mine.token or 0)
        with connect(served.url, token=token) as bound, connect(served.url, token=own) as run:
            for caller in (bound, run):
                assert caller.logs.read(mine.sched_id).data == b"secret"
                with pytest.raises(SchedUnknownId) as refused:
                    caller.logs.read(theirs.sched_id)
                with pytest.raises(SchedUnknownId) as unknown:
                    caller.logs.read(99)
                assert str(refused.value).replace(str(theirs.sched_id), "99") == str(unknown.value)
            with pytest.raises(Forbidden):
                bound.logs.append(mine.sched_id, 1, mine.token or 0, 6, b"forged")
            with pytest.raises(Forbidden):
                run.logs.append(theirs.sched_id, 1, theirs.token or 0, 6, b"forged")
            assert run.logs.append(mine.sched_id, 1, mine.token or 0, 6, b", told by itself") == 22
        assert all_of(client, theirs.sched_id) == "secret"


def test_the_daemon_bounds_all_logs_together(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "rota.db", http=False, limits=DaemonLimits(logs_max=3)) as served,
        served.client() as client,
    ):
        pid = client.agents.create("printer")
        for _ in range(6):
            client.queue.enqueue(ScheduleSpec(pid))
            (entry,) = client.queue.claim(worker_id="w")
            assert entry.token is not None
            client.logs.append(entry.sched_id, 1, entry.token, 0, b"output")
            client.queue.complete(entry.sched_id, "completed", token=entry.token)
        assert [client.logs.read(number).total_bytes for number in range(1, 7)] == [0, 0, 0, 6, 6, 6]


def test_refused_output_is_said_once_and_the_runs_go_on(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Rota(served.unix) as rota:

        @rota.agent
        def prints(ctx: RunContext) -> int:
            print("hello")
            return ctx.sched_id

        def refuse(*_: Any, **__: Any) -> int:
            raise Forbidden("no logs here")

        monkeypatch.setattr(rota.api.logs, "append", refuse)
        jobs = [prints.enqueue() for _ in range(3)]
        assert rota.run(until_idle=True).completed == 3
        assert [job.result() for job in jobs] == [1, 2, 3]
        assert caplog.text.count("the daemon does not keep the output of entry") == 1
