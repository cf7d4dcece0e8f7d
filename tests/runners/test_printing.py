"""What functions print is kept in the log of their run, like the output of a program."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from rota import Rota
from rota.agent import Run
from rota.errors import StoreUnavailable
from rota.fleet import RunContext
from rota.fleet.runners import printing
from rota.fleet.runners.printing import _SharedStream, keep_prints, release_streams


def test_runs_that_print_at_the_same_time_keep_their_own_lines(capsys: pytest.CaptureFixture[str]) -> None:
    both = threading.Barrier(2)
    logs: dict[int, list[bytes]] = {1: [], 2: []}

    def run(number: int) -> None:
        with keep_prints(logs[number].append):
            for line in range(50):
                print(number, line)
                both.wait(30)
            print("to stderr", number, file=sys.stderr)
            print("unfinished", end="")

    threads = [threading.Thread(target=run, args=(number,)) for number in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    print("of the program itself")
    release_streams()
    for number, data in logs.items():
        lines = b"".join(data).decode().splitlines()
        assert lines == [*(f"{number} {line}" for line in range(50)), f"to stderr {number}", "unfinished"]
    assert capsys.readouterr() == ("of the program itself\n", "")
    assert type(sys.stdout) is not _SharedStream


def test_tasks_and_their_threads_belong_to_the_run_and_echo_shows_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    log: list[bytes] = []

    async def main() -> None:
        await asyncio.gather(asyncio.to_thread(print, "in a thread"), asyncio.sleep(0))
        print("x" * 10_000, end="")
        assert sys.stdout.encoding  # the rest of the stream is as it was
        sys.stdout.writelines(["a\n", "b\n"])

    with keep_prints(log.append, echo=True):
        asyncio.run(main())
    release_streams()
    wanted = "in a thread\n" + "x" * 10_000 + "a\nb\n"
    assert b"".join(log).decode() == wanted
    assert capsys.readouterr().out == wanted


def test_what_rota_logs_on_the_way_goes_to_the_real_stream(capsys: pytest.CaptureFixture[str]) -> None:
    log: list[bytes] = []

    def keep(data: bytes) -> None:
        log.append(data)
        print("cannot keep", data.decode().strip(), file=sys.stderr)

    with keep_prints(keep):
        print("one")
        print(end="")
        print("two", end="")
    release_streams()
    assert log == [b"one\n", b"two\n"]
    assert capsys.readouterr() == ("", "cannot keep one\ncannot keep two\n")


def test_a_thread_does_not_wait_for_another_whose_text_is_being_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printing, "WAITING_CHARS_MAX", 12)
    log: list[bytes] = []

    def keep(data: bytes) -> None:
        if not log:  # as a logging handler that this thread waits for, and whose thread prints
            context = contextvars.copy_context()
            context.run(printing._printed.set, during)
            other = threading.Thread(target=lambda: context.run(lambda: [print(f"other {n}") for n in range(3)]))
            other.start()
            other.join(30)
            assert not other.is_alive()
        log.append(data)

    with keep_prints(keep):
        during = printing._printed.get()
        print("first")
        print("last", end="")
    release_streams()
    assert b"".join(log).decode() == "first\nother 0\n\n… 16 characters dropped …\nlast\n"


def test_a_log_that_cannot_be_kept_is_reported_by_rota_and_the_function_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rota.db-logs").write_text("not a folder")
    with Rota(tmp_path / "rota.db") as rota:
        job = rota.agent(prints)
        entry = job.enqueue(1)
        ended = threading.Thread(target=rota.run, kwargs={"until_idle": True, "echo": False}, daemon=True)
        handler = logging.StreamHandler(_CurrentError())
        logging.getLogger("rota.fleet").addHandler(handler)
        try:
            ended.start()
            ended.join(60)
            assert not ended.is_alive()
        finally:
            logging.getLogger("rota.fleet").removeHandler(handler)
        assert entry.entry().exit_kind == "completed"
    assert "the output of entry 1 is not kept" in capfd.readouterr().err


def test_what_is_first_printed_during_an_outage_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("the database is away")

    with Rota(tmp_path / "rota.db") as rota:
        store = cast("Any", rota.api).kernel.store

        @rota.agent
        def job() -> None:
            with monkeypatch.context() as outage:
                outage.setattr(store, "read", away)
                print("during the outage")
            print("after it")

        entry = job.enqueue()
        rota.run(until_idle=True, echo=False)
        assert rota.api.logs.read(entry.sched_id).data.decode() == "during the outage\nafter it\n"


class _CurrentError:
    """What `sys.stderr` is when something is written, as the console of `rota run` has it."""

    def write(self, text: str) -> None:
        sys.stderr.write(text)

    def flush(self) -> None: ...


def prints(ctx: Any, number: int) -> int:
    print("printed", number)
    ctx.log("logged", level="warning")
    if number == 2:
        raise ValueError("no")
    return number


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_the_log_of_a_function_is_beside_the_store_and_its_end_in_a_failed_result(
    tmp_path: Path, isolation: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with Rota(tmp_path / "rota.db") as rota:
        agent = rota.agent(isolation=isolation, max_attempts=1)(prints)
        fine, bad = agent.enqueue(1), agent.enqueue(2)

        @rota.agent
        def silent() -> None: ...

        quiet = silent.enqueue()
        rota.run(until_idle=True)
        assert rota.api.logs.read(fine.sched_id).data.decode() == "printed 1\nwarning: logged\n"
        text = rota.api.logs.read(bad.sched_id).data.decode()
        assert text.startswith("printed 2\nwarning: logged\n  File ")
        assert text.endswith("ValueError: no\n")
        assert bad.entry().result["output_tail"] == "printed 2\nwarning: logged\n"
        assert rota.api.logs.read(quiet.sched_id).total_bytes == 0
        assert len(list((tmp_path / "rota.db-logs").iterdir())) == 2
        assert capfd.readouterr().out.splitlines() == ["printed 1", "printed 2"]
        assert agent.enqueue(3).sched_id
        rota.run(until_idle=True, echo=False)
        assert capfd.readouterr().out == ""


def test_a_function_and_a_program_have_the_same_names() -> None:
    annotated = {"pid", "agent", "workspace", "sched_id", "attempt", "token", "deadline", "trigger", "payload", "saved"}
    of_program = {name for name in dir(Run) if not name.startswith("_")} | annotated
    assert of_program == {name for name in dir(RunContext) if not name.startswith("_")}
