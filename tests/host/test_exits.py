"""A command runs as ordered, and its end is told with all that belongs to it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from rota.host.command import Command, Exit
from rota.host.environment import scrubbed
from rota.host.lineage import MARK, Mark
from rota.host.reaper_client import Minder
from rota.host.session import Session
from tests.host.support import ENV, PATIENCE_S, Pipe, output_of, py, py_with_rota, sh


def ended(minder: Minder, command: Command) -> Exit:
    found = minder.spawn(command).wait(PATIENCE_S)
    assert found is not None
    return found


@pytest.mark.parametrize("code", [0, 1, 42, 255])
def test_an_exit_code_is_told(minder: Minder, code: int) -> None:
    found = ended(minder, sh(f"exit {code}"))
    assert (found.code, found.signal, found.ok) == (code, None, code == 0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGRTMIN + 3])
def test_a_death_by_signal_is_told(minder: Minder, number: int) -> None:
    found = ended(minder, sh(f"kill -{int(number)} $$"))
    assert (found.code, found.signal) == (None, number)


IGNORES_DEATHS = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
from rota.host.command import Command
from rota.host.reaper_client import Minder
with Minder() as minder:
    print(minder.spawn(Command(argv=("/bin/sh", "-c", "exit 7"))).wait(60).code)
"""


def test_an_end_is_told_to_who_ignores_the_deaths_of_its_children(minder: Minder) -> None:
    assert output_of(minder, py_with_rota(IGNORES_DEATHS), stderr=2) == b"7\n"


def test_what_was_used_is_told(minder: Minder) -> None:
    found = ended(minder, py("x = bytearray(60_000_000)\nfor _ in range(3_000_000): pass"))
    assert found.cpu_user_s > 0
    assert found.rss_bytes_max >= 60_000_000


def test_what_the_commands_children_used_is_in_it(minder: Minder) -> None:
    hog = f"{sys.executable} -I -c 'x = bytearray(60_000_000)'"
    assert ended(minder, sh(f"{hog}; exit 0")).rss_bytes_max >= 60_000_000


def test_output_goes_through_the_descriptors_it_was_given(minder: Minder) -> None:
    with Pipe() as out, Pipe() as err, Pipe() as into:
        os.write(into.theirs, b"from stdin")
        into.close_theirs()
        minder.spawn(sh("cat; echo to stderr >&2"), stdin=into.ours, stdout=out.theirs, stderr=err.theirs)
        out.close_theirs()
        err.close_theirs()
        assert (out.rest(), err.rest()) == (b"from stdin", b"to stderr\n")


def test_without_descriptors_nothing_comes_in_and_what_goes_out_is_dropped(minder: Minder) -> None:
    with Pipe() as result:
        said = "import os; os.write(3, str([os.readlink(f'/proc/self/fd/{n}') for n in (0, 1, 2)]).encode())"
        minder.spawn(py(said), more_fds={3: result.theirs})
        result.close_theirs()
        assert result.rest() == str(["/dev/null"] * 3).encode()


def test_stdin_alone_does_not_become_stderr(minder: Minder) -> None:
    with Pipe() as into, Pipe() as result:
        said = "import os; os.write(3, os.readlink('/proc/self/fd/2').encode())"
        minder.spawn(py(said), stdin=into.ours, more_fds={3: result.theirs})
        result.close_theirs()
        assert result.rest() == b"/dev/null"


def test_further_descriptors_arrive_under_their_numbers_in_any_order(minder: Minder) -> None:
    with Pipe() as one, Pipe() as two:
        minder.spawn(sh("echo nine >&9; echo four >&4"), more_fds={9: one.theirs, 4: two.theirs})
        one.close_theirs()
        two.close_theirs()
        assert (one.rest(), two.rest()) == (b"nine\n", b"four\n")


def test_a_command_gets_no_other_descriptor_of_ours_or_the_minders(minder: Minder) -> None:
    inherited, _other = os.pipe()
    os.set_inheritable(inherited, True)
    try:
        listing = output_of(minder, sh("ls /proc/self/fd"))
        assert listing.split() == [b"0", b"1", b"2", b"3"]  # 3 is the folder that ls reads
    finally:
        os.close(inherited)
        os.close(_other)


def test_output_may_be_any_bytes(minder: Minder) -> None:
    every = bytes(range(256)) * 50
    written = output_of(minder, py(f"import sys; sys.stdout.buffer.write({every!r})"))
    assert written == every


