"""Worktrees of a real git repository as workspaces."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rota.errors import FleetInvalid
from rota.fleet.config.workspaces import add_worktree, is_worktree
from rota.kernel import ScheduleSpec
from tests.fleet.support import FleetHarness

IDENTITY = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}


def git(folder: Path, *words: str) -> str:
    environment = {**os.environ, **IDENTITY, "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(
        ["git", "-C", str(folder), *words], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one file and a branch."""
    made = tmp_path / "repo"
    made.mkdir()
    git(made, "init", "-q", "-b", "main")
    (made / "file").write_text("one")
    git(made, "add", "file")
    git(made, "commit", "-q", "-m", "one")
    git(made, "branch", "older")
    (made / "file").write_text("two")
    git(made, "commit", "-q", "-a", "-m", "two")
    return made


FLEET = """
    [projects.lab]
    workspaces = {worktrees_of = "repo", count = 2}
    [agents.a]
    project = "lab"
    command = "ls"
    workspace = "exclusive"
"""


@pytest.mark.usefixtures("repository")
def test_each_run_has_its_own_worktree(harness: FleetHarness) -> None:
    harness.apply(FLEET)
    workspaces = harness.api.projects.workspaces("lab")
    assert [(workspace.workspace_id, workspace.source) for workspace in workspaces] == [
        ("lab/worktree-1", "worktree"),
        ("lab/worktree-2", "worktree"),
    ]
    assert [Path(workspace.path, "file").read_text() for workspace in workspaces] == ["two", "two"]
    pid = harness.agent("a").pid
    harness.api.queue.enqueue_many([ScheduleSpec(pid, workspace_mode="exclusive") for _ in range(3)])
    taken = harness.api.queue.claim(worker_id="w", max_n=9)
    assert sorted(entry.workspace or "" for entry in taken) == ["lab/worktree-1", "lab/worktree-2"]


def test_applying_again_changes_nothing_and_keeps_work_in_a_worktree(harness: FleetHarness, repository: Path) -> None:
    harness.apply(FLEET)
    (workspace, _) = harness.api.projects.workspaces("lab")
    Path(workspace.path, "file").write_text("unfinished")
    assert not harness.apply(FLEET)
    assert Path(workspace.path, "file").read_text() == "unfinished"
    assert len(git(repository, "worktree", "list").splitlines()) == 3


@pytest.mark.usefixtures("repository")
def test_a_worktree_is_checked_out_detached_at_the_given_branch(harness: FleetHarness) -> None:
    harness.apply(FLEET.replace("count = 2", "branch = 'older', folder = 'trees'"))
    workspace = harness.folder / "trees" / "1"
    assert (workspace / "file").read_text() == "one"
    assert git(workspace, "branch", "--show-current") == ""


@pytest.mark.usefixtures("repository")
def test_a_removed_worktree_is_created_again(harness: FleetHarness) -> None:
    harness.apply(FLEET)
    workspace = harness.folder / "worktrees" / "lab" / "1"
    shutil.rmtree(workspace)
    assert harness.apply(FLEET).names("workspace", "changed") == ["lab/worktree-1"]
    assert (workspace / "file").read_text() == "two"


@pytest.mark.usefixtures("repository")
def test_a_worktree_that_is_no_longer_in_the_file_stays_on_disk(harness: FleetHarness) -> None:
    harness.apply(FLEET)
    assert harness.apply(FLEET.replace("count = 2", "count = 1")).names("workspace", "removed") == ["lab/worktree-2"]
    assert (harness.folder / "worktrees" / "lab" / "2" / "file").exists()
    assert harness.apply(FLEET).names("workspace", "created") == ["lab/worktree-2"]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("worktrees_of = 'none'", "projects.lab.workspaces.worktrees_of: folder {folder}/none does not exist"),
        ("worktrees_of = 'plain'", "projects.lab.workspaces.worktrees_of: {folder}/plain is not a git repository"),
        (
            "worktrees_of = 'repo', branch = 'nowhere'",
            "projects.lab.workspaces.worktrees_of: git worktree add failed: fatal: invalid reference: nowhere",
        ),
        (
            "worktrees_of = 'repo', folder = 'taken'",
            "projects.lab.workspaces.worktrees_of: {taken} exists, is not empty and is not a worktree of {repo}",
        ),
    ],
)
@pytest.mark.usefixtures("repository")
def test_an_unusable_repository_or_folder_is_refused_with_its_key(
    harness: FleetHarness, written: str, message: str
) -> None:
    (harness.folder / "plain").mkdir()
    (harness.folder / "taken" / "1").mkdir(parents=True)
    (harness.folder / "taken" / "1" / "precious").write_text("")
    with pytest.raises(FleetInvalid) as caught:
        harness.apply(FLEET.replace('worktrees_of = "repo", count = 2', written))
    assert caught.value.message == message.format(
        folder=harness.folder, taken=harness.folder / "taken" / "1", repo=harness.folder / "repo"
    )
    assert harness.api.projects.workspaces("lab") == []
    assert (harness.folder / "taken" / "1" / "precious").exists()


def test_git_ignores_the_environment_of_rota(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    add_worktree(str(repository), str(tmp_path / "tree"))
    assert (tmp_path / "tree" / "file").read_text() == "two"


def test_a_folder_inside_a_repository_is_not_a_worktree(repository: Path) -> None:
    (repository / "inner").mkdir()
    assert not is_worktree(str(repository), str(repository / "inner"))


def test_missing_git_is_an_error(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(FleetInvalid, match="git is not installed"):
        add_worktree(str(repository), str(tmp_path / "tree"))
