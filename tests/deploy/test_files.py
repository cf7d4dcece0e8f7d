"""The files that start rota elsewhere say what is true: images, compose services and systemd units.

Nothing is built or started here. Every `rota` command in them is parsed by the command line itself, and what they refer
to exists.
"""

from __future__ import annotations

import ast
import configparser
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from rota.cli import COMMANDS, app
from rota.rpc.daemon.http import _OPEN

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
OURS = {name: service for name, service in COMPOSE["services"].items() if service.get("image") == "rota"}
ROTA = "/opt/rota/bin/rota"


def check_command(words: list[str]) -> None:
    """Parse a command as `rota` does, without running it."""
    name, *rest = words
    assert name in COMMANDS, f"there is no command {name}"
    group: Any = get_command(app)
    with group.make_context("rota", [name], resilient_parsing=True) as context:
        group.get_command(context, name).make_context(name, list(rest), parent=context)


def test_a_command_with_an_option_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        check_command(["serve", "--lisen", "127.0.0.1:1"])


# --- the image -----------------------------------------------------------------------------------


def instructions() -> Iterator[tuple[str, str]]:
    """The instructions of the Dockerfile, with continued lines joined."""
    text = "\n".join(line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#"))
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word, rest.strip()


def last(word: str) -> str:
    return [rest for each, rest in instructions() if each == word][-1]


def test_the_image_is_slim_and_pinned() -> None:
    images = [rest.split()[0] for word, rest in instructions() if word == "FROM"]
    assert all(re.fullmatch(r"python:3\.\d+-slim", image) for image in images)


def test_the_image_runs_as_a_user_without_rights_and_installs_before() -> None:
    words = [word for word, _ in instructions()]
    assert last("USER") == "rota"
    assert words.index("USER") > max(at for at, word in enumerate(words) if word == "RUN")


def test_what_is_copied_exists_and_is_sent_to_the_builder() -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [rest.split()[:-1] for word, rest in instructions() if word == "COPY" and "--from" not in rest]
    for source in (each for sources in copied for each in sources):
        assert (ROOT / source).exists()
        assert source in sent
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {"docs", "src"} == {*wheel["force-include"], *(each.split("/")[0] for each in wheel["packages"])}
    assert {"docs", "src"} <= {each for sources in copied for each in sources}, "what the wheel is made of"


def test_the_extras_of_the_image_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (wanted,) = [rest.partition("=")[2] for word, rest in instructions() if word == "ARG"]
    assert set(wanted.split(",")) <= set(extras)


def test_the_health_check_asks_what_is_served_without_a_token_where_the_daemon_listens() -> None:
    argv = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    ast.parse(argv[2])
    address, path = re.search(r"http://([\d.:]+)(/\w+)", argv[2]).groups()  # type: ignore[union-attr]  # it has one
    assert path.encode() in _OPEN
    assert json.loads(last("CMD")) == ["serve", "--listen", address]
    check_command(json.loads(last("CMD")))
    assert json.loads(last("ENTRYPOINT")) == ["rota"]


# --- compose -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OURS)
def test_a_service_starts_a_command_that_exists(name: str) -> None:
    check_command(shlex.split(OURS[name]["command"]))


@pytest.mark.parametrize("name", OURS)
def test_a_service_has_no_more_rights_than_it_needs(name: str) -> None:
    service = OURS[name]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["init"], "what its runs leave behind is reaped"


def test_services_refer_to_what_is_declared() -> None:
    for service in COMPOSE["services"].values():
        assert set(service.get("depends_on", ())) <= set(COMPOSE["services"])
        named = [volume.split(":")[0] for volume in service.get("volumes", ())]
        assert {volume for volume in named if not volume.startswith((".", "/"))} <= set(COMPOSE["volumes"])


def test_the_daemon_serves_the_database_and_the_others_meet_at_its_socket() -> None:
    words = shlex.split(OURS["daemon"]["command"])
    given = dict(zip(words[1::2], words[2::2], strict=False))
    database = COMPOSE["services"]["postgres"]["environment"]
    assert given["--store"] == f"postgresql://{database['POSTGRES_USER']}@127.0.0.1/{database['POSTGRES_DB']}"
    assert OURS["daemon"]["environment"]["PGPASSWORD"] == database["POSTGRES_PASSWORD"], "one password, from .env"
    assert {service["environment"]["ROTA_STORE"] for service in OURS.values()} == {f"unix:{given['--socket']}"}
    assert "PGPASSWORD" not in OURS["fleet"]["environment"], "agents do not get the password"


def test_nothing_is_reachable_from_other_machines() -> None:
    text = (ROOT / "compose.yaml").read_text()
    assert "0.0.0.0" not in text
    ports = [port for service in COMPOSE["services"].values() for port in service.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in ports)


# --- systemd -------------------------------------------------------------------------------------


def unit(path: Path) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None, strict=True)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]  # names are as they are written
    parsed.read(path)
    return parsed


def test_there_are_units_for_the_daemon_a_fleet_and_the_dashboard() -> None:
    assert [path.stem for path in UNITS] == ["rota-run", "rota-serve", "rota-web"]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_starts_a_command_that_exists_as_a_user_of_its_own(path: Path) -> None:
    service = unit(path)["Service"]
    for key in ("ExecStart", "ExecReload"):
        if key in service:
            program, *words = shlex.split(service[key])
            assert program == ROTA
            check_command(words)
    assert (service["User"], service["NoNewPrivileges"], service["UMask"]) == ("rota", "yes", "0077")
    assert unit(path)["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this machine has no systemd to check units with")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_itself_finds_no_fault_in_a_unit(path: Path, tmp_path: Path) -> None:
    for each in UNITS:  # with a program that exists: it looks for it
        (tmp_path / each.name).write_text(each.read_text().replace(ROTA, "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / path.name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_orders_itself_after_units_that_exist(path: Path) -> None:
    head = unit(path)["Unit"]
    named = " ".join(head.get(key, "") for key in ("After", "Requires", "Wants")).split()
    assert {name for name in named if name.endswith(".service")} <= {each.name for each in UNITS}
