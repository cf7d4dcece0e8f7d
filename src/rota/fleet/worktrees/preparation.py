"""Make the worktree of a run, on the run's own thread, before its work starts.

An entry that is retried finds its worktree as its last attempt left it. Otherwise the worktree is made, or taken over
from the entry that used it before: reset to the branch if it is to be clean, and put on the new entry's own branch. The
setup command runs once after a worktree was made, with the environment and the limits of the agent; what it prints is
in the run's log.

Commits of the earlier entry that are on no branch get one before a reset: no commit is lost. Its uncommitted files are,
if it has ended; that is what `clean` says. If it has not (it waits for its retry), they are committed to its branch,
and are uncommitted again when it comes back.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from rota.errors import RotaError
from rota.fleet.agent_settings import AgentSettings
from rota.fleet.live_run import LiveRun
from rota.fleet.runners.contract import RunOutcome
from rota.fleet.runners.program import Descriptors, ProgramStarter, ProgramStopHandle, output_tail
from rota.fleet.runners.resources import RunnerResources
from rota.fleet.worktrees.git import Git, GitFailed
from rota.fleet.worktrees.records import WorktreeRecord, read_record, write_record
from rota.host.command import SessionExit, signal_name
from rota.model.worktrees import WorktreeSettings

__all__ = ["prepare"]

BRANCHES_MAX = 1_000  # names that are tried for the branch of one entry
UNFINISHED = "rota: unfinished work of an entry that waits for its retry"  # the message of a commit
IDENTITY = ("-c", "user.name=rota", "-c", "user.email=rota@localhost", "-c", "commit.gpgsign=false")


def prepare(
    run: LiveRun,
    settings: WorktreeSettings,
    path: str,
    git: Git,
    *,
    resources: RunnerResources,
    has_ended: Callable[[int], bool],
) -> RunOutcome | None:
    """Make the worktree of a run; returns the outcome of a failed setup. Call it with the worktree's lock."""
    record = read_record(path)
    entry = run.entry
    for lock in _left_locks(path, record):
        lock.unlink(missing_ok=True)
        run.log(f"rota: removed {lock}, which a killed git has left\n".encode())
    is_worktree = git.is_worktree(settings.repository, path)
    if record is None and is_worktree:  # made with the fleet file, or by hand
        record = _record(run, settings, path, "created")
    if record is None or record.state == "creating" or not is_worktree:
        record = _create(run, settings, path, git, record)
    elif record.sched_id != entry.sched_id:
        record = _take_over(run, settings, path, git, record, has_ended=has_ended)
    if record.state == "ready":
        return None
    failed = None if not settings.setup else _set_up(run, settings.setup, path, resources)
    if failed is None:
        write_record(msgspec.structs.replace(record, state="ready"))
    return failed


def _left_locks(path: str, record: WorktreeRecord | None) -> list[Path]:
    """Return the locks that a killed git has left in a worktree, and on its entry's branch: its runs have ended."""
    try:
        text = Path(path, ".git").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:  # there is no worktree
        return []
    own = Path(path, text.strip().removeprefix("gitdir: "))
    locks = [own / name for name in ("index.lock", "HEAD.lock")]
    if record is not None and record.branch is not None:
        locks.append(own.parents[1] / "refs" / "heads" / f"{record.branch}.lock")
    return [lock for lock in locks if lock.exists()]


def _record(run: LiveRun, settings: WorktreeSettings, path: str, state: str, **more: object) -> WorktreeRecord:
    return WorktreeRecord(
        path=path,
        settings=settings,
        state=state,  # type: ignore[arg-type]  # one of three
        workspace_id=run.entry.workspace or "",
        pid=run.entry.pid,
        **more,  # type: ignore[arg-type]  # fields of the record
    )