def test_arguments_may_be_any_bytes_but_nul(minder: Minder) -> None:
    strange = os.fsdecode(bytes(range(1, 256)))
    written = output_of(minder, py("import sys, os; sys.stdout.buffer.write(os.fsencode(sys.argv[1]))", strange))
    assert written == bytes(range(1, 256))


def test_a_folder_may_have_any_name(minder: Minder, tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff \xc3\xa4\n"
    Path(os.fsdecode(folder)).mkdir()
    assert output_of(minder, sh("pwd", cwd=os.fsdecode(folder))) == folder + b"\n"


def test_more_than_a_megabyte_of_arguments_arrives(minder: Minder) -> None:
    arguments = ["ä" * 50_000] * 15  # 100 kB each, and each character is escaped on the way
    assert output_of(minder, py("import sys; print(sum(map(len, sys.argv[1:])))", *arguments)).strip() == b"750000"


def test_without_a_folder_it_runs_where_we_are(minder: Minder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Path(output_of(minder, sh("pwd")).decode().strip()) == tmp_path.resolve()


def test_a_program_is_found_by_the_commands_own_path(minder: Minder, tmp_path: Path) -> None:
    program = tmp_path / "greet"
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    command = Command(argv=("greet",), env={"PATH": f"{tmp_path}:{ENV['PATH']}"})
    assert output_of(minder, command) == b"hello\n"


def test_a_relative_program_is_found_from_its_working_directory(minder: Minder, tmp_path: Path) -> None:
    program = tmp_path / "greet"
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    assert output_of(minder, Command(argv=("./greet",), env=ENV, cwd=str(tmp_path))) == b"hello\n"


def test_the_environment_is_what_was_given_and_the_mark(minder: Minder) -> None:
    command = Command(argv=("env",), env={"PATH": ENV["PATH"], "WANTED": "1"})
    names = {line.partition(b"=")[0] for line in output_of(minder, command).splitlines()}
    assert names == {b"PATH", b"WANTED", MARK.encode()}


def test_the_mark_names_the_minder_and_the_session(minder: Minder) -> None:
    mark = Mark.parse(output_of(minder, sh(f"echo ${MARK}")).decode().strip())
    assert mark == Mark("kill", minder.identity, 1)


def test_a_scrubbed_environment_has_no_secret_unless_it_was_named() -> None:
    ours = {"PATH": "/bin", "LC_TIME": "C", "API_KEY": "secret", "AWS_SECRET": "secret", "HOME": "/root"}
    assert scrubbed(ours) == {"PATH": "/bin", "LC_TIME": "C", "HOME": "/root"}
    assert scrubbed(ours, allow=["API_KEY"], extra={"HOME": "/work", "MORE": "1"}) == {
        "PATH": "/bin",
        "LC_TIME": "C",
        "HOME": "/work",
        "API_KEY": "secret",
        "MORE": "1",
    }


def test_signals_that_we_ignore_are_not_ignored_by_the_command(minder: Minder) -> None:
    ignored = output_of(minder, sh("grep SigIgn /proc/self/status"))
    standard = (1 << 31) - 1  # the two behind them belong to the C library
    assert int(ignored.split()[1], 16) & standard == 0


def test_each_command_leads_a_session_and_a_group_of_its_own(minder: Minder) -> None:
    with Pipe() as pipe:
        session = minder.spawn(sh("read pid rest < /proc/self/stat; echo $pid $rest"), stdout=pipe.theirs)
        pipe.close_theirs()
        fields = pipe.line().rpartition(")")[2].split()
        assert session.pid == int(fields[2]) == int(fields[3])


def test_ends_are_told_to_who_asked_for_them_with_the_callers_tag() -> None:
    log: list[tuple[object, int | None]] = []
    with Minder(on_exit=lambda session, found: log.append((session.tag, found.code))) as minder:
        sessions = [minder.spawn(sh(f"exit {code}"), tag=f"run {code}") for code in range(5)]
        for session in sessions:
            session.wait(PATIENCE_S)
    assert sorted(log, key=str) == [(f"run {code}", code) for code in range(5)]


def test_a_callback_that_fails_does_not_silence_the_next(caplog: pytest.LogCaptureFixture) -> None:
    log: list[int] = []

    def fails_once(session: Session, _found: Exit) -> None:
        log.append(session.id)
        if len(log) == 1:
            raise RuntimeError("mine")

    with Minder(on_exit=fails_once) as minder:
        for _ in range(2):
            minder.spawn(sh("exit 0")).wait(PATIENCE_S)
    assert log == [1, 2]
    assert "on_exit failed for session 1" in caplog.text
