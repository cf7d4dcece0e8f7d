"""`rota mcp` as a coding agent starts it: a process of its own, over standard input and output."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mcp import Client
from rota import store
from rota.kernel import Kernel, ScheduleSpec
from rota.mcp.work_tools import WAIT_S_MAX
from tests.cli.shell import Shell, make_shell
from tests.daemon.harness import PATIENCE_S, make_token
from tests.mcp.clients import offered, over_http, over_stdio, use, with_client
from tests.mcp.conftest import Office

ROTA = [sys.executable, "-m", "rota"]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return make_shell(monkeypatch, capsys)


def test_a_file_over_standard_input_and_output(path: Path) -> None:
    """With the handshake of earlier versions of the protocol; the test of a run below has the one of today."""

    async def work(client: Client) -> None:
        assert "enqueue" in await offered(client)
        made = await use(client, "enqueue", agent="coder")
        assert (await use(client, "show_work", sched_id=made["sched_id"]))["entry"]["status"] == "ready"
        assert "no worker is running" in (await use(client, "why", sched_id=made["sched_id"]))["workers"]

    with_client(over_stdio("--store", str(path), "--allow-write", mode="legacy"), work)


def test_inside_a_run_it_has_the_rights_of_the_run(office: Office) -> None:
    """The environment is what a supervisor gives a program."""
    run = office.claim()
    env = {
        "ROTA_STORE": office.served.unix,
        "ROTA_ACCESS_TOKEN": office.token_of(run),
        "ROTA_SCHED_ID": str(run.sched_id),
        "ROTA_TOKEN": str(run.token),
    }

    async def work(client: Client) -> None:
        tools = await offered(client)
        assert tools >= {"save_checkpoint", "enqueue_child"}
        assert not tools & {"change", "why_all"}
        assert (await use(client, "show_work"))["entry"]["sched_id"] == run.sched_id
        await use(client, "save_checkpoint", state={"page": 3})
        child = await use(client, "enqueue_child", agent="near")
        assert office.client.get(child["sched_id"]).parent_id == run.sched_id

    with_client(over_stdio(env=env), work)


def test_a_run_that_does_not_know_its_store_never_opens_another_one(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROTA_SCHED_ID", "1")
    monkeypatch.delenv("ROTA_STORE", raising=False)
    answer = shell("mcp")
    assert "ROTA_STORE is not set" in answer.err


def test_without_the_extra_it_says_what_to_install(shell: Shell, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)  # as if it were not installed
    for words in (("mcp",), ("mcp", "--listen", "127.0.0.1:0"), ("serve", "--mcp")):
        answer = shell(*words, "--store", path)
        assert "pip install 'rota[mcp]'" in answer.err, words


@pytest.mark.parametrize(
    ("command", "options"),
    [("mcp", ("--listen", "127.0.0.1:0")), ("serve", ("--mcp", "--mcp-listen", "127.0.0.1:0"))],
)
def test_a_process_serves_over_http_until_it_is_told_to_stop(
    path: Path, command: str, options: tuple[str, ...]
) -> None:
    token = make_token(str(path), "read")
    argv = [*ROTA, command, "--store", str(path), *options]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            found = next(match for line in process.stderr if (match := re.search(r"MCP at (http://\S+)", line)))
            page = with_client(over_http(found[1], token), lambda client: use(client, "list_agents"))
            assert [agent["name"] for agent in page["agents"]] == ["coder"]
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("mcp", "--listen", "8090x"), "--listen must be HOST:PORT"),
        (("mcp", "--listen", "192.0.2.1:80"), "not a loopback address"),
        (("serve", "--mcp", "--mcp-listen", "nowhere"), "--mcp-listen must be HOST:PORT"),
        (("serve", "--mcp-allow-write"), "need --mcp"),
    ],
)
def test_options_that_cannot_work_are_refused(shell: Shell, path: Path, words: tuple[str, ...], message: str) -> None:
    answer = shell(*words, "--store", path)
    assert (answer.code != 0, message in answer.err) == (True, True), answer


def test_the_systemd_unit_has_the_options(shell: Shell, path: Path) -> None:
    answer = shell("serve", "--store", path, "--mcp", "--print-unit")
    assert "--mcp" in answer.out


def test_a_call_that_waits_ends_with_its_client(path: Path) -> None:
    """Otherwise a coding agent that is closed would leave its server behind until the wait is over."""
    kernel = Kernel(store.open(str(path)))
    (coder,) = kernel.agents.find("coder")
    sched_id = kernel.queue.enqueue(ScheduleSpec(coder.pid))
    kernel.store.close()
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    calls = {"list_work": {}, "wait_for_work": {"sched_ids": [sched_id], "wait_s": WAIT_S_MAX}}
    lines: list[dict[str, Any]] = [
        {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
    ]
    for name, arguments in calls.items():
        params = {"name": name, "arguments": arguments}
        lines.append({"jsonrpc": "2.0", "id": name, "method": "tools/call", "params": params})
    argv = [*ROTA, "mcp", "--store", str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("".join(json.dumps(line) + "\n" for line in lines))
        process.stdin.flush()
        assert [json.loads(process.stdout.readline())["id"] for _ in range(2)] == [0, "list_work"]
        process.stdin.close()
        assert process.wait(timeout=PATIENCE_S) == 0, "well before the wait would be over"
