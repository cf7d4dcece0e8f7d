"""Two projects with everything that a project can have. Every text of the second begins with SECRET.

`calls` makes calls of a method from what a caller knows: each parameter, also each optional one, gets each value that
fits it.
"""

from __future__ import annotations

import base64
import contextlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import apsw
import msgspec

from rota.kernel import Completion, ScheduleSpec
from rota.rpc import Client
from rota.rpc.methods import METHODS, Method
from tests.daemon.test_access import example

OWN, OTHER = "OWN", "SECRET"
NEVER_USED = 1_000_000_007
_SECRET = re.compile(rf"{OTHER}-[a-z_]+")
_OUTPUT = re.compile(r'"data":"([A-Za-z0-9+/=]+)"')


# what the daemon makes of the journal by itself, at times that no call decides
DERIVED = ("usage_daily", "usage_entries", "finished_entries")


@dataclass
class Knowledge:
    """The names and ids of one project."""

    mark: str
    sched_ids: list[int] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)
    context_ids: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def text(self, what: str) -> str:
        return f"{self.mark}-{what}"

    @property
    def project_id(self) -> str:
        return self.text("project")


def furnish(client: Client, mark: str) -> Knowledge:
    """Create a project with everything in it, in all states."""
    known = Knowledge(mark)
    text, project_id = known.text, known.project_id
    client.projects.create(project_id, name=text("title"), metadata={"note": text("project_metadata")})
    client.projects.add_workspace(text("workspace"), project_id, f"/{text('path')}")
    settings = {"runner": "command", "argv": [text("program")], "env": {"KEY": text("variable")}}
    metadata = {"rota": settings, "note": text("agent_metadata")}
    pid = client.agents.create(text("agent"), text("template"), project_id=project_id, metadata=metadata)
    idle = client.agents.create(text("idle"), project_id=project_id)
    known.pids += [pid, idle]
    client.agents.pause(idle, text("pauser"), text("pause_reason"))
    client.ledger.create(pid, {"tokens": 1_000})
    client.ledger.create(idle, {text("dim"): 10})
    client.ledger.charge(idle, text("dim"), 11)
    client.ledger.set_budget("project", project_id, text("budget"), 5)
    budget: dict[str, Any] = {"budget": 10, "period_s": 60.0}
    made = [
        client.contexts.create(bound_to="project", bound_id=project_id, **budget),
        client.contexts.create(bound_to="agent", bound_id=pid, **budget),
        client.contexts.create(bound_to="name", bound_id=text("limit"), **budget),
        client.contexts.create(bound_to="name", bound_id=text("own_limit"), project_id=project_id, **budget),
    ]
    known.context_ids += [context.context_id for context in made]
    client.journal.append(pid, text("event"), {"said": text("event_payload")}, correlation_id=text("correlation"))
    client.journal.append(None, text("loose_event"), {"said": text("loose_payload")})
    client.journal.remember(text("note"), {"said": text("note_body")}, project_id=project_id)
    client.journal.remember(text("operator_note"), {"said": text("operator_note_body")})

    def spec(**more: Any) -> ScheduleSpec:
        payload = {"said": text("payload"), **more.pop("payload", {})}
        return ScheduleSpec(pid, payload=payload, trigger=text("trigger"), tags=(text("tag"),), **more)

    known.sched_ids += [
        client.enqueue(spec(key=text("key"), correlation_id=text("entry_correlation"))),
        client.enqueue(spec(priority=5)),
        client.enqueue(spec(affinity=text("worker"), priority=-5)),
        client.enqueue(spec(kind=text("kind"))),
        client.enqueue(spec(draws_on=(text("limit"),), priority=-4)),
    ]
    waiting = client.enqueue(spec(after=(known.sched_ids[0],)))
    failed, cancelled = client.enqueue(spec(priority=9)), client.enqueue(spec(priority=9))
    client.queue.force_claim(failed, worker_id=text("forced_worker"), by=text("forcer"))
    client.queue.complete(failed, "failed", result={"error": text("error")}, outcome=text("outcome"))
    client.queue.request_cancel(cancelled, by=text("canceller"))
    known.sched_ids += [waiting, failed, cancelled]
    known.sched_ids.append(_graph_run(client, known))
    return known


