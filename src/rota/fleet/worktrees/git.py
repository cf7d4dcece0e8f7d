"""Git commands, started by the reaper: a supervisor that is killed leaves no git behind.

Git refuses what needs a lock that another git holds, and it fails when it finds the worktree that another one is just
making. Both pass, so such a command is repeated.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rota.errors import RotaError
from rota.fleet.runners.program import ProgramStopHandle
from rota.fleet.runners.resources import RunnerResources
from rota.host.command import Command, filter_environment
from rota.model.worktrees import Unsaved

__all__ = ["GIT_TIMEOUT_S", "Git", "GitFailed", "WorktreeStopped"]

GIT_TIMEOUT_S = 1_800.0  # for one command: a checkout of a large repository on a slow disk
OUTPUT_BYTES_MAX = 1024 * 1024  # of one command that are read
CONTENTION_TRIES_MAX = 40
CONTENTION_PAUSES_S = (0.05, 1.0)  # before the next try; twice as long each time
_CONTENTION = re.compile(
    r"\.lock': File exists|cannot lock ref|could not lock|unable to create '.*\.lock'|failed to read .*worktrees/",
    re.IGNORECASE,
)
_ENVIRONMENT = {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}


class GitFailed(Exception):
    """A git command failed; the text says which and why."""


class WorktreeStopped(Exception):
    """The run was asked to stop while its worktree was being made."""


class _Done(NamedTuple):
    code: int | None
    output: str
    errors: str


class Git:
    """Runs git, for one run or for the supervisor."""

    def __init__(
        self,
        resources: RunnerResources,
        *,
        started: Callable[[ProgramStopHandle], None] = lambda _handle: None,
        pause: Callable[[float], bool],
    ) -> None:
        """`pause` waits for some seconds and returns whether to give up; `started` gets what can stop a command."""
        self._resources = resources
        self._started = started
        self._pause = pause

    def run(self, folder: str, *arguments: str) -> str:
        """Run git in a folder and return its output; raises GitFailed with its last line."""
        pause_s, longest_s = CONTENTION_PAUSES_S
        for tries in range(1, CONTENTION_TRIES_MAX + 1):
            done = self._run(folder, arguments)
            if done.code == 0:
                return done.output.strip("\n")
            is_contention = _CONTENTION.search(done.errors) is not None
            if not is_contention or tries == CONTENTION_TRIES_MAX or self._pause(pause_s):
                break
            pause_s = min(2 * pause_s, longest_s)
        if self._pause(0.0):
            raise WorktreeStopped
        lines = done.errors.strip().splitlines() or [f"exit code {done.code}"]
        raise GitFailed(f"git {' '.join(arguments[:2])} in {folder} failed: {lines[-1]}")

    def ask(self, folder: str, *arguments: str) -> str | None:
        """Return the output of a git command; None if it fails."""
        try:
            return self.run(folder, *arguments)
        except GitFailed:
            return None

    def _run(self, folder: str, arguments: tuple[str, ...]) -> _Done:
        if self._pause(0.0):
            raise WorktreeStopped
        output, errors = os.memfd_create("git"), os.memfd_create("git")
        try:
            # a filtered environment: GIT_DIR and the like of the supervisor's would select another repository
            env = filter_environment(os.environ, extra=_ENVIRONMENT)
            command = Command(argv=("git", "-C", folder, *arguments), env=env)
            session = self._resources.reaper.spawn(command, stdout=output, stderr=errors)
            self._started(ProgramStopHandle(session))
            ended = session.wait(GIT_TIMEOUT_S)
            if ended is None:
                session.kill()
                session.wait()
                raise GitFailed(f"git {arguments[0]} in {folder} did not finish within {GIT_TIMEOUT_S / 60:g} minutes")
            return _Done(ended.code, _content(output), _content(errors))
        except RotaError as problem:  # git is not installed
            raise GitFailed(f"git cannot be started: {problem.message}") from problem
        finally:
            os.close(output)
            os.close(errors)

    # --- questions -------------------------------------------------------------------------------

    def is_worktree(self, repository: str, path: str) -> bool:
        """Whether there is a usable worktree of this repository at a path."""
        if not Path(path, ".git").exists():
            return False
        asked = ("rev-parse", "--path-format=absolute", "--git-common-dir")
        own = self.ask(path, *asked, "--show-toplevel")
        common = self.ask(repository, *asked)
        if own is None or common is None:
            return False
        own_common, _, top = own.partition("\n")
        return own_common == common and os.path.realpath(top) == os.path.realpath(path)

    def commit_of(self, repository: str, branch: str) -> str:
        """Return the commit that a branch, a tag or HEAD of a repository names."""
        found = self.ask(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{branch}^{{commit}}")
        if found is None:
            raise GitFailed(f"{repository} has no branch, tag or commit {branch!r}")
        return found

    def has_branch(self, repository: str, name: str) -> bool:
        """Whether a repository has a branch of this name."""
        return self.ask(repository, "show-ref", "--verify", "--quiet", f"refs/heads/{name}") is not None

    def unsaved(self, path: str) -> Unsaved:
        """Return the work in a worktree that exists nowhere else. Ignored files do not count."""
        files = self.run(path, "status", "--porcelain", "--untracked-files=all")
        commits = self.run(path, "rev-list", "--count", "HEAD", "--not", "--branches", "--tags", "--remotes")
        return Unsaved(files=len(files.splitlines()), commits=int(commits))


def _content(descriptor: int) -> str:
    return os.pread(descriptor, OUTPUT_BYTES_MAX, 0).decode("utf-8", "replace")
