"""Worktrees that follow entries: real git, real programs, one supervisor in this process."""

from __future__ import annotations

import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rota import Rota, store
from rota.errors import FleetInvalid, InvalidInput
from rota.fleet import FleetRun, RunSummary, load_fleet, settings_of, spec_for
from rota.fleet.runners.resources import RunnerResources
from rota.fleet.worktrees import records
from rota.fleet.worktrees.git import Git
from rota.kernel import Kernel
from rota.model.work import Backoff, ReadyEntry, RestartPolicy
from rota.model.worktrees import Unsaved, WorktreeSettings, as_name, check_run_branch, why_keep
from rota.service import Dispatcher
from tests.fleet.test_workspaces import git, repository

__all__ = ["repository"]  # a fixture

HEAD = """
slots = 2
[projects.lab]
workspaces = {{worktrees_of = "repo", {worktrees}}}
[agents.coder]
project = "lab"
workspace = "exclusive"
command = ["sh", "-ec", '''{script}''']
restart = {{attempts = 3, backoff_s = "10ms", quarantine_after = 99}}
"""


class World:
    """A fleet with one agent in a repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trees = folder / "worktrees" / "lab"
        self.api = Dispatcher(Kernel(store.open_joined(str(folder / "rota.db"))))

    def run(
        self,
        script: str,
        worktrees: str = 'per = "entry"',
        *,
        entries: int = 0,
        during: Callable[[], None] | None = None,
    ) -> RunSummary:
        """Enqueue entries for an agent with this script, and run until nothing is left."""
        body = HEAD.format(script=textwrap.dedent(script), worktrees=worktrees)
        (self.folder / "fleet.toml").write_text(body)
        fleet = FleetRun(self.api, load_fleet(self.folder / "fleet.toml"))
        for _ in range(entries):
            self.enqueue()
        if during is not None:
            during()
        return fleet.run(until_idle=True)

    def enqueue(self, agent: str = "coder", **options: Any) -> int:
        (found,) = self.api.agents.find(agent)
        return self.api.queue.enqueue(spec_for(found, settings_of(found), {}, **options))

    def entry(self, sched_id: int = 1) -> ReadyEntry:
        return self.api.queue.get(sched_id)

    def kept(self) -> dict[str, str | None]:
        return {each.workspace_id: each.kept for each in self.api.projects.workspaces("lab")}

    def branches(self) -> list[str]:
        return git(self.folder / "repo", "branch", "--format=%(refname:short)", "--list", "rota/*").splitlines()


@pytest.fixture
def world(tmp_path: Path, repository: Path) -> Iterator[World]:
    git(repository, "config", "user.name", "a")
    git(repository, "config", "user.email", "a@b")
    made = World(tmp_path)
    yield made
    made.api.close()


FAILS_ONCE = """
    echo "$ROTA_ATTEMPT $(basename $PWD) $(git branch --show-current)" >> notes
    test "$ROTA_ATTEMPT" = 2
    git add notes && git commit -q -m done
    cat notes
