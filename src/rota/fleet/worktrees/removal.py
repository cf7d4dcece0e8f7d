"""What becomes of an entry's worktree when the entry has ended: it is removed, or kept and the store says why.

Work that exists nowhere else is never deleted, unless the fleet file says `keep_on = "never"`. At most `kept_max`
worktrees of ended entries are kept in a folder: of those without such work, the oldest are removed first.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import msgspec

from rota.clock import Clock
from rota.errors import NotFound, RotaError
from rota.fleet.agent_settings import settings_of
from rota.fleet.runners.resources import RunnerResources
from rota.fleet.worktrees.git import Git, GitFailed
from rota.fleet.worktrees.records import WorktreeRecord, locked, read_record, records_in, remove_record, write_record
from rota.host.command import Command, filter_environment
from rota.model.work import ReadyEntry
from rota.model.worktrees import Unsaved, why_keep
from rota.service.api import SchedulerApi

__all__ = ["WorktreeRemoval"]

TEARDOWN_S = 600.0  # for one teardown command
_ENDED = frozenset({"completed", "cancelled", "expired"})
_log = logging.getLogger("rota.fleet")


class WorktreeRemoval:
    """Removes the worktrees of ended entries, or records why they are kept."""

    def __init__(self, api: SchedulerApi, git: Git, resources: RunnerResources, clock: Clock) -> None:
        self._api = api
        self._git = git
        self._resources = resources
        self._clock = clock

    def sweep(self, folder: str) -> int:
        """Settle every worktree in a folder; returns how many belong to entries that have not ended."""
        records = [record for record in records_in(folder) if record.settings.per == "entry"]
        for record in records:
            if record.kept is not None and not Path(record.path).exists():  # a person has removed it
                with locked(record.path) as is_held:
                    if is_held:
                        self._remove(record, None)
        return sum(not self.settle(record.path) for record in records if record.kept is None)

    def settle(self, path: str) -> bool:
        """Remove or keep a worktree if its entry has ended; returns whether that is done."""
        with locked(path) as is_held:
            record = read_record(path) if is_held else None
            if record is None or record.sched_id is None or record.kept is not None or record.settings.per != "entry":
                return record is not None and record.kept is not None
            entry = self._entry(record.sched_id)
            if entry is not None and entry.state not in _ENDED:
                return False
            self._decide(record, None if entry is None else entry.exit_kind)
        self._bound(record)
        return True

    def has_ended(self, sched_id: int) -> bool:
        """Whether an entry has ended for good."""
        entry = self._entry(sched_id)
        return entry is None or entry.state in _ENDED

    def _entry(self, sched_id: int) -> ReadyEntry | None:
        """Return an entry; None if it ended long ago, and was pruned."""
        try:
            return self._api.queue.get(sched_id)
        except NotFound:
            return None

    def _decide(self, record: WorktreeRecord, exit_kind: str | None) -> None:
        if record.state == "creating" or not Path(record.path).is_dir():
            self._remove(record, None)
            return
        try:
            unsaved = self._git.unsaved(record.path)
        except GitFailed as problem:
            self._keep(record, str(problem))
            return
        reason = why_keep(record.settings.keep_on, exit_kind, unsaved)
        if reason is not None:
            self._keep(record, reason)
        else:
            self._remove(record, _lost(unsaved))

    def _keep(self, record: WorktreeRecord, reason: str) -> None:
        write_record(msgspec.structs.replace(record, kept=reason, kept_at=self._clock.now()))
        _log.info("worktree %s of entry %s is kept: %s", record.path, record.sched_id, reason)
        self._tell(lambda: self._api.projects.keep_workspace(record.workspace_id, reason))

    def _remove(self, record: WorktreeRecord, reason: str | None) -> None:
        if reason is not None:
            _log.warning("worktree %s of entry %s is removed: %s", record.path, record.sched_id, reason)
        if record.settings.teardown and Path(record.path).is_dir():
            self._tear_down(record)
        try:
            if Path(record.path).is_dir():
                self._git.run(record.settings.repository, "worktree", "remove", "--force", "--force", record.path)
        except GitFailed as problem:
            self._keep(record, str(problem))
            return
        remove_record(record.path)
        self._tell(lambda: self._api.projects.remove_workspace(record.workspace_id, reason))

    def _tear_down(self, record: WorktreeRecord) -> None:
        """Run the teardown command with the variables of its agent; one that fails is only reported."""
        argv = record.settings.teardown
        output = os.memfd_create("teardown")
        try:
            own = settings_of(self._api.agents.get(record.pid))
            env = filter_environment(os.environ, allow=() if own is None else own.pass_env)
            more = {} if own is None else dict(own.env)
            command = Command(argv=argv, env={**env, **more}, cwd=record.path)
            session = self._resources.reaper.spawn(command, stdout=output, stderr=output)
            ended = session.wait(TEARDOWN_S)
            if ended is None:
                session.kill()
                ended = session.wait()
            if ended is None or not ended.ok:
                tail = os.pread(output, 4_000, 0).decode("utf-8", "replace").strip()
                _log.warning("teardown `%s` of entry %s failed: %s", shlex.join(argv), record.sched_id, tail)
        except RotaError as problem:
            _log.warning("teardown `%s` of entry %s failed: %s", shlex.join(argv), record.sched_id, problem.message)
        finally:
            os.close(output)

    def _bound(self, latest: WorktreeRecord) -> None:
        """Keep at most `kept_max` worktrees in a folder: remove the oldest that hold nothing of their own."""
        kept = [record for record in records_in(str(Path(latest.path).parent)) if record.kept is not None]
        surplus = len(kept) - latest.settings.kept_max
        for record in sorted(kept, key=lambda each: each.kept_at or 0.0):
            if surplus <= 0:
                return
            with locked(record.path) as is_held:
                if is_held and self._holds_nothing(record):
                    self._remove(record, None)
                    surplus -= 1
        if surplus > 0:
            text = "%s worktrees more than kept_max are kept in %s: each has work that exists nowhere else"
            _log.warning(text, surplus, Path(latest.path).parent)

    def _holds_nothing(self, record: WorktreeRecord) -> bool:
        try:
            return not Path(record.path).is_dir() or not self._git.unsaved(record.path)
        except GitFailed:
            return False

    @staticmethod
    def _tell(call: Callable[[], object]) -> None:
        """Tell the store; a supervisor without the rights for it, or without a row, goes on."""
        try:
            call()
        except RotaError as problem:
            _log.debug("the store does not know about a worktree: %s", problem)


def _lost(unsaved: Unsaved) -> str | None:
    return f"keep_on is never; it had {unsaved}" if unsaved else None
