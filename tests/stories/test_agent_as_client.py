"""S10: an agent as a client.

Inside a run, an agent starts the MCP server as coding agents do. It estimates, enqueues a child with part of its own
budget, asks why it waits, reports progress, saves a checkpoint, asks a provider's limit, emits an event, waits for the
child and gets the rest of the budget back. It can neither see nor spend outside its rights, and the parent and the
child are linked in `show`, in traces and in the journal.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
from typer.testing import CliRunner

from rota.cli import app
from rota.cli.connection import open_api
from rota.fleet import load_fleet, settings_of, spec_for
from rota.fleet.config.apply import apply_fleet
from rota.model.events import BudgetLent, BudgetReturned
from tests.stories.processes import PATIENCE_S, ROTA

FLEET = f"""
store = "rota.db"
slots = 2
[limits.model]
requests = {{budget = 10, period_s = 60}}
[projects.lab]
[projects.press]
[agents.planner]
project = "lab"
command = ["{sys.executable}", "{{folder}}/planner.py", "{{folder}}/seen.json"]
ceiling = {{tokens = 1_000}}
budget = {{tokens = 5_000}}
restart = {{attempts = 1}}
[agents.researcher]
project = "lab"
command = ["sh", "-c", "{" ".join(ROTA)} charge tokens=150"]
restart = {{attempts = 1}}
[agents.stranger]
project = "press"
command = ["true"]
"""
PLANNER = """
import asyncio, json, os, sys
from mcp import Client, StdioServerParameters

async def main():
    server = StdioServerParameters(command=sys.executable, args=["-m", "rota", "mcp"], env=dict(os.environ))
    async with Client(server) as client:
        async def use(name, **arguments):
            result = await client.call_tool(name, arguments)
            return result.structured_content

        seen = {"tools": sorted(tool.name for tool in (await client.list_tools()).tools)}
        seen["estimate"] = await use("estimate", agent="researcher")
        seen["child"] = await use("enqueue_child", agent="researcher", payload={"topic": 1}, lent={"tokens": 400})
        child = seen["child"]["sched_id"]
        seen["left"] = await use("remaining_budget")
        seen["too_much"] = await use("enqueue_child", agent="researcher", lent={"tokens": 5000})
        seen["stranger"] = await use("show_work", sched_id=1)
        seen["strange_agent"] = await use("enqueue_child", agent="stranger")
        seen["work"] = await use("list_work")
        seen["why"] = await use("why", sched_id=child)
        await use("report_progress", fraction=0.5, text="waiting for research")
        await use("save_checkpoint", state={"child": child})
        granted = await use("acquire", limit="model", amounts={"requests": 1})
        seen["settled"] = await use("settle", key=granted["key"])
        seen["event"] = await use("emit_event", kind="plan.ready", payload={"child": child})
        seen["waited"] = await use("wait_for_work", sched_ids=[child], wait_s=50)
        seen["left_at_the_end"] = await use("remaining_budget")
        with open(sys.argv[1], "w") as file:
            json.dump(seen, file)

asyncio.run(main())
"""


def rota(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return done.output


def arrows(store: str, file: Path) -> list[dict[str, Any]]:
    """The arrows of a trace, from a run to what it enqueued."""
    rota("trace", "export", "--format", "chrome", "-o", str(file), "--store", store)
    return [row for row in msgspec.json.decode(file.read_bytes())["traceEvents"] if row["ph"] == "s"]


def test_an_agent_as_a_client(tmp_path: Path) -> None:
    store = str(tmp_path / "rota.db")
    (tmp_path / "fleet.toml").write_text(FLEET.replace("{folder}", str(tmp_path)))
    (tmp_path / "planner.py").write_text(PLANNER)
    with open_api(store, create=True) as api:
        apply_fleet(api, load_fleet(tmp_path / "fleet.toml"))
        (stranger,), (planner,) = api.agents.find("stranger"), api.agents.find("planner")
        secret = api.queue.enqueue(spec_for(stranger, settings_of(stranger), {"planted": "secret"}, delay_s=86_400))
        parent = api.queue.enqueue(spec_for(planner, settings_of(planner), {}))
    own = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}
    argv = [*ROTA, "run", "fleet.toml", "--plain", "--until-idle", "--horizon", "1s"]
    done = subprocess.run(argv, cwd=tmp_path, env=own, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (tmp_path / "seen.json").exists(), done.stdout + done.stderr + rota("logs", str(parent), "--store", store)
    seen: dict[str, Any] = msgspec.json.decode((tmp_path / "seen.json").read_bytes())
    child = seen["child"]["sched_id"]

    assert secret == 1
    assert "change" not in seen["tools"], "what needs an operator is not offered"
    assert seen["estimate"]["start"]["agent"] == "researcher"
    assert seen["left"]["left"]["tokens"] == 600
    assert seen["why"]["sched_id"] == child

    # it cannot see or spend outside its rights
    assert seen["too_much"]["error"]["name"] == "kernel_ledger_invalid_amount"
    assert seen["stranger"]["error"]["name"] == "kernel_sched_unknown_id"
    assert seen["strange_agent"]["error"]["name"] == "kernel_unknown_agent"
    assert "secret" not in (tmp_path / "seen.json").read_text()
    assert {entry["sched_id"] for entry in seen["work"]["entries"]} == {parent, child}

    # the child has used 150 of what it was lent, and the rest has come back
    (ended,) = seen["waited"]["entries"]
    assert (ended["has_ended"], ended["entry"]["status"]) == (True, "succeeded")
    assert seen["waited"]["returned"] == {"tokens": 250}
    assert seen["left_at_the_end"]["left"]["tokens"] == 850
    assert seen["settled"]["charged"] == {"requests": 1}

    # parent and child are linked, and everything has its author
    shown = msgspec.json.decode(rota("show", str(child), "--json", "--store", store))
    assert (shown["parent"]["sched_id"], shown["lent"]) == (parent, {"tokens": 400})
    shown = msgspec.json.decode(rota("show", str(parent), "--json", "--store", store))
    assert [each["sched_id"] for each in shown["children"]] == [child]
    assert "enqueue researcher" in {arrow["name"] for arrow in arrows(store, tmp_path / "trace.json")}
    with open_api(store) as api:
        entry = api.queue.get(parent)
        assert entry.status == "succeeded", done.stdout + done.stderr
        loans = api.journal.tail(kinds=(BudgetLent.kind, BudgetReturned.kind))
        assert [(event.kind, event.payload["amounts"]) for event in loans] == [
            (BudgetLent.kind, {"tokens": 400}),
            (BudgetReturned.kind, {"tokens": 250}),
        ]
        (event,) = api.journal.tail(seen["event"]["event_id"] - 1, 1)
        assert (event.kind, event.pid, event.author) == ("plan.ready", planner.pid, f"run:{parent}")