def _graph_run(client: Client, known: Knowledge) -> int:
    """Start and end a run of a graph whose one node is the project's agent; returns its coordinator."""
    agent, said = known.text("agent"), {"said": known.text("config")}
    nodes: list[Any] = [{"id": known.text("node"), "execution": {"agent": agent}, "config": said}]
    nodes.append({"id": "topic", "type": "rota.input", "execution": {"lane": "main"}})
    document = {"schema_version": 2, "graph": {"name": known.text("graph")}, "components": nodes, "edges": []}
    document |= {"lanes": {"main": {"type": "event_loop"}}}
    run = client.graphs.start(document, {"topic": known.text("inputs")}, known.text("run"), known.project_id)
    client.graphs.cancel(run.run_id, by=known.text("graph_canceller"))
    known.pids.append(run.pid)
    assert run.sched_id is not None
    return run.sched_id


def mix(client: Client, own: Knowledge, other: Knowledge) -> None:
    """Do to both projects what one call can do to both, so that events name entries of both."""
    specs = [
        ScheduleSpec(known.pids[0], payload={"said": known.text("batch_payload")}, priority=100 - index)
        for index, known in enumerate((own, other, own, own, other))
    ]
    ids = client.queue.enqueue_many(specs)
    claimed = client.claim("shared-worker", 5)
    assert sorted(entry.sched_id for entry in claimed) == sorted(ids)
    tokens = {entry.sched_id: entry.token for entry in claimed}
    client.supervision.checkpoint(ids[1], _token(tokens, ids[1]), {"said": other.text("checkpoint")})
    client.supervision.checkpoint(ids[0], _token(tokens, ids[0]), {"said": own.text("checkpoint")})
    client.logs.append(ids[1], 1, _token(tokens, ids[1]), 0, other.text("output").encode())
    client.logs.append(ids[0], 1, _token(tokens, ids[0]), 0, own.text("output").encode())
    client.queue.complete_many(
        [
            Completion(ids[2], token=tokens[ids[2]]),
            Completion(ids[4], token=tokens[ids[4]], result={"said": other.text("result")}),
        ]
    )
    own.sched_ids += [ids[0], ids[2], ids[3]]
    other.sched_ids += [ids[1], ids[4]]
    own.tokens.append(_token(tokens, ids[0]))
    other.tokens.append(_token(tokens, ids[1]))


def _token(tokens: dict[int, int | None], sched_id: int) -> int:
    token = tokens[sched_id]
    assert token is not None
    return token


# --- what was found ------------------------------------------------------------------------------


def leaks(answer: str, sent: Any = None) -> set[str]:
    """The secrets in an answer, without those that the caller sent itself. The output of runs is in base64."""
    answer += "".join(base64.b64decode(found).decode() for found in _OUTPUT.findall(answer))
    return set(_SECRET.findall(answer)) - set(_SECRET.findall(msgspec.json.encode(sent).decode()))


def rows_of(path: str, known: Knowledge, own: Knowledge) -> dict[str, list[str]]:
    """Everything that the tables hold about a project, except the journal and what only uses its names."""
    about: dict[str, set[Any]] = {"project_id": {known.project_id}, "pid": set(known.pids)}
    about["sched_id"] = set(known.sched_ids)
    found: dict[str, list[str]] = {}
    # with rota's own SQLite: a second one in this process would give the first one's locks back when it closes the file
    with contextlib.closing(apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)) as file:
        tables = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            if table in ("agent_events", *DERIVED) or table.startswith("sqlite_"):
                continue
            cursor = file.execute(f"SELECT * FROM {table}")
            for row in cursor:
                names = [column[0] for column in cursor.get_description()]
                named = any(value in about.get(name, ()) for name, value in zip(names, row, strict=True))
                if named or (known.mark in repr(row) and own.mark not in repr(row)):
                    found.setdefault(table, []).append(repr(row))
    file.close()
    return found


# --- calls ---------------------------------------------------------------------------------------