"""


def test_a_retried_entry_continues_in_its_own_worktree(world: World) -> None:
    summary = world.run(FAILS_ONCE, entries=2)
    assert (summary.completed, summary.runs) == (2, 4)
    for sched_id in (1, 2):
        said = f"entry-{sched_id} rota/coder-{sched_id}"
        assert world.entry(sched_id).result["output_tail"] == f"1 {said}\n2 {said}\n"
        assert world.entry(sched_id).workspace == f"lab/entry-{sched_id}", "shown after the end, too"
    assert world.branches() == ["rota/coder-1", "rota/coder-2"]
    assert git(world.folder / "repo", "show", "rota/coder-1:notes").startswith("1 entry-1")
    assert world.kept() == {}
    assert [*world.trees.glob("entry-*"), *world.trees.glob(".rota/*")] == [], "all work is on branches"
    assert len(git(world.folder / "repo", "worktree", "list").splitlines()) == 1


def test_the_locks_of_a_killed_git_do_not_stop_the_next_attempt(world: World) -> None:
    script = """
        test $ROTA_ATTEMPT = 2 || { touch $(git rev-parse --git-path index.lock); exit 1; }
        git commit -q --allow-empty -m done
    """
    world.run(script, entries=1)
    assert world.entry().exit_kind == "completed"
    assert "index.lock, which a killed git has left" in world.entry().result["output_tail"]


def test_unsaved_work_and_failed_entries_are_kept_and_the_store_says_why(world: World) -> None:
    world.run("echo draft > draft; test $ROTA_SCHED_ID != 2", entries=2)
    world.run("git commit -q --allow-empty -m x; git checkout -q --detach; git commit -q --allow-empty -m y", entries=1)
    assert world.kept() == {
        "lab/entry-1": "it has 1 uncommitted file",
        "lab/entry-2": "it has 1 uncommitted file",
        "lab/entry-3": "it has 1 commit on no branch",
    }
    world.run("exit 3", entries=1)
    assert world.kept()["lab/entry-4"] == "the entry ended failed"
    assert (world.trees / "entry-1" / "draft").read_text() == "draft\n"
    git(world.folder / "repo", "worktree", "remove", "--force", str(world.trees / "entry-1"))
    world.run("true")
    assert "lab/entry-1" not in world.kept(), "a person has removed it"
    kept = world.api.journal.tail(kinds=("kernel.workspace.kept",))
    assert sorted(event.payload["workspace_id"] for event in kept) == ["lab/entry-1", *world.kept()]


def test_never_removes_unsaved_work_and_says_so(world: World) -> None:
    world.run("echo draft > draft; exit 1", 'per = "entry", keep_on = "never", run_branch = ""', entries=1)
    assert world.kept() == {}
    (removed,) = world.api.journal.tail(kinds=("kernel.workspace.removed",))
    assert removed.payload["reason"] == "keep_on is never; it had 1 uncommitted file"
    assert world.branches() == []


def test_at_most_kept_max_worktrees_are_kept_but_none_with_unsaved_work_is_removed(world: World) -> None:
    worktrees = 'per = "entry", keep_on = "always", kept_max = 2'
    world.run("test $ROTA_SCHED_ID != 1 || echo draft > draft", worktrees, entries=1)
    for _ in range(3):
        world.run("true", worktrees, entries=1)
    assert sorted(world.kept()) == ["lab/entry-1", "lab/entry-4"]


def test_setup_runs_once_and_teardown_before_the_removal(world: World) -> None:
    worktrees = """per = "entry", setup = ["sh", "-c", "echo x >> ../setup; echo made"],
        teardown = ["sh", "-c", "pwd >> ../torn"]""".replace("\n", "")
    world.run("test $ROTA_ATTEMPT = 2", worktrees, entries=1)
    assert (world.trees / "setup").read_text() == "x\n"
    assert (world.trees / "torn").read_text() == f"{world.trees}/entry-1\n"
    assert world.entry().exit_kind == "completed"


def test_a_failed_setup_fails_the_attempt_with_its_output(world: World) -> None:
    world.run("true", "per = 'entry', setup = 'sh -c \"echo no network; exit 4\"'", entries=1)
    entry = world.entry()
    assert (entry.exit_kind, entry.outcome, entry.attempt) == ("failed", "setup_failed", 3)
    assert entry.result["error"].startswith("the setup of its worktree failed: `sh -c")
    assert entry.result["exit_code"] == 4
    assert "no network" in entry.result["output_tail"]


def test_a_repository_that_is_gone_fails_the_attempt_and_not_the_supervisor(world: World) -> None:
    def remove() -> None:
        (world.folder / "repo").rename(world.folder / "elsewhere")

    world.run("true", entries=1, during=remove)
    assert (world.entry().exit_kind, world.entry().outcome) == ("failed", "workspace_failed")
    assert "does not exist" in world.entry().result["error"]


def test_one_worktree_per_agent_is_cleaned_between_entries_and_not_between_attempts(world: World) -> None:
    (world.folder / "repo" / ".gitignore").write_text("cache\n")
    git(world.folder / "repo", "add", ".")
    git(world.folder / "repo", "commit", "-q", "-m", "ignore")
    script = """
        echo x >> cache
        echo $ROTA_SCHED_ID-$ROTA_ATTEMPT >> junk
        test $ROTA_ATTEMPT = 2
        cat junk; git branch --show-current; pwd; git log --format=%s | head -1
    """
    world.run(script, 'per = "agent", branch = "main"', entries=2)
    tree = world.trees / "agent-coder"
    for own in (1, 2):  # each entry ran while the other one waited for its retry
        tail = world.entry(own).result["output_tail"].splitlines()
        lines = [line for line in tail if not line.startswith("rota: ")]
        assert lines == [f"{own}-1", f"{own}-2", f"rota/coder-{own}", str(tree), "ignore"]
    assert (tree / "cache").read_text() == 4 * "x\n", "what git ignores stays"
    assert world.kept() == {"lab/agent-coder": None}


def test_commits_on_no_branch_get_one_before_a_clean(world: World) -> None:
    script = "git checkout -q --detach; git commit -q --allow-empty -m mine-$ROTA_SCHED_ID"
    world.run(script, 'per = "slot", clean = true', entries=2)
    assert world.branches() == ["rota/left-by-1"]
    assert git(world.folder / "repo", "log", "-1", "--format=%s", "rota/left-by-1") == "mine-1"


def test_a_retried_entry_prefers_the_worktree_of_the_pool_that_it_had(world: World) -> None:
    script = "pwd >> seen; test $ROTA_ATTEMPT = 3; sort -u seen | wc -l; wc -l < seen"
    world.run(script, 'per = "slot", count = 6, clean = true', entries=4)
    for sched_id in range(1, 5):
        assert world.entry(sched_id).result["output_tail"].split() == ["1", "3"]


def test_a_half_made_worktree_is_made_again(world: World) -> None:
    """As a kill in the middle of `git worktree add` leaves it: locked, and without files."""

    def half() -> None:
        (found,) = world.api.agents.find("coder")
        settings = settings_of(found)
        assert settings is not None
        assert settings.worktree is not None
        path = f"{world.trees}/entry-1"
        git(world.folder / "repo", "worktree", "add", "-q", "--lock", "--no-checkout", "-b", "rota/coder-1", path)
        with records.locked(path):
            records.write_record(
                records.WorktreeRecord(
                    path=path,
                    settings=settings.worktree,
                    state="creating",
                    workspace_id="lab/entry-1",
                    pid=found.pid,
                    sched_id=1,
                    branch="rota/coder-1",
                )
            )

    world.run("cat file; git status --porcelain; git branch --show-current", entries=1, during=half)
    assert world.entry().result["output_tail"] == "tworota/coder-1\n"


def test_a_folder_that_rota_did_not_make_is_left_alone(world: World) -> None:
    def plant() -> None:
        (world.trees / "entry-1").mkdir(parents=True)
        (world.trees / "entry-1" / "thesis").write_text("mine")

    world.run("true", entries=1, during=plant)
    assert "exists, is not empty and is not a worktree" in world.entry().result["error"]
    assert (world.trees / "entry-1" / "thesis").read_text() == "mine"


def test_a_worktree_that_was_replaced_by_another_folder_is_not_deleted(world: World) -> None:
    script = "test $ROTA_ATTEMPT = 3 || { cd ..; rm -rf entry-1; mkdir entry-1; echo mine > entry-1/thesis; exit 1; }"
    world.run(script, entries=1)
    assert "is not a worktree" in world.entry().result["error"]
    assert (world.trees / "entry-1" / "thesis").read_text() == "mine\n"


def test_a_branch_that_is_gone_is_named(world: World) -> None:
    git(world.folder / "repo", "branch", "release")
    world.run("true", "per = 'entry', branch = 'release'", entries=1)
    git(world.folder / "repo", "branch", "-q", "-D", "release")
    world.run("true", "per = 'entry', branch = 'release'", entries=1)
    assert world.entry(1).exit_kind == "completed"
    assert "has no branch, tag or commit 'release'" in world.entry(2).result["error"]


def test_a_branch_of_an_earlier_store_is_not_continued(world: World) -> None:
    git(world.folder / "repo", "branch", "rota/coder-1", "older")
    world.run("git branch --show-current; cat file", entries=1)
    assert world.entry().result["output_tail"] == "rota/coder-1-2\ntwo"


def test_a_slow_setup_delays_only_its_own_run(world: World) -> None:
    """The first entry's setup ends when the second entry, which needs none of its own, has run."""
    setup = "setup = ['sh', '-c', 'test $ROTA_SCHED_ID = 2 || while test ! -e ../second; do sleep 0.01; done']"
    world.run("test $ROTA_SCHED_ID = 1 || touch ../second", f"per = 'entry', {setup}", entries=2)
    assert [world.entry(sched_id).exit_kind for sched_id in (1, 2)] == ["completed", "completed"]


