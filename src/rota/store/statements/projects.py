"""Projects, their workspaces, and the grants between them."""

from __future__ import annotations

from rota.store.protocol import Statement

PROJECT = "project_id, name, weight, max_concurrent, status, restraint, paused_by, created_at, updated_at, metadata"

CREATE = Statement(
    "project_create",
    "Create a project.",
    f"INSERT INTO projects ({PROJECT}) VALUES (?, ?, ?, ?, 'ACTIVE', ?, NULL, ?, ?, ?)",
)
GET = Statement(
    "project_get",
    "One project.",
    f"SELECT {PROJECT} FROM projects WHERE project_id = ?",
)
LIST = Statement(
    "project_list",
    "A page of projects, by id.",
    f"SELECT {PROJECT} FROM projects WHERE (?1 IS NULL OR status = +?1) ORDER BY project_id LIMIT +?2 OFFSET ?3",
)
COUNT = Statement(
    "project_count",
    "The total number of projects in a listing.",
    "SELECT count(*) FROM projects WHERE (?1 IS NULL OR status = ?1)",
)
SET = Statement(
    "project_set",
    "Change a project.",
    "UPDATE projects SET name = ?, weight = ?, max_concurrent = ?, status = ?, restraint = ?, paused_by = ?, "
    "updated_at = ?, metadata = ? WHERE project_id = ?",
)
WORKSPACE_ADD = Statement(
    "workspace_add",
    "Add a workspace to a project.",
    "INSERT INTO workspaces (workspace_id, project_id, path, source) VALUES (?, ?, ?, ?)",
)
WORKSPACE_GET = Statement(
    "workspace_get",
    "One workspace.",
    "SELECT workspace_id, project_id, path, source, fence, kept FROM workspaces WHERE workspace_id = ?",
)
WORKSPACE_AT = Statement(
    "workspace_at",
    "The workspace at a path.",
    "SELECT workspace_id FROM workspaces WHERE path = ?",
)
WORKSPACES_OF = Statement(
    "workspaces_of",
    "A project's workspaces, by id.",
    "SELECT workspace_id, project_id, path, source, fence, kept FROM workspaces WHERE project_id = +? "
    "ORDER BY workspace_id",
)
WORKSPACE_REMOVE = Statement(
    "workspace_remove",
    "Remove a workspace.",
    "DELETE FROM workspaces WHERE workspace_id = ?",
)
WORKSPACE_KEPT = Statement(
    "workspace_kept",
    "Record why a workspace is kept.",
    "UPDATE workspaces SET kept = ? WHERE workspace_id = ?",
)
WORKSPACE_HAD = Statement(
    "workspace_had",
    "The workspace that the last attempt of an entry held.",
    "SELECT held_workspace FROM agent_schedule_queue WHERE sched_id = ?",
)
WORKSPACE_FENCE = Statement(
    "workspace_fence",
    "Record the claim token of a workspace's holder.",
    "UPDATE workspaces SET fence = ? WHERE workspace_id = ?",
)
WORKSPACE_HOLDERS = Statement(
    "workspace_holders",
    "The live claims that hold a project's workspaces.",
    "SELECT q.held_workspace, q.sched_id, q.needs, q.dispatched_at FROM workspaces w "
    "JOIN agent_schedule_queue q ON q.held_workspace = w.workspace_id AND q.state = 'dispatched' "
    "WHERE w.project_id = +? ORDER BY q.sched_id",
    postgres="SELECT q.held_workspace, q.sched_id, q.needs, q.dispatched_at FROM workspaces w "
    "JOIN agent_schedule_queue q ON q.held_workspace = w.workspace_id AND q.state = 'dispatched' "
    "WHERE w.project_id = ? ORDER BY +q.sched_id",
)

# --- grants: '' is no project --------------------------------------------------------------------

GRANT_ADD = Statement(
    "grant_add",
    "Let one project reach into another.",
    "INSERT INTO project_grants (from_project, to_project, granted_at, granted_by) VALUES (?, ?, ?, ?)",
)
GRANT_GET = Statement(
    "grant_get",
    "The grant from one project to another, if there is one.",
    "SELECT from_project, to_project, granted_at, granted_by FROM project_grants "
    "WHERE from_project = ? AND to_project = ?",
)
GRANT_REMOVE = Statement(
    "grant_remove",
    "Remove the grant from one project to another.",
    "DELETE FROM project_grants WHERE from_project = ? AND to_project = ? RETURNING from_project",
)
GRANTS = Statement(
    "grants",
    "Every grant, by its projects.",
    "SELECT from_project, to_project, granted_at, granted_by FROM project_grants "
    "ORDER BY from_project, to_project LIMIT +?",
)
