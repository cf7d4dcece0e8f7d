"""How SQLite finds the rows of every statement: by key, by an index, along a short index, or by looking at all of them.

Each statement stands in one of two tables below. `HOT` has the statements of every claim, enqueue and completion: how
each gets at every table is written down and must stay so, and it never looks at all entries. In `COLD` is what may
look at everything, with the reason. A new statement is in neither, and fails until its plan has been checked.

    by key        one row, or a stretch of rows, by primary key
    by NAME       some rows, by that index
    along NAME    an index from its beginning, in its order: only ever a partial one, which holds few rows, or
                  holds them in the order that is wanted, so that a LIMIT ends it
    at an end     the first or the last row
    whole         all rows
    sorts, groups what was found is sorted, or put into groups, before it is returned
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import apsw
import apsw.ext
import pytest

from rota import store
from rota.store import Statement, statements

SOURCE = Path(__file__).parents[2] / "src" / "rota"
ENTRIES = "agent_schedule_queue"

# --- what is expected ----------------------------------------------------------------------------

# the ids of every status but succeeded: what is not asked for is not walked, because its condition is false at once
_OF_STATUS = (
    "agent_schedule_queue by key",
    "agent_schedule_queue along idx_sched_queue_pickable",
    "agent_schedule_queue along idx_sched_queue_held_by_priority",
    "agent_schedule_queue along idx_sched_queue_after",
    "kept_entries by key",
    "agent_schedule_queue along idx_sched_queue_live",
    *("agent_schedule_queue by idx_sched_queue_unsuccessful",) * 4,
)

HOT: Mapping[str, tuple[str, ...]] = {
    "entry_filtered_of_status": (*_OF_STATUS, "entry_tags by key"),
    "entry_ids_of_status": (*_OF_STATUS, "entry_tags by key"),
    "entry_filtered_of_status_within": (*_OF_STATUS, "entry_tags by key"),
    "entry_filtered_count_of_status": (*_OF_STATUS, "entry_tags by key"),
    "entry_filtered_count_of_status_within": (*_OF_STATUS, "entry_tags by key"),
    "entries_newest_of_status": _OF_STATUS,
    "entries_newest_of_agent": ("agent_schedule_queue by idx_sched_queue_pid",),
    "entries_searched": ("agent_schedule_queue by key", "entry_tags by key"),
    "entries_searched_within": ("agent_schedule_queue by key", "entry_tags by key"),
    "entry_children": ("agent_schedule_queue by idx_sched_queue_parent",),
    "entry_relatives": ("agent_schedule_queue by key",),
    "agent_names_of": ("agent_processes by key",),
    "event_last_progress": ("agent_events by idx_events_pid",),
    "limit_ask_add": (),
    "usage_events": ("agent_events by key",),
    "usage_agents_of_entries": ("agent_schedule_queue by key",),
    "usage_agents": ("agent_processes by key",),
    "traced_entries": ("agent_schedule_queue by key", "agent_processes by key"),
    "traced_graph_runs": ("graph_runs by sqlite_autoindex_graph_runs_1",),
    "usage_notes": ("usage_entries by key",),
    "usage_note_put": (),
    "usage_note_drop": ("usage_entries by key",),
    "usage_day_get": ("usage_daily by key",),
    "usage_day_put": (),
    "usage_days": ("usage_daily by key", "agent_processes by key"),
    "limit_ask_get": ("limit_asks by sqlite_autoindex_limit_asks_1",),
    "limit_ask_grant": ("limit_asks by key",),
    "limit_ask_remove": ("limit_asks by key",),
    "limit_ask_set_rest": ("limit_asks by key",),
    "limit_asks_live": ("limit_asks whole", "agent_schedule_queue by key"),
    "limit_asks_of_run": ("limit_asks by sqlite_autoindex_limit_asks_1", "sorts"),
    "limit_asks_remove_of_run": ("limit_asks by sqlite_autoindex_limit_asks_1",),
    "limit_asks_waiting": (
        "limit_asks by idx_limit_asks_waiting",
        "agent_schedule_queue by key",
        "agent_processes by key",
        "projects by key",
        "limit_asks by sqlite_autoindex_limit_asks_1",
    ),
    "limit_asks_waiting_runs": ("limit_asks by sqlite_autoindex_limit_asks_1", "agent_schedule_queue by key", "sorts"),
    "limit_share_set": (),
    "limit_shares": ("limit_shares by key",),
    "limit_shares_forget": ("limit_shares by key",),
    "agent_create": (),
    "agent_get": ("agent_processes by key",),
    "agent_state": ("agent_processes by key",),
    "agent_find": ("agent_processes by idx_process_name",),
    "agent_find_in_project": ("agent_processes by idx_process_name",),
    "agent_move": ("agent_processes by key",),
    "agent_move_or_end": ("agent_processes by key",),
    "agent_touch": ("agent_processes by key",),
    "agent_set": ("agent_processes by key",),
    "agent_pause": ("agent_processes by key",),
    "ledger_create": (),
    "ledger_get": ("agent_ledgers by key",),
    "charge_key_add": (),
    "charge_keys_remove": ("charge_keys by key",),
    "ledger_line": ("agent_ledgers by key",),
    "ledger_charge": ("agent_ledgers by key",),
    "ledger_grant": ("agent_ledgers by key",),
    "budget_set": (),
    "budget_drop": ("budgets by key",),
    "budget_window": ("budgets by key", "usage_windows by key"),
    "budget_alerts": ("budgets by key",),
    "budget_alerted": ("budgets by key",),
    "window_charge": ("usage_windows by key",),
    "window_alert": ("usage_windows by key",),
    "ledger_alerts": ("agent_ledgers by key",),
    "window_open": (),
    "window_close": ("usage_windows by key",),
    "window_empty": ("usage_buckets by key",),
    "shares": (
        "share_notes whole",
        "groups",
        "agent_schedule_queue along idx_sched_queue_live",
        "groups",
        "projects whole",
        "projects by key",
        "project_flows by key",
        "usage_windows by key",
    ),
    "share_note": (),
    "share_notes_any": ("share_notes whole",),
    "share_notes_take": ("share_notes whole",),
    "bucket_add": ("usage_windows by key",),
    "window_add": ("usage_windows by key",),
    "buckets_oldest": ("usage_buckets by key",),
    "bucket_take": ("usage_buckets by key",),
    "bucket_put": (),
    "buckets_of": ("usage_buckets by key",),
    "window_set": ("usage_windows by key", "usage_buckets by key"),
    "window_take": ("usage_windows by key",),
    "windows_due": ("usage_windows by idx_window_edge",),
    "buckets_leave": ("usage_buckets by key",),
    "window_roll": ("usage_windows by key", "usage_buckets by key"),
    "due_summary": (
        "agent_schedule_queue by idx_sched_queue_held",
        "agent_schedule_queue by idx_sched_queue_live",
        "agent_schedule_queue by idx_sched_queue_deadline",
        "usage_windows by idx_window_edge",
        "contexts by idx_context_refill",
        "kept_entries by idx_kept_until",
        "entry_fallout whole",
        "enqueue_inbox whole",
        "entry_loans whole",
        "kernel_meta by key",
        "agent_processes along idx_process_stopped",
        "agent_processes along idx_process_capped",
        "agent_ledgers whole",
        "budgets by key",
        "budgets whole",
        "contexts whole",
    ),
    "entries_ready": ("agent_schedule_queue along idx_sched_queue_pickable",),
    "entries_ready_at_any_time": ("agent_schedule_queue along idx_sched_queue_pickable",),
    "entries_ready_unblocked": (
        "agent_schedule_queue along idx_sched_queue_pickable",
        "agent_processes along idx_process_stopped",
        "agent_ledgers along idx_ledger_breached",
    ),
    "entries_ready_of_agent": ("agent_schedule_queue by idx_sched_queue_pickable_by_agent",),
    "entries_next_of_agent": ("agent_schedule_queue by idx_sched_queue_pickable_by_agent",),
    "entries_next_of_agents": (
        "agent_schedule_queue by key",
        "agent_schedule_queue by idx_sched_queue_pickable_by_agent",
    ),
    "entries_next_of_project": ("agent_schedule_queue by idx_sched_queue_pickable_by_project",),
    "heads_of_agents": (
        "agent_schedule_queue by key",
        "agent_schedule_queue by idx_sched_queue_pickable_by_agent",
    ),
    "heads_of_projects": (
        "projects by key",
        "agent_schedule_queue by key",
        "agent_schedule_queue by idx_sched_queue_pickable_by_project",
    ),
    "projects_ready": (
        "agent_schedule_queue by idx_sched_queue_pickable_by_project",
        "agent_schedule_queue by idx_sched_queue_pickable_by_project",
    ),
    "agents_ready_of": ("agent_schedule_queue by idx_sched_queue_pickable_by_agent",),
    "entries_still_ready": ("agent_schedule_queue by key",),
    "projects_of_agents": ("agent_processes by key", "groups"),
    "entries_ready_ids": ("agent_schedule_queue by idx_sched_queue_pickable_by_agent",),
    "entries_ready_of_project": (
        "agent_schedule_queue by idx_sched_queue_pickable_by_project",
        "agent_processes along idx_process_stopped",
        "agent_ledgers along idx_ledger_breached",
    ),
    "entries_ready_by_deadline": (
        "agent_schedule_queue by idx_sched_queue_pickable_by_deadline",
        "agent_processes along idx_process_stopped",
        "agent_ledgers along idx_ledger_breached",
    ),
    "agents_stopped": ("agent_processes along idx_process_stopped",),
    "agents_breached": ("agent_ledgers along idx_ledger_breached",),
    "agents_capped_out": ("agent_schedule_queue along idx_sched_queue_live", "agent_processes by key", "groups"),
    "claims_live": ("agent_schedule_queue along idx_sched_queue_live", "groups"),
    "agent_facts": ("agent_processes by key",),
    "ledger_facts": ("agent_ledgers by key",),
    "project_facts": ("projects by key",),
    "project_facts_first": ("projects whole",),  # the first fifty
    "inbox_take": ("enqueue_inbox by key", "enqueue_inbox whole"),
    "budget_facts": ("budgets by key", "usage_windows by key"),
    "entry_claim": ("agent_schedule_queue by key",),
    "claim_heartbeat": ("agent_schedule_queue by key",),
    "claim_live": ("agent_schedule_queue by key",),
    "claim_spend": ("agent_schedule_queue by key",),
    "claims_of": ("agent_schedule_queue by key", "entry_after by idx_after_waits_for"),
    "entry_complete": ("agent_schedule_queue by key",),
    "entry_requeue": ("agent_schedule_queue by key",),
    "event_tail_of_kinds": ("agent_events by idx_events_pid",),
    "event_tail_of_entry_kinds": ("agent_events by key",),
    # the key: whether the table agrees with the index (kernel/progress.py)
    "entries_held_due": (
        *("agent_schedule_queue by idx_sched_queue_held_by_priority",) * 3,
        "agent_schedule_queue by key",
    ),
    "claims_expired": ("agent_schedule_queue by idx_sched_queue_live", "agent_schedule_queue by key"),
    "claims_stale": ("agent_schedule_queue along idx_sched_queue_live", "agent_schedule_queue by key"),
    "entries_past_deadline": ("agent_schedule_queue by idx_sched_queue_deadline", "agent_schedule_queue by key"),
    "entry_expire": ("agent_schedule_queue by key",),
    "clock_move_claims": ("agent_schedule_queue along idx_sched_queue_live",),
    "clock_move_delays": ("agent_schedule_queue along idx_sched_queue_held_by_priority",),
    "claims_of_worker": ("agent_schedule_queue along idx_sched_queue_live", "agent_schedule_queue by key"),
    "context_create": (),
    "context_get": ("contexts by key",),
    "context_bound": ("contexts by idx_context_bound",),
    "context_update": ("contexts by key",),
    "context_revoke": ("contexts by key",),
    "context_stop_refill": ("contexts by key",),
    "context_throttle": ("contexts by idx_context_bound",),
    "context_due": ("contexts by idx_context_refill",),
    "meta_get": ("kernel_meta by key",),
    "meta_prefix": ("kernel_meta by key",),
    "meta_set": (),
    "meta_unset": ("kernel_meta by key",),
    "agent_flow_move": (),
    "agent_flow_served": (),
    "agent_flow_touch": (),
    "agent_flow_enter": (),
    "agent_flow_leave": ("agent_flows by key",),
    "agent_flows_since": ("agent_flows by idx_agent_flow_stamp", "agent_processes by key"),
    "agent_flows_of": ("agent_processes by key", "agent_flows by key"),
    "agent_flows_changed": (
        "agent_processes by key",
        "agent_flows by key",
        "agent_schedule_queue by idx_sched_queue_pickable_by_agent",
        "agent_schedule_queue at an end",
    ),
    "first_priorities": ("agent_schedule_queue by idx_sched_queue_pickable_by_agent",),
    "agent_flows_ready": (
        "agent_schedule_queue by idx_sched_queue_pickable_by_agent",
        "agent_schedule_queue by idx_sched_queue_pickable_by_agent",
        "agent_processes by key",
        "agent_flows by key",
    ),
    "owners_new": ("agent_schedule_queue by key", "groups"),
    "last_entry": ("agent_schedule_queue at an end",),
    "project_flow_move": (),
    "project_flow_touch": (),
    "project_flows_of": ("project_flows by key", "projects by key"),
    "project_flows_since": ("project_flows by idx_project_flow_stamp", "projects by key"),
    "agents_with_live_runs": ("agent_processes by key", "agent_schedule_queue along idx_sched_queue_live"),
    "claim_checkpoint": ("agent_schedule_queue by key",),
    "claims_live_runs": ("agent_schedule_queue along idx_sched_queue_live",),
    "dim_is_budgeted": ("agent_ledgers by key", "budgets by key", "budgets by key"),
    "entry_set_needs": ("agent_schedule_queue by key",),
    "entry_standing": ("agent_schedule_queue by key",),
    "loan_add": (),
    "loan_of": ("entry_loans by key",),
    "loan_settle": ("entry_loans by key",),
    "loans_forget": ("entry_loans by idx_loans_parent",),
    "loans_given": ("entry_loans by idx_loans_parent", "agent_schedule_queue by key"),
    "loans_open": (
        "agent_schedule_queue along idx_sched_queue_live",
        "entry_loans by idx_loans_parent",
        "agent_schedule_queue by key",
    ),
    "ledger_moves": ("agent_events by idx_events_pid",),
    "ledger_inherit": (),
    "ledgers_of_dead": ("agent_ledgers by key", "agent_processes by idx_process_name", "agent_ledgers by key"),
    "event_append": (),
    "event_tail": ("agent_events by key",),
    "event_tail_kinds": ("agent_events by key",),
    "event_tail_of": ("agent_events by idx_events_pid",),
    "event_ends": ("agent_events at an end", "agent_events at an end"),
    "event_from": ("agent_events by key",),
    "events_naming": ("agent_events by key",),
    "recent_claims": ("agent_events by key",),
    "last_claim": ("agent_events by key",),
    "last_failure": ("agent_events by key",),
    "events_prune": ("agent_events by key", "agent_events by key", "agent_events at an end"),
    "checkpoint_put": (),
    "checkpoint_get": ("journal_checkpoints by key",),
    "checkpoint_drop": ("journal_checkpoints by key", "journal_checkpoints by key"),
    "entry_states": ("agent_schedule_queue by key",),
    "graph_run_take": ("graph_runs by sqlite_autoindex_graph_runs_1",),
    "graph_run_get": ("graph_runs by sqlite_autoindex_graph_runs_1",),
    "graph_run_commit": ("graph_runs by sqlite_autoindex_graph_runs_1",),
    "graph_run_forget": ("graph_runs by sqlite_autoindex_graph_runs_1",),
    "after_of": ("entry_after by key",),
    "after_remove": ("entry_after by key",),
    "contexts_of_cpu_any": ("contexts along idx_context_cpu",),
    "core_grant_create": (),
    "core_grant_get": ("core_grants by key",),
    "core_grants_delete": ("core_grants by key",),
    "core_lease_create": (),
    "core_leases_delete": ("core_leases by idx_core_leases_entry",),
    "core_leases_live": ("core_leases by key", "core_grants by key", "agent_schedule_queue by key"),
    "core_refusals_queued": ("agent_schedule_queue by key",),
    "entry_wake": ("agent_schedule_queue by key",),
    "graph_budget_charge": ("graph_budgets by key",),
    "graph_budget_drop": ("graph_budgets by key",),
    "graph_budget_lines": ("graph_budgets by key", "graph_runs by sqlite_autoindex_graph_runs_1"),
    "graph_budget_lines_of_node": (
        "graph_budgets by key",
        "graph_runs by sqlite_autoindex_graph_runs_1",
    ),
    "graph_budget_open": (),
    "graph_budget_set": (),
    "graph_coordinator_waiting": ("graph_runs by sqlite_autoindex_graph_runs_1", "agent_schedule_queue by key"),
    "graph_run_children": ("agent_schedule_queue by idx_sched_queue_parent", "sorts"),
    "graph_run_coordinated": ("graph_runs by sqlite_autoindex_graph_runs_1",),
    "graph_run_create": (),
    "graph_run_end": ("graph_runs by sqlite_autoindex_graph_runs_1",),
    "graph_run_entries": ("agent_schedule_queue by idx_sched_queue_key",),
    "graph_run_fence": ("graph_runs by sqlite_autoindex_graph_runs_1",),
    "graph_run_counts": ("graph_runs by sqlite_autoindex_graph_runs_1",),
    "graph_run_graph": ("graph_runs by sqlite_autoindex_graph_runs_1",),
    "graph_run_held": ("graph_runs by sqlite_autoindex_graph_runs_1", "agent_schedule_queue by key"),
    "graph_run_waits": ("graph_runs by sqlite_autoindex_graph_runs_1",),
    "graph_run_info": ("graph_runs by sqlite_autoindex_graph_runs_1",),
    "graph_run_next_entry": ("agent_schedule_queue at an end",),
    "graph_run_of_coordinator": ("graph_runs by idx_graph_runs_coordinator",),
    "graph_run_owner": ("graph_runs by sqlite_autoindex_graph_runs_1",),
    "graph_run_prune": ("graph_runs by idx_graph_runs_coordinator",),
    "graph_run_resume": ("graph_runs by sqlite_autoindex_graph_runs_1",),
    "project_create": (),
    "project_get": ("projects by key",),
    "project_set": ("projects by key",),
    "workspace_add": (),
    "workspace_get": ("workspaces by key",),
    "workspace_at": ("workspaces by idx_workspace_path",),
    "workspaces_of": ("workspaces by idx_workspace_project",),
    "workspace_remove": ("workspaces by key",),
    "workspace_kept": ("workspaces by key",),
    "workspace_had": ("agent_schedule_queue by key",),
    "workspace_fence": ("workspaces by key",),
    "workspace_holders": (
        "workspaces by idx_workspace_project",
        "agent_schedule_queue by idx_sched_queue_workspace",
        "sorts",
    ),
    "grant_add": (),
    "worker_register": (),
    "worker_replace": ("workers by key",),
    "worker_leave": ("workers by key",),
    "workers_unseen": ("workers by idx_workers_seen",),
    "worker_first_seen_at": ("workers by idx_workers_seen",),
    "grant_get": ("project_grants by key",),
    "grant_remove": ("project_grants by key",),
    "context_named_for": ("contexts by idx_context_bound",),
    "context_resume": ("contexts by idx_context_bound",),
    "entry_enqueue": (),
    "entry_enqueue_ready": (),
    "entry_enqueue_simple": (),
    "entry_copy": ("agent_schedule_queue by key",),
    "entry_copy_tags": ("entry_tags by idx_tags_entry",),
    "entry_by_key": ("agent_schedule_queue by idx_sched_queue_key",),
    "entry_duplicate": ("agent_schedule_queue by idx_sched_queue_unended_by_agent",),
    "entry_duplicate_of_any_trigger": ("agent_schedule_queue by idx_sched_queue_unended_by_agent",),
    "entry_tag": (),
    "entry_untag": ("entry_tags by idx_tags_entry",),
    "entry_get": ("agent_schedule_queue by key",),
    "entry_filtered_of_agent": ("agent_schedule_queue by idx_sched_queue_pid", "entry_tags by key"),
    "entry_filtered_of_tag": ("entry_tags by key", "agent_schedule_queue by key", "entry_tags by key"),
    "entry_filtered_count_of_agent": ("agent_schedule_queue by idx_sched_queue_pid", "entry_tags by key"),
    "entry_matching_ids": ("agent_schedule_queue by key", "entry_tags by key"),
    "entry_matching_ids_of_agent": ("agent_schedule_queue by idx_sched_queue_pid", "entry_tags by key"),
    "entry_for_change": ("agent_schedule_queue by key",),
    "entry_change": ("agent_schedule_queue by key",),
    "entry_cancel": ("agent_schedule_queue by key",),
    "entry_release": ("agent_schedule_queue by key",),
    "affinity_add": (),
    "affinity_get": ("kept_entries by key", "agent_schedule_queue by key"),
    "affinity_worker": ("kept_entries by key",),
    "affinity_reorder": ("kept_entries by key",),
    "affinity_first": ("kept_entries by idx_kept_worker", "agent_schedule_queue by key"),
    "affinity_due": ("kept_entries by idx_kept_until", "agent_schedule_queue by key"),
    "affinity_end_by": ("kept_entries by idx_kept_until",),
    "affinity_end_by_of_worker": ("kept_entries by idx_kept_worker", "kept_entries by idx_kept_worker"),
    "affinity_remove": ("kept_entries by key",),
    "worker_has_claim": ("agent_schedule_queue along idx_sched_queue_live",),
    "entry_dependent": ("agent_schedule_queue by key",),
    "entry_set_options": ("agent_schedule_queue by key",),
    "entry_request_cancel": ("agent_schedule_queue by key",),
    "after_add": (),
    "entry_projects_of": ("agent_schedule_queue by key",),
    "agent_projects_of": ("agent_processes by key",),
    "entry_states_of": ("agent_schedule_queue by key",),
    "entry_predecessors": ("entry_after by key", "agent_schedule_queue by key"),
    "entry_awaited": ("entry_after by idx_after_waits_for", "agent_schedule_queue by key"),
    "entry_dependents": ("entry_after by idx_after_waits_for", "agent_schedule_queue by key"),
    "dependents_pending_add": (),
    "dependents_pending_next": ("entry_fallout whole",),
    "dependents_pending_advance": ("entry_fallout by key",),
    "dependents_pending_done": ("entry_fallout by key",),
    "finished_append": (),
    "finished_oldest": ("finished_entries by key",),
    "finished_delete": (
        "agent_schedule_queue by key",
        "agent_schedule_queue at an end",
        "entry_after by idx_after_waits_for",
        "agent_schedule_queue by key",
        "agent_schedule_queue by key",
        "graph_runs by sqlite_autoindex_graph_runs_1",
    ),
    "finished_to_end": ("finished_entries by key", "agent_schedule_queue by key"),
    "finished_forget": ("finished_entries by key",),
}

# What runs in every claim: here nothing is sorted, because the index has the order already.
CLAIM_PATH = (
    "due_summary",
    "entries_ready",
    "entries_ready_at_any_time",
    "entries_ready_unblocked",
    "entries_ready_of_agent",
    "entries_next_of_agent",
    "entries_next_of_project",
    "entries_ready_ids",
    "entries_ready_of_project",
    "heads_of_agents",
    "heads_of_projects",
    "projects_ready",
    "agents_ready_of",
    "entries_still_ready",
    "projects_of_agents",
    "entries_ready_by_deadline",
    "agents_stopped",
    "agents_breached",
    "agents_capped_out",
    "claims_live",
    "agent_facts",
    "ledger_facts",
    "project_facts",
    "budget_facts",
    "entry_claim",
    "entries_held_due",
    "entry_release",
    "affinity_first",
    "affinity_due",
    "affinity_remove",
    "claims_expired",
    "entries_past_deadline",
    "entry_expire",
    "windows_due",
    "context_due",
    "context_bound",
    "agent_flows_since",
    "agent_flows_of",
    "agent_flows_changed",
    "agent_flows_ready",
    "owners_new",
    "first_priorities",
    "last_entry",
    "project_flows_since",
    "shares",
    "agent_flow_move",
    "agent_flow_served",
    "agent_flow_enter",
    "agent_flow_leave",
    "project_flow_move",
    "workspace_fence",
    "event_append",
)

_JUMP = "Once when the wall clock has jumped."
_BOUND = "For callers that are bound to projects."
_RESTART = "Once when sharing begins to count something else."
COLD: Mapping[str, str] = {
    "contexts_of_cpu_list": "Along the index of contexts of CPU time, which are few.",
    "core_grant_states": "For replay.",
    "core_grants_ended": "When cores are asked for. One grant for each claim with cores.",
    "core_grants_live": "When cores are asked for or shown. One grant for each claim with cores.",
    "graph_budget_states": "For replay.",
    "traced_live_entries": "When an exporter starts. Along the index of live claims; sorted, because few.",
    "graph_run_count": "For a listing.",
    "graph_run_orphans": "Along the index of live graph runs, by the supervisor, now and then.",
    "index_is_costly": "In the first dry run of a policy. Ends after READY_WITHOUT_INDEX_MAX rows.",
    "core_refusals_lately": "For an operator. Among the latest events, by key.",
    "clock_last_event_at": "Once after a reboot. The last row.",
    "clock_move_delays_after": f"{_JUMP} By key, over the entries that wait or waited for others.",
    "clock_move_ready": f"{_JUMP} Along the index of ready entries.",
    "clock_move_ready_for_worker": f"{_JUMP} By key, over the entries that are held for workers.",
    "clock_hold_ready": f"{_JUMP} Along the index of ready entries.",
    "clock_hold_ready_for_worker": f"{_JUMP} By key, over the entries that are held for workers.",
    "clock_move_affinity": _JUMP,
    "clock_contexts": _JUMP,
    "clock_move_context": _JUMP,
    "clock_move_asks": _JUMP,
    "clock_move_windows": _JUMP,
    "clock_move_workers": _JUMP,
    "worker_was_away": "All workers, when claims have expired and when a worker renews its registration.",
    "worker_claims": "For a listing, and while a worker is unseen; along the index of live claims.",
    "worker_count": "Every 15 s for each worker; there are at most WORKERS_MAX.",
    "worker_count_returned": "Only when claims have expired; there are at most WORKERS_MAX.",
    "worker_list": "For a person; there are at most WORKERS_MAX.",
    "worker_runs": "For an explanation; along the index of live claims.",
    "clock_copy_buckets": _JUMP,
    "clock_drop_buckets": _JUMP,
    "clock_put_buckets": _JUMP,
    "clock_move_last_runs": _JUMP,
    "clock_move_quarantines": _JUMP,
    "finished_excess": "Once in a while, for retention; along the list of finished entries, which is short.",
    "finished_ends": "Once in a while, for retention; along the list of finished entries, which is short.",
    "graph_run_list": "A page for a person, by name.",
    "index_by_agent": "Once in the life of a file, when a policy first wants it.",
    "index_by_deadline": "Once in the life of a file, when a policy first wants it.",
    "index_by_project": "Once in the life of a file, when a policy first wants it.",
    "index_unended_by_agent": "Once in the life of a file, when the first call compares entries of an agent.",
    "agent_list": "A page for a person, by pid.",
    "agent_count": "The total beside a page.",
    "agent_count_by_state": "For `info`.",
    "agent_last_pid": "For `info`; the table has a row for each kind of id.",
    "agents_paused": "Once, at start, over paused agents.",
    "agent_interrupted": "Once, at start, over those that were at work.",
    "agent_interrupted_by_run": "While a daemon waits for the claims that were live at its start.",
    "budgets_all": "A listing of budgets.",
    "event_count": "For `info`.",
    "ledger_breached": "A listing, over those that are over their limit.",
    "ledger_states": "A checkpoint holds all of them.",
    "project_flow_states": "A checkpoint holds all of them.",
    "agent_flow_states": "A checkpoint holds all of them.",
    "context_states": "A checkpoint holds all of them.",
    "context_list": "A page for a person, by id.",
    "project_list": "A page for a person, by id.",
    "project_count": "The total beside a page.",
    "entry_count_by_state": "For `counts`.",
    "entry_count_by_status": "For `counts` by status: along partial indexes, and the number of all rows.",
    "entry_count_by_status_within": f"{_BOUND} For `counts` by status.",
    "entries_newest": "For a search, newest first: a LIMIT ends it.",
    "entry_unfinished": "For `unfinished`, which a supervisor asks when it has nothing to run and is to end then.",
    "entry_filtered": "A page for a person, by id: a LIMIT ends it.",
    "entry_filtered_count": "The total beside a page.",
    "entry_count_by_state_within": f"{_BOUND} For `counts`.",
    "entry_filtered_within": f"{_BOUND} A page for a person, by id: a LIMIT ends it.",
    "entry_filtered_count_within": f"{_BOUND} The total beside a page.",
    "agent_list_within": f"{_BOUND} A page for a person, by pid.",
    "agent_count_by_state_within": f"{_BOUND} The total beside a page.",
    "agents_paused_within": f"{_BOUND} Over the agents that are paused.",
    "context_list_within": f"{_BOUND} A page for a person, by id.",
    "windows_of_dim": "Over all projects, when the window of shares is given another length.",
    "meta_exists": "Once, when a file is opened.",
    "space": "Reads the file's header.",
    "agent_flows_restart": _RESTART,
    "project_flows_restart": _RESTART,
    "share_windows_restart": _RESTART,
    "share_buckets_restart": _RESTART,
    "estimates_restart": _RESTART,
    "vacuum_step": "Moves pages, not rows.",
    "grants": "For operators; there are at most GRANTS_MAX.",
    "grant_states": "For a checkpoint; there are at most GRANTS_MAX.",
    "all_columns": "Reads the schema, for a check.",
    "partial_indexes": "Reads the schema, for a check.",
    "integrity": "Looks at every page there is: that is what it is for.",
    "orphans": "Looks at every row there is: that is what it is for.",
}

# --- reading plans -------------------------------------------------------------------------------


def modules() -> Iterator[tuple[str, Mapping[str, object]]]:
    for module in pkgutil.iter_modules(statements.__path__):
        yield module.name, vars(importlib.import_module(f"{statements.__name__}.{module.name}"))


def every_statement() -> dict[str, Statement]:
    return {value.name: value for _, names in modules() for value in names.values() if isinstance(value, Statement)}


STATEMENTS = every_statement()


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    path = str(tmp_path_factory.mktemp("plans") / "rota.db")
    store.open(path).close()
    opened = apsw.Connection(path)
    for statement in STATEMENTS.values():
        if statement.sql.startswith("CREATE INDEX"):  # made when they are first wanted
            opened.execute(statement.sql)
    yield opened
    opened.close()


_ACCESS = re.compile(
    r"(?P<verb>SEARCH|SCAN) (?P<table>\w+)(?: EXISTS)?"
    r"(?: USING (?:COVERING )?INDEX (?P<index>\w+)| USING (?P<key>INTEGER PRIMARY KEY|PRIMARY KEY))?"
)


def plan(connection: apsw.Connection, statement: Statement) -> tuple[str, ...]:
    """How a statement gets at its rows, in the words of this file."""
    count = apsw.ext.query_info(connection, statement.sql).bindings_count
    rows = connection.execute(f"EXPLAIN QUERY PLAN {statement.sql}", (None,) * count).fetchall()
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    found: list[str] = []
    for step in (str(row[-1]) for row in rows):
        if step.startswith("USE TEMP B-TREE"):
            found.append("sorts" if step.endswith("ORDER BY") else "groups")
        access = _ACCESS.match(step)
        table = _table(access["table"], statement.sql, tables) if access is not None else None
        if access is not None and table is not None:
            found.append(f"{table} {_way(access)}")
    return tuple(found)


def _table(name: str, sql: str, tables: list[str]) -> str | None:
    """The table behind a name in a plan: itself, or what the statement calls so; None for lists and constants."""
    if name in tables:
        return name
    named = re.search(rf"\b({'|'.join(tables)}) (?:AS )?{name}\b", sql)
    return named[1] if named else None


def _way(access: re.Match[str]) -> str:
    if access["index"]:
        return f"{'by' if access['verb'] == 'SEARCH' else 'along'} {access['index']}"
    if access["key"]:
        return "by key"
    return "at an end" if access["verb"] == "SEARCH" else "whole"


# --- tests ---------------------------------------------------------------------------------------


def test_every_statement_has_a_name_of_its_own_and_has_been_thought_about() -> None:
    values = [value for _, names in modules() for value in names.values() if isinstance(value, Statement)]
    assert len({value.name for value in values}) == len({value.sql for value in values}) == len(set(values))
    assert sorted([*HOT, *COLD]) == sorted(STATEMENTS)
    assert set(CLAIM_PATH) <= set(HOT)


@pytest.mark.parametrize("name", HOT)
def test_a_hot_statement_finds_its_rows_as_it_is_written_down(connection: apsw.Connection, name: str) -> None:
    assert plan(connection, STATEMENTS[name]) == HOT[name]


@pytest.mark.parametrize("name", HOT)
def test_a_hot_statement_never_looks_at_all_entries(connection: apsw.Connection, name: str) -> None:
    partial = {
        row[0]
        for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'index' AND sql LIKE '% WHERE %'")
    }
    for access in HOT[name]:
        assert access != f"{ENTRIES} whole"
        if " along " in access:
            assert access.split(" along ")[1] in partial


@pytest.mark.parametrize("name", CLAIM_PATH)
def test_on_the_claim_path_nothing_is_sorted(name: str) -> None:
    assert "sorts" not in HOT[name]


@pytest.mark.parametrize("name", STATEMENTS)
def test_every_limit_parameter_has_a_plus(name: str) -> None:
    """SQLite prepares a statement again for each value of a bare `LIMIT ?`; `LIMIT +?` is prepared once."""
    assert not re.search(r"\bLIMIT\s+[?:@$]", STATEMENTS[name].sql, re.IGNORECASE)


def test_every_statement_is_used() -> None:
    uses = {use for path in SOURCE.rglob("*.py") for use in _uses(path)}
    made = {
        (module, name) for module, names in modules() for name, value in names.items() if isinstance(value, Statement)
    }
    assert made - uses == set()


def _uses(path: Path) -> Iterator[tuple[str, str]]:
    """Which statements a file names, as (module, name)."""
    text = path.read_text()
    tree = ast.parse(text if statements.__name__ in text else "")  # most files name none, and parsing takes a while
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == statements.__name__:
            aliases |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{statements.__name__}."):
            yield from ((node.module.rsplit(".", 1)[1], alias.name) for alias in node.names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            yield aliases[node.value.id], node.attr