def test_an_entry_that_was_cancelled_between_two_attempts_is_swept_at_the_next_start(world: World) -> None:
    world.run("true")
    first = world.enqueue()
    (entry,) = world.api.claim("gone")
    assert entry.workspace == f"lab/entry-{first}"
    (found,) = world.api.agents.find("coder")
    settings = settings_of(found)
    assert settings is not None
    assert settings.worktree is not None
    path = f"{world.trees}/entry-{first}"
    git(world.folder / "repo", "worktree", "add", "-q", "--detach", path)
    record = records.WorktreeRecord(
        path=path,
        settings=settings.worktree,
        state="ready",
        workspace_id=entry.workspace,
        pid=found.pid,
        sched_id=first,
    )
    with records.locked(path):
        records.write_record(record)
    world.run("true")
    assert Path(path).is_dir(), "its entry has not ended"
    world.api.queue.complete(first, "cancelled", token=entry.token)
    world.run("true", entries=1)
    assert not Path(path).exists()


def test_a_copy_of_a_failed_entry_has_a_worktree_of_its_own(world: World) -> None:
    world.run("test $ROTA_SCHED_ID != 1", entries=1)
    copy = world.api.queue.retry(1)
    assert copy != 1
    world.run("test $ROTA_SCHED_ID != 1")
    assert world.entry(copy).workspace == f"lab/entry-{copy}"
    assert world.entry(copy).exit_kind == "completed"


