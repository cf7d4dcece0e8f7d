"""Who is offered which tools, and that no caller sees or changes more than its rights allow: at a real daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcp import MCPError
from rota.kernel import ScheduleSpec
from rota.mcp.tools import TOOLS
from rota.rpc import METHODS, CallerRights, Principal
from rota.rpc.authorization import RunIdentity, authorize
from tests.mcp.clients import Desk, ToolFailed, desk_at
from tests.mcp.conftest import Office

READS = {name for name, tool in TOOLS.items() if not tool.writes}
RUNS = {name for name, tool in TOOLS.items() if tool.needs_run}
WRITES = set(TOOLS) - READS - RUNS


def error_of(desk: Desk, name: str, **arguments: Any) -> dict[str, Any]:
    with pytest.raises(ToolFailed) as refused:
        desk(name, **arguments)
    return refused.value.error


# --- which tools are offered ---------------------------------------------------------------------


def test_a_server_reads_only_unless_it_is_told_otherwise(path: Path) -> None:
    with desk_at(path) as desk:
        assert desk.offered == READS
        refused = error_of(desk, "enqueue", agent="coder")
        assert (refused["name"], refused["hint"]) == ("forbidden", "Start the server with `rota mcp --allow-write`.")
        assert desk.caller.api.queue.list() == ([], 0)
    with desk_at(path, allow_write=True) as desk:
        assert desk.offered == READS | WRITES


def test_a_local_user_at_a_daemon_is_offered_all_but_what_needs_a_run(office: Office) -> None:
    with desk_at(office.served.unix, allow_write=True) as desk:
        assert desk.offered == READS | WRITES


@pytest.mark.parametrize(
    ("scope", "projects", "writes"),
    [
        ("read", (), set()),
        ("enqueue", (), {"enqueue", "cancel"}),
        ("work", (), {"enqueue", "cancel", "emit_event"}),
        ("operate", (), WRITES),
        ("read", ("red",), set()),
        ("enqueue", ("red",), {"enqueue", "cancel"}),
    ],
)
def test_a_token_is_offered_what_its_scope_includes(
    office: Office, scope: str, projects: tuple[str, ...], writes: set[str]
) -> None:
    with desk_at(office.served.unix, office.token(scope, *projects), allow_write=True) as desk:
        assert desk.offered == READS | writes


def test_a_run_is_offered_what_a_run_may_do_and_may_write_by_default(office: Office) -> None:
    token = office.token_of(office.claim())
    with desk_at(office.served.unix, token) as desk:
        assert desk.offered == (READS - {"why_all"}) | RUNS | {"enqueue", "cancel", "emit_event"}
    with desk_at(office.served.unix, token, allow_write=False) as desk:
        assert desk.offered == READS - {"why_all"}


@pytest.mark.parametrize("name", METHODS)
def test_rights_that_are_not_offered_are_refused_by_the_daemon_too(name: str) -> None:
    """What `CallerRights` says about a method is what the daemon's own check says, before it looks at parameters."""
    run = RunIdentity(sched_id=1, pid=1, project_id="red", claim_token=1)
    callers: list[tuple[CallerRights, Principal]] = [
        (CallerRights("read", ("red",)), Principal(name="t", scope="read", projects=frozenset({"red"}))),
        (CallerRights("enqueue"), Principal(name="t", scope="enqueue")),
        (CallerRights("operate"), Principal(name="t", scope="operate")),
        (CallerRights("work", ("red",), is_run=True), Principal.of_run(run, name="run 1", peer="local")),
    ]
    for rights, principal in callers:
        if not rights.allow(name):
            with pytest.raises(Exception, match=r"refused to|needs scope"):
                authorize(principal, METHODS[name], _AnyParams())


class _AnyParams:
    """Parameters with which no check of a parameter fails."""

    def __getattr__(self, name: str) -> Any:
        return None


# --- what they see and change --------------------------------------------------------------------


def test_a_viewer_of_one_project_does_not_see_the_other(office: Office) -> None:
    mine = office.client.enqueue(ScheduleSpec(office.near))
    with desk_at(office.served.unix, office.token("read", "red")) as desk:
        page = desk("list_work")
        assert ([entry["sched_id"] for entry in page["entries"]], page["total"]) == ([mine], 1)
        assert {agent["name"] for agent in desk("list_agents")["agents"]} == {"own", "near"}
        assert desk("find_work", text="secret")["entries"] == []
        for name in ("show_work", "why"):
            unknown = error_of(desk, name, sched_id=office.secret)
            assert unknown["name"] == error_of(desk, name, sched_id=999)["name"] == "kernel_sched_unknown_id"
        assert error_of(desk, "read_work", sched_id=office.secret, part="payload")["name"] == "kernel_sched_unknown_id"
        assert error_of(desk, "remaining_budget", agent="far")["name"] == "not_found"
        assert desk("why_all")["ready"] == 1, "a token of one project means that project"
        assert "planted" not in read_page(desk, "rota://queue")
        with pytest.raises(MCPError, match=str(office.secret)):
            read_page(desk, f"rota://entry/{office.secret}")


def read_page(desk: Desk, uri: str) -> str:
    async def ask(client: Any) -> str:
        return str((await client.read_resource(uri)).contents[0].text)

    return desk.with_client(ask)


