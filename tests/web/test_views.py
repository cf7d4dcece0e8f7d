"""What pages show, as pure functions: rows, facts and charts of what the API returned."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import pytest

from rota.errors import InvalidInput
from rota.model import Event, PolicyInForce, Project, UsageLine, UsageReport
from rota.model.budgets import Refill, SchedulingContext
from rota.model.core_grants import CoreGrant, CoreStatus, HostStatus
from rota.model.graph_budgets import GraphBudgetLine
from rota.observe import EventText, FleetState, WaitTimes
from rota.web import cores_view, graph_view, journal_view, policy_view, project_view

NOW = 1_000_000.0
SVG = "{http://www.w3.org/2000/svg}"


# --- projects ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weight", "cap", "expected"),
    [
        ("1000", "", {}),
        ("2000", "", {"weight": 2_000}),
        ("1000", "3", {"max_concurrent": 3}),
        (1_500.0, None, {"weight": 1_500}),
    ],
)
def test_a_form_changes_only_what_differs(weight: object, cap: object, expected: dict[str, int]) -> None:
    assert project_view.changes(Project(project_id="alpha", name="alpha"), weight, cap) == expected


def test_an_empty_maximum_removes_it() -> None:
    project = Project(project_id="alpha", name="alpha", max_concurrent=3)
    assert project_view.changes(project, "1000", "") == {"max_concurrent": None}


@pytest.mark.parametrize(
    ("weight", "cap"), [("0", ""), ("1.5", ""), ("many", ""), ("1000", "-1"), ("nan", ""), ("inf", "")]
)
def test_a_form_with_anything_else_is_refused(weight: str, cap: str) -> None:
    with pytest.raises(InvalidInput):
        project_view.changes(Project(project_id="alpha", name="alpha"), weight, cap)


def report(*lines: tuple[str, str, int]) -> UsageReport:
    made = [UsageLine(project_id=project, day=day, tokens=tokens, runs=1) for project, day, tokens in lines]
    return UsageReport(by=("project", "day"), lines=made, total=UsageLine(tokens=sum(line.tokens for line in made)))


def test_a_day_is_a_stack_of_its_projects() -> None:
    found = report(("alpha", "2026-01-02", 100), ("<b>", "2026-01-02", 50), ("alpha", "2026-01-03", 50))
    drawing, words = project_view.day_chart(found, ["2026-01-02", "2026-01-03"])
    bars = [(bar.get("class"), float(bar.get("height") or 0)) for bar in ET.fromstring(drawing).iter(f"{SVG}rect")]
    assert words == "tokens"
    assert bars == [("bar-0", 120.0), ("bar-1", 60.0), ("bar-0", 60.0)]


def test_beyond_the_colours_projects_are_added_up() -> None:
    found = report(*((f"p{number:02}", "2026-01-02", 100 - number) for number in range(9)))
    assert project_view.projects_of(found) == [*(f"p{number:02}" for number in range(7)), "others"]
    drawing, _ = project_view.day_chart(found, ["2026-01-02"])
    assert "others: 185 tokens" in drawing


# --- policies ------------------------------------------------------------------------------------


def in_force(name: str, **params: Any) -> PolicyInForce:
    return PolicyInForce(
        name=name, params=params, isolation="thread", set_by=None, share_by="tokens", share_by_set_by=None
    )


def test_a_policy_without_a_bound_says_that_entries_can_starve() -> None:
    assert dict(policy_view.facts(in_force("strict")))["Waiting bound"] == policy_view.STARVES
    assert dict(policy_view.facts(in_force("round_robin")))["Waiting bound"].startswith("No owner waits longer")


def test_a_policy_that_only_the_daemon_has_is_named() -> None:
    assert dict(policy_view.facts(in_force("theirs")))["Waiting bound"] == "not known here"


def test_fallbacks_say_what_failed() -> None:
    payload = {"policy": "mine", "failure": "raised", "detail": "ZeroDivisionError"}
    rows = policy_view.change_rows([event(1, "kernel.policy.fell_back", payload)], NOW)
    assert [row["what"] for row in rows] == ["strict order replaced mine: it raised an error: ZeroDivisionError"]


def test_waits_are_shown_once_there_is_one() -> None:
    assert policy_view.wait_facts(WaitTimes(), None) == []
    found = dict(policy_view.wait_facts(WaitTimes(count=3, p50_s=0.2, p99_s=90.0, max_s=120.0), 7_200.0))
    assert (found["Median wait"], found["99 % waited at most"], found["Ready for longest"]) == (
        "200 ms",
        "1.5 min",
        "for 2.0 h",
    )


def test_parameters_are_a_json_object() -> None:
    assert policy_view.params_of('{"window": 3}') == {"window": 3}
    assert policy_view.params_of("  ") == {}
    for wrong in ("[1]", "{", "3"):
        with pytest.raises(InvalidInput):
            policy_view.params_of(wrong)


# --- the journal ---------------------------------------------------------------------------------


def event(event_id: int, kind: str, payload: dict[str, Any], author: str = "me") -> Event:
    return Event(event_id=event_id, ts=NOW, pid=None, kind=kind, payload=payload, author=author)


def test_a_row_leads_to_its_entry_and_project_and_is_found_by_its_words() -> None:
    text = EventText(7, NOW, "detail", "coder #3 queued", None, 3)
    row = journal_view.row(event(7, "kernel.project.updated", {"project_id": "a/b"}), text, 0, FleetState(), NOW)
    assert row["links"] == {"entry": "/entry/3", "project": "/projects?project=a%2Fb"}
    assert row["tone"] == "quiet"
    assert journal_view.has_words(row, "QUEUED me")
    assert not journal_view.has_words(row, "queued nobody")


# --- cores ---------------------------------------------------------------------------------------


def test_each_core_says_who_has_it() -> None:
    grant = CoreGrant(
        sched_id=4, token=1, host="h", host_name="box", pid=1, owner="build", project_id=None, granted_at=NOW,
        leased=(1,), open_cores=(0,),
    )  # fmt: skip
    host = HostStatus(host="h", host_name="box", leased={1: 4}, reserved_ppm={0: 250_000}, grants=[grant])
    rows = cores_view.core_rows(CoreStatus(hosts=[host]))
    assert [(row["core"], row["use"], row["reserved"]) for row in rows] == [
        ("0", "open to all work", "25.0 %"),
        ("1", "leased by build #4", "–"),
    ]
    assert rows[1]["links"] == {"use": "/entry/4"}


def test_a_budget_says_what_is_left_and_when_more_comes() -> None:
    context = SchedulingContext(
        context_id=1, budget=500, period=60_000, remaining=100, refills=(Refill(int(NOW * 1_000) + 30_000, 400),),
        unit="cpu_ms", bound_to="name", bound_id="cpu",
    )  # fmt: skip
    row = cores_view.budget_row(context, NOW)
    assert (row["left"], row["used"], row["refill"]) == ("100 ms", "80 %", "in 30 s")


def test_shares_of_cpu_time_stand_beside_weights() -> None:
    lines = [
        UsageLine(project_id="alpha", cpu_ms=3_000),
        UsageLine(project_id="", cpu_ms=1_000),
        UsageLine(project_id="idle"),
    ]
    projects = [
        Project(project_id="alpha", name="alpha", weight=1_000),
        Project(project_id="idle", name="i", weight=3_000),
    ]
    rows = [(row["project"], row["share"], row["target"]) for row in cores_view.share_rows(lines, projects)]
    assert rows == [("alpha", "75.0 %", "25.0 %"), ("no project", "25.0 %", "–")]


# --- graphs --------------------------------------------------------------------------------------


def test_a_budget_that_is_used_up_stands_out_and_twice_as_much_is_proposed() -> None:
    line = GraphBudgetLine(run_id="r", dim="tokens", limit=500, used=700)
    assert graph_view.budget_row(line, ["Raise"])["tone"] == "bad"
    assert graph_view.raised(line) == 1_400