def _create(
    run: LiveRun, settings: WorktreeSettings, path: str, git: Git, record: WorktreeRecord | None
) -> WorktreeRecord:
    """Make a worktree; what is left of one that was half made, or whose folder is gone, is removed first."""
    repository = settings.repository
    if not Path(repository).is_dir():
        raise GitFailed(f"folder {repository} does not exist")
    is_half_made = record is not None and record.state == "creating"
    if not is_half_made and Path(path).exists() and any(Path(path).iterdir()):
        raise GitFailed(f"{path} exists, is not empty and is not a worktree of {repository}")
    commit = git.commit_of(repository, settings.branch)
    earlier = _earlier_branch(run, settings, git) or _recorded_branch(run, git, record)
    branch = earlier or _new_branch(run, settings, git)
    making = _record(run, settings, path, "creating", sched_id=run.entry.sched_id, branch=branch)
    write_record(making)
    if is_half_made:
        git.ask(repository, "worktree", "remove", "--force", "--force", path)  # twice: also one that git has locked
        if Path(path).exists():
            shutil.rmtree(path)
    # forced twice: a worktree whose folder is gone stays registered, perhaps locked
    git.run(repository, "worktree", "add", "--force", "--force", "--detach", path, commit)
    _check_out(settings, path, git, earlier=earlier, branch=branch, commit=commit)
    return write_record(msgspec.structs.replace(making, state="created"))


# --- branches --------------------------------------------------------------------------------------


def _branch_name(run: LiveRun, settings: WorktreeSettings) -> str | None:
    return settings.branch_name(run.entry.project_id or "", run.assignment.agent.name, run.entry.sched_id)


def _new_branch(run: LiveRun, settings: WorktreeSettings, git: Git) -> str | None:
    """Return a free name for the branch of an entry; None if it gets no branch."""
    name = _branch_name(run, settings)
    if name is None or not git.has_branch(settings.repository, name):
        return name
    for number in range(2, BRANCHES_MAX):  # an earlier store had an entry of this number
        if not git.has_branch(settings.repository, f"{name}-{number}"):
            return f"{name}-{number}"
    raise GitFailed(f"the branches {name}-2 to {name}-{BRANCHES_MAX} exist already")


def _earlier_branch(run: LiveRun, settings: WorktreeSettings, git: Git) -> str | None:
    """Return the branch that an earlier run of the entry has left its work on; None if there is none."""
    found = _newest_branch(run, settings, git)
    if found is None or run.entry.attempt > 1:
        return found
    # a run that was preempted or gave up its slot counts no attempt; else it is a branch of an earlier store
    is_own = git.run(settings.repository, "log", "-1", "--format=%s", found, "--") == UNFINISHED
    return found if is_own else None


def _newest_branch(run: LiveRun, settings: WorktreeSettings, git: Git) -> str | None:
    name, found = _branch_name(run, settings) or _left_by(run.entry.sched_id), None
    for number in range(1, BRANCHES_MAX):
        candidate = name if number == 1 else f"{name}-{number}"
        if not git.has_branch(settings.repository, candidate):
            return found
        found = candidate  # the last one is the newest
    return found


def _recorded_branch(run: LiveRun, git: Git, record: WorktreeRecord | None) -> str | None:
    """Return the branch that was made for this entry when its worktree was half made."""
    if record is None or record.sched_id != run.entry.sched_id or record.branch is None:
        return None
    return record.branch if git.has_branch(record.settings.repository, record.branch) else None


def _check_out(
    settings: WorktreeSettings, path: str, git: Git, *, earlier: str | None, branch: str | None, commit: str | None
) -> None:
    """Put a worktree on the branch of its entry: the one it had, or a new one; from where it is without a commit."""
    start = () if commit is None else (commit,)
    if earlier is not None:
        git.run(path, "checkout", "--quiet", *(() if settings.run_branch else ("--detach",)), earlier, "--")
        if git.run(path, "log", "-1", "--format=%s") == UNFINISHED:
            git.run(path, "reset", "--quiet", "--mixed", "HEAD^")
    elif branch is not None:
        git.run(path, "checkout", "--quiet", "-b", branch, *start)
    elif start:
        git.run(path, "checkout", "--quiet", "--detach", *start)


