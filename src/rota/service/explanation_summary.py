"""Why many entries wait: the reasons of an agent's, a project's or all queued entries, counted in one dry run.

Each entry is checked as a claim checks it, so the blocking reasons are those of `explain`; an entry with several counts
for each. Of the order nothing is said: it depends on the claim. An entry that nothing blocks counts for the reason why
no worker would claim it, if there is one. The work is bounded: at most `EXAMINED_MAX` entries are checked, those that
were enqueued first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import TypeAlias, cast

from rota.errors import SchedInvalidPayload
from rota.kernel.claim_pass import ClaimPass
from rota.kernel.dry_run import DryRun
from rota.kernel.lookups import find_agent
from rota.kernel.rows import KIND, PID
from rota.kernel.turn import make_turn_request
from rota.model import reasons
from rota.model.checks import Checks
from rota.model.explanation import ExplanationSummary, ReasonCount
from rota.model.reasons import BlockingReason, WorkerReason
from rota.service.dispatcher import Dispatcher
from rota.service.worker_outlook import WorkerOutlook, start_command
from rota.store import Row

__all__ = ["EXAMINED_MAX", "REASONS_MAX", "explain_many"]

EXAMINED_MAX = 500  # entries that are checked: writers wait meanwhile
REASONS_MAX = 50  # different reasons that are listed, the most frequent ones
_SUBJECTS = ("level", "owner", "name", "project_id", "context_id", "kind", "workspace")  # what a reason is about
Reason: TypeAlias = BlockingReason | WorkerReason | None
_checks = Checks("Queue", SchedInvalidPayload)


def explain_many(
    dispatcher: Dispatcher, *, pid: int | None = None, project_id: str | None = None
) -> ExplanationSummary:
    """Count why queued entries wait: those of an agent, of a project, of both, or all."""
    if pid is not None:
        _checks.whole("pid", pid)
    _checks.optional_text("project_id", project_id)
    counts = {
        status: dispatcher.queue.list(status=(status,), pid=pid, project_id=project_id, limit=1)[1]
        for status in ("waiting", "ready", "running")
    }

    def work(dry_run: DryRun) -> ExplanationSummary:
        sched_ids = dry_run.queued_ids(pid, project_id, EXAMINED_MAX + 1)
        examined = sched_ids[:EXAMINED_MAX]
        return ExplanationSummary(
            cursor=dry_run.cursor,
            now=dry_run.now,
            **counts,
            examined=len(examined),
            is_whole=len(sched_ids) <= EXAMINED_MAX,
            reasons=_count(dry_run, examined),
        )

    return dispatcher.kernel.dry_run(work)


def _count(dry_run: DryRun, sched_ids: list[int]) -> tuple[ReasonCount, ...]:
    request = make_turn_request(worker_id="any-worker", max_n=1)
    claim = ClaimPass(dry_run.tx, dry_run.env, request, dry_run.clock_now, dry_run.due)
    outlook = WorkerOutlook(dry_run.tx, dry_run.clock_now)
    start = cache(lambda pid: start_command(dry_run.tx, find_agent(dry_run.tx, pid)))
    counts: Counter[tuple[object, ...]] = Counter()
    first: dict[tuple[object, ...], tuple[Reason, int, int]] = {}
    for sched_id in sched_ids:
        row = dry_run.row(sched_id)
        for reason in _reasons(claim, outlook, row, start):
            key = _key(reason)
            counts[key] += 1
            first.setdefault(key, (reason, sched_id, row[PID]))
    listed = sorted(counts, key=lambda key: (-counts[key], first[key][1]))[:REASONS_MAX]
    names = dry_run.agent_names({first[key][2] for key in listed})
    return tuple(_reason_count(counts[key], first[key], names) for key in listed)


def _reasons(claim: ClaimPass, outlook: WorkerOutlook, row: Row, start: Callable[[int], str]) -> Iterator[Reason]:
    blocking = cast("list[BlockingReason]", claim.blocking_reasons(row))
    missing = outlook.reason_against(row[KIND], lambda: start(row[PID]), row[0], row[PID])
    if outlook.refusal_of(row[0]) is not None:  # it waits for a time only to be tried again
        blocking = [reason for reason in blocking if not isinstance(reason, reasons.NotYetRunnable)]
    yield from blocking
    if isinstance(missing, reasons.NoWorker) or not blocking:
        yield missing


def _key(reason: Reason) -> tuple[object, ...]:
    """Return what two reasons have in common that are counted as one: the code, and what they are about."""
    if reason is None:
        return ()
    return type(reason).__struct_config__.tag, *(getattr(reason, field, None) for field in _SUBJECTS)


def _reason_count(count: int, example: tuple[Reason, int, int], names: dict[int, str]) -> ReasonCount:
    reason, sched_id, pid = example
    return ReasonCount(reason, count, sched_id, pid, names.get(pid, ""))
