"""A command runs as requested, and its exit is reported with its status and usage."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from rota.host.command import Command, SessionExit, filter_environment
from rota.host.lineage import MARK, Mark
from rota.host.reaper_client import ReaperClient
from rota.host.session import Session
from tests.host.support import ENV, PATIENCE_S, Pipe, output_of, py, py_with_rota, sh


def ended(reaper: ReaperClient, command: Command) -> SessionExit:
    found = reaper.spawn(command).wait(PATIENCE_S)
    assert found is not None
    return found


@pytest.mark.parametrize("code", [0, 1, 42, 255])
def test_an_exit_code_is_reported(reaper: ReaperClient, code: int) -> None:
    found = ended(reaper, sh(f"exit {code}"))
    assert (found.code, found.signal, found.ok) == (code, None, code == 0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGRTMIN + 3])
def test_an_exit_by_a_signal_is_reported(reaper: ReaperClient, number: int) -> None:
    found = ended(reaper, sh(f"kill -{int(number)} $$"))
    assert (found.code, found.signal) == (None, number)


IGNORES_SIGCHLD = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
from rota.host.command import Command
from rota.host.reaper_client import ReaperClient
with ReaperClient() as reaper:
    print(reaper.spawn(Command(argv=("/bin/sh", "-c", "exit 7"))).wait(60).code)
"""


def test_an_exit_is_reported_to_a_client_that_ignores_sigchld(reaper: ReaperClient) -> None:
    assert output_of(reaper, py_with_rota(IGNORES_SIGCHLD), stderr=2) == b"7\n"


def test_the_usage_is_reported(reaper: ReaperClient) -> None:
    found = ended(reaper, py("x = bytearray(60_000_000)\nfor _ in range(3_000_000): pass"))
    assert found.cpu_user_s > 0
    assert found.rss_bytes_max >= 60_000_000


def test_the_usage_includes_that_of_children(reaper: ReaperClient) -> None:
    hog = f"{sys.executable} -I -c 'x = bytearray(60_000_000)'"
    assert ended(reaper, sh(f"{hog}; exit 0")).rss_bytes_max >= 60_000_000


def test_output_goes_to_the_given_descriptors(reaper: ReaperClient) -> None:
    with Pipe() as out, Pipe() as err, Pipe() as into:
        os.write(into.theirs, b"from stdin")
        into.close_theirs()
        reaper.spawn(sh("cat; echo to stderr >&2"), stdin=into.ours, stdout=out.theirs, stderr=err.theirs)
        out.close_theirs()
        err.close_theirs()
        assert (out.rest(), err.rest()) == (b"from stdin", b"to stderr\n")


def test_without_descriptors_stdin_stdout_and_stderr_are_dev_null(reaper: ReaperClient) -> None:
    with Pipe() as result:
        script = "import os; os.write(3, str([os.readlink(f'/proc/self/fd/{n}') for n in (0, 1, 2)]).encode())"
        reaper.spawn(py(script), more_fds={3: result.theirs})
        result.close_theirs()
        assert result.rest() == str(["/dev/null"] * 3).encode()


def test_stdin_alone_does_not_become_stderr(reaper: ReaperClient) -> None:
    with Pipe() as into, Pipe() as result:
        script = "import os; os.write(3, os.readlink('/proc/self/fd/2').encode())"
        reaper.spawn(py(script), stdin=into.ours, more_fds={3: result.theirs})
        result.close_theirs()
        assert result.rest() == b"/dev/null"


def test_further_descriptors_have_their_numbers_in_any_order(reaper: ReaperClient) -> None:
    with Pipe() as one, Pipe() as two:
        reaper.spawn(sh("echo nine >&9; echo four >&4"), more_fds={9: one.theirs, 4: two.theirs})
        one.close_theirs()
        two.close_theirs()
        assert (one.rest(), two.rest()) == (b"nine\n", b"four\n")


def test_a_command_inherits_no_other_descriptor(reaper: ReaperClient) -> None:
    inherited, _other = os.pipe()
    os.set_inheritable(inherited, True)
    try:
        listing = output_of(reaper, sh("ls /proc/self/fd"))
        assert listing.split() == [b"0", b"1", b"2", b"3"]  # 3 is the folder that ls reads
    finally:
        os.close(inherited)
        os.close(_other)


def test_output_may_be_any_bytes(reaper: ReaperClient) -> None:
    every = bytes(range(256)) * 50
    written = output_of(reaper, py(f"import sys; sys.stdout.buffer.write({every!r})"))
    assert written == every


