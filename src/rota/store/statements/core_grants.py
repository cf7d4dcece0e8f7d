"""Core grants: leased cores and reserved time of live claims."""

from __future__ import annotations

from rota.store.protocol import Statement


def _live(more: str = "") -> str:
    return (
        "EXISTS (SELECT 1 FROM agent_schedule_queue q WHERE q.sched_id = g.sched_id AND q.state = 'dispatched' "
        f"AND q.token = g.token{more})"
    )


def _live_postgres(more: str = "") -> str:
    return (
        "(SELECT true FROM agent_schedule_queue q WHERE q.sched_id = g.sched_id AND +q.state = 'dispatched' "
        f"AND q.token = g.token{more}) IS NOT NULL"
    )


# a grant is live while the claim that it was made for is; so no claim and no completion has to write here
_LIVE, _LIVE_POSTGRES = _live(), _live_postgres()
LIVE = Statement(
    "core_grants_live",
    "The grants of claims that are live at a time, on one host or on all, by entry.",
    "SELECT g.sched_id, g.body FROM core_grants g WHERE (?1 IS NULL OR g.host = ?1) "
    f"AND {_live(' AND q.claim_expires_at > +?2')} ORDER BY g.sched_id LIMIT +?3",
    postgres="SELECT g.sched_id, g.body FROM core_grants g WHERE (?1 IS NULL OR g.host = ?1) "
    f"AND {_live_postgres(' AND q.claim_expires_at > ?2')} ORDER BY g.sched_id LIMIT ?3",
)
ENDED = Statement(
    "core_grants_ended",
    "Grants whose claim has ended.",
    f"SELECT g.sched_id FROM core_grants g WHERE NOT {_LIVE} ORDER BY g.sched_id LIMIT +?",
    postgres=f"SELECT g.sched_id FROM core_grants g WHERE NOT ({_LIVE_POSTGRES}) ORDER BY g.sched_id LIMIT ?",
)
CREATE = Statement(
    "core_grant_create",
    "Store a grant.",
    "INSERT INTO core_grants (sched_id, token, host, body) VALUES (?, ?, ?, ?)",
)
LEASE = Statement(
    "core_lease_create",
    "Lease a core of a host to an entry. Each core has at most one lease.",
    "INSERT INTO core_leases (host, core, sched_id) VALUES (?, ?, ?)",
)
GET = Statement(
    "core_grant_get",
    "The grant of an entry.",
    "SELECT sched_id, token, host FROM core_grants WHERE sched_id = ?",
)
DELETE = Statement(
    "core_grants_delete",
    "Remove grants.",
    "DELETE FROM core_grants WHERE sched_id IN (SELECT value FROM json_each(?))",
)
DELETE_LEASES = Statement(
    "core_leases_delete",
    "End the leases of grants.",
    "DELETE FROM core_leases WHERE sched_id IN (SELECT value FROM json_each(?))",
)
LEASES = Statement(
    "core_leases_live",
    "The leased cores of a host, by core.",
    f"SELECT l.core, l.sched_id FROM core_leases l JOIN core_grants g ON g.sched_id = l.sched_id "
    f"WHERE l.host = ? AND {_LIVE} ORDER BY l.core",
    postgres="SELECT l.core, l.sched_id FROM core_leases l JOIN core_grants g ON g.sched_id = l.sched_id "
    f"WHERE l.host = ? AND {_LIVE_POSTGRES} ORDER BY l.core",
)
STATES = Statement(
    "core_grant_states",
    "Every grant and its leased cores, for replay.",
    "SELECT g.sched_id, g.token, g.host, "
    "(SELECT json_group_array(core) FROM (SELECT l.core FROM core_leases l WHERE l.sched_id = g.sched_id "
    "ORDER BY l.core)) FROM core_grants g ORDER BY g.sched_id",
    postgres="SELECT g.sched_id, g.token, g.host, (SELECT '[' || coalesce(string_agg(l.core::text, ',' ORDER "
    "BY l.core), '') "
    "|| ']' FROM core_leases l WHERE l.sched_id = g.sched_id) FROM core_grants g ORDER BY g.sched_id",
)
REFUSED_LATELY = Statement(
    "core_refusals_lately",
    "Refusals among the latest events, newest first.",
    "SELECT ts, payload FROM agent_events WHERE event_id > (SELECT max(event_id) FROM agent_events) - +?1 "
    "AND kind = 'kernel.cores.refused' ORDER BY event_id DESC LIMIT +?2",
    postgres="SELECT ts, payload FROM agent_events WHERE event_id > (SELECT event_id FROM agent_events "
    "ORDER BY event_id DESC LIMIT 1) - ?1 AND kind = 'kernel.cores.refused' ORDER BY event_id DESC LIMIT ?2",
)
QUEUED = Statement(
    "core_refusals_queued",
    "Those of some entries that are queued.",
    "SELECT sched_id FROM agent_schedule_queue WHERE sched_id IN (SELECT value FROM json_each(?)) AND state = 'queued'",
)
