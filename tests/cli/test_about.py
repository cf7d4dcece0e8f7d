"""What a new user meets first: the version, help, a first fleet, exit codes, units."""

from __future__ import annotations

import re
import shlex
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.main import get_command

from rota import errors
from rota.cli import COMMANDS, app
from rota.cli.exit_codes import EXITS, code_of
from rota.doc_pages import read_page
from rota.errors import RotaError
from rota.fleet import load_fleet
from tests.cli.shell import Shell, make_shell

DOCS = Path(__file__).parents[2] / "docs"
SOURCE = Path(__file__).parents[2] / "src" / "rota"


@pytest.fixture
def rota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.delenv("ROTA_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    return make_shell(monkeypatch, capsys)


def test_the_version(rota: Shell) -> None:
    assert rota("--version").out == rota("version").out == f"{version('rota')}\n"
    assert rota("version", "--json").json == {"version": version("rota")}


def test_pages_are_listed_and_printed(rota: Shell) -> None:
    listed = rota("docs").out.split()
    assert {"agents", "glossary", "reference/rights"} <= set(listed)
    assert rota("docs", "--json").json == {"pages": listed}
    assert rota("docs", "rights").out == rota("docs", "docs/reference/rights.md").out
    assert rota("docs", "rights").out == (DOCS / "reference" / "rights.md").read_text()
    assert rota("docs", "graph").out == (DOCS / "graph.md").read_text(), "a name in full comes first"
    unknown = rota("docs", "../README")
    assert (unknown.code, unknown.err) == (3, "rota: there is no page ../README. rota docs\n")


def test_pages_that_messages_name_exist() -> None:
    sources = [path.read_text() for path in SOURCE.rglob("*.py")]
    named = {name for text in sources for name in re.findall(r"\brota docs ([a-z/-]+)", text)}
    assert named >= {"agents", "caveats", "graph", "mcp", "rights"}
    assert not {name for name in named if read_page(name) is None}


def test_help_of_a_command_is_the_same_in_both_ways(rota: Shell) -> None:
    assert rota("help", "cancel").out == rota("cancel", "--help").out
    assert rota("help", "db", "prune").out == rota("db", "prune", "--help").out
    assert rota("help").out == rota("--help").out
    assert rota("help", "fly").code == 2


def test_the_list_of_commands_has_every_command_with_its_sentence(rota: Shell) -> None:
    listed = dict(re.findall(r"^  ([a-z]+)  +(\S.*)$", rota("--help").out.partition("Commands:")[2], re.MULTILINE))
    assert list(listed) == list(COMMANDS)
    made = get_command(app).commands  # type: ignore[attr-defined]  # it is a group
    for name, sentence in listed.items():
        assert made[name].help.replace("\n", " ").startswith(sentence.removesuffix("...").removesuffix(".")), name


@pytest.mark.parametrize("folder", [".", "my fleet"])
def test_the_commands_that_init_prints_work_as_printed(rota: Shell, tmp_path: Path, folder: str) -> None:
    wrote = rota("init", *([] if folder == "." else [folder]))
    first, _, *commands = wrote.out.splitlines()
    assert (wrote.code, len(commands)) == (0, 2)
    assert first == f"wrote {Path(folder) / 'fleet.toml'}"
    runs, shows = (shlex.split(command) for command in commands)
    assert (runs[0], shows[0]) == ("rota", "rota")
    assert rota(*runs[1:]).err.splitlines()[-1] == "1 run ended: 1 completed"
    assert rota(*shows[1:]).out == "hello, this is entry 1\n"
    before = (tmp_path / folder / "fleet.toml").read_text()
    again = rota("init", folder)
    assert (again.code, (tmp_path / folder / "fleet.toml").read_text()) == (4, before)


def test_what_is_commented_in_the_first_fleet_works_too(rota: Shell, tmp_path: Path) -> None:
    rota("init")
    path = tmp_path / "fleet.toml"
    lines = path.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("# [agents.worker]"))
    path.write_text("\n".join([*lines[:start], *(line.removeprefix("# ") for line in lines[start:])]))
    assert set(load_fleet(path).agents) == {"hello", "worker"}


def test_a_unit_of_a_fleet(rota: Shell, tmp_path: Path) -> None:
    rota("init", "100% mine")
    unit = rota("run", "--print-unit", "--slots", 3, "--worker-id", "box", "100% mine/fleet.toml")
    assert unit.code == 0
    fields = dict(line.split("=", 1) for line in unit.out.splitlines() if "=" in line)
    path = str(tmp_path / "100%% mine" / "fleet.toml")
    assert shlex.split(fields["ExecStart"])[1:] == [
        *("-m", "rota", "run", "--plain", "--slots", "3", "--worker-id", "box", path)
    ]
    assert shlex.split(fields["ExecReload"])[1:] == ["-m", "rota", "reload", path]
    assert fields["WorkingDirectory"] == str(tmp_path / "100%% mine")
    (tmp_path / "fleet.toml").write_text("slots = 'many'\n")
    assert rota("run", "--print-unit").code == 2


def test_a_unit_of_a_dashboard(rota: Shell, tmp_path: Path) -> None:
    def unit(*words: object) -> dict[str, str]:
        printed = rota("web", "--print-unit", *words)
        assert printed.code == 0, printed.err
        return dict(line.split("=", 1) for line in printed.out.splitlines() if "=" in line)

    of_file = unit("--store", "100%.db", "--port", 9000, "--nice", 3, "--tls-cert", "c.pem", "--tls-key", "k.pem")
    words = ("--host", "127.0.0.1", "--port", "9000", "--nice", "3", "--tls-cert", str(tmp_path / "c.pem"))
    assert shlex.split(of_file["ExecStart"])[1:] == [
        *("-m", "rota", "web", "--store", str(tmp_path / "100%%.db"), *words, "--tls-key", str(tmp_path / "k.pem"))
    ]
    assert of_file["ReadWritePaths"] == str(tmp_path)
    assert not (tmp_path / "100%.db").exists(), "no store is opened"
    of_socket = unit("--store", "unix:made/rota.sock", "--allow-host", "fleet.example")
    assert f"--store unix:{tmp_path}/made/rota.sock --host" in of_socket["ExecStart"]
    assert of_socket["ExecStart"].endswith("--allow-host fleet.example")
    of_database = unit("--store", "postgresql://rota:secret@db/rota")
    assert "secret" not in of_database["ExecStart"]
    assert "--store postgresql://rota@db/rota " in of_database["ExecStart"]


def test_the_documented_exit_codes_are_those_of_the_table() -> None:
    text = (DOCS / "cli.md").read_text()
    assert {int(code): meaning for code, meaning in re.findall(r"^\| (\d+) \| (.*) \|$", text, re.MULTILINE)} == EXITS


def test_every_error_has_an_exit_code_of_the_table() -> None:
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, RotaError)]
    codes = {kind.__name__: code_of(errors.rebuilt(kind, "", "", {})) for kind in kinds}
    assert set(codes.values()) <= set(EXITS)
    assert (codes["UnknownPid"], codes["WorkerExists"], codes["StaleClaim"], codes["Forbidden"]) == (3, 4, 1, 6)