def test_a_run_can_be_cancelled_while_its_worktree_is_set_up(world: World) -> None:
    setup = "setup = ['sh', '-c', 'touch ../begun; exec sleep 600']"
    stopper = threading.Thread(target=lambda: cancel_when(world, world.trees / "begun"))

    def during() -> None:
        stopper.start()

    summary = world.run("true", f"per = 'entry', {setup}", entries=1, during=during)
    stopper.join()
    assert (summary.cancelled, world.entry().exit_kind) == (1, "cancelled")
    assert world.kept() == {}


def cancel_when(world: World, begun: Path) -> None:
    until = time.monotonic() + 60.0
    while not begun.exists() and time.monotonic() < until:
        time.sleep(0.01)
    world.api.queue.request_cancel(1)


def test_two_supervisors_of_one_store_do_not_collide(world: World) -> None:
    """Twelve entries at once, in one repository, by two supervisors; every worktree is made and removed."""
    world.run("true")
    for _ in range(12):
        world.enqueue()
    fleets = [
        FleetRun(world.api, load_fleet(world.folder / "fleet.toml"), worker_id=f"box-{number}", slots=3)
        for number in range(2)
    ]
    other = threading.Thread(target=lambda: fleets[0].run(until_idle=True))
    other.start()
    fleets[1].run(until_idle=True)
    other.join()
    ended = [world.entry(sched_id) for sched_id in range(1, 13)]
    assert [entry.exit_kind for entry in ended] == ["completed"] * 12, [entry.result for entry in ended]
    assert [*world.trees.glob("entry-*"), *world.trees.glob(".rota/*")] == []
    assert len(world.branches()) == 12


@pytest.mark.parametrize("per", ["entry", "agent"])
def test_functions_of_a_python_program_have_worktrees_too(tmp_path: Path, repository: Path, per: Any) -> None:
    worktree = WorktreeSettings(repository=str(repository), folder=str(tmp_path / "trees"), per=per)
    with Rota() as rota:

        @rota.agent(project="lab", worktree=worktree, restart=RestartPolicy(backoff=Backoff(base_s=0.01)))
        def coder(ctx: Any) -> list[str]:
            notes = Path(ctx.workspace, "notes")
            notes.write_text(f"{notes.read_text() if notes.exists() else ''}{ctx.attempt} ")
            if ctx.attempt < 3:
                raise ValueError
            return [Path(ctx.workspace).name, notes.read_text()]

        job = coder.enqueue()
        rota.run(until_idle=True)
        assert job.result(9) == ["entry-1" if per == "entry" else "agent-coder", "1 2 3 "]
        with pytest.raises(InvalidInput, match="requires project"):
            rota.agent("other", worktree=worktree)(lambda: None)


