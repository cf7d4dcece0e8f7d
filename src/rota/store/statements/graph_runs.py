"""The durable state of graph runs, and the entries that belong to them."""

from __future__ import annotations

from rota.store.protocol import Statement

_INFO = (
    "run_id, graph, pid, project_id, status, sched_id, next_epoch_id, inputs, budget, waits, waits_since, error, "
    "started_at, updated_at, ended_at, resumes"
)
RUN_CREATE = Statement(
    "graph_run_create",
    "Store a new graph run.",
    "INSERT INTO graph_runs (run_id, graph, pid, project_id, fence, updated_at, started_at, sched_id, document, "
    "inputs, budget) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6, ?7, ?8, ?9, ?10)",
)
RUN_COORDINATED = Statement(
    "graph_run_coordinated",
    "Record the entry that coordinates a new run, and the run's first fence.",
    "UPDATE graph_runs SET fence = ?2, sched_id = ?3 WHERE run_id = ?1",
)
RUN_TAKE = Statement(
    "graph_run_take",
    "Take a graph run: only the process with this fence may write it from now on. One that has ended goes on.",
    "UPDATE graph_runs SET fence = ?2, updated_at = ?3, sched_id = coalesce(?4, sched_id), status = 'running', "
    "waits = NULL, waits_since = NULL, error = NULL, ended_at = NULL WHERE run_id = ?1",
)
RUN_RESUME = Statement(
    "graph_run_resume",
    "Let a run that has ended go on with another coordinator; the process that held it may no longer write.",
    "UPDATE graph_runs SET fence = ?2, updated_at = ?3, sched_id = ?4, status = 'running', result = NULL, "
    "error = NULL, ended_at = NULL, resumes = resumes + 1 WHERE run_id = ?1",
)
RUN_FENCE = Statement(
    "graph_run_fence",
    "Take a graph run that has ended, so that it can be ended completely.",
    "UPDATE graph_runs SET fence = ?2, updated_at = ?3 WHERE run_id = ?1",
)
RUN_GET = Statement(
    "graph_run_get",
    "One graph run.",
    f"SELECT {_INFO}, result, fence, document, checkpoint FROM graph_runs WHERE run_id = ?",
)
RUN_INFO = Statement(
    "graph_run_info",
    "One graph run, without its checkpoint.",
    f"SELECT {_INFO}, result, fence, document, NULL FROM graph_runs WHERE run_id = ?",
)
RUN_COUNTS = Statement(
    "graph_run_counts",
    "How often each node of a run has succeeded and failed, as its checkpoint has it.",
    "SELECT CASE WHEN json_valid(checkpoint) THEN json_extract(checkpoint, '$.counts') END FROM graph_runs "
    "WHERE run_id = ?",
    postgres="SELECT rota_json_text(checkpoint, 'counts') FROM graph_runs WHERE run_id = ?",
)
RUN_GRAPH = Statement(
    "graph_run_graph",
    "The graph of a run.",
    "SELECT graph FROM graph_runs WHERE run_id = ?",
)
RUN_OF_COORDINATOR = Statement(
    "graph_run_of_coordinator",
    "The graph run that an entry coordinates.",
    "SELECT run_id FROM graph_runs WHERE sched_id = ?",
)
RUN_COMMIT = Statement(
    "graph_run_commit",
    "Save a live run's state, if no other process has taken it over.",
    "UPDATE graph_runs SET next_epoch_id = ?1, checkpoint = ?2, updated_at = ?3, "
    "waits_since = CASE WHEN ?6 IS NULL THEN NULL ELSE coalesce(waits_since, ?3) END, waits = ?6, "
    "status = CASE WHEN ?6 IS NULL THEN 'running' ELSE 'waiting' END "
    "WHERE run_id = ?4 AND fence = ?5 AND ended_at IS NULL RETURNING pid",
    postgres="UPDATE graph_runs SET next_epoch_id = ?1, checkpoint = ?2, updated_at = ?3, waits = ?6, "
    "waits_since = CASE WHEN ?6::text IS NULL THEN NULL ELSE coalesce(waits_since, ?3) END, "
    "status = CASE WHEN ?6 IS NULL THEN 'running' ELSE 'waiting' END "
    "WHERE run_id = ?4 AND fence = ?5 AND ended_at IS NULL RETURNING pid",
)
RUN_WAITS = Statement(
    "graph_run_waits",
    "Record what a new run waits for.",
    "UPDATE graph_runs SET status = 'waiting', waits = ?2, waits_since = ?3 WHERE run_id = ?1",
)
RUN_HELD = Statement(
    "graph_run_held",
    "The project of a live run and the needs of its coordinator, if no other process has taken it over.",
    "SELECT r.project_id, q.needs FROM graph_runs r LEFT JOIN agent_schedule_queue q ON q.sched_id = r.sched_id "
    "WHERE r.run_id = ?1 AND r.fence = ?2 AND r.ended_at IS NULL",
)
RUN_END = Statement(
    "graph_run_end",
    "End a live run.",
    "UPDATE graph_runs SET status = ?2, result = ?3, error = ?4, updated_at = ?5, ended_at = ?5, waits = NULL, "
    "waits_since = NULL WHERE run_id = ?1 AND ended_at IS NULL RETURNING pid, graph, fence",
)
RUN_FORGET = Statement(
    "graph_run_forget",
    "Delete a graph run.",
    "DELETE FROM graph_runs WHERE run_id = ? RETURNING pid, fence",
)
RUN_PRUNE = Statement(
    "graph_run_prune",
    "Delete the graph runs that have ended and whose coordinators, these entries, were removed.",
    "DELETE FROM graph_runs WHERE sched_id IN (SELECT value FROM json_each(?)) AND ended_at IS NOT NULL "
    "RETURNING run_id, pid",
)
RUN_LIST = Statement(
    "graph_run_list",
    "A page of graph runs, newest first, without documents, results and checkpoints.",
    f"SELECT {_INFO}, NULL, fence, NULL, NULL FROM graph_runs WHERE (?1 IS NULL OR status = ?1) "
    "AND (?2 IS NULL OR graph = ?2) AND (?3 IS NULL OR coalesce(project_id, '') IN (SELECT value FROM json_each(?3))) "
    "ORDER BY started_at DESC, run_id LIMIT +?4 OFFSET +?5",
)
RUN_COUNT = Statement(
    "graph_run_count",
    "The number of graph runs that match.",
    "SELECT count(*) FROM graph_runs WHERE (?1 IS NULL OR status = ?1) AND (?2 IS NULL OR graph = ?2) "
    "AND (?3 IS NULL OR coalesce(project_id, '') IN (SELECT value FROM json_each(?3)))",
)
RUN_ORPHANS = Statement(
    "graph_run_orphans",
    "Live runs whose coordinator has ended or was pruned, and how it ended.",
    "SELECT r.run_id, r.sched_id, q.state, q.exit_kind, q.outcome FROM graph_runs r "
    "LEFT JOIN agent_schedule_queue q ON q.sched_id = r.sched_id "
    "WHERE r.ended_at IS NULL AND r.sched_id IS NOT NULL "
    "AND (q.state IS NULL OR q.state IN ('completed','expired','cancelled')) ORDER BY r.run_id LIMIT +?",
)
NEXT_ENTRY = Statement(
    "graph_run_next_entry",
    "The id that the next entry gets.",
    "SELECT coalesce(max(sched_id), 0) + 1 FROM agent_schedule_queue",
    postgres="SELECT coalesce((SELECT sched_id FROM agent_schedule_queue ORDER BY sched_id DESC LIMIT 1), 0) + 1",
)

