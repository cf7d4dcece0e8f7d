"""`rota logs`: what a run printed, its last lines, and what it prints while it runs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rota import Rota, store
from rota.kernel import Kernel
from rota.model.agent_metadata import SETTINGS_KEY
from rota.model.work import Backoff, Limits, ReadyEntry, ScheduleSpec
from rota.service import Dispatcher
from tests.cli.shell import Shell
from tests.daemon.harness import make_token, serving
from tests.fleet.log_follower import Follower

PATIENCE_S = 30.0


@contextmanager
def opened(path: Path) -> Iterator[Dispatcher]:
    api = Dispatcher(Kernel(store.open(str(path))))
    try:
        yield api
    finally:
        api.close()


def printing(api: Dispatcher, *pieces: bytes) -> ReadyEntry:
    """Claim the next entry, and print."""
    (entry,) = api.queue.claim(worker_id="w")
    assert entry.token is not None
    offset = 0
    for piece in pieces:
        offset = api.logs.append(entry.sched_id, entry.attempt, entry.token, offset, piece)
    return entry


@pytest.fixture
def retried(path: Path) -> int:
    """An entry that has failed once and runs again."""
    with opened(path) as api:
        spec = ScheduleSpec(api.agents.create("printer"), retry_on=("failed",), backoff=Backoff(base_s=0.0))
        sched_id = api.queue.enqueue(spec)
        first = printing(api, b"first\n")
        api.queue.complete(sched_id, "failed", token=first.token)
        printing(api, b"second, and caf\xc3", b"\xa9\n")
        return sched_id


def test_the_last_run_is_shown_unless_another_is_asked_for(rota: Shell, retried: int) -> None:
    assert rota("logs", retried).out == "second, and caf\N{LATIN SMALL LETTER E WITH ACUTE}\n"
    assert rota("logs", retried, "--attempt", 1).out == "first\n"
    answer = rota("logs", retried, "--attempt", 1, "--json").json
    about = {"sched_id": retried, "attempt": 1, "ended": True}
    assert answer == {**about, "total_bytes": 6, "dropped_bytes": 0, "text": "first\n"}
    refused = rota("logs", retried, "--attempt", 3)
    assert refused.code == 3
    assert "there is no attempt 3 of entry 1: it has had 2" in refused.err
    assert rota("logs", 8).code == 3


@pytest.mark.parametrize("address", ["unix", "http"])
def test_the_same_at_a_daemon(
    rota: Shell, retried: int, path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(path) as served:
        monkeypatch.setenv("ROTA_STORE", served.unix if address == "unix" else served.url)
        monkeypatch.setenv("ROTA_ACCESS_TOKEN", make_token(str(path), "read"))
        assert rota("logs", retried).out == "second, and caf\N{LATIN SMALL LETTER E WITH ACUTE}\n"
        assert rota("logs", retried, "--attempt", 1, "--follow").out == "first\n"
        assert rota("logs", retried, "--tail", 0).out == ""


def test_an_entry_without_output(rota: Shell, path: Path) -> None:
    with opened(path) as api:
        api.queue.enqueue(ScheduleSpec(api.agents.create("printer")))
        answer = rota("logs", 1)
        assert (answer.code, answer.out) == (0, "")
        assert answer.err == "entry 1 has not started; to wait for it: rota logs 1 --follow\n"
        entry = printing(api)
        assert rota("logs", 1).err == "attempt 1 of entry 1 has no output so far\n"
        api.queue.complete(1, "completed", token=entry.token)
        assert rota("logs", 1).err == "attempt 1 of entry 1 has no output\n"
        assert rota("logs", 1, "-f").err == "entry 1 succeeded\n"


@pytest.mark.parametrize("lines", [1, 2, 3, 7_000, 20_000, 40_000])
def test_the_last_lines(rota: Shell, path: Path, lines: int) -> None:
    text = [f"line {number}\n" for number in range(20_000)]
    text[-1] = "unfinished"
    with opened(path) as api:
        api.queue.enqueue(ScheduleSpec(api.agents.create("printer")))
        body = "".join(text).encode()
        printing(api, *(body[at : at + 100_000] for at in range(0, len(body), 100_000)))
    assert rota("logs", 1, "--tail", lines).out == "".join(text[-lines:])


def test_what_was_dropped_is_said(rota: Shell, path: Path) -> None:
    with opened(path) as api:
        metadata = {SETTINGS_KEY: {"limits": {"log_bytes": 12}}}
        api.queue.enqueue(ScheduleSpec(api.agents.create("printer", metadata=metadata)))
        entry = printing(api, b"begin ", b"x" * 1_000, b" end\n")
        api.queue.complete(1, "completed", token=entry.token)
    shown = rota("logs", 1).out
    assert shown.startswith("begin \n… ")
    assert shown.endswith("x end\n")
    assert rota("logs", 1, "--follow").out == shown
    answer = rota("logs", 1, "--json").json
    assert answer["text"] == shown
    assert answer["total_bytes"] == 1_011
    assert answer["dropped_bytes"] == 1_011 - (len(shown) - len(shown[6:].partition(" …\n")[0] + " …\n"))
    assert rota("logs", 1, "--tail", 1).out.endswith(" end\n")


def test_a_folder_of_copies_is_read_without_the_store(rota: Shell, retried: int, path: Path, tmp_path: Path) -> None:
    moved = Path(f"{path}-logs").rename(tmp_path / "copies")
    assert rota("logs", retried).out == ""
    assert rota("logs", retried, "--folder", moved, "--attempt", 1).out == "first\n"
    assert rota("logs", retried, "--folder", moved, "--tail", 1).out.startswith("second")
    refused = rota("logs", 8, "--folder", moved)
    assert refused.code == 3
    assert f"there is no log of entry 8 in {moved}" in refused.err
    assert rota("logs", retried, "--folder", moved, "-f").code == 2


def test_bytes_that_are_no_text_are_shown_harmlessly(rota: Shell, path: Path) -> None:
    with opened(path) as api:
        api.queue.enqueue(ScheduleSpec(api.agents.create("printer")))
        entry = printing(api, b"\xff\xfe raw \x1b[2J\r", b"\n\r\xc3")
        api.queue.complete(1, "completed", token=entry.token)
    assert rota("logs", 1, "--json").json["text"] == "\ufffd\ufffd raw \x1b[2J\r\n\r\ufffd"
    for more in ((), ("--follow",)):
        assert rota("logs", 1, *more).out == "\\xff\\xfe raw \\u001b[2J\n\\r\\xc3"


def test_a_real_process_follows_a_run_until_it_ends(path: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    with Rota(path) as rota:
        script = f"printf 'one \\033[2J\\n'; read line < {tmp_path}/gate; echo two $line >&2; exit 3"
        agent = rota.command("printer", ["sh", "-c", script], max_attempts=1)
        job = agent.enqueue()
        command = [sys.executable, "-m", "rota", "logs", str(job.sched_id), "--follow"]
        follower = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert follower.stderr is not None
        assert follower.stdout is not None
        assert follower.stderr.readline() == f"waiting for entry {job.sched_id} to start\n"
        supervisor = rota.supervisor(1)
        thread = threading.Thread(target=supervisor.run, daemon=True)
        thread.start()
        assert follower.stdout.readline() == "one \\u001b[2J\n"
        (tmp_path / "gate").write_text("three\n")
        out, err = follower.communicate(timeout=PATIENCE_S)
        supervisor.drain()
        thread.join(PATIENCE_S)
    assert (follower.returncode, out) == (0, "two three\n")
    assert err.startswith(f"entry {job.sched_id} failed")


def test_the_bound_is_crossed_while_a_run_is_followed(path: Path) -> None:
    gates = [threading.Event() for _ in range(3)]
    with Rota(path) as rota, opened(path) as reader:

        @rota.agent(limits=Limits(log_bytes=100))
        def chatty() -> None:
            print("begin")
            for number, gate in enumerate(gates):
                assert gate.wait(PATIENCE_S)
                print(f"<{number}" + "x" * 995 + f"{number}>")

        job = chatty.enqueue()
        supervisor = rota.supervisor(1, echo=False)
        thread = threading.Thread(target=supervisor.run, daemon=True)
        thread.start()
        follower = Follower(reader, job.sched_id)
        follower.until_shown("begin\n")
        for number, gate in enumerate(gates):
            gate.set()
            follower.until_shown(f"{number}>\n")
        text = follower.ended()
        supervisor.drain()
        thread.join(PATIENCE_S)
    parts = [part.partition(" bytes dropped …\n") for part in text.split("\n… ")]
    assert parts[0][0].startswith("begin\n<0xxx")
    assert len(parts) > len(gates)  # at least one gap in each of the long lines
    assert text.endswith("xx2>\n")
    kept = len(parts[0][0]) + sum(len(part[2]) for part in parts[1:])
    dropped = sum(int(part[0].replace(",", "")) for part in parts[1:])
    assert kept + dropped == 6 + 3 * 1_000
    assert [text.count(f"{number}>") for number in range(3)] == [1, 1, 1]


def test_a_follower_of_a_vanished_folder_goes_on(path: Path) -> None:
    gate = threading.Event()
    with Rota(path) as rota, opened(path) as reader:

        @rota.agent
        def prints() -> None:
            print("before")
            assert gate.wait(PATIENCE_S)
            print("after")

        job = prints.enqueue()
        supervisor = rota.supervisor(1, echo=False)
        thread = threading.Thread(target=supervisor.run, daemon=True)
        thread.start()
        follower = Follower(reader, job.sched_id)
        follower.until_shown("before\n")
        for file in Path(f"{path}-logs").iterdir():
            file.unlink()
        Path(f"{path}-logs").rmdir()
        gate.set()
        follower.until_shown("after\n")
        follower.ended()
        supervisor.drain()
        thread.join(PATIENCE_S)
    assert follower.text.count("after") == 1
    assert job.sched_id == 1


def test_the_doctor_shows_what_logs_use_and_what_is_kept(rota: Shell, retried: int, path: Path) -> None:
    assert "output of 2 runs, 0.0 MiB; kept: at most 10,000 runs and 2.0 GiB" in rota("doctor").out
    with opened(path) as api:
        api.logs.set_maxima(1, 1024 * 1024)
        assert api.logs.maxima() == (1, 1024 * 1024)
    assert "output of 2 runs, 0.0 MiB; kept: at most 1 runs and 1.0 MiB" in rota("doctor").out
    assert retried
