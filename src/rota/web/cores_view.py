"""Cores: who leases which, how much of each is reserved, who was refused, budgets of CPU time. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rota.model import CoreGrant, CoreRefusal, CoreStatus, Project, SchedulingContext, UsageLine
from rota.model.core_grants import PPM, HostStatus
from rota.time_text import fine_span, span, when

__all__ = ["budget_row", "core_rows", "grant_row", "refusal_row", "share_rows"]

NO_PROJECT = "no project"


def core_rows(status: CoreStatus) -> list[dict[str, Any]]:
    """Return a row for each core that a grant speaks of: who has it, and how much of it is reserved."""
    return [row for host in status.hosts for row in _host_rows(host)]


def _host_rows(host: HostStatus) -> Iterable[dict[str, Any]]:
    owners = {grant.sched_id: grant.owner for grant in host.grants}
    spoken_of = {core for grant in host.grants for core in (*grant.leased, *grant.allowed, *grant.open_cores)}
    for core in sorted(spoken_of | set(host.leased) | set(host.reserved_ppm)):
        sched_id = host.leased.get(core)
        reserved = host.reserved_ppm.get(core, 0)
        use = "open to all work" if sched_id is None else f"leased by {owners.get(sched_id, 'a run')} #{sched_id}"
        yield {
            "id": f"{host.host} {core}",
            "host": host.host_name,
            "core": str(core),
            "use": use,
            "reserved": f"{100 * reserved / PPM:.1f} %" if reserved else "–",
            "links": {} if sched_id is None else {"use": f"/entry/{sched_id}"},
        }


def grant_row(grant: CoreGrant, now: float) -> dict[str, Any]:
    """Return a row: what a run was granted."""
    return {
        "id": f"{grant.host} {grant.sched_id}",
        "entry": str(grant.sched_id),
        "agent": grant.owner,
        "project": grant.project_id or "–",
        "host": grant.host_name,
        "granted": "; ".join(grant.sentences()),
        "weight": "–" if grant.weight is None else f"{grant.weight:g}",
        "since": when(grant.granted_at, now),
        "links": {"entry": f"/entry/{grant.sched_id}"},
    }


def refusal_row(refusal: CoreRefusal, now: float) -> dict[str, Any]:
    """Return a row: what a queued entry was refused, and because of which entries."""
    return {
        "id": str(refusal.sched_id),
        "entry": str(refusal.sched_id),
        "host": refusal.host_name,
        "when": when(refusal.at, now),
        "reason": refusal.reason,
        "held": ", ".join(map(str, refusal.held_by)) or "–",
        "links": {"entry": f"/entry/{refusal.sched_id}"},
    }


def budget_row(context: SchedulingContext, now: float) -> dict[str, Any]:
    """Return a row: a budget of CPU time per period, what is left of it, and when the next refill comes."""
    next_ms = min((refill.at for refill in context.refills), default=None)
    return {
        "id": str(context.context_id),
        "context": f"{context.bound_to} {context.bound_id}",
        "budget": f"{context.budget:,} ms in {span(context.period / 1_000)}",
        "left": f"{context.remaining:,} ms",
        "used": f"{100 * (1 - max(0, context.remaining) / context.budget):.0f} %",
        "refill": "–" if next_ms is None else when(next_ms / 1_000, now),
        "state": context.state,
    }


def share_rows(lines: Sequence[UsageLine], projects: Sequence[Project]) -> list[dict[str, Any]]:
    """Return a row for each project that used CPU time today: its part of it, and its part by weight."""
    weights = {project.project_id: project.weight for project in projects if project.status == "ACTIVE"}
    whole, weight = sum(line.cpu_ms for line in lines), sum(weights.values())
    return [
        {
            "id": line.project_id or NO_PROJECT,
            "project": line.project_id or NO_PROJECT,
            "cpu": fine_span(line.cpu_ms / 1_000),
            "share": f"{100 * line.cpu_ms / whole:.1f} %",
            "target": f"{100 * weights[line.project_id] / weight:.1f} %" if line.project_id in weights else "–",
        }
        for line in sorted(lines, key=lambda line: -line.cpu_ms)
        if line.cpu_ms > 0
    ]