@pytest.mark.parametrize("run_branch", ["rota/{entry}", None])
def test_an_entry_that_gave_up_its_slot_finds_its_work_again(
    tmp_path: Path, repository: Path, run_branch: str | None
) -> None:
    """It counts no attempt, and another entry has used and cleaned the worktree meanwhile."""
    folder = str(tmp_path / "trees")
    worktree = WorktreeSettings(repository=str(repository), folder=folder, per="agent", run_branch=run_branch)
    with Rota() as rota:

        @rota.agent(project="lab", worktree=worktree)
        def coder(ctx: Any, *, yields: bool) -> tuple[str, str]:
            notes = Path(ctx.workspace, "notes")
            found = notes.read_text() if notes.exists() else ""
            notes.write_text(f"{found}{ctx.sched_id} ")
            if yields and not found:
                ctx.yield_back(0.01)
            return notes.read_text(), git(Path(ctx.workspace), "log", "-1", "--format=%s")

        first, second = coder.enqueue(yields=True), coder.enqueue(yields=False)
        rota.run(until_idle=True)
        assert (first.result(9), second.result(9)) == (["1 1 ", "two"], ["2 ", "two"])
        assert rota.api.queue.get(1).attempt == 1


# --- git, and what is decided without it -------------------------------------------------------------


def test_git_is_repeated_while_another_git_holds_its_lock(repository: Path) -> None:
    lock = repository / ".git" / "refs" / "heads" / "rota.lock"
    lock.touch()
    waits: list[float] = []

    def pause(seconds: float) -> bool:
        if seconds:
            waits.append(seconds)
            if len(waits) == 3:
                lock.unlink()
        return False

    with RunnerResources() as resources:
        Git(resources, pause=pause).run(str(repository), "branch", "rota")
    assert waits == [0.05, 0.1, 0.2]
    assert "rota" in git(repository, "branch", "--list", "rota")


def test_git_is_repeated_while_another_git_makes_a_worktree(repository: Path, tmp_path: Path) -> None:
    """Git reads all worktrees of a repository, and fails at one whose files are not written yet."""
    half = repository / ".git" / "worktrees" / "half"
    half.mkdir(parents=True)
    (half / "gitdir").write_text(f"{tmp_path}/half/.git\n")
    (half / "HEAD").write_text("ref: refs/heads/older\n")
    (half / "commondir").touch()
    waits: list[float] = []

    def pause(seconds: float) -> bool:
        if seconds:
            waits.append(seconds)
            (half / "commondir").write_text("../..\n")
        return False

    with RunnerResources() as resources:
        add = ("worktree", "add", "--force", "--force", "--detach", str(tmp_path / "tree"), "main")
        Git(resources, pause=pause).run(str(repository), *add)
    assert waits == [0.05]
    assert (tmp_path / "tree" / "file").read_text() == "two"


@pytest.mark.parametrize(
    ("keep_on", "exit_kind", "unsaved", "kept"),
    [
        ("failed", "completed", Unsaved(), None),
        ("failed", "failed", Unsaved(), "the entry ended failed"),
        ("failed", "crashed", Unsaved(), "the entry ended crashed"),
        ("failed", "cancelled", Unsaved(), None),
        ("failed", None, Unsaved(), None),
        ("failed", "completed", Unsaved(files=2, commits=1), "it has 2 uncommitted files and 1 commit on no branch"),
        ("always", "completed", Unsaved(), "keep_on is always"),
        ("never", "failed", Unsaved(files=1), None),
    ],
)
def test_why_a_worktree_is_kept(keep_on: Any, exit_kind: str | None, unsaved: Unsaved, kept: str | None) -> None:
    assert why_keep(keep_on, exit_kind, unsaved) == kept


def test_names_of_branches_and_folders_are_safe_and_different() -> None:
    assert as_name("coder-1.x") == "coder-1.x"
    made = [as_name(text) for text in ("a b", "a/b", "../../etc", "-x", "x.lock", "ü", "a" * 300)]
    assert len(set(made)) == len(made)
    assert all(check_run_branch(f"{name}/{{entry}}") is None and "/" not in name and len(name) < 100 for name in made)
    for template in ("rota/{agent}", "{entry.x}", "{0}-{entry}", "{entry", "-{entry}", "a b{entry}", "{entry!r}"):
        assert check_run_branch(template) is not None


@pytest.mark.parametrize(
    ("worktrees", "problem"),
    [
        ("per = 'agent', keep_on = 'always'", "workspaces.keep_on"),
        ("teardown = 'true'", "workspaces.teardown"),
        ("per = 'entry', count = 2", "workspaces.count"),
        ("per = 'entry', run_branch = 'mine'", "workspaces.run_branch"),
        ("per = 'row'", "workspaces.per"),
    ],
)
def test_what_has_no_effect_is_refused(world: World, worktrees: str, problem: str) -> None:
    with pytest.raises(FleetInvalid, match=problem):
        world.run("true", worktrees)
