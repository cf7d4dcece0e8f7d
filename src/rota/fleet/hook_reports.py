"""What can be told about the hooks of a store: what each listens to, and how its deliveries went."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from rota.errors import NotFound, WaitTimeout
from rota.fleet.config.apply import all_rows
from rota.fleet.config.hook_tables import HOOK_KEY
from rota.fleet.hook_rules import HOOK_PREFIX, TEST_KIND, is_hook
from rota.fleet.runners.hook import URL, shown_address, url_problem
from rota.model.agent_metadata import SETTINGS_KEY
from rota.model.events import TriggerFired
from rota.model.lifecycle import AgentState
from rota.model.work import Agent, ReadyEntry
from rota.service.api import SchedulerApi

__all__ = ["DELIVERIES_SHOWN", "HookReport", "deliver_test", "list_hooks"]

DELIVERIES_SHOWN = 100  # the newest deliveries of a hook that its report is about


class HookReport(msgspec.Struct, frozen=True, kw_only=True):
    """One hook. The numbers are about its newest `DELIVERIES_SHOWN` deliveries."""

    name: str
    on: tuple[str, ...]
    to: str  # the scheme and host of its address, or its program
    project: str | None = None
    agent: str | None = None
    paused_by: str | None = None
    waiting: int = 0
    delivered: int = 0
    failed: int = 0  # given up
    dropped: int = 0  # because too many waited
    delivered_at: float | None = None  # the last one
    failed_at: float | None = None
    error: str | None = None  # of the last one that failed, or is retried


def list_hooks(api: SchedulerApi) -> list[HookReport]:
    """Return a report on each hook, by name."""
    hooks = [agent for agent in all_rows(api.agents.list) if agent.state != AgentState.DEAD and is_hook(agent)]
    return sorted((_report(api, agent) for agent in hooks), key=lambda report: report.name)


def _report(api: SchedulerApi, agent: Agent) -> HookReport:
    _, total = api.queue.list(pid=agent.pid, limit=1)
    newest = api.queue.list(pid=agent.pid, limit=DELIVERIES_SHOWN, offset=max(0, total - DELIVERIES_SHOWN))[0]
    delivered = [entry for entry in newest if entry.exit_kind == "completed"]
    failed = [entry for entry in newest if entry.status == "failed"]
    errors = [(entry.sched_id, error) for entry in newest for error in _errors(entry)]
    listens = agent.metadata.get(HOOK_KEY)
    told: dict[str, Any] = listens if isinstance(listens, dict) else {}
    return HookReport(
        name=agent.name.removeprefix(HOOK_PREFIX),
        on=tuple(map(str, told.get("on", ()))),
        to=_receiver(agent),
        project=told.get("project"),
        agent=told.get("agent"),
        paused_by=agent.paused_by,
        waiting=sum(entry.state == "queued" for entry in newest),
        delivered=len(delivered),
        failed=len(failed),
        dropped=sum(entry.status == "cancelled" for entry in newest),
        delivered_at=max((entry.completed_at or 0.0 for entry in delivered), default=None),
        failed_at=max((entry.completed_at or 0.0 for entry in failed), default=None),
        error=max(errors)[1] if errors else None,
    )


def _errors(entry: ReadyEntry) -> Iterator[str]:
    """Yield what went wrong with a delivery that was not successful, the last attempt last."""
    if entry.exit_kind == "completed":
        return
    yield from (str(each.error) for each in entry.errors)
    if isinstance(entry.result, dict) and entry.exit_kind is not None:
        yield str(entry.result.get("error") or entry.outcome or entry.exit_kind)


def _receiver(agent: Agent) -> str:
    settings = agent.metadata.get(SETTINGS_KEY, {})
    if settings.get("runner") != "hook":
        return " ".join(settings.get("argv", ())[:1])
    url = str(settings.get("env", {}).get(URL, ""))
    return f"POST {shown_address(url)}" if url_problem(url) is None else "POST (hidden)"


def deliver_test(api: SchedulerApi, name: str, wait_s: float) -> ReadyEntry:
    """Ask for a test delivery, through everything that a real one passes, and wait until it has ended."""
    if not any(agent.state != AgentState.DEAD and is_hook(agent) for agent in api.agents.find(f"{HOOK_PREFIX}{name}")):
        raise NotFound(f"there is no hook {name!r}", hint="`rota hooks` lists them; they come from a fleet file.")
    give_up_at = api.clock.monotonic() + wait_s
    event_id = cursor = api.journal.append(None, TEST_KIND, {"hook": name})
    while (left_s := give_up_at - api.clock.monotonic()) > 0:
        for event in api.journal.tail(cursor, kinds=(TriggerFired.kind,), wait_s=left_s):
            cursor = event.event_id
            if str(event.payload["trigger"]).endswith(f":{event_id}"):
                return api.queue.wait(int(event.payload["sched_id"]), max(0.0, give_up_at - api.clock.monotonic()))
    text = f"no supervisor has sent the test of hook {name} within {wait_s:g} s; it is sent when one runs"
    raise WaitTimeout(text, hint="Start one: `rota run fleet.toml`.")
