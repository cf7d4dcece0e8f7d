"""The table of a project's git worktrees in a fleet file.

[projects.coding]
workspaces = {worktrees_of = ".", per = "entry", setup = ["npm", "ci"], keep_on = "failed"}
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from rota.fleet.config.agent_tables import Argv, Text
from rota.model.worktrees import KEPT_MAX, KeepOn, WorktreePer, WorktreeSettings, check_run_branch

__all__ = ["WORKSPACES_MAX", "WorktreesTable"]

WORKSPACES_MAX = 256  # of one project
RUN_BRANCH = "rota/{agent}-{entry}"


class WorktreesTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Workspaces that are worktrees of a git repository."""

    worktrees_of: Annotated[Text, Meta(description="The repository's folder.")]
    per: Annotated[
        WorktreePer,
        Meta(
            description="`entry`: each entry has its own worktree, through all its attempts; `agent`: an agent's runs "
            "follow each other in one; `slot`: the project's runs take turns in `count` of them."
        ),
    ] = "slot"
    count: Annotated[int, Meta(description="`slot`: number of worktrees.", ge=1, le=WORKSPACES_MAX)] = 1
    branch: Annotated[Text, Meta(description="The branch, tag or commit at which a new worktree is checked out.")] = (
        "HEAD"
    )
    run_branch: Annotated[
        str | None,
        Meta(
            description="The branch that is made for each entry, from `branch`; it may name {project} and {agent}, and "
            'must name {entry}. "" makes none: the worktree is detached. Default: `rota/{agent}-{entry}`; with `slot`, '
            "none."
        ),
    ] = None
    setup: Annotated[
        Argv | None, Meta(description="A command that runs in a worktree after it was made, before its first run.")
    ] = None
    teardown: Annotated[Argv | None, Meta(description="`entry`: a command that runs before a worktree is removed.")] = (
        None
    )
    clean: Annotated[
        bool | None,
        Meta(
            description="Whether a worktree is reset to `branch` before another entry uses it: uncommitted files are "
            "removed, except ignored ones. Default: true; with `slot`, false."
        ),
    ] = None
    keep_on: Annotated[
        KeepOn | None,
        Meta(
            description="`entry`: which worktrees are kept after their entry's end: `failed`, `always` or `never`. "
            "Except with `never`, one with uncommitted files, or with commits on no branch, is kept too."
        ),
    ] = None
    kept_max: Annotated[
        int, Meta(description="`entry`: maximum number of kept worktrees; the oldest are removed first.", ge=0)
    ] = KEPT_MAX
    folder: Annotated[str | None, Meta(description="The folder for the worktrees; default: `worktrees/PROJECT`.")] = (
        None
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield each field that cannot be used as it is, and why."""
        if self.run_branch and (problem := check_run_branch(self.run_branch)) is not None:
            yield "run_branch", problem
        for field in ("teardown", "keep_on"):
            if self.per != "entry" and getattr(self, field) is not None:
                yield field, 'is only valid with per = "entry": other worktrees are not removed'
        if self.per != "slot" and self.count != 1:
            yield "count", 'is only valid with per = "slot"'

    @property
    def is_managed(self) -> bool:
        """Whether a supervisor does something with a worktree before a run."""
        return self.per != "slot" or bool(self.run_branch or self.setup or self.clean)

    def settings(self, project_id: str, resolve: Callable[[str], str]) -> WorktreeSettings | None:
        """Return what is stored with the agents of the project; None if nothing is done before a run."""
        if not self.is_managed:
            return None
        default = None if self.per == "slot" else RUN_BRANCH
        return WorktreeSettings(
            repository=resolve(self.worktrees_of),
            folder=resolve(self.folder or f"worktrees/{project_id}"),
            per=self.per,
            branch=self.branch,
            run_branch=(default if self.run_branch is None else self.run_branch) or None,
            setup=_argv(self.setup),
            teardown=_argv(self.teardown),
            clean=self.per != "slot" if self.clean is None else self.clean,
            keep_on=self.keep_on or "failed",
            kept_max=self.kept_max,
        )


def _argv(written: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return tuple(shlex.split(written)) if isinstance(written, str) else written or ()
