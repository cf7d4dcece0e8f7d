"""The list of finished entries, from which retention takes the oldest."""

from __future__ import annotations

from rota.store.protocol import Statement

FINISHED_APPEND = Statement(
    "finished_append",
    "Append an entry that has ended to the list.",
    "INSERT INTO finished_entries (sched_id, ended_at) VALUES (?, ?)",
)
FINISHED_EXCESS = Statement(
    "finished_excess",
    "The newest place that is not among the newest ones, of which this many are kept.",
    "SELECT place FROM finished_entries ORDER BY place DESC LIMIT 1 OFFSET +?",
)
FINISHED_OLDEST = Statement(
    "finished_oldest",
    "Entries of a range of places that ended before a time, by place.",
    "SELECT place, sched_id FROM finished_entries WHERE place > +?1 AND place <= +?2 AND ended_at < +?3 "
    "ORDER BY place LIMIT +?4",
)
FINISHED_ENDS = Statement(
    "finished_ends",
    "The number of entries in the list, the last place, and when the first of them ended.",
    "SELECT count(*), coalesce(max(place), 0), "
    "(SELECT ended_at FROM finished_entries ORDER BY place LIMIT 1) FROM finished_entries",
)
_PARENT = "CASE WHEN json_valid(q.options) THEN json_extract(q.options, '$.parent_id') END"
_RUN = "CASE WHEN json_valid(q.options) THEN json_extract(q.options, '$.correlation_id') END"
FINISHED_DELETE = Statement(
    "finished_delete",
    # the last entry stays, so that its id is never reused
    "Delete some entries that have ended, except those that live entries or graph runs still need.",
    "DELETE FROM agent_schedule_queue AS q WHERE sched_id IN (SELECT value FROM json_each(?)) "
    "AND state IN ('completed','expired','cancelled') "
    "AND sched_id < (SELECT max(sched_id) FROM agent_schedule_queue) "
    "AND NOT EXISTS (SELECT 1 FROM entry_after a JOIN agent_schedule_queue d ON d.sched_id = a.sched_id "
    "WHERE a.waits_for = q.sched_id AND d.state IN ('queued','dispatched')) "
    f"AND NOT (options IS NOT NULL AND (EXISTS (SELECT 1 FROM agent_schedule_queue p WHERE p.sched_id = {_PARENT} "
    f"AND p.state IN ('queued','dispatched')) OR EXISTS (SELECT 1 FROM graph_runs r "
    f"WHERE r.run_id = {_RUN} AND r.ended_at IS NULL))) "
    "RETURNING sched_id",
    postgres="DELETE FROM agent_schedule_queue AS q WHERE sched_id IN (SELECT value FROM json_each(?)) "
    "AND state IN ('completed','expired','cancelled') "
    "AND sched_id < (SELECT sched_id FROM agent_schedule_queue ORDER BY sched_id DESC LIMIT 1) "
    "AND NOT EXISTS (SELECT 1 FROM entry_after a JOIN agent_schedule_queue d ON d.sched_id = a.sched_id "
    "WHERE a.waits_for = q.sched_id AND d.state IN ('queued','dispatched')) "
    "AND NOT (options IS NOT NULL AND ((SELECT true FROM agent_schedule_queue p "  # EXISTS may be a hash of all
    "WHERE p.sched_id = rota_json_number(q.options, 'parent_id')::bigint AND p.state IN ('queued','dispatched')) "
    "IS NOT NULL OR (SELECT true FROM graph_runs r WHERE r.run_id = rota_json_text(q.options, 'correlation_id') "
    "AND r.ended_at IS NULL) IS NOT NULL)) RETURNING sched_id",
)
FINISHED_TO_END = Statement(
    "finished_to_end",
    "Append those of some places whose entries still exist to the list again.",
    "INSERT INTO finished_entries (sched_id, ended_at) SELECT f.sched_id, f.ended_at FROM finished_entries f "
    "WHERE f.place IN (SELECT value FROM json_each(?)) "
    "AND EXISTS (SELECT 1 FROM agent_schedule_queue q WHERE q.sched_id = f.sched_id) ORDER BY f.place",
)
FINISHED_FORGET = Statement(
    "finished_forget",
    "Remove some places from the list.",
    "DELETE FROM finished_entries WHERE place IN (SELECT value FROM json_each(?))",
)
