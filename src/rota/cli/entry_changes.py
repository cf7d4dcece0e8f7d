"""Commands that change entries: cancel, retry, release and change, by id or all that match a filter.

By id, each entry is one call, and what is refused is said for each. By filter, one call of `queue.bulk` does it, in
batches; on a terminal, a change of more than `CONFIRM_ABOVE` entries asks first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rota.cli.options import STORE, AsJson, By, Store, complete_agent, complete_entry, complete_project
from rota.cli.terminal_text import say

if TYPE_CHECKING:
    from rota.cli.embedded_api import EmbeddedApi
    from rota.errors import RotaError
    from rota.kernel import BulkResult
    from rota.rpc import Client

__all__ = ["cancel", "change", "release", "retry"]

CONFIRM_ABOVE = 20  # entries; a change of more asks first, on a terminal
SEARCH_MAX = 1_000  # entries that one --search may select

Ids = Annotated[list[int] | None, typer.Argument(help="The entry ids.", autocompletion=complete_entry)]
State = Literal["queued", "dispatched", "completed", "expired", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which entries are meant: ids, or filters, of which at least one is given."""

    ids: Ids = None
    agent: Annotated[
        str | None, typer.Option("--agent", help="All of this agent, by pid or name.", autocompletion=complete_agent)
    ] = None
    project: Annotated[
        str | None, typer.Option("--project", help="All of this project.", autocompletion=complete_project)
    ] = None
    tag: Annotated[str | None, typer.Option("--tag", help="All with this label.")] = None
    status: Annotated[list[str] | None, typer.Option("--status", help="All of this status; repeatable.")] = None
    state: Annotated[State | None, typer.Option("--state", help="All in this state.")] = None
    exit_kind: Annotated[str | None, typer.Option("--exit-kind", help="All that ended this way.")] = None
    search: Annotated[
        str | None, typer.Option("--search", help="All whose payload, result or errors hold this text.")
    ] = None
    older_than: Annotated[str | None, typer.Option("--older-than", help="All enqueued longer ago: 90s, 2h, 1d.")] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be affected.")] = False
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before a change of many.")] = False
    store: Store = STORE
    as_json: AsJson = False

    @property
    def filters(self) -> dict[str, Any]:
        """The filters that were given, by name."""
        names = ("agent", "project", "tag", "status", "state", "exit_kind", "search", "older_than")
        return {name: value for name in names if (value := getattr(self, name))}