def calls(method: Method, known: Knowledge, own: Knowledge, chance: random.Random | None = None) -> Iterator[Any]:
    """Yield parameters: the required ones with all that is known, then each optional one as well.

    With `chance`, instead one call in which each parameter has any value that is known about either project.
    """
    kind = method.params
    fields = msgspec.structs.fields(kind)
    if chance is not None:
        both = {each.name: _values(each.name, known, own) + _values(each.name, own, own) for each in fields}
        picked = {name: chance.choice(values) for name, values in both.items() if values and chance.random() < 0.7}
        if (made := _made(kind, picked)) is not None:
            yield made
        return
    first: dict[str, Any] = {}
    for each in fields:
        values = _values(each.name, known, own)
        if each.required and values:
            first[each.name] = values[0]
    base = first if _made(kind, first) is not None else {}
    yield _made(kind, base)
    for each in fields:
        for value in _values(each.name, known, own):
            if (made := _made(kind, {**base, each.name: value})) is not None:
                yield made


def _made(kind: Any, given: dict[str, Any]) -> Any:
    """Parameters with these values and examples for the rest, as builtins; None if a value does not fit."""
    try:
        whole = {**msgspec.to_builtins(example(kind)), **given}
        return msgspec.to_builtins(msgspec.convert(whole, kind))
    except (msgspec.ValidationError, ValueError):
        return None


def _values(name: str, known: Knowledge, own: Knowledge) -> list[Any]:
    """All values that a caller could try for a parameter."""
    text, ids = known.text, known.sched_ids
    specs: list[dict[str, Any]] = [
        {"pid": known.pids[0]},
        {"pid": own.pids[0], "key": text("key")},
        {"pid": own.pids[0], "parent_id": ids[0]},
        {"pid": own.pids[0], "after": [ids[0]]},
        {"pid": own.pids[0], "causation_id": f"entry:{ids[0]}"},
        {"pid": own.pids[0], "workspace": text("workspace"), "workspace_mode": "shared"},
        {"pid": own.pids[0], "draws_on": [text("own_limit")], "kind": text("kind"), "affinity": text("worker")},
    ]
    names = ("agent", "idle", "note", "operator_note", "limit", "own_limit", "title", "tag", "trigger")
    reports = [{"sched_id": each, "token": token} for each in ids[-2:] for token in (*known.tokens, 1)]
    found: dict[str, list[Any]] = {
        "sched_id": ids,
        "pid": known.pids,
        "parent_pid": known.pids,
        "project_id": [known.project_id],
        "from_project": [known.project_id],
        "to_project": [own.project_id],
        "owner": [known.project_id],
        "run_id": [text("run")],
        "graph": [text("graph")],
        "sched_ids": [ids],
        "workspace_id": [text("workspace")],
        "context_id": known.context_ids,
        "handle": [[each, generation] for each in known.context_ids for generation in (0, 1)],
        "token": known.tokens,
        "name": [text(each) for each in names],
        "by": [text("pauser"), "status"],
        "text": [text("payload"), text("error"), "said", "e"],
        "pids": [known.pids, [*known.pids, *own.pids]],
        "prefix": [True],
        "dim": [text("dim"), "tokens"],
        "state": ["queued", "dispatched", "completed", "READY"],
        "status": ["ACTIVE", "failed", ["ready", "waiting", "running"], ["succeeded"]],
        "trigger": [text("trigger")],
        "tag": [text("tag")],
        "exit_kind": ["failed", "completed"],
        "worker_id": [text("worker"), "shared-worker"],
        "kinds": [[text("kind")], [text("event")], ["kernel.sched.claimed", "kernel.pause.set"]],
        "kind": [text("event"), "kernel.run.started"],
        "policy": ["strict", "eevdf"],
        "limit": [10_000, 1],
        "offset": [0, 1],
        "since": [0],
        "wait_s": [0.0],
        "max_n": [100],
        "amount": [1],
        "spec": specs,
        "specs": [[spec] for spec in specs],
        "dedupe_by": [["key"], ["pid", "trigger"]],
        "wanted": [{"project_id": known.project_id}, {"tag": text("tag")}],
        "completions": [[each] for each in reports],
        "reports": [[each] for each in reports],
        "claims": [[[each["sched_id"], each["token"]]] for each in reports],
        "protocol": [1],
    }
    if name in specs[0] | specs[1] | specs[2] | specs[3] | specs[4] | specs[5] | specs[6] and name not in found:
        return [spec[name] for spec in specs if name in spec]
    return found.get(name, [])


ALL_METHODS = list(METHODS.values())
