"""`rota logs` where many hosts share a store: it names the host that keeps a log, and reads it at that host's daemon.

This machine is the host *there*, whose supervisor and daemon are real; the command runs on a host *here* that has
another name and another state folder.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, urlsplit

import psycopg
import pytest

from rota import Rota, store
from rota.kernel import Kernel
from rota.model.run_logs import LogPlace
from rota.model.work import Backoff, ReadyEntry, RestartPolicy, ScheduleSpec
from rota.model.worktrees import WorktreeSettings
from rota.service import Dispatcher
from tests.cli.shell import Shell, make_shell
from tests.daemon.harness import Process, make_token
from tests.daemon.test_tls import Certificates, make_certificates
from tests.mcp.clients import desk_at
from tests.postgres_server import own_schema, shared_dsn

THERE = socket.gethostname()


class Hosts(NamedTuple):
    """A store of two hosts."""

    url: str
    go: Callable[[str], None]  # become another host


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    def go(host: str) -> None:
        monkeypatch.setattr("rota.store.postgres.socket.gethostname", lambda: host)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / host))

    go(THERE)
    for name in ("ROTA_CA_FILE", "ROTA_ACCESS_TOKEN", "ROTA_ACCESS_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    with own_schema("rota_hosts") as url:
        monkeypatch.setenv("ROTA_STORE", url)
        yield Hosts(url, go)


@pytest.fixture
def rota(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.setenv("COLUMNS", "200")
    return make_shell(monkeypatch, capsys)


@pytest.fixture
def printed(hosts: Hosts) -> int:
    """An entry that has run there."""
    with Rota(hosts.url) as rota:
        job = rota.agent("speaker")(_speak).enqueue()
        rota.run(until_idle=True)
        return job.sched_id


def _speak(ctx: Any) -> None:
    for number in range(3):
        ctx.log(f"line {number}")


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path / "certificates", "localhost")


@pytest.fixture
def daemon(hosts: Hosts, certificates: Certificates) -> Iterator[Process]:
    """The daemon there, which listens for other machines."""
    tls = ("--tls-cert", certificates.certificate, "--tls-key", certificates.key, "--allow-host", "localhost")
    process = Process(hosts.url, "--listen", "0.0.0.0:0", *tls)
    yield process
    process.stop()


@pytest.fixture
def allowed(hosts: Hosts, certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command has a token, and trusts the daemon."""
    monkeypatch.setenv("ROTA_ACCESS_TOKEN", make_token(hosts.url, "read"))
    monkeypatch.setenv("ROTA_CA_FILE", certificates.ca_file)


def test_the_host_that_keeps_a_log_reads_it_and_another_one_names_it(hosts: Hosts, rota: Shell, printed: int) -> None:
    assert rota("logs", printed).out == "line 0\nline 1\nline 2\n"
    hosts.go("here")
    for words in ((), ("--tail", 1), ("--follow",), ("--json",), ("--attempt", 1)):
        answer = rota("logs", printed, *words)
        assert (answer.code, answer.out) == (3, "")
        assert f"the output of attempt 1 of entry {printed} is on host {THERE}" in answer.err
        assert f"Run there: `rota logs {printed} --attempt 1`." in answer.err
    assert f"log on host {THERE}" in rota("show", printed).out