def test_a_token_of_one_project_enqueues_and_cancels_there_only(office: Office) -> None:
    with desk_at(office.served.unix, office.token("enqueue", "red"), allow_write=True) as desk:
        made = desk("enqueue", agent="near")
        assert desk("cancel", sched_id=made["sched_id"])["is_cancelled"]
        assert error_of(desk, "cancel", sched_id=office.secret)["name"] == "kernel_sched_unknown_id"
        assert error_of(desk, "enqueue", agent=str(office.far))["name"] == "kernel_unknown_pid"
    assert office.client.get(office.secret).status == "ready"


def test_a_run_acts_for_itself_and_its_children(office: Office) -> None:
    office.client.contexts.create(bound_to="name", bound_id="openai", budget=10, unit="requests", period_s=60.0)
    run = office.claim(ceiling={"tokens": 1_000}, draws_on=("openai",))
    neighbour = office.client.enqueue(ScheduleSpec(office.near))
    with desk_at(office.served.unix, office.token_of(run)) as desk:
        assert desk("show_work")["entry"]["sched_id"] == run.sched_id, "its own entry, by default"
        assert desk("remaining_budget")["left"] == {"tokens": 1_000}
        assert desk("estimate", agent="near")["start"]["position"] == 1, "a child has the priority of its run"

        child = desk("enqueue_child", agent="near", payload={"part": 1}, lent={"tokens": 400})["sched_id"]
        assert desk("remaining_budget")["left"] == {"tokens": 600}
        assert desk("charge", amounts={"tokens": 100})["left"] == {"tokens": 500}
        assert desk("why", sched_id=child)["agent"] == "near"

        desk("report_progress", fraction=0.5, text="half")
        desk("save_checkpoint", state={"page": 3})
        granted = desk("acquire", limit="openai", amounts={"requests": 1})
        assert granted["is_granted"]
        assert desk("settle", key=granted["key"], used={"requests": 1})["charged"] == {"requests": 1}
        event_id = desk("emit_event", kind="page.read", payload={"page": 3}, agent="far")["event_id"]

        assert desk("cancel", sched_id=child)["is_cancelled"]
        assert desk("wait_for_work", sched_ids=[child], wait_s=0)["returned"] == {"tokens": 400}
        assert desk("remaining_budget")["left"] == {"tokens": 900}
        refused = error_of(desk, "cancel", sched_id=neighbour)
        assert (refused["name"], "nor a child" in refused["message"]) == ("forbidden", True)
        assert error_of(desk, "cancel", sched_id=office.secret)["name"] == "kernel_sched_unknown_id"
        assert error_of(desk, "enqueue_child", agent="far")["name"] == "kernel_unknown_agent"
        too_much = error_of(desk, "enqueue_child", agent="near", lent={"tokens": 5_000})
        assert too_much["name"] == "kernel_ledger_invalid_amount"
        assert not desk("cancel", sched_id=run.sched_id)["is_cancelled"], "it is asked to stop, as any run"
    assert office.client.get(run.sched_id).cancel_requested
    entry, (event,) = office.client.get(child), office.client.journal.tail(event_id - 1, 1)
    assert (entry.parent_id, entry.payload) == (run.sched_id, {"part": 1})
    assert (event.pid, event.author) == (office.own, f"run:{run.sched_id}")
    report = office.client.show(run.sched_id)
    assert [each.sched_id for each in report.children] == [child]
    assert report.progress is not None
    assert report.progress.text == "half"
    assert office.client.get(neighbour).status == "ready"


def test_what_a_run_enqueues_is_its_child_whichever_tool_it_uses(office: Office) -> None:
    run = office.claim()
    with desk_at(office.served.unix, office.token_of(run)) as desk:
        child = desk("enqueue", agent="near")["sched_id"]
    entry = office.client.get(child)
    assert (entry.parent_id, entry.priority) == (run.sched_id, 9), "and it has at least the run's priority"


def test_a_limit_that_has_nothing_left_is_waited_for_with_the_same_key(office: Office) -> None:
    office.client.contexts.create(bound_to="name", bound_id="openai", budget=1, unit="requests", period_s=3_600.0)
    run = office.claim()
    with desk_at(office.served.unix, office.token_of(run)) as desk:
        assert desk("acquire", limit="openai", amounts={"requests": 1})["is_granted"]
        waits = desk("acquire", limit="openai", amounts={"requests": 1}, wait_s=0)
        assert not waits["is_granted"]
        assert desk("show_work")["waits_on_limits"] == ["openai"]
        again = desk("acquire", limit="openai", amounts={"requests": 1}, wait_s=0, key=waits["key"])
        assert again == waits
        desk("settle", key=waits["key"], used={"requests": 0})
        assert "waits_on_limits" not in desk("show_work")
        refused = error_of(desk, "acquire", limit="openai", amounts={"requests": 5})
        assert "openai" in refused["message"]


def test_the_token_of_a_run_that_has_ended_is_refused(office: Office) -> None:
    run = office.claim()
    with desk_at(office.served.unix, office.token_of(run)) as desk:
        assert desk("show_work")["entry"]["status"] == "running"
        office.client.complete(run.sched_id, "completed", token=run.token)
        assert error_of(desk, "show_work")["name"] == "unauthenticated"