def test_arguments_may_be_any_bytes_but_nul(reaper: ReaperClient) -> None:
    strange = os.fsdecode(bytes(range(1, 256)))
    written = output_of(reaper, py("import sys, os; sys.stdout.buffer.write(os.fsencode(sys.argv[1]))", strange))
    assert written == bytes(range(1, 256))


def test_a_working_directory_may_have_any_name(reaper: ReaperClient, tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff \xc3\xa4\n"
    Path(os.fsdecode(folder)).mkdir()
    assert output_of(reaper, sh("pwd", cwd=os.fsdecode(folder))) == folder + b"\n"


def test_more_than_a_megabyte_of_arguments_can_be_passed(reaper: ReaperClient) -> None:
    arguments = ["ä" * 50_000] * 15  # 100 kB each, and each character is escaped on the way
    assert output_of(reaper, py("import sys; print(sum(map(len, sys.argv[1:])))", *arguments)).strip() == b"750000"


def test_without_a_working_directory_it_runs_in_the_current_one(
    reaper: ReaperClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Path(output_of(reaper, sh("pwd")).decode().strip()) == tmp_path.resolve()


def test_a_program_is_found_by_the_commands_own_path(reaper: ReaperClient, tmp_path: Path) -> None:
    program = tmp_path / "greet"
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    command = Command(argv=("greet",), env={"PATH": f"{tmp_path}:{ENV['PATH']}"})
    assert output_of(reaper, command) == b"hello\n"


def test_a_relative_program_is_found_from_its_working_directory(reaper: ReaperClient, tmp_path: Path) -> None:
    program = tmp_path / "greet"
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    assert output_of(reaper, Command(argv=("./greet",), env=ENV, cwd=str(tmp_path))) == b"hello\n"


def test_the_environment_is_the_given_one_and_the_mark(reaper: ReaperClient) -> None:
    command = Command(argv=("env",), env={"PATH": ENV["PATH"], "WANTED": "1"})
    names = {line.partition(b"=")[0] for line in output_of(reaper, command).splitlines()}
    assert names == {b"PATH", b"WANTED", MARK.encode()}


def test_the_mark_names_the_reaper_and_the_session(reaper: ReaperClient) -> None:
    mark = Mark.parse(output_of(reaper, sh(f"echo ${MARK}")).decode().strip())
    assert mark == Mark("kill", reaper.identity, 1)


def test_a_filtered_environment_has_no_secret_unless_it_was_allowed() -> None:
    ours = {"PATH": "/bin", "LC_TIME": "C", "API_KEY": "secret", "AWS_SECRET": "secret", "HOME": "/root"}
    assert filter_environment(ours) == {"PATH": "/bin", "LC_TIME": "C", "HOME": "/root"}
    assert filter_environment(ours, allow=["API_KEY"], extra={"HOME": "/work", "MORE": "1"}) == {
        "PATH": "/bin",
        "LC_TIME": "C",
        "HOME": "/work",
        "API_KEY": "secret",
        "MORE": "1",
    }


def test_ignored_signals_have_their_default_action_in_the_command(reaper: ReaperClient) -> None:
    ignored = output_of(reaper, sh("grep SigIgn /proc/self/status"))
    standard = (1 << 31) - 1  # the next two belong to the C library
    assert int(ignored.split()[1], 16) & standard == 0


def test_each_command_leads_a_session_and_a_group_of_its_own(reaper: ReaperClient) -> None:
    with Pipe() as pipe:
        session = reaper.spawn(sh("read pid rest < /proc/self/stat; echo $pid $rest"), stdout=pipe.theirs)
        pipe.close_theirs()
        fields = pipe.line().rpartition(")")[2].split()
        assert session.pid == int(fields[2]) == int(fields[3])


def test_exits_are_passed_to_on_exit_with_the_tag() -> None:
    log: list[tuple[object, int | None]] = []
    with ReaperClient(on_exit=lambda session, found: log.append((session.tag, found.code))) as reaper:
        sessions = [reaper.spawn(sh(f"exit {code}"), tag=f"run {code}") for code in range(5)]
        for session in sessions:
            session.wait(PATIENCE_S)
    assert sorted(log, key=str) == [(f"run {code}", code) for code in range(5)]


def test_an_on_exit_that_fails_does_not_stop_later_ones(caplog: pytest.LogCaptureFixture) -> None:
    log: list[int] = []

    def fails_once(session: Session, _found: SessionExit) -> None:
        log.append(session.id)
        if len(log) == 1:
            raise RuntimeError("mine")

    with ReaperClient(on_exit=fails_once) as reaper:
        for _ in range(2):
            reaper.spawn(sh("exit 0")).wait(PATIENCE_S)
    assert log == [1, 2]
    assert "on_exit failed for session 1" in caplog.text