# --- the entries of a run ------------------------------------------------------------------------

_CORRELATION = "CASE WHEN json_valid(q.options) THEN json_extract(q.options, '$.correlation_id') END"
_PARENT = "CASE WHEN json_valid(q.options) THEN json_extract(q.options, '$.parent_id') END"
RUN_ENTRIES = Statement(
    "graph_run_entries",
    # a run's name may contain the beginning of another's: what the entries say themselves decides
    "The entries of a graph run, by key: ?1 and ?2 are the ends of the range of their keys.",
    "SELECT q.key, q.sched_id, q.pid, q.project_id, q.state, q.hold, q.exit_kind, q.spent, q.created_at, "
    "q.dispatched_at, q.completed_at FROM agent_schedule_queue q WHERE q.key IS NOT NULL AND q.key > ?1 "
    f"AND q.key < ?2 AND {_CORRELATION} = ?3 ORDER BY q.key LIMIT +?4",
    postgres="SELECT q.key, q.sched_id, q.pid, q.project_id, q.state, q.hold, q.exit_kind, q.spent, q.created_at, "
    "q.dispatched_at, q.completed_at FROM agent_schedule_queue q WHERE q.key IS NOT NULL AND q.key > ?1 "
    "AND q.key < ?2 AND rota_json_text(q.options, 'correlation_id') = ?3 ORDER BY q.key LIMIT ?4",
)
CHILDREN_OF = Statement(
    "graph_run_children",
    "The entries that some entries have spawned, by id.",
    "SELECT q.sched_id, q.state FROM agent_schedule_queue q WHERE instr(q.options, '\"parent_id\":') > 0 "
    f"AND {_PARENT} IN (SELECT value FROM json_each(?1)) AND q.sched_id > +?2 ORDER BY q.sched_id LIMIT +?3",
    postgres="SELECT q.sched_id, q.state FROM agent_schedule_queue q WHERE strpos(q.options, '\"parent_id\":') > 0 "
    "AND rota_json_text(q.options, 'parent_id') IN (SELECT value FROM json_each(?1)) AND q.sched_id > ?2 "
    "ORDER BY q.sched_id LIMIT ?3",
)
