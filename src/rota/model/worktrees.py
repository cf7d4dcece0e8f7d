"""The git worktrees of an agent's runs: how they are made, named, and when they are removed.

The settings are stored with the agent, so that every supervisor of the store treats its worktrees alike. All decisions
here are pure; `fleet/worktrees` acts on them.

    per = "entry"    each entry has a worktree of its own, through all its attempts
    per = "agent"    the entries of an agent follow each other in one worktree
    per = "slot"     the runs of a project take turns in a fixed number of worktrees
"""

from __future__ import annotations

import re
from string import Formatter
from typing import TYPE_CHECKING, Literal

import msgspec

from rota.errors import FleetInvalid
from rota.lazy import late
from rota.model.checks import Checks

if TYPE_CHECKING:
    import hashlib
else:
    hashlib = late("hashlib")

__all__ = [
    "KEPT_MAX",
    "KeepOn",
    "Unsaved",
    "WorktreePer",
    "WorktreeSettings",
    "check_run_branch",
    "why_keep",
]

WorktreePer = Literal["entry", "agent", "slot"]
KeepOn = Literal["failed", "always", "never"]
KEPT_MAX = 32  # worktrees of ended entries that a project keeps by default
NAME_CHARS_MAX = 80  # of one part of a name
_FIELDS = frozenset({"project", "agent", "entry"})
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_checks = Checks("WorktreeSettings", FleetInvalid)


class Unsaved(msgspec.Struct, frozen=True, kw_only=True):
    """Work in a worktree that exists nowhere else."""

    files: int = 0  # changed or new, and not committed
    commits: int = 0  # on no branch

    def __bool__(self) -> bool:
        return bool(self.files or self.commits)

    def __str__(self) -> str:
        found = ((self.files, "uncommitted file"), (self.commits, "commit"))
        parts = [f"{count:,} {what}{'' if count == 1 else 's'}" for count, what in found if count]
        return " and ".join(parts) + (" on no branch" if self.commits else "")


class WorktreeSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How the worktrees of an agent's runs are made and removed."""

    repository: str  # its folder
    folder: str  # where the worktrees are
    per: WorktreePer = "entry"
    branch: str = "HEAD"  # where a new worktree starts
    run_branch: str | None = None  # the branch of an entry's work; None: detached
    setup: tuple[str, ...] = ()  # the command after a worktree was made
    teardown: tuple[str, ...] = ()  # the command before it is removed
    clean: bool = True  # before another entry uses it
    keep_on: KeepOn = "failed"
    kept_max: int = KEPT_MAX

    def __post_init__(self) -> None:
        for field in ("repository", "folder"):
            _checks.text(field, getattr(self, field), 4096)
        _checks.text("branch", self.branch)
        _checks.whole("kept_max", self.kept_max, 0)
        if self.run_branch is not None and (problem := check_run_branch(self.run_branch)) is not None:
            raise _checks.refuse("run_branch", problem)

    def workspace_id(self, project_id: str, agent: str) -> str | None:
        """Return the workspace that the entries of an agent ask for, `{entry}` in place of an id; None: any."""
        project = _short(project_id)
        return {"entry": f"{project}/entry-{{entry}}", "agent": f"{project}/agent-{_short(agent)}", "slot": None}[
            self.per
        ]

    def path(self, agent: str, sched_id: int) -> str | None:
        """Return the folder of the worktree of an entry; None if it is that of a workspace."""
        name = {"entry": f"entry-{sched_id}", "agent": f"agent-{as_name(agent)}", "slot": None}[self.per]
        return None if name is None else f"{self.folder}/{name}"

    def branch_name(self, project_id: str, agent: str, sched_id: int) -> str | None:
        """Return the branch of an entry's work; None: it has none."""
        if self.run_branch is None:
            return None
        return self.run_branch.format(project=as_name(project_id), agent=as_name(agent), entry=sched_id)


def check_run_branch(template: str) -> str | None:
    """Return what is wrong with the template of a branch name; None if it can be used."""
    try:
        fields = [
            (field, form, conversion) for _, field, form, conversion in Formatter().parse(template) if field is not None
        ]
    except ValueError as problem:
        return f"is no template: {problem}"
    if any(field not in _FIELDS or form or conversion for field, form, conversion in fields):
        return f"may name {{project}}, {{agent}} and {{entry}}, not {template!r}"
    if not any(field == "entry" for field, _, _ in fields):
        return f"must contain {{entry}}: a branch is checked out only once, unlike {template!r}"
    made = template.format(project="p", agent="a", entry=1)
    if _NOT_IN_A_NAME.sub("", made.replace("/", "")) != made.replace("/", "") or made.startswith(("-", "/", ".")):
        return f"may have letters, digits and . _ - / only, not {template!r}"
    return None


def as_name(text: str) -> str:
    """Return a text as a part of a folder's or a branch's name. Different texts have different names."""
    name = _NOT_IN_A_NAME.sub("-", text).strip("-.") or "x"
    name = name.replace("..", "-").removesuffix(".lock")
    return name if name == text and len(text) <= NAME_CHARS_MAX else f"{name[:NAME_CHARS_MAX]}-{_digest(text)}"


def _short(text: str) -> str:
    return text if len(text) <= NAME_CHARS_MAX else f"{text[:NAME_CHARS_MAX]}-{_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def why_keep(keep_on: KeepOn, exit_kind: str | None, unsaved: Unsaved) -> str | None:
    """Decide about the worktree of an entry that has ended: why it is kept; None: it is removed.

    `exit_kind` is None for an entry that never ran to an end: it expired or was cancelled before.
    """
    if keep_on == "always":
        return "keep_on is always"
    if keep_on == "never":
        return None
    if unsaved:
        return f"it has {unsaved}"
    return f"the entry ended {exit_kind}" if exit_kind in ("failed", "crashed") else None