@pytest.fixture
def other_database() -> Iterator[str]:
    """The name of another database of the server."""
    name = f"other_{os.getpid()}"
    with psycopg.connect(shared_dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        try:
            yield name
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.mark.usefixtures("printed")
def test_a_log_is_found_by_another_address_of_the_same_store(
    hosts: Hosts, rota: Shell, socket_folder: Path, other_database: str
) -> None:
    """A supervisor and a command may name the server in two ways. A schema of the same name is another store."""
    (server,) = parse_qs(urlsplit(hosts.url).query)["host"]
    (socket_folder / "server").symlink_to(server)
    another_address = hosts.url.replace(quote(server, safe=""), quote(f"{socket_folder}/server", safe=""))
    assert another_address != hosts.url
    assert rota("logs", 1, "--store", another_address).out == "line 0\nline 1\nline 2\n"
    another_store = hosts.url.replace("/postgres?", f"/{other_database}?")
    with Rota(another_store) as other:
        assert other.agent("speaker")(_speak).enqueue().sched_id == 1
    assert rota("logs", 1, "--store", another_store).out == ""


def test_an_agent_that_reads_a_log_learns_which_host_has_it(hosts: Hosts, printed: int) -> None:
    for host, text, is_on in ((THERE, "line 0\nline 1\nline 2\n", []), ("here", "", [THERE])):
        hosts.go(host)
        with desk_at(hosts.url) as desk:
            found = desk("read_work", sched_id=printed, part="log")
            assert (found["text"], found["is_on"]) == (text, is_on)


@pytest.mark.usefixtures("daemon", "allowed")
def test_the_daemon_of_that_host_is_asked(hosts: Hosts, rota: Shell, printed: int) -> None:
    hosts.go("here")
    assert rota("logs", printed).out == "line 0\nline 1\nline 2\n"
    assert rota("logs", printed, "--tail", 1).out == "line 2\n"
    followed = rota("logs", printed, "--follow")
    assert (followed.out, followed.err) == ("line 0\nline 1\nline 2\n", f"entry {printed} succeeded\n")
    found = rota("logs", printed, "--json").json
    assert (found["text"], found["host"], found["total_bytes"]) == ("line 0\nline 1\nline 2\n", THERE, 21)


@pytest.mark.usefixtures("allowed", "daemon")
@pytest.mark.parametrize("missing", ["ROTA_ACCESS_TOKEN", "ROTA_CA_FILE"])
def test_what_is_missing_to_ask_that_daemon_is_said(
    hosts: Hosts, rota: Shell, printed: int, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    hosts.go("here")
    monkeypatch.delenv(missing)
    answer = rota("logs", printed)
    assert (answer.code, answer.out) == (3, "")
    assert re.search(r"its daemon at https://localhost:\d+ cannot be asked: ", answer.err)
    assert missing in answer.err
    assert f"Or run there: `rota logs {printed}" in answer.err


@pytest.mark.usefixtures("allowed")
def test_a_daemon_that_has_stopped_is_not_asked_and_one_that_was_killed_is_named(
    hosts: Hosts, rota: Shell, printed: int, daemon: Process
) -> None:
    hosts.go("here")
    daemon.kill()
    assert "cannot be asked: " in rota("logs", printed).err
    hosts.go(THERE)
    again = Process(hosts.url)  # it listens for this machine only
    assert again.stop() == 0
    hosts.go("here")
    assert "cannot be asked: " in rota("logs", printed).err


def test_a_daemon_that_stops_takes_its_address_back(
    hosts: Hosts, printed: int, daemon: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts.go("here")
    monkeypatch.setenv("ROTA_ACCESS_TOKEN", "unused")

    def places() -> list[LogPlace]:
        opened = Kernel(store.open(hosts.url))
        try:
            return Dispatcher(opened).logs.places(printed)
        finally:
            opened.store.close()

    port = daemon.addresses[1].rpartition(":")[2]
    assert places() == [LogPlace(THERE, is_here=False, daemon=f"https://localhost:{port}")]
    assert daemon.stop() == 0
    assert places() == [LogPlace(THERE, is_here=False)]


def _print_some(api: Dispatcher, text: bytes, **back: Any) -> ReadyEntry:
    """Claim the entry, print, and give it back."""
    (entry,) = api.queue.claim(worker_id="w")
    assert entry.token is not None
    api.logs.append(entry.sched_id, entry.attempt, entry.token, 0, text)
    if back:
        api.queue.put_back(entry.sched_id, token=entry.token, **back)
    return entry


@pytest.fixture
def split(hosts: Hosts) -> int:
    """An entry whose only attempt began there, yielded, and goes on here."""
    for host, text, back in ((THERE, b"begun\n", {"delay_s": 0.0}), ("here", b"gone on\n", {})):
        hosts.go(host)
        api = Dispatcher(Kernel(store.open(hosts.url)))
        try:
            if back:
                api.queue.enqueue(ScheduleSpec(api.agents.create("speaker")))
            entry = _print_some(api, text, **back)
        finally:
            api.close()
    return entry.sched_id


def test_an_attempt_that_ran_on_two_hosts_is_shown_in_its_order(hosts: Hosts, rota: Shell, split: int) -> None:
    answer = rota("logs", split)
    assert (answer.code, answer.out) == (0, "gone on\n")
    lines = answer.err.splitlines()
    assert [lines[0], lines[-1]] == [f"on host {THERE}:", "on host here:"]
    assert f"is on host {THERE}" in answer.err
    hosts.go(THERE)
    assert rota("logs", split).out == "begun\n"


@pytest.mark.usefixtures("daemon", "allowed")
def test_both_parts_are_read_through_the_daemon(hosts: Hosts, rota: Shell, split: int) -> None:
    hosts.go("here")
    answer = rota("logs", split)
    assert (answer.out, answer.err) == ("begun\ngone on\n", f"on host {THERE}:\non host here:\n")


def test_what_the_journal_does_not_tell_any_more_is_an_empty_log(hosts: Hosts, rota: Shell, printed: int) -> None:
    dsn, _, schema = hosts.url.partition("schema=")
    with psycopg.connect(dsn.rstrip("?&"), autocommit=True) as connection:
        connection.execute(f"DELETE FROM \"{schema}\".agent_events WHERE kind = 'kernel.sched.claimed'")
    hosts.go("here")
    answer = rota("logs", printed)
    assert (answer.code, answer.err) == (0, f"attempt 1 of entry {printed} has no output\n")


def test_the_host_is_found_in_a_long_journal(hosts: Hosts, rota: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long range of events only both ends are read, and the last claim."""
    monkeypatch.setattr("rota.service.entry_history.SCAN_MAX", 3)
    api = Dispatcher(Kernel(store.open(hosts.url)))
    try:
        sched_id = api.queue.enqueue(ScheduleSpec(api.agents.create("speaker")))
        for number in range(20):
            api.journal.append(None, "news", {"number": number})
        entry = _print_some(api, b"")
        for number in range(20):
            api.journal.append(None, "news", {"number": number})
        api.queue.complete(sched_id, "completed", token=entry.token)
    finally:
        api.close()
    hosts.go("here")
    assert f"is on host {THERE}" in rota("logs", sched_id).err


def test_a_file_belongs_to_one_host(tmp_path: Path) -> None:
    with Rota(str(tmp_path / "rota.db")) as rota:
        job = rota.agent("speaker")(_speak).enqueue()
        rota.run(until_idle=True)
        assert rota.api.logs.places(job.sched_id) == []


@pytest.mark.parametrize("runs_on", [THERE, "here"])
def test_a_retry_on_another_host_is_told_where_its_worktree_was_left(
    hosts: Hosts, rota: Shell, tmp_path: Path, runs_on: str
) -> None:
    """Git is real, and so are two hosts: the repository has the same path on both, and the worktree is on one."""
    repository, trees = tmp_path / "repository", tmp_path / "trees"
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", "-C", str(repository)]
    subprocess.run(["git", "init", "-q", "-b", "main", str(repository)], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "begin"], check=True)
    worktree = WorktreeSettings(repository=str(repository), folder=str(trees), per="entry", branch="main")
    seen: list[bool] = []

    def run_once() -> int:
        with Rota(hosts.url) as program:

            def code(ctx: Any) -> None:
                program.stop()
                note = Path(ctx.workspace, "unfinished.txt")
                seen.append(note.exists())
                note.write_text("half of it")
                if len(seen) == 1:
                    raise ValueError

            restart = RestartPolicy(backoff=Backoff(base_s=0.0))
            agent = program.agent("coder", project="coding", worktree=worktree, restart=restart)(code)
            job = program.job(1) if seen else agent.enqueue()
            program.run(slots=1)
            return job.sched_id

    run_once()
    if runs_on != THERE:
        shutil.move(trees, tmp_path / "trees-there")  # one machine plays both
        hosts.go(runs_on)
    sched_id = run_once()
    assert seen == [False, runs_on == THERE]
    told = f"rota: the worktree of entry {sched_id} is on host {THERE}; this run begins again from main\n"
    assert (told in rota("logs", sched_id).out) is (runs_on != THERE)
