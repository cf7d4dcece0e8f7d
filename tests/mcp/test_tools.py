"""The tools with the official client, on a real file: what they return, how they page, and how they refuse."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types
import msgspec
import pytest

from mcp import Client, MCPError
from rota.errors import StoreUnavailable
from rota.kernel import ScheduleSpec
from rota.mcp.answers import VALUE_CHARS_MAX
from rota.mcp.callers import Caller
from rota.mcp.http import McpLimits
from rota.mcp.resources import PAGES, TEMPLATES
from rota.mcp.server import CALLS_MAX, McpServer
from rota.mcp.tools import TOOLS
from rota.mcp.work_tools import PART_CHARS_MAX, WAIT_S_MAX
from rota.rpc.methods import METHODS
from rota.service import outages
from tests.mcp.clients import Desk, ToolFailed, use


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_says_what_it_takes_and_returns(name: str) -> None:
    tool = TOOLS[name]
    for schema in (tool.input_schema, tool.output_schema):
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object"
    assert tool.input_schema["additionalProperties"] is False
    assert tool.about.endswith(".")
    assert set(tool.uses) <= set(METHODS)


def test_the_guide_names_every_tool_page_and_limit() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "mcp.md").read_text()
    for name in TOOLS:
        assert f"`{name}`" in guide
    for uri in (*PAGES, *(template.uri.partition("{")[0] for template in TEMPLATES)):
        assert uri in guide
    limits = McpLimits()
    assert f"`connections_max` {limits.connections_max}" in guide
    assert f"`callers_max` {limits.callers_max}" in guide
    assert f"`CALLS_MAX` {CALLS_MAX}" in guide
    assert f"`body_bytes_max` {limits.body_bytes_max >> 20} MiB" in guide
    assert f"more than {VALUE_CHARS_MAX:,} characters" in guide
    assert f"at most {WAIT_S_MAX:g} s in one call" in guide


# --- reading -------------------------------------------------------------------------------------


def enqueue(caller: Caller, count: int = 1, **spec: Any) -> list[int]:
    (coder,) = caller.api.agents.find("coder")
    return caller.api.queue.enqueue_many([ScheduleSpec(coder.pid, **spec) for _ in range(count)])


def test_work_is_listed_in_pages(desk: Desk) -> None:
    ids = enqueue(desk.caller, 5)
    seen: list[int] = []
    after: int | None = 0
    while after is not None:
        page = desk("list_work", limit=2, after=after)
        assert page["total"] == 5
        assert len(page["entries"]) <= 2
        seen += [entry["sched_id"] for entry in page["entries"]]
        after = page["next_after"]
    assert seen == ids


def test_work_is_listed_by_status_agent_project_and_tag(desk: Desk) -> None:
    first, second = enqueue(desk.caller, tags=("urgent",)) + enqueue(desk.caller, delay_s=60)
    entries = desk("list_work", status=["waiting"], agent="coder", project="lab")["entries"]
    assert [(entry["sched_id"], entry["agent"], entry["status"]) for entry in entries] == [(second, "coder", "waiting")]
    assert "not_before" in entries[0]
    assert [entry["sched_id"] for entry in desk("list_work", tag="urgent")["entries"]] == [first]


def test_work_is_found_by_a_text_in_pages(desk: Desk) -> None:
    enqueue(desk.caller, payload={"url": "https://example.org/a"})
    wanted = enqueue(desk.caller, 5, payload={"url": "https://example.org/b"})
    found = desk("find_work", text="example.org/b")
    assert [entry["sched_id"] for entry in found["entries"]] == wanted[::-1]
    assert (found["is_complete"], found["next_offset"]) == (True, None)
    seen: list[int] = []
    offset: int | None = 0
    while offset is not None:
        page = desk("find_work", text="example.org/b", limit=2, offset=offset)
        seen += [entry["sched_id"] for entry in page["entries"]]
        offset = page["next_offset"]
    assert seen == wanted[::-1]
    assert page["is_complete"]


def test_agents_are_listed_in_pages(desk: Desk) -> None:
    for name in ("reader", "writer"):
        desk.caller.api.agents.create(name)
    first = desk("list_agents", limit=2)
    assert [agent["name"] for agent in first["agents"]] == ["coder", "reader"]
    second = desk("list_agents", limit=2, offset=first["next_offset"])
    assert ([agent["name"] for agent in second["agents"]], second["next_offset"]) == (["writer"], None)


def test_an_entry_is_shown_with_what_happened_to_it(desk: Desk) -> None:
    (sched_id,) = enqueue(desk.caller, payload={"page": 1})
    shown = desk("show_work", sched_id=sched_id)
    assert (shown["entry"]["agent"], shown["payload"]) == ("coder", {"page": 1})
    assert shown["history"][0].endswith("enqueued")


def test_a_long_payload_is_left_out_and_read_in_parts(desk: Desk) -> None:
    payload = {"text": "ab" * 20_000}
    (sched_id,) = enqueue(desk.caller, payload=payload)
    assert desk("show_work", sched_id=sched_id)["left_out"] == ["payload"]
    text = ""
    offset: int | None = 0
    while offset is not None:
        part = desk("read_work", sched_id=sched_id, part="payload", offset=offset, limit=PART_CHARS_MAX)
        assert len(part["text"]) <= PART_CHARS_MAX
        text, offset = text + part["text"], part["next_offset"]
    assert msgspec.json.decode(text) == payload
    assert part["total"] == len(text)
    assert desk("read_work", sched_id=sched_id, part="payload", offset=-2)["text"] == '"}'
    assert desk("read_work", sched_id=sched_id, part="result")["text"] == "null"


def test_a_log_is_read_in_parts_that_split_no_character(desk: Desk) -> None:
    (sched_id,) = enqueue(desk.caller)
    api, printed = desk.caller.api, "größer → kleiner\n" * 3
    (entry,) = api.claim("box")
    api.logs.append(sched_id, entry.attempt, entry.token or 0, 0, printed.encode())
    text = ""
    offset: int | None = 0
    while offset is not None:
        part = desk("read_work", sched_id=sched_id, part="log", offset=offset, limit=7)
        text, offset = text + part["text"], part["next_offset"]
    assert text == printed
    assert part["total"] == len(printed.encode())


def test_why_says_what_blocks_and_what_would_start_it(desk: Desk) -> None:
    (sched_id,) = enqueue(desk.caller)
    (coder,) = desk.caller.api.agents.find("coder")
    desk.caller.api.agents.pause(coder.pid, "ann")
    found = desk("why", sched_id=sched_id)
    assert not found["starts_now"]
    assert "paused by ann" in found["blocked_by"][0]
    assert found["what_would_start_it"] == [f"resume agent {coder.pid}: agents.resume(pid={coder.pid}, by=operator)"]
    counted = desk("why_all", project="lab")
    assert (counted["ready"], counted["reasons"][0]["example"]) == (1, sched_id)


def test_an_estimate_has_a_start_and_what_runs_have_used(desk: Desk) -> None:
    api = desk.caller.api
    (sched_id,) = enqueue(desk.caller, payload={"first": True})
    (run,) = api.claim("worker")
    assert run.token is not None
    api.queue.charge(sched_id, {"tokens": 300, "cost_micro": 1_500_000}, token=run.token)
    api.queue.complete(sched_id, "completed", token=run.token)
    before = api.journal.cursor()
    found = desk("estimate", agent="coder", delay_s=60)
    assert found["start"]["status"] == "waiting"
    assert found["start"]["starts_at"] is not None
    assert (found["per_run"]["runs"], found["per_run"]["tokens"], found["per_run"]["cost_usd"]) == (1, 300, 1.5)
    assert api.journal.cursor() == before


def test_what_is_left_of_an_agents_budget(desk: Desk) -> None:
    (coder,) = desk.caller.api.agents.find("coder")
    desk.caller.api.ledger.create(coder.pid, {"tokens": 1_000})
    assert desk("remaining_budget", agent="coder") == {"left": {"tokens": 1_000}, "of": "agent coder"}


def test_waiting_returns_the_results_or_what_still_runs(desk: Desk) -> None:
    api = desk.caller.api
    first, second = enqueue(desk.caller, 2)
    (run,) = api.claim("worker")
    api.queue.complete(first, "completed", token=run.token, result={"answer": 42})
    found = desk("wait_for_work", sched_ids=[first, second], wait_s=0)
    assert [(each["has_ended"], each.get("result")) for each in found["entries"]] == [
        (True, {"answer": 42}),
        (False, None),
    ]
    assert not found["all_have_ended"]


def test_a_wait_goes_on_through_an_outage_and_ends_with_it_when_its_time_is_over(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = desk.caller.api
    (sched_id,) = enqueue(desk.caller)
    api.queue.cancel(sched_id)
    wait, left = api.queue.wait, 2

    def lose(*given: Any) -> Any:
        nonlocal left
        left -= 1
        if left >= 0:
            raise StoreUnavailable("the server is away")
        return wait(*given)

    monkeypatch.setattr(outages, "RETRY_S", 0.01)
    monkeypatch.setattr(api.queue, "wait", lose)
    assert desk("wait_for_work", sched_ids=[sched_id], wait_s=50)["all_have_ended"]
    left = 1
    with pytest.raises(ToolFailed, match="the server is away"):
        desk("wait_for_work", sched_ids=[sched_id], wait_s=0)


# --- writing -------------------------------------------------------------------------------------


def test_enqueue_change_and_cancel(desk: Desk) -> None:
    made = desk("enqueue", agent="coder", payload={"n": 1}, tags=["a"], priority=2, key="once", drop_after_s=3600)
    assert made["agent"] == "coder"
    assert desk("enqueue", agent="coder", key="once")["sched_id"] == made["sched_id"]
    entry = desk.caller.api.queue.get(made["sched_id"])
    assert (entry.payload, entry.tags, entry.priority, entry.deadline is not None) == ({"n": 1}, ("a",), 2, True)
    changed = desk("change", sched_id=made["sched_id"], priority=7, delay_s=600, tags=[])
    assert (changed["priority"], changed["status"], "tags" in changed) == (7, "waiting", False)
    assert desk("cancel", sched_id=made["sched_id"])["is_cancelled"]
    assert desk.caller.api.queue.get(made["sched_id"]).status == "cancelled"


def test_a_running_entry_is_asked_to_stop(desk: Desk) -> None:
    (sched_id,) = enqueue(desk.caller)
    desk.caller.api.claim("worker")
    assert not desk("cancel", sched_id=sched_id)["is_cancelled"]
    assert desk("show_work", sched_id=sched_id)["entry"]["stop_requested"]


def test_an_event_of_ones_own_is_in_the_journal(desk: Desk) -> None:
    event_id = desk("emit_event", kind="report.ready", payload={"pages": 3}, agent="coder")["event_id"]
    (event,) = desk.caller.api.journal.tail(event_id - 1, 1)
    assert (event.kind, event.payload["pages"]) == ("report.ready", 3)


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "error", "hint"),
    [
        ("list_work", {"limit": 0}, "invalid_params", "list_work takes status, agent"),
        ("list_work", {"limit": 101}, "invalid_params", "input schema"),
        ("list_work", {"colour": "red"}, "invalid_params", "list_work takes"),
        ("list_work", {"status": ["asleep"]}, "invalid_params", "list_work takes"),
        ("list_work", {"agent": "nobody"}, "not_found", "list_agents"),
        ("show_work", {}, "invalid_params", "list_work"),
        ("show_work", {"sched_id": 999}, "sched_unknown_id", ""),
        ("show_work", {"sched_id": "7"}, "invalid_params", "show_work takes sched_id"),
        ("enqueue", {"agent": "coder", "payload": []}, "invalid_params", "enqueue takes agent"),
        ("enqueue", {"agent": "coder", "after": [999]}, "sched_unknown_id", ""),
        ("enqueue", {"agent": "coder", "delay_s": -1}, "invalid_params", "enqueue takes"),
        ("change", {"sched_id": 1}, "invalid_params", "priority"),
        ("emit_event", {"kind": "kernel.mine"}, "invalid_payload", ""),
        ("wait_for_work", {"sched_ids": []}, "invalid_params", "wait_for_work takes"),
        ("wait_for_work", {"sched_ids": [1], "wait_s": 3600}, "invalid_params", "wait_for_work takes"),
        ("remaining_budget", {}, "invalid_params", "list_agents"),
        ("save_checkpoint", {"state": {}}, "forbidden", "programs that rota runs"),
    ],
)
def test_bad_input_is_an_error_that_the_model_can_read(
    desk: Desk, name: str, arguments: dict[str, Any], error: str, hint: str
) -> None:
    with pytest.raises(ToolFailed) as refused:
        desk(name, **arguments)
    assert refused.value.error["name"].endswith(error), refused.value.error
    assert hint in refused.value.error["hint"]
    assert refused.value.error["hint"] in str(refused.value), "the text has the hint"


def test_a_tool_that_does_not_exist_is_an_error_of_the_protocol(desk: Desk) -> None:
    with pytest.raises(MCPError, match="there is no tool fly"):
        desk("fly")


# --- resources and prompts -----------------------------------------------------------------------


def read(desk: Desk, uri: str) -> str:
    async def ask(client: Client) -> str:
        (content,) = (await client.read_resource(uri)).contents
        return content.text  # type: ignore[union-attr]  # all pages are text

    return desk.with_client(ask)


def test_pages_of_the_store(desk: Desk) -> None:
    (sched_id,) = enqueue(desk.caller, payload={"n": 1})
    assert msgspec.json.decode(read(desk, "rota://queue"))["counts"] == {"ready": 1}
    assert msgspec.json.decode(read(desk, f"rota://entry/{sched_id}"))["payload"] == {"n": 1}
    assert msgspec.json.decode(read(desk, "rota://project/lab"))["queued_total"] == 1


def test_pages_about_rota(desk: Desk) -> None:
    assert "| **claim** |" in read(desk, "rota://glossary")
    assert "the default" in read(desk, "rota://policy")
    assert "Bound on waiting: none: it can starve" in read(desk, "rota://policy/strict")
    assert "another package" in read(desk, "rota://policy/fastest")


def test_every_page_is_listed_and_can_be_read(desk: Desk) -> None:
    async def ask(client: Client) -> tuple[list[str], list[str]]:
        pages = [str(page.uri) for page in (await client.list_resources()).resources]
        templates = [each.uri_template for each in (await client.list_resource_templates()).resource_templates]
        for page in pages:
            assert (await client.read_resource(page)).contents
        return pages, templates

    pages, templates = desk.with_client(ask)
    assert pages == ["rota://queue", "rota://policy", "rota://glossary"]
    assert templates == ["rota://entry/{sched_id}", "rota://project/{project_id}", "rota://policy/{name}"]


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("rota://entry/x", "is not the id of an entry"),
        ("rota://entry/999", "999"),
        ("rota://nothing", "there is no page"),
        ("rota://project/nowhere", "nowhere"),
    ],
)
def test_a_page_that_does_not_exist_is_an_error(desk: Desk, uri: str, message: str) -> None:
    with pytest.raises(MCPError, match=message):
        read(desk, uri)


def test_the_prompt_has_what_is_known_now(desk: Desk) -> None:
    (sched_id,) = enqueue(desk.caller)

    async def ask(client: Client) -> str:
        (prompt,) = (await client.list_prompts()).prompts
        assert prompt.title == "Diagnose a stuck fleet"
        (message,) = (await client.get_prompt(prompt.name, {"project": "lab"})).messages
        return message.content.text  # type: ignore[union-attr]  # it is text

    text = desk.with_client(ask)
    assert "no worker is running" in text
    assert f'"example":{sched_id}' in text
    assert "Change nothing before a person has agreed" in text


def test_a_prompt_that_does_not_exist_is_an_error(desk: Desk) -> None:
    async def ask(client: Client) -> None:
        await client.get_prompt("sing")

    with pytest.raises(MCPError, match="there is no prompt sing"):
        desk.with_client(ask)


def test_calls_of_one_client_run_side_by_side(desk: Desk) -> None:
    """A call that waits does not hold up the others."""
    first, second = enqueue(desk.caller, 2)

    async def ask(client: Client) -> Any:
        waiting = asyncio.create_task(use(client, "wait_for_work", sched_ids=[first], wait_s=50))
        await use(client, "cancel", sched_id=second)
        await use(client, "cancel", sched_id=first)
        return await waiting

    assert desk.with_client(ask)["all_have_ended"]


def test_the_server_says_what_it_is(desk: Desk) -> None:
    async def ask() -> None:
        async with Client(McpServer(lambda _context: desk.caller).lowlevel, mode="legacy") as client:
            assert client.server_info is not None
            assert client.server_info.name == "rota"
            assert "list_work" in (client.instructions or "")

    asyncio.run(ask())
