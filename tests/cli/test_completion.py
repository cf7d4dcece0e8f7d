"""Completion in the shell: what a press of the tab key offers, through the code that a shell calls."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rota import store
from rota.cli import app
from rota.cli.completion import mend_words
from rota.kernel import Kernel, ScheduleSpec
from tests.daemon.harness import serving

PATIENCE_S = 30.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "rota.db"
    kernel = Kernel(store.open(str(made)))
    kernel.projects.create("lab")
    coder = kernel.agents.create("coder", project_id="lab")
    kernel.agents.create("reader")
    for _ in range(11):
        kernel.queue.enqueue(ScheduleSpec(coder))
    kernel.store.close()
    return made


def offered(words: str, address: Path | str) -> list[str]:
    """Return what bash is offered for the last word of a line."""
    env = {
        "_ROTA_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        "ROTA_STORE": str(address),
    }
    done = CliRunner().invoke(app, [], prog_name="rota", env=env)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert "Traceback" not in done.output
    return done.output.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("rota enqueue co", ["coder"]),
        ("rota enqueue ", ["coder", "reader"]),
        ("rota queue --agent re", ["reader"]),
        ("rota queue --project ", ["lab"]),
        ("rota projects show l", ["lab"]),
        ("rota agents show c", ["coder"]),
        ("rota ledger grant c", ["coder"]),
        ("rota show 1", ["1", "10", "11"]),
        ("rota why 11", ["11"]),
        ("rota cancel 9", ["9"]),
        ("rota logs 2", ["2"]),
        ("rota enqueue nobody", []),
    ],
)
def test_names_and_ids_of_the_store_are_offered(path: Path, words: str, expected: list[str]) -> None:
    assert offered(words, path) == expected


def test_the_store_on_the_line_is_the_one_that_is_read(path: Path, tmp_path: Path) -> None:
    assert offered(f"rota enqueue --store {path} co", tmp_path / "other.db") == ["coder"]


def test_a_daemon_is_asked_too(path: Path) -> None:
    with serving(path, http=False) as served:
        assert offered("rota enqueue co", served.unix) == ["coder"]


@pytest.mark.parametrize("address", ["missing.db", "unix:/nowhere/rota.sock", "folder"])
def test_without_a_store_nothing_is_offered_and_nothing_is_made(tmp_path: Path, address: str) -> None:
    (tmp_path / "folder").mkdir()
    where = address if address.startswith("unix:") else str(tmp_path / address)
    assert offered("rota enqueue co", where) == []
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize(
    ("split", "whole"),
    [
        (["rota", "enqueue", "co"], ["rota", "enqueue", "co"]),
        (["rota", "enqueue", "-s", "unix", ":", "/a/b", "co"], ["rota", "enqueue", "-s", "unix:/a/b", "co"]),
        (["rota", "ps", "-s", "http", ":", "//a", ":", "80", ""], ["rota", "ps", "-s", "http://a:80", ""]),
        (["rota", "queue", "--project", "=", "l"], ["rota", "queue", "--project", "l"]),
        (["rota", "queue", "--project", "="], ["rota", "queue", "--project", ""]),
        (["rota", "enqueue", "a", ":", "b"], ["rota", "enqueue", "a:", "b"]),
    ],
)
def test_what_bash_has_split_is_put_together(split: list[str], whole: list[str]) -> None:
    environ = {"COMP_WORDS": "\n".join(split), "COMP_CWORD": str(len(split) - 1)}
    mend_words(environ)
    assert environ == {"COMP_WORDS": "\n".join(whole), "COMP_CWORD": str(len(whole) - 1)}


# --- a real shell --------------------------------------------------------------------------------


@pytest.fixture
def bash(path: Path, tmp_path: Path) -> Iterator[Callable[[str, str], str]]:
    """Type a line into an interactive bash that `rota --install-completion bash` has set up, up to an expected end."""
    home = tmp_path / "home"
    home.mkdir()
    programs = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environment = {"HOME": str(home), "PATH": programs, "PS1": "> ", "TERM": "dumb", "ROTA_STORE": str(path)}
    (tmp_path / "a:b.db").symlink_to(path)
    set_up = [sys.executable, "-m", "rota", "--install-completion", "bash"]
    subprocess.run(set_up, env=environment, check=True, capture_output=True)
    ours, its = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "--norc", "-i"],
        env=environment,
        cwd=tmp_path,
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
    )

    def typed(line: str, end: str) -> str:
        os.write(ours, line.encode())
        seen = ""
        while not seen.endswith(end):
            ready, _, _ = select.select([ours], [], [], PATIENCE_S)
            assert ready, f"after {line!r} bash shows {seen!r}, not {end!r}"
            seen += os.read(ours, 4_096).decode()
        return seen

    yield typed
    shell.kill()
    shell.wait()
    os.close(ours)
    os.close(its)


def test_bash_completes_agents_projects_and_entries(bash: Callable[[str, str], str]) -> None:
    bash(". ~/.bashrc; echo ready\n", "ready\r\n> ")
    for line, completed in (
        ("rota enqueue co", "rota enqueue coder "),
        ("rota queue --project=l", "rota queue --project=lab "),
        ("rota why 11", "rota why 11 "),
        ("rota docto", "rota doctor "),
        ("rota enqueue -s ./a:b.db co", "rota enqueue -s ./a:b.db coder "),
    ):
        bash(f"{line}\t", completed)
        bash("\x01: \n", "\r\n> ")  # to the start of the line: make it a command that does nothing
