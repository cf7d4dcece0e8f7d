"""Worktrees of a real repository as workspaces."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rota.errors import FleetInvalid
from rota.fleet.config import worktrees
from rota.kernel import ScheduleSpec
from tests.fleet.office import Office

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
def test_each_run_has_a_checkout_of_its_own(office: Office) -> None:
    office.apply(FLEET)
    rooms = office.desk.projects.workspaces("lab")
    assert [(room.workspace_id, room.source) for room in rooms] == [
        ("lab/worktree-1", "worktree"),
        ("lab/worktree-2", "worktree"),
    ]
    assert [Path(room.path, "file").read_text() for room in rooms] == ["two", "two"]
    pid = office.agent("a").pid
    office.desk.queue.enqueue_many([ScheduleSpec(pid, workspace_mode="exclusive") for _ in range(3)])
    taken = office.desk.queue.claim(worker_id="w", max_n=9)
    assert sorted(entry.workspace or "" for entry in taken) == ["lab/worktree-1", "lab/worktree-2"]


def test_a_second_time_nothing_happens_and_work_in_a_checkout_stays(office: Office, repository: Path) -> None:
    office.apply(FLEET)
    (room, _) = office.desk.projects.workspaces("lab")
    Path(room.path, "file").write_text("unfinished")
    assert not office.apply(FLEET)
    assert Path(room.path, "file").read_text() == "unfinished"
    assert len(git(repository, "worktree", "list").splitlines()) == 3


@pytest.mark.usefixtures("repository")
def test_a_checkout_begins_where_it_is_told_and_is_on_no_branch(office: Office) -> None:
    office.apply(FLEET.replace("count = 2", "branch = 'older', folder = 'trees'"))
    room = office.folder / "trees" / "1"
    assert (room / "file").read_text() == "one"
    assert git(room, "branch", "--show-current") == ""


@pytest.mark.usefixtures("repository")
def test_a_checkout_that_somebody_removed_is_made_again(office: Office) -> None:
    office.apply(FLEET)
    room = office.folder / "worktrees" / "lab" / "1"
    shutil.rmtree(room)
    assert office.apply(FLEET).of("workspace", "changed") == ["lab/worktree-1"]
    assert (room / "file").read_text() == "two"


@pytest.mark.usefixtures("repository")
def test_a_checkout_that_is_no_longer_named_stays_on_disk(office: Office) -> None:
    office.apply(FLEET)
    assert office.apply(FLEET.replace("count = 2", "count = 1")).of("workspace", "removed") == ["lab/worktree-2"]
    assert (office.folder / "worktrees" / "lab" / "2" / "file").exists()
    assert office.apply(FLEET).of("workspace", "created") == ["lab/worktree-2"]


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ("worktrees_of = 'none'", "projects.lab.workspaces.worktrees_of: there is no folder {folder}/none"),
        ("worktrees_of = 'plain'", "projects.lab.workspaces.worktrees_of: {folder}/plain is not a git repository"),
        (
            "worktrees_of = 'repo', branch = 'nowhere'",
            "projects.lab.workspaces.worktrees_of: git worktree add failed: fatal: invalid reference: nowhere",
        ),
        (
            "worktrees_of = 'repo', folder = 'taken'",
            "projects.lab.workspaces.worktrees_of: {folder}/taken/1 is there already and is no worktree of {repo}",
        ),
    ],
)
@pytest.mark.usefixtures("repository")
def test_what_is_no_repository_is_refused_with_its_key(office: Office, told: str, sentence: str) -> None:
    (office.folder / "plain").mkdir()
    (office.folder / "taken" / "1").mkdir(parents=True)
    (office.folder / "taken" / "1" / "precious").write_text("")
    with pytest.raises(FleetInvalid) as caught:
        office.apply(FLEET.replace('worktrees_of = "repo", count = 2', told))
    assert caught.value.message == sentence.format(folder=office.folder, repo=office.folder / "repo")
    assert office.desk.projects.workspaces("lab") == []
    assert (office.folder / "taken" / "1" / "precious").exists()


def test_git_is_not_led_astray_by_the_environment(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    worktrees.add(str(repository), str(tmp_path / "tree"))
    assert (tmp_path / "tree" / "file").read_text() == "two"


def test_a_folder_inside_a_repository_is_not_taken_for_a_worktree_of_it(repository: Path) -> None:
    (repository / "inner").mkdir()
    assert not worktrees.is_worktree(str(repository), str(repository / "inner"))


def test_without_git_the_error_says_so(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(FleetInvalid, match="git is not installed"):
        worktrees.add(str(repository), str(tmp_path / "tree"))
