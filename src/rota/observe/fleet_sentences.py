"""Sentences about agents, projects, budgets, workers and the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rota.model import events
from rota.model.events import Event
from rota.model.graph_budgets import budget_owner
from rota.model.money import amount_text, amounts_text, dim_text
from rota.model.work import WEIGHT_UNIT
from rota.model.workers import lost_worker_text
from rota.observe.event_names import About, Describers, EntityNames, Line, TextTone, by_author, readable

__all__ = ["FLEET_SENTENCES"]

# --- agents --------------------------------------------------------------------------------------


def _created(data: events.ProcessCreated, event: Event, _names: EntityNames) -> Iterator[Line]:
    where = f" in project {data.project_id}" if data.project_id else ""
    yield "quiet", f"agent {data.name} was created{where}{by_author(event)}"


def _transitioned(data: events.ProcessTransitioned, event: Event, names: EntityNames) -> Iterator[Line]:
    reason = f": {readable(data.reason)}" if data.reason else ""
    yield "detail", f"{names.agent(event.pid)} went from {data.prev_state} to {data.new_state}{reason}"


def _terminated(data: events.ProcessTerminated, event: Event, names: EntityNames) -> Iterator[Line]:
    how = f" ({data.exit_kind})" if data.exit_kind else ""
    yield "quiet", f"agent {names.agent(event.pid)} ended{how}{by_author(event)}"


def _recovered(data: events.ProcessRecovered, event: Event, names: EntityNames) -> Iterator[Line]:
    yield "quiet", f"{names.agent(event.pid)} was recovered as {data.new_state}: {readable(data.reason)}"


def _updated(data: events.ProcessUpdated, event: Event, names: EntityNames) -> Iterator[Line]:
    yield "quiet", f"the {_fields(data.changes)} of agent {names.agent(event.pid)} changed{by_author(event)}"


def _fields(changes: Mapping[str, Any]) -> str:
    return ", ".join(map(readable, changes)) or "settings"


# --- pauses, limits and budgets ------------------------------------------------------------------


def _quarantined(data: events.AgentQuarantined, event: Event, names: EntityNames) -> Iterator[Line]:
    agent = names.agent(event.pid)
    if data.until_at is None:
        reason = f": {data.reason}" if data.reason else ""
        yield "bad", f"{agent} quarantined until its settings are corrected{reason}"
        return
    left_s = max(0.0, data.until_at - event.ts)
    yield "bad", f"{agent} failed {data.failures} times in a row: quarantined for {left_s:.0f} s"


def _paused(data: events.Paused, _event: Event, names: EntityNames) -> Iterator[Line]:
    tone: TextTone = "detail" if data.by.startswith("quarantine") else "warn"  # a quarantine has its own event
    yield tone, f"{_subject(data, names)} paused by {data.by}{f': {data.reason}' if data.reason else ''}"


def _resumed(data: events.Resumed, _event: Event, names: EntityNames) -> Iterator[Line]:
    yield "plain", f"{_subject(data, names)} resumed by {data.by}"


def _subject(data: events.Paused | events.Resumed, names: EntityNames) -> str:
    if data.level == "agent":
        return f"{names.agent(int(data.key)) if data.key.isdecimal() else data.key} was"
    return "the fleet was" if data.level == "fleet" else f"project {data.key} was"


def _throttled(data: events.LimitThrottled, event: Event, _names: EntityNames) -> Iterator[Line]:
    left_s = max(0.0, data.until_at - event.ts)
    yield "warn", f"limit {data.name} is throttled: its users wait {left_s:.1f} s"


def _limit_resumed(data: events.LimitResumed, event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "plain", f"the pause of limit {data.name} was ended{by_author(event)}"


def _granted(data: events.ProjectGranted, event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "warn", f"{_scope(data.from_project)} may reach into {_scope(data.to_project)}: granted{by_author(event)}"


def _grant_revoked(data: events.ProjectGrantRevoked, event: Event, _names: EntityNames) -> Iterator[Line]:
    owners = f"{_scope(data.from_project)} no longer reaches into {_scope(data.to_project)}"
    yield "plain", f"{owners}: revoked{by_author(event)}"


def _scope(project_id: str) -> str:
    return f"project {project_id}" if project_id else "what has no project"


def _warned(data: events.LedgerWarned, event: Event, names: EntityNames) -> Iterator[Line]:
    used, granted = amount_text(data.dim, data.used), amount_text(data.dim, data.granted)
    yield "warn", f"{names.agent(event.pid)} used {used} of {granted} {dim_text(data.dim)}"


def _breached(data: events.LedgerBreached, event: Event, names: EntityNames) -> Iterator[Line]:
    owners = {"agent": f"agent {names.agent(event.pid)}", "global": "the fleet", "graph": f"graph run {data.owner}"}
    owner = owners.get(data.level, f"project {data.owner}")
    used, limit = amount_text(data.dim, data.used), amount_text(data.dim, data.limit)
    yield "bad", f"{owner} is over budget: {used} of {limit} {dim_text(data.dim)}"


def _depleted(data: events.ContextBudgetDepleted, _event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "warn", f"context {data.context_id} is exhausted until its refill"


def _ledger_created(data: events.LedgerCreated, event: Event, names: EntityNames) -> Iterator[Line]:
    yield "quiet", f"{names.agent(event.pid)} was granted {amounts_text(data.grants)}{by_author(event)}"


def _refunded(data: events.LedgerRefunded, event: Event, names: EntityNames) -> Iterator[Line]:
    yield "quiet", f"{names.agent(event.pid)} was refunded {amounts_text(data.amounts)}{by_author(event)}"


def _grant_changed(data: events.LedgerGranted, event: Event, names: EntityNames) -> Iterator[Line]:
    before, after = amount_text(data.dim, data.previous), amount_text(data.dim, data.granted)
    change = f"from {before} to {after} {dim_text(data.dim)}"
    yield "quiet", f"the grant of {names.agent(event.pid)} changed {change}{by_author(event)}"


def _budget_set(data: events.BudgetSet, event: Event, _names: EntityNames) -> Iterator[Line]:
    owner = "the fleet" if data.level == "global" else f"project {data.owner}"
    if data.limit is None:
        yield "quiet", f"the {data.dim} budget of {owner} was removed{by_author(event)}"
    else:
        window = f" per {data.window_s:g} s" if data.window_s is not None else ""
        limit = f"{amount_text(data.dim, data.limit)} {dim_text(data.dim)}"
        yield "quiet", f"the budget of {owner} is {limit}{window}{by_author(event)}"


def _budget_alert(data: events.BudgetAlert, _event: Event, names: EntityNames) -> Iterator[Line]:
    is_agent = data.level == "agent" and data.owner.isdecimal()
    owner = "the fleet" if data.level == "global" else f"{data.level} {data.owner}"
    owner = f"agent {names.agent(int(data.owner))}" if is_agent else owner
    used, limit = amount_text(data.dim, data.used), amount_text(data.dim, data.limit)
    yield "warn", f"{owner} has used {data.share:.0%} of its {dim_text(data.dim)} budget: {used} of {limit}"


def _prices_set(data: events.PricesSet, event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "quiet", f"the prices of {', '.join(sorted(data.prices))} changed{by_author(event)}"


def _window_set(data: events.ShareWindowSet, event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "quiet", f"fair_share looks back {data.window_s:g} s instead of {data.previous_s:g} s{by_author(event)}"


def _affinity_set(data: events.AffinityWaitSet, event: Event, _names: EntityNames) -> Iterator[Line]:
    change = f"{data.wait_s:g} s instead of {data.previous_s:g} s"
    yield "quiet", f"entries are reserved for their affinity worker for {change}{by_author(event)}"


def _reweighted(data: events.FlowReweighted, event: Event, names: EntityNames) -> Iterator[Line]:
    is_agent = data.level == "agent" and data.key.isdecimal()
    owner = names.agent(int(data.key)) if is_agent else f"{data.level} {data.key}"
    weights = f"from {data.previous / WEIGHT_UNIT:g} to {data.weight / WEIGHT_UNIT:g}"
    yield "quiet", f"the weight of {owner} changed {weights}{by_author(event)}"


def _context_created(data: events.ContextCreated, event: Event, _names: EntityNames) -> Iterator[Line]:
    subject = f"limit {data.bound_id}" if data.bound_to == "name" else f"a budget of {data.bound_to} {data.bound_id}"
    amount = f"{data.budget:,} {data.unit} per {data.period / 1000:g} s"
    yield "quiet", f"{subject} was created: {amount}{by_author(event)}"


def _context_adjusted(data: events.ContextAdjusted, event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "quiet", f"the {_fields(data.changes)} of context {data.context_id} changed{by_author(event)}"


def _replenished(data: events.ContextReplenished, _event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "detail", f"context {data.context_id} was refilled by {data.amount:,}: {data.remaining:,} remain"


def _context_revoked(data: events.ContextRevoked, event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "quiet", f"context {data.context_id} was revoked{by_author(event)}"


# --- projects and workspaces ---------------------------------------------------------------------


def _project_created(data: events.ProjectCreated, event: Event, _names: EntityNames) -> Iterator[Line]:
    weight = f" with weight {data.weight / WEIGHT_UNIT:g}"
    yield "quiet", f"project {data.project_id} was created{weight}{by_author(event)}"


def _project_updated(data: events.ProjectUpdated, event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "quiet", f"the {_fields(data.changes)} of project {data.project_id} changed{by_author(event)}"


def _project_moved(data: events.ProjectTransitioned, event: Event, _names: EntityNames) -> Iterator[Line]:
    author = f" by {data.by}" if data.by else by_author(event)
    yield "quiet", f"project {data.project_id} went from {data.prev_status} to {data.new_status}{author}"


def _workspace_added(data: events.WorkspaceAdded, event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "quiet", f"project {data.project_id} got workspace {data.workspace_id}: {data.path}{by_author(event)}"


def _workspace_removed(data: events.WorkspaceRemoved, event: Event, _names: EntityNames) -> Iterator[Line]:
    why = f": {data.reason}" if data.reason else ""
    yield "quiet", f"workspace {data.workspace_id} was removed{by_author(event)}{why}"


def _workspace_kept(data: events.WorkspaceKept, _event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "quiet", f"workspace {data.workspace_id} is kept: {data.reason}"


# --- the scheduler itself ------------------------------------------------------------------------

_SUPERVISOR = {
    "draining": "is draining: it claims no more entries",
    "drained": "has drained: all of its runs have ended",
    "took_over": "took over from its previous process",
}
_FAILURES = {"nonsense": "returned invalid decisions"}


def _supervisor(data: events.SupervisorChanged, _event: Event, _names: EntityNames) -> Iterator[Line]:
    tone: TextTone = "quiet" if data.verb == "drained" else "plain"  # the end of the supervisor follows
    yield tone, f"{data.worker_id} {_SUPERVISOR.get(data.verb, data.verb)}"


def _worker_lost(data: events.WorkerLost, _event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "bad", lost_worker_text(data.worker_id, data.host, data.entries)


def _fired(data: events.TriggerFired, _event: Event, names: EntityNames) -> Iterator[Line]:
    entry = names.run(data.sched_id)  # the name of the trigger is a key with a moment in it, which says nothing here
    if data.created:
        yield "quiet", f"{entry} was enqueued by its trigger", About(data.sched_id)
    else:
        yield "detail", f"a trigger fired; {entry} was queued already", About(data.sched_id)


def _hook_dropped(data: events.HookDropped, _event: Event, _names: EntityNames) -> Iterator[Line]:
    deliveries = "1 delivery" if data.count == 1 else f"{data.count:,} deliveries"
    yield "bad", f"hook {data.hook} dropped {deliveries}: too many were waiting"


def _policy_chosen(data: events.PolicyChosen, _event: Event, _names: EntityNames) -> Iterator[Line]:
    policy = "the default policy" if data.policy is None else f"policy {data.policy.sentence()}"
    yield "plain", f"{data.by} set {policy}, shared by {data.share_by}"


def _fell_back(data: events.PolicyFellBack, event: Event, _names: EntityNames) -> Iterator[Line]:
    failure = _FAILURES.get(data.failure, data.failure)
    where, there = (f" at {event.author}", " there") if event.author else ("", "")  # others may go on with it
    yield "bad", f"policy {data.policy} {failure}{where}: strict order replaces it{there} ({data.detail})"


def _unreadable(data: events.RowUnreadable, _event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "bad", f"row {data.key} of {data.table} cannot be read and is left out: {data.problem}"


def _jumped(data: events.ClockJumped, _event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "warn", f"the wall clock jumped by {data.by_s:+.1f} s"


def _failed_over(_data: events.StoreFailedOver, _event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "bad", "the database was replaced by a standby or a backup: live claims are taken back, commits may be lost"


def _reload_requested(data: events.FleetReloadRequested, _event: Event, _names: EntityNames) -> Iterator[Line]:
    which = "of all fleets" if data.fleet is None else f"of fleet {data.fleet}"
    yield "quiet", f"{data.by} asked for a reload {which}"


def _reloaded(_data: events.FleetReloaded, _event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "plain", "the fleet file was reloaded"


def _migrated(data: events.StoreMigrated, _event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "quiet", f"the store was migrated from version {data.from_version} to {data.to_version}"


def _checkpointed(data: events.JournalCheckpointed, _event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "quiet", f"the journal has a checkpoint through event {data.through_id}"


def _pruned(data: events.RowsPruned, _event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "quiet", f"{data.count:,} old rows of {data.table} were deleted"


def _retention_set(data: events.RetentionSet, _event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "plain", f"the store's retention was set: {data.setting.sentence()}"


def _mapped(data: events.ProfileMapped, _event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "quiet", f"the hint {data.hint} of {data.subject} was granted {_pairs(data.granted)}"


def _policy_reloaded(data: events.PolicyReloaded, _event: Event, _names: EntityNames) -> Iterator[Line]:
    changes = f": {_pairs(data.changes)}" if data.changes else ""
    yield "quiet", f"the policy's settings were reloaded{changes}"


def _cpu_context(data: events.CpuContextChanged, _event: Event, _names: EntityNames) -> Iterator[Line]:
    budget = f"{data.budget_ns / 1e6:g} ms of CPU time per {data.period_ns / 1e6:g} ms"
    reason = f": {readable(data.reason)}" if data.reason else ""
    tone: TextTone = "warn" if data.verb == "refuse" else "plain"
    yield tone, f"CPU context {data.context_id} of {data.owner}: {_PAST[data.verb]} {budget}{reason}"


_PAST = {"admit": "admitted", "refuse": "refused", "adjust": "adjusted to", "revoke": "revoked"}


def _lease(data: events.LeaseChanged, _event: Event, _names: EntityNames) -> Iterator[Line]:
    reason = f" ({readable(data.reason)})" if data.reason else ""
    yield "plain", f"lease {data.lease_id} of {data.owner}: {readable(data.verb)}, now {data.state}{reason}"


def _island(data: events.IslandChanged, _event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "plain", f"island {data.island_id}: {readable(data.verb)}, now {data.state}"


def _cores_granted(data: events.CoresGranted, _event: Event, _names: EntityNames) -> Iterator[Line]:
    parts = [f"core{'s' * (len(data.leased) > 1)} {', '.join(map(str, data.leased))} for itself"] if data.leased else []
    parts += [f"{ppm / 10_000:g} % of core {core} reserved" for core, ppm in data.reserved_ppm.items()]
    if data.quota_us is not None and data.quota_period_us is not None:
        parts.append(f"at most {data.quota_us / 1000:g} ms of CPU time per {data.quota_period_us / 1000:g} ms")
    what = f"island {data.island}" if data.island else f"{data.owner} #{data.sched_id}"
    yield "plain", f"{what} on {data.host_name}: {'; '.join(parts) or 'its cpu settings are granted'}"


def _cores_refused(data: events.CoresRefused, _event: Event, _names: EntityNames) -> Iterator[Line]:
    what = f"island {data.island}" if data.island else f"{data.owner} #{data.sched_id}"
    yield "warn", f"{what} was refused its cores: {data.reason}"


def _cores_returned(data: events.CoresReturned, _event: Event, _names: EntityNames) -> Iterator[Line]:
    count = len(data.sched_ids)
    entries = f"entry {data.sched_ids[0]}" if count == 1 else f"{count} entries"
    yield "quiet", f"the cores of {entries} are free again ({readable(data.reason)})"


def _daemon(data: events.DaemonChanged, _event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "plain", f"the daemon {data.verb} (rota {data.rota_version})"


def _denied(data: events.AccessDenied, _event: Event, _names: EntityNames) -> Iterator[Line]:
    method = f" to {data.method}" if data.method else ""
    times = f", {data.count:,} times" if data.count > 1 else ""
    yield "warn", f"access{method} was denied for {data.peer}: {data.reason}{times}"


def _operated(data: events.OperatorActed, _event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "quiet", f"{data.who} called {data.method}"


def _token(data: events.TokenChanged, event: Event, _names: EntityNames) -> Iterator[Line]:
    scope = f" with scope {', '.join(data.scope)}" if data.scope else ""
    yield "quiet", f"access token {data.token_id} was {data.verb}{scope}{by_author(event)}"


def _graph_taken(data: events.GraphRunTaken, _event: Event, _names: EntityNames) -> Iterator[Line]:
    start = "started" if not data.next_epoch_id else f"continues at epoch {data.next_epoch_id}"
    yield "quiet", f"run {data.run_id} of graph {data.graph} {start}"


def _graph_committed(data: events.GraphRunCommitted, _event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "detail", f"graph run {data.run_id} committed what is before epoch {data.next_epoch_id}"


def _graph_started(data: events.GraphRunStarted, _event: Event, _names: EntityNames) -> Iterator[Line]:
    verb = "was resumed" if data.resumed else "was started"
    yield "plain", f"run {data.run_id} of graph {data.graph} {verb}: entry {data.sched_id}"


def _graph_ended(data: events.GraphRunEnded, _event: Event, _names: EntityNames) -> Iterator[Line]:
    verb = "was cancelled" if data.status == "cancelled" else data.status
    tone: TextTone = "good" if data.status == "succeeded" else "warn" if data.status == "cancelled" else "bad"
    yield tone, f"run {data.run_id} of graph {data.graph} {verb}" + (f": {data.error}" if data.error else "")


def _graph_waits(data: events.GraphRunWaits, _event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "detail", f"graph run {data.run_id} waits for {data.waits}"


def _graph_budget_set(data: events.GraphBudgetSet, event: Event, _names: EntityNames) -> Iterator[Line]:
    limit = f"{amount_text(data.dim, data.limit)} {dim_text(data.dim)}"
    yield "quiet", f"the budget of graph run {budget_owner(data.run_id, data.node)} is {limit}{by_author(event)}"


def _graph_forgotten(data: events.GraphRunForgotten, _event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "quiet", f"graph run {data.run_id} was deleted"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{readable(name)} {value}" for name, value in values.items()) or "nothing"


FLEET_SENTENCES: Describers = {
    events.ProcessCreated: _created,
    events.ProcessTransitioned: _transitioned,
    events.ProcessTerminated: _terminated,
    events.ProcessRecovered: _recovered,
    events.ProcessUpdated: _updated,
    events.AgentQuarantined: _quarantined,
    events.Paused: _paused,
    events.Resumed: _resumed,
    events.LimitThrottled: _throttled,
    events.LimitResumed: _limit_resumed,
    events.ProjectGranted: _granted,
    events.ProjectGrantRevoked: _grant_revoked,
    events.LedgerWarned: _warned,
    events.LedgerBreached: _breached,
    events.ContextBudgetDepleted: _depleted,
    events.LedgerCreated: _ledger_created,
    events.LedgerRefunded: _refunded,
    events.LedgerGranted: _grant_changed,
    events.BudgetSet: _budget_set,
    events.BudgetAlert: _budget_alert,
    events.PricesSet: _prices_set,
    events.ShareWindowSet: _window_set,
    events.AffinityWaitSet: _affinity_set,
    events.FlowReweighted: _reweighted,
    events.ContextCreated: _context_created,
    events.ContextAdjusted: _context_adjusted,
    events.ContextReplenished: _replenished,
    events.ContextRevoked: _context_revoked,
    events.ProjectCreated: _project_created,
    events.ProjectUpdated: _project_updated,
    events.ProjectTransitioned: _project_moved,
    events.WorkspaceAdded: _workspace_added,
    events.WorkspaceRemoved: _workspace_removed,
    events.WorkspaceKept: _workspace_kept,
    events.SupervisorChanged: _supervisor,
    events.WorkerLost: _worker_lost,
    events.TriggerFired: _fired,
    events.HookDropped: _hook_dropped,
    events.PolicyChosen: _policy_chosen,
    events.PolicyFellBack: _fell_back,
    events.ProfileMapped: _mapped,
    events.PolicyReloaded: _policy_reloaded,
    events.CpuContextChanged: _cpu_context,
    events.LeaseChanged: _lease,
    events.IslandChanged: _island,
    events.CoresGranted: _cores_granted,
    events.CoresRefused: _cores_refused,
    events.CoresReturned: _cores_returned,
    events.RowUnreadable: _unreadable,
    events.ClockJumped: _jumped,
    events.StoreFailedOver: _failed_over,
    events.FleetReloaded: _reloaded,
    events.FleetReloadRequested: _reload_requested,
    events.StoreMigrated: _migrated,
    events.JournalCheckpointed: _checkpointed,
    events.RowsPruned: _pruned,
    events.RetentionSet: _retention_set,
    events.DaemonChanged: _daemon,
    events.AccessDenied: _denied,
    events.OperatorActed: _operated,
    events.TokenChanged: _token,
    events.GraphRunTaken: _graph_taken,
    events.GraphRunCommitted: _graph_committed,
    events.GraphBudgetSet: _graph_budget_set,
    events.GraphRunForgotten: _graph_forgotten,
    events.GraphRunStarted: _graph_started,
    events.GraphRunEnded: _graph_ended,
    events.GraphRunWaits: _graph_waits,
}
