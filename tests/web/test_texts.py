"""Texts of others are shown as texts: HTML and scripts planted in every field do nothing, on every page."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import typer
from playwright.sync_api import Page, expect

import rota.web
from rota.cli import app
from rota.model.work import ScheduleSpec
from rota.rpc import Client
from rota.web.pages import PAGES
from rota.web.pages.graphs import START
from tests.web.harness import World
from tests.web.made import WORKER

PLANTED = "<img src=x onerror=window.planted=1><script>window.planted=1</script>{{window.planted=1}}"
SOURCE = Path(rota.web.__file__).parent


def plant(client: Client) -> tuple[int, int]:
    """Write the text into every field that a caller can choose; return an entry that runs and one that failed."""
    client.projects.create(PLANTED, name=PLANTED)
    pid = client.agents.create(PLANTED, project_id=PLANTED, metadata={"note": PLANTED})
    client.contexts.create(bound_to="name", bound_id=PLANTED, budget=5, period_s=60.0, unit="requests")
    client.ledger.set_budget("project", PLANTED, "tokens", 10)
    client.agents.pause(pid, PLANTED, PLANTED)
    client.agents.resume(pid, PLANTED)
    ids = []
    for number in (1, 2):
        spec = ScheduleSpec(
            pid=pid,
            payload={PLANTED: PLANTED},
            trigger=PLANTED,
            tags=(PLANTED,),
            key=f"{PLANTED}{number}",
            correlation_id=PLANTED,
            max_attempts=1,
        )
        ids.append(client.enqueue(spec))
    runs, failed = ids
    worker = f"{WORKER}{PLANTED}"
    for sched_id in ids:
        token = client.queue.force_claim(sched_id, worker_id=worker, by=PLANTED).token
        assert token is not None
        client.logs.append(sched_id, 1, token, 0, f"{PLANTED}\n".encode())
        if sched_id == runs:
            client.supervision.progress(sched_id, token, 0.5, PLANTED)
        else:
            client.complete(
                sched_id, "failed", token=token, result={"error": PLANTED, "more": PLANTED}, outcome=PLANTED
            )
    client.journal.append(pid, "planted.event", {"text": PLANTED})
    client.projects.pause_fleet(PLANTED, PLANTED)
    return runs, failed


def plant_graph(client: Client) -> str:
    """Start a graph whose names are such texts; return its run."""
    lane = {"execution": {"lane": "main"}}
    document = {
        "schema_version": 2,
        "graph": {"name": f"{PLANTED} graph"},
        "lanes": {"main": {"type": "event_loop"}},
        "components": [
            {"id": PLANTED, "type": "rota.input", **lane},
            {"id": "worker", "execution": {"agent": PLANTED, "budget": {"tokens": 300}}},
            {"id": "text", "type": "rota.output", **lane},
        ],
        "edges": [
            {"id": "ask", "kind": "async", "from": f"{PLANTED}.out", "to": "worker.topic"},
            {"id": "answer", "kind": "async", "from": "worker.out", "to": "text.value"},
        ],
    }
    return client.graphs.start(document, {PLANTED: PLANTED}, "planted-run", PLANTED, {"tokens": 500}).run_id


def test_planted_html_and_scripts_are_shown_as_text_on_every_page(signed_in: Page, world: World) -> None:
    with world.client() as client:
        ids = plant(client)
        graph = f"/graph/{plant_graph(client)}"
    paths = [*(page.path for page in PAGES if "{" not in page.path), graph]
    shown: dict[str, bool] = {}
    for path in (*paths, *(f"/entry/{sched_id}" for sched_id in ids), "/queue?text=onerror", f"/queue?tag={PLANTED}"):
        signed_in.goto(f"{world.board.url}{path}")
        expect(signed_in.get_by_role("heading", level=1)).to_be_visible()
        expect(signed_in.locator("header [role=status]")).to_have_text("live")
        shown[path] = signed_in.get_by_text("onerror=window.planted=1>").count() > 0
        assert signed_in.locator("img[src=x]").count() == 0, path
        assert signed_in.evaluate("window.planted") is None, path
    assert shown["/"]
    assert shown["/queue"]
    assert shown["/graphs"]
    assert shown[graph]
    assert all(shown[f"/entry/{sched_id}"] for sched_id in ids)


# --- in the source: no text of others can reach what the browser parses ----------------------------

PARSED = {"props", "classes", "style", "run_javascript", "add_slot", "add_head_html", "add_body_html", "add_css"}
NEVER = {"html", "markdown", "chat_message", "restructured_text", "editor", "interactive_image", "mermaid"}


def source_calls(path: Path) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]


def is_constant(node: ast.expr, path: Path) -> bool:
    """A literal, or a name of this file's constants, or a choice between such."""
    if isinstance(node, ast.IfExp):
        return is_constant(node.body, path) and is_constant(node.orelse, path)
    if isinstance(node, ast.Name):
        return True
    if isinstance(node, ast.JoinedStr):  # numbers only
        made = [each for each in node.values if isinstance(each, ast.FormattedValue)]
        return all(each.format_spec is not None and ast.unparse(each.format_spec) == "f'd'" for each in made)
    if isinstance(node, ast.Call):  # TONES.get(status, "…"): a choice between constants
        return isinstance(node.func, ast.Attribute) and node.func.attr == "get" and "TONES" in ast.unparse(node.func)
    return isinstance(node, ast.Constant)


def test_every_command_that_a_page_teaches_exists_and_takes_a_store() -> None:
    taught = [
        str(call.args[0].value).split()
        for path in SOURCE.rglob("*.py")
        for call in source_calls(path)
        if ast.unparse(call.func).endswith("ession.command") and isinstance(call.args[0], ast.Constant)
    ]
    assert len(taught) > 8
    for _rota, *words in [*taught, START.split()]:
        found: Any = typer.main.get_command(app)
        while hasattr(found, "commands"):
            found = found.commands[words.pop(0)]
        assert "store" in {param.name for param in found.params}, (found.name, words)


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_what_the_browser_parses_is_constant(path: Path) -> None:
    for call in source_calls(path):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        is_cleaned = any(each.arg == "sanitize" and ast.unparse(each.value) == "True" for each in call.keywords)
        if name in NEVER and ast.unparse(call.func).startswith("ui.") and not is_cleaned:
            raise AssertionError(f"{path.name}:{call.lineno} uses ui.{name}, which parses what it shows")
        if name in PARSED:
            arguments = [*call.args, *(each.value for each in call.keywords)]
            checked = arguments[1:] if name == "add_slot" else arguments
            for argument in checked:
                assert is_constant(argument, path), f"{path.name}:{call.lineno} gives .{name}(…) a text that is made"