def _selects(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the arguments and options of `Selection`, which it takes as one."""
    own = [each for name, each in inspect.signature(command, eval_str=True).parameters.items() if name != "selected"]
    hints = inspect.get_annotations(Selection, eval_str=True)
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hints[name], default=default)
        for name, default in ((field.name, field.default) for field in fields(Selection))
    ]

    def run(**given: Any) -> None:
        command(Selection(**{name: given.pop(name) for name in hints}), **given)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    parameters = [shared[0], *own, *shared[1:]]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


# --- the commands --------------------------------------------------------------------------------


@_selects
def cancel(
    selected: Selection,
    *,
    stop: Annotated[bool, typer.Option("--stop", help="Also ask running entries to stop.")] = False,
    wait: Annotated[str | None, typer.Option("--wait", help="Wait up to this long for their end: 60s.")] = None,
    by: By = "operator",
) -> None:
    """Cancel queued entries, by id or by filter.

    With --stop, running entries are asked to stop; one that does not is stopped by its supervisor.
    """
    from rota.cli.arguments import seconds
    from rota.cli.connection import open_api
    from rota.cli.outages import wait_for_end

    wait_s = None if wait is None else seconds(wait, "wait")
    if wait is not None and not selected.ids:
        raise _invalid("--wait needs entry ids", "wait", "For example: rota cancel 7 --stop --wait 60s.")
    with open_api(selected.store) as api:

        def one(sched_id: int) -> str:
            state = str(api.queue.request_cancel(sched_id, by=by) if stop else api.queue.cancel(sched_id)[1])
            return state if wait_s is None else str(wait_for_end(api, sched_id, wait_s).status)

        def sentence(sched_id: int, state: str) -> str:
            asked = state == "dispatched"
            return f"entry {sched_id} was asked to stop" if asked else f"entry {sched_id} is {state}"

        _run(api, selected, "cancel", one, sentence, stop=stop, by=by)


@_selects
def retry(selected: Selection) -> None:
    """Retry entries now, or enqueue a copy of those that ended without success."""
    from rota.cli.connection import open_api

    def sentence(sched_id: int, new: int) -> str:
        return f"entry {sched_id} is ready" if new == sched_id else f"entry {sched_id} is retried as entry {new}"

    with open_api(selected.store) as api:
        _run(api, selected, "retry", api.queue.retry, sentence)


@_selects
def release(selected: Selection) -> None:
    """Release entries from the hold that keeps them waiting.

    An entry that waits for a failed predecessor, or is reserved for a worker, becomes ready.
    """
    from rota.cli.connection import open_api

    def sentence(sched_id: int, hold: str | None) -> str:
        return (
            f"entry {sched_id} is ready" if hold is None else f"entry {sched_id} is released; its hold is now: {hold}"
        )

    with open_api(selected.store) as api:
        _run(api, selected, "release", lambda sched_id: api.queue.release(sched_id).hold, sentence)


@_selects
def change(
    selected: Selection,
    *,
    priority: Annotated[int | None, typer.Option("--priority", help="Higher runs sooner.")] = None,
    at: Annotated[
        str | None, typer.Option("--at", help="Start no earlier than this: now, +10m or 2030-01-31T12:00.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", help="Drop it if it has not started by then: +1h, 2030-01-31T12:00.")
    ] = None,
    no_deadline: Annotated[bool, typer.Option("--no-deadline", help="Remove the deadline.")] = False,
    tags: Annotated[str | None, typer.Option("--tags", help="Replace the labels: a,b; '' removes them.")] = None,
) -> None:
    """Change the priority, time, deadline or labels of queued entries, by id or by filter."""
    from rota.cli.arguments import instant
    from rota.cli.connection import open_api
    from rota.cli.output import now

    changes: dict[str, Any] = {}
    moment = now()
    if deadline is not None and no_deadline:
        raise _invalid("--deadline and --no-deadline exclude each other", "deadline", "Give one of them.")
    if priority is not None:
        changes["priority"] = priority
    if at is not None:
        changes["runnable_at"] = instant(at, "at", moment)
    if deadline is not None or no_deadline:
        changes["deadline"] = None if deadline is None else instant(deadline, "deadline", moment)
    if tags is not None:
        changes["tags"] = tuple(tag for each in tags.split(",") if (tag := each.strip()))
    if not changes:
        hint = "Give --priority, --at, --deadline, --no-deadline or --tags."
        raise _invalid("nothing to change was given", "priority", hint)
    with open_api(selected.store) as api:
        _run(
            api,
            selected,
            "change",
            lambda sched_id: api.queue.change(sched_id, **changes).status,
            lambda sched_id, status: f"entry {sched_id} is changed: {_told(changes, moment)}; it is {status}",
            **changes,
        )


# --- running them --------------------------------------------------------------------------------


def _run(
    api: EmbeddedApi | Client,
    selected: Selection,
    verb: Any,
    one: Callable[[int], Any],
    sentence: Callable[[int, Any], str],
    **options: Any,
) -> None:
    """Run a verb for each id that was given, or for all that match the filters."""
    if bool(selected.ids) == bool(selected.filters):
        hint = f"For example: rota {verb} 7, or rota {verb} --tag nightly --dry-run."
        raise _invalid("either entry ids or a filter is required, not both", "ids", hint)
    if selected.ids and not selected.dry_run:
        _run_each(selected.ids, verb, one, sentence, as_json=selected.as_json)
        return
    arguments = {**_filter(api, selected), "verb": verb, **options}
    if selected.dry_run:
        _print_bulk(api.queue.bulk(**arguments, dry_run=True), as_json=selected.as_json)
        return
    _confirm(api, arguments, asks=not selected.yes)
    _print_bulk(api.queue.bulk(**arguments), as_json=selected.as_json)


def _filter(api: EmbeddedApi | Client, selected: Selection) -> dict[str, Any]:
    """Return the arguments of `queue.bulk` that say which entries are meant."""
    from rota.cli.arguments import pid_of, seconds, statuses
    from rota.cli.output import now
    from rota.kernel import EntryFilter

    given: dict[str, Any] = {
        "pid": None if selected.agent is None else pid_of(api, selected.agent),
        "project_id": selected.project,
        "tag": selected.tag,
        "status": statuses(selected.status),
        "state": selected.state,
        "exit_kind": selected.exit_kind,
    }
    found: dict[str, Any] = {"wanted": EntryFilter(**given)}
    if selected.ids:
        found["sched_ids"] = selected.ids
    if selected.older_than is not None:
        found["created_before"] = now() - seconds(selected.older_than, "older_than")
    if selected.search is not None:
        result = api.queue.search(selected.search, limit=SEARCH_MAX, **given)
        found["sched_ids"] = [entry.sched_id for entry in result.entries]
        if len(result.entries) == SEARCH_MAX or not result.is_complete:
            say(f"note: the search looked at the newest entries only and found {len(result.entries):,}", err=True)
    return found


def _confirm(api: EmbeddedApi | Client, arguments: dict[str, Any], *, asks: bool) -> None:
    """On a terminal, ask before a change of many entries."""
    import sys

    if not asks or not sys.stdin.isatty():
        return
    expected = api.queue.bulk(**arguments, dry_run=True)
    if expected.count <= CONFIRM_ABOVE:
        return
    say(_told_bulk(expected), err=True)
    if not typer.confirm("Continue?", err=True):
        say("nothing was changed", err=True)
        raise typer.Exit(1)


def _run_each(
    ids: Iterable[int], verb: str, one: Callable[[int], Any], sentence: Callable[[int, Any], str], *, as_json: bool
) -> None:
    """Run a verb for each id; with several, an entry that is refused does not keep the others from it."""
    from rota.cli.exit_codes import code_of
    from rota.cli.output import print_json
    from rota.errors import IllegalTransition, InvalidInput, NotFound, WaitTimeout

    wanted, done, refused = list(dict.fromkeys(ids)), {}, {}
    for sched_id in wanted:
        try:
            done[sched_id] = one(sched_id)
        except (IllegalTransition, InvalidInput, NotFound, WaitTimeout) as error:
            if len(wanted) == 1:
                raise
            refused[sched_id] = error
        else:
            if not as_json:
                say(sentence(sched_id, done[sched_id]))
    if as_json:
        print_json({_KEYS[verb]: done, "refused": {each: _error(problem) for each, problem in refused.items()}})
    else:
        for problem in refused.values():
            say(f"rota: {problem}", err=True)
    if refused:
        raise typer.Exit(code_of(next(iter(refused.values()))))


def _error(error: RotaError) -> dict[str, Any]:
    return {"code": error.code, "name": error.name, "message": error.message, "hint": error.hint}


# --- what is printed -----------------------------------------------------------------------------

_KEYS = {"cancel": "states", "retry": "retried", "release": "released", "change": "changed"}  # in JSON
_DONE = {"cancel": "cancelled", "retry": "retried", "release": "released", "change": "changed"}


def _print_bulk(result: BulkResult, *, as_json: bool) -> None:
    from rota.cli.output import print_json

    if as_json:
        print_json(result)
        return
    say(_told_bulk(result))
    refused = sum(result.refused.values())
    for reason, count in result.refused.items():
        say(f"refused {count:,}: {reason}")
    if refused:
        say(f"the first that were refused: {_ids(result.first_refused, refused)}")
    if result.verb == "cancel" and "it is running" in result.refused:
        say("--stop asks running entries to stop", err=True)


def _told_bulk(result: BulkResult) -> str:
    """Return what a bulk change did, or would do, in one sentence."""
    count = f"{result.count:,} {'entry' if result.count == 1 else 'entries'}"
    text = f"{'would be ' if result.dry_run else ''}{_DONE[result.verb]}"
    if not result.count:
        return f"{count} {text}"
    statuses = ", ".join(f"{number:,} {status}" for status, number in result.statuses.items())
    return f"{count} {text} ({statuses}): {_ids(result.first, result.count)}"


def _ids(first: list[int], count: int) -> str:
    more = f" and {count - len(first):,} more" if count > len(first) else ""
    return f"{', '.join(map(str, first))}{more}"


def _told(changes: dict[str, Any], moment: float) -> str:
    """Return changes for people."""
    from rota.cli.output import when

    parts = []
    for field, value in changes.items():
        if field == "tags":
            parts.append(f"tags {', '.join(value)}" if value else "no tags")
        elif field == "deadline":
            parts.append("no deadline" if value is None else f"deadline {when(value, moment)}")
        elif field == "priority":
            parts.append(f"priority {value}")
        else:
            parts.append("start now" if value <= moment else f"start {when(value, moment)}")
    return ", ".join(parts)


def _invalid(text: str, field: str, hint: str) -> RotaError:
    from rota.errors import InvalidInput

    return InvalidInput(text, field=field, hint=hint)
