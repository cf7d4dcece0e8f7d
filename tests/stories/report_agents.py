"""The agents of a report, as functions, and the process of the supervisor that runs them (story S4).

    topic → plan → three researchers → merge → loop ⇄ (critic → revise) → write → report
    topic → list → search, for each item → join → report

Every call is noted in a file that outlives the process. An agent charges what it costs before it returns.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rota import store
from rota.errors import RotaError
from rota.fleet.supervisor import Supervisor, SupervisorSettings
from rota.kernel import Kernel
from rota.rpc import connect
from rota.service.dispatcher import Dispatcher

CLAIM_TIMEOUT_S = 0.5  # entries of a supervisor that was killed are taken back after this
COSTS = {
    "planner": 5,
    "researcher": 10,
    "merger": 2,
    "critic": 3,
    "reviser": 4,
    "writer": 7,
    "lister": 2,
    "searcher": 3,
    "joiner": 1,
    "other": 1,
}
NOTES = "ROTA_TEST_NOTES"  # the variable that names the file


def _note(ctx: Any, agent: str) -> None:
    with Path(os.environ[NOTES]).open("ab", buffering=0) as notes:
        notes.write(f"{agent} {ctx.sched_id} {ctx.attempt}\n".encode())
    ctx.charge(tokens=COSTS[agent])


def planner(ctx: Any, topic: str) -> list[str]:
    """Three questions about a topic."""
    _note(ctx, "planner")
    return [f"{topic}?{number}" for number in range(3)]


def researcher(ctx: Any, questions: list[str], number: int) -> str:
    """The answer to one of them."""
    _note(ctx, "researcher")
    return f"{questions[number]}!"


def merger(ctx: Any, a: str, b: str, c: str) -> dict[str, Any]:
    """A first draft."""
    _note(ctx, "merger")
    return {"text": f"{a} {b} {c}", "round": 0}


def critic(ctx: Any, draft: dict[str, Any]) -> dict[str, Any]:
    """The draft, with an objection or accepted."""
    _note(ctx, "critic")
    return {**draft, "accepted": draft["round"] >= 2}


def reviser(ctx: Any, draft: dict[str, Any]) -> dict[str, Any]:
    """The draft without the objection."""
    _note(ctx, "reviser")
    return draft if draft["accepted"] else {**draft, "text": f"[{draft['text']}]", "round": draft["round"] + 1}


def writer(ctx: Any, draft: dict[str, Any]) -> str:
    """The report."""
    _note(ctx, "writer")
    return f"# {draft['text']}"


ITEMS = 12  # that the map of `mapped_document` has
FAILING = 5  # the item whose first entry fails


def lister(ctx: Any, topic: str) -> list[str]:
    """Many questions about a topic."""
    _note(ctx, "lister")
    return [f"{topic}?{number}" for number in range(ITEMS)]


def searcher(ctx: Any, question: str) -> str:
    """The answer to one of them. The first entry of one question fails, however often it is attempted."""
    _note(ctx, "searcher")
    if question.endswith(f"?{FAILING}"):
        failed = Path(f"{os.environ[NOTES]}.failed")
        if not failed.exists():
            part = failed.with_suffix(".part")  # a kill leaves it whole, or not there
            part.write_text(str(ctx.sched_id))
            part.replace(failed)
        if failed.read_text() == str(ctx.sched_id):
            raise LookupError(question)
    return f"{question}!"


def joiner(ctx: Any, answers: list[str]) -> str:
    """All answers, in the order of the questions."""
    _note(ctx, "joiner")
    return " ".join(answers)


def other(ctx: Any) -> None:
    """Work of another project."""
    _note(ctx, "other")


def accepted(draft: dict[str, Any]) -> bool:
    """Whether the critic accepted a draft."""
    return bool(draft["accepted"])


RESULT = {"report": "# [[topic?0! topic?1! topic?2!]]"}


MAPPED_RESULT = {"report": " ".join(f"topic?{number}!" for number in range(ITEMS))}


def _node(name: str, agent: str, **config: Any) -> dict[str, Any]:
    return {"id": name, "execution": {"agent": agent}, "config": config}


def _document(components: list[dict[str, Any]], wires: list[str]) -> dict[str, Any]:
    return {
        "schema_version": 2,
        "graph": {"name": "report"},
        "lanes": {"main": {"type": "event_loop"}},
        "components": [
            {"id": "topic", "type": "rota.input", "execution": {"lane": "main"}},
            *components,
            {"id": "report", "type": "rota.output", "execution": {"lane": "main"}},
        ],
        "edges": [
            {"id": f"e{number}", "kind": "async", "from": wire.split(" > ")[0], "to": wire.split(" > ")[1]}
            for number, wire in enumerate(wires)
        ],
    }


def mapped_document() -> dict[str, Any]:
    """A graph that maps an agent over a list."""
    search = {"agent": "searcher", "map_over": "question", "on_error": "retry", "max_attempts": 2}
    components = [_node("list", "lister"), {"id": "search", "execution": search}, _node("join", "joiner")]
    wires = ["topic.out > list.topic", "list.out > search.question", "search.out > join.answers"]
    return _document(components, [*wires, "join.out > report.value"])


def document() -> dict[str, Any]:
    """The graph of the story."""
    wires = [
        "topic.out > plan.topic",
        *(f"plan.out > r{number}.questions" for number in range(3)),
        *(f"r{number}.out > merge.{port}" for number, port in enumerate("abc")),
        "merge.out > loop.initial",
        "loop.body > critic.draft",
        "critic.out > revise.draft",
        "revise.out > loop.result",
        "loop.out > write.draft",
        "write.out > report.value",
    ]
    components = [
        _node("plan", "planner"),
        *(_node(f"r{number}", "researcher", number=number) for number in range(3)),
        _node("merge", "merger"),
        {
            "id": "loop",
            "type": "rota.loop",
            "config": {"until": "tests.stories.report_agents:accepted", "max_iterations": 5},
            "trigger_policy": {"type": "any_input", "inputs": ["initial", "result"]},
            "execution": {"lane": "main"},
        },
        _node("critic", "critic"),
        _node("revise", "reviser"),
        _node("write", "writer"),
    ]
    return _document(components, wires)


def supervise(address: str, notes: str, *, slots: int = 2) -> None:
    """The process of a supervisor: it runs until it is killed, embedded in a file or at a daemon."""
    os.environ[NOTES] = notes
    if address.startswith("unix:"):
        api: Any = connect(address)
    else:
        api = Dispatcher(Kernel(store.open(address, durability="normal")))
    settings = SupervisorSettings(slots=slots, claim_timeout_s=CLAIM_TIMEOUT_S, heartbeat_s=CLAIM_TIMEOUT_S / 4)
    try:
        Supervisor(api, settings).run()
    except RotaError:  # its store went away: the next life goes on
        return
