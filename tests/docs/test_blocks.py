"""Every command and code block in the README and the docs is run.

The Python blocks of a page run one after the other, as a reader would type them, in a process and a folder of their
own. Shell blocks run beside a copy of the examples, `./dev` in the checkout, and commands of rota in this process. A
block whose first line is a comment with the name of a file is that file: then all shell blocks of the page run in one
folder, in the order of the page.
The two commands that run this very test are held against .ci/run instead of being run inside themselves.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from rota.cli import app
from rota.graph.compiler import compile_graph
from rota.graph.loader import load_text
from tests.postgres_server import shared_dsn

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
DRAWINGS = {"mermaid", "text", "house"}  # for people; the house is read by the import-order test
SHORTER = {"./dev demo": "./dev demo --seconds 4"}  # the same, without the minute that people look at it
GATE = {"./dev test", "./dev check"}  # what CI runs: running them here would not end
ELSEWHERE = {"rota demo --seconds 5": "tests/cli/test_demo.py"}  # what another test runs, and looks at more closely


class Block(msgspec.Struct, frozen=True):
    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str:
        """The name of the file that the block is, else nothing."""
        found = re.match(r"# ([\w-]+\.(?:py|toml|yaml|json|sh))\n", self.text)
        return found[1] if found else ""


@cache  # every worker of a test run collects these tests
def blocks() -> tuple[Block, ...]:
    return tuple(block for page in PAGES for block in _of_page(page))


def _of_page(page: Path) -> Iterator[Block]:
    text = page.read_text()
    assert text.count("\n```") % 2 == 0, f"{page} leaves a block open"
    for fence in re.finditer(r"^```(\S*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield Block(page, text.count("\n", 0, fence.start()) + 1, fence[1], fence[2])


def of(*languages: str) -> list[Block]:
    return [block for block in blocks() if block.language in languages]


def walks() -> list[Path]:
    """The pages that a reader follows from top to bottom in one folder."""
    return sorted({block.page for block in blocks() if block.file})


WALKS = walks()


def _database(block: Block) -> dict[str, str]:
    """What a page calls STORE: a new schema on PostgreSQL."""
    return {"STORE": f"{shared_dsn()}&schema=docs_{block.line}"} if block.page.stem == "postgres" else {}


def test_every_block_is_of_a_kind_that_something_checks() -> None:
    known = DRAWINGS | {"python", "bash", "toml", "json", "yaml"}
    strangers = [f"{block}: {block.language!r}" for block in blocks() if block.language not in known]
    assert not strangers


@pytest.mark.parametrize(
    "page", sorted({block.page for block in of("python") if not block.file}), ids=lambda page: page.name
)
def test_the_python_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    code, environment = "", dict(os.environ)
    for block in of("python"):
        if block.page == page and not block.file:  # on its line of the page, so that a traceback names it
            code += "\n" * (block.line - code.count("\n")) + block.text
            environment |= _database(block)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{page}: {done.stderr}"


@pytest.mark.parametrize("block", [block for block in of("bash") if block.page not in WALKS], ids=str)
def test_the_commands_of_a_shell_block_run(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    go_to(tmp_path, monkeypatch)
    run_commands(block, tmp_path)


@pytest.mark.parametrize("page", WALKS, ids=lambda page: page.name)
def test_a_page_with_files_can_be_followed_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [block for block in blocks() if block.page == page and (block.file or block.language == "bash")]
    assert follow(page, tmp_path, monkeypatch) == len(parts) > 1


def follow(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, *, until: str = "") -> int:
    """Do in a folder what a page says, to its end or up to the heading `until`; return how many blocks it were."""
    go_to(folder, monkeypatch)
    text = page.read_text()
    last = text[: text.index(until) if until else None].count("\n")
    done = 0
    for block in blocks():
        if block.page != page or block.line > last:
            continue
        if block.file:
            (folder / block.file).write_text(block.text)
        elif block.language == "bash":
            run_commands(block, folder)
        else:
            continue
        done += 1
    return done


ENVIRONMENT = {"NO_COLOR": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def go_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process a reader's shell in a folder."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(folder)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def run_commands(block: Block, folder: Path) -> None:
    """Run each line of a block; commands of rota alone in this process, which saves it half a second each."""
    database = _database(block)
    for line in block.text.splitlines():
        command = line.split("#")[0].strip()
        command = SHORTER.get(command, command)
        if not command:
            continue
        if command in GATE:
            assert command in (ROOT / ".ci" / "run").read_text().splitlines()
            continue
        if command in ELSEWHERE:
            arguments = ", ".join(f'"{word}"' for word in command.split()[2:])
            assert f"rota_demo({arguments}" in (ROOT / ELSEWHERE[command]).read_text()
            continue
        if command.startswith("rota ") and not re.search(r"[|&;<>$]", command.replace('"$STORE"', "")):
            words = shlex.split(command)[1:]
            done = CliRunner().invoke(app, [database["STORE"] if word == "$STORE" else word for word in words])
            assert done.exit_code == 0, f"{block}: {command}\n{done.output}{done.exception}"
            continue
        ended = subprocess.run(
            ["bash", "-c", command],
            cwd=ROOT if command.startswith("./dev") else folder,  # what a command makes is not left in the checkout
            env={**os.environ, **database},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, f"{block}: {command}\n{ended.stdout}{ended.stderr}"


def test_data_blocks_can_be_read() -> None:
    for block in of("toml", "json"):
        assert tomllib.loads(block.text) if block.language == "toml" else msgspec.json.decode(block.text), block


@pytest.mark.parametrize("block", of("yaml"), ids=str)
def test_a_yaml_block_is_a_graph_that_compiles(block: Block) -> None:
    assert compile_graph(load_text(block.text, form="yaml")).components


def test_ci_runs_the_readmes_two_commands_and_nothing_else() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    commands = [line for line in lines if line and not line.startswith(("#", "set ", "cd "))]
    assert commands == ["./dev check", "./dev test"]
    assert {line.split("#")[0].strip() for line in (ROOT / "README.md").read_text().splitlines()} >= GATE


def test_every_verb_of_dev_that_a_page_names_exists() -> None:
    offered = subprocess.run(["./dev", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    verbs = set(re.findall(r"^  ([a-z]+)", offered, re.MULTILINE))
    for page in PAGES:
        for verb in re.findall(r"\./dev ([a-z]+)", page.read_text()):
            assert verb in verbs, f"{page.relative_to(ROOT)} names ./dev {verb}"


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"
