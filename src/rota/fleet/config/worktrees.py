"""Git worktrees as workspaces: each run has a checkout of its own, and all of them one repository.

A worktree is made detached at the commit that was asked for: git lets a branch be checked out only once, so a run
that wants one makes it. A worktree is never deleted here, since there may be work in it that exists nowhere else;
only what git remembers of folders that are gone is pruned.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from rota.errors import FleetInvalid
from rota.host.environment import scrubbed

__all__ = ["GIT_TIMEOUT_S", "add", "is_worktree"]

GIT_TIMEOUT_S = 300.0  # a checkout of a large repository takes its time


def add(repository: str, path: str, commit: str = "HEAD", *, key: str = "worktrees_of") -> None:
    """Make a worktree at a path, unless it is there; `key` is what an error blames."""
    top = _repository(repository, key)
    if is_worktree(repository, path):
        return
    if Path(path).exists() and any(Path(path).iterdir()):
        raise FleetInvalid(f"{key}: {path} is there already and is no worktree of {repository}", field=key)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    _git(top, key, "worktree", "prune")  # else git refuses a path whose folder somebody has removed
    _git(top, key, "worktree", "add", "--detach", path, commit)


def is_worktree(repository: str, path: str) -> bool:
    """Whether there is a worktree of this repository at a path."""
    if not Path(path).is_dir():
        return False
    ours, theirs = (
        _ask(folder, "rev-parse", "--path-format=absolute", "--git-common-dir") for folder in (repository, path)
    )
    top = _ask(path, "rev-parse", "--show-toplevel")
    return ours is not None and ours == theirs and top is not None and os.path.realpath(path) == os.path.realpath(top)


def _repository(path: str, key: str) -> str:
    if not Path(path).is_dir():
        raise FleetInvalid(f"{key}: there is no folder {path}", field=key)
    if _ask(path, "rev-parse", "--git-common-dir") is None:
        raise FleetInvalid(f"{key}: {path} is not a git repository", field=key)
    return path


def _ask(folder: str, *words: str) -> str | None:
    """What git answers; None if it refuses."""
    done = _run(folder, words, "git")
    return done.stdout.strip() if done.returncode == 0 else None


def _git(folder: str, key: str, *words: str) -> None:
    done = _run(folder, words, key)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise FleetInvalid(
            f"{key}: git {' '.join(words[:2])} failed: {said[-1] if said else 'it said nothing'}", field=key
        )


def _run(folder: str, words: tuple[str, ...], key: str) -> subprocess.CompletedProcess[str]:
    # scrubbed: GIT_DIR and its like, set where rota was started, would lead git to another repository
    try:
        return subprocess.run(  # noqa: S603  # a list, no shell
            ["git", "-C", folder, *words],  # noqa: S607  # whichever git the user has
            env=scrubbed(os.environ, extra={"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as problem:
        raise FleetInvalid(f"{key}: git is not installed", field=key) from problem
    except subprocess.TimeoutExpired as problem:
        raise FleetInvalid(f"{key}: git {words[0]} did not end within {GIT_TIMEOUT_S:g} s", field=key) from problem