# --- from one entry to the next ----------------------------------------------------------------------


def _take_over(
    run: LiveRun,
    settings: WorktreeSettings,
    path: str,
    git: Git,
    record: WorktreeRecord,
    *,
    has_ended: Callable[[int], bool],
) -> WorktreeRecord:
    """Make a worktree that another entry used ready for this one."""
    entry = run.entry
    commit = git.commit_of(settings.repository, settings.branch)
    earlier = _earlier_branch(run, settings, git)
    branch = earlier or _new_branch(run, settings, git)
    is_cleaned = settings.clean and record.sched_id is not None
    if settings.clean and record.sched_id is not None:
        _leave(run, record.sched_id, path, git, is_over=has_ended(record.sched_id))
        git.run(path, "reset", "--quiet", "--hard")
        git.run(path, "clean", "--quiet", "-ffd")
    _check_out(settings, path, git, earlier=earlier, branch=branch, commit=commit if is_cleaned else None)
    taken = msgspec.structs.replace(record, sched_id=entry.sched_id, pid=entry.pid, branch=branch, settings=settings)
    return write_record(taken)


def _left_by(sched_id: int) -> str:
    return f"rota/left-by-{sched_id}"


def _leave(run: LiveRun, sched_id: int, path: str, git: Git, *, is_over: bool) -> None:
    """Save what another entry has in a worktree before that is cleaned."""
    unsaved = git.unsaved(path)
    if not is_over:  # also without files: the commit marks the branch as that of an entry that comes back
        git.run(path, "add", "--all")
        git.run(path, *IDENTITY, "commit", "--quiet", "--no-verify", "--allow-empty", "--message", UNFINISHED)
    elif unsaved.files:
        run.log(f"rota: removed {unsaved.files} uncommitted files of entry {sched_id}\n".encode())
    if git.unsaved(path).commits:
        git.run(path, "branch", "--force", _left_by(sched_id), "HEAD")
        run.log(f"rota: the work of entry {sched_id} is on branch {_left_by(sched_id)}\n".encode())


# --- setup -----------------------------------------------------------------------------------------


def _set_up(run: LiveRun, argv: tuple[str, ...], path: str, resources: RunnerResources) -> RunOutcome | None:
    """Run the setup command; returns the outcome of the run if it fails."""
    own = run.assignment.settings
    settings = AgentSettings(
        runner="command", argv=argv, env=own.env, pass_env=own.pass_env, limits=own.limits, cwd=path
    )
    assignment = msgspec.structs.replace(run.assignment, settings=settings, workspace=path)
    run.log(f"rota: setup: {shlex.join(argv)}\n".encode())
    try:
        with Descriptors() as descriptors:
            read_end, write_end = descriptors.pipe()
            with ProgramStarter(resources).start(assignment, {}, {1: write_end, 2: write_end}, []) as program:
                descriptors.close(write_end)
                program.wait_started()
                run.preparing(ProgramStopHandle(program.session))
                ended = program.pump({read_end: run.log})
    except RotaError as problem:
        return _setup_failed(run, argv, problem.message, {})
    finally:
        run.preparing(None)
    return None if ended.ok else _setup_failed(run, argv, _ending(ended), {"exit_code": ended.code})


def _ending(ended: SessionExit) -> str:
    if ended.signal is not None:
        return f"killed by {signal_name(ended.signal)}"
    return f"exit code {ended.code}"


def _setup_failed(run: LiveRun, argv: tuple[str, ...], why: str, details: dict[str, object]) -> RunOutcome:
    error = f"the setup of its worktree failed: `{shlex.join(argv)}`: {why}"
    with contextlib.suppress(Exception):  # the output is only for people
        details = {**details, "output_tail": output_tail(run)}
    return RunOutcome(exit_kind="failed", outcome="setup_failed", result={"error": error, **details})
