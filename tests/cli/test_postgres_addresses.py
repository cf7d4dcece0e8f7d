"""Addresses on PostgreSQL at the command line: a mistyped schema is not created, and no password is printed.

Specific, because only a URL has a schema to mistype and a password.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rota import store
from rota.errors import InvalidInput, StoreMissing
from rota.fleet.config.loader import load_fleet
from rota.rpc import connect
from rota.telemetry.exporter_process import ExporterProcess
from tests.cli.shell import Shell
from tests.stores import database_url, store_kind

__all__ = ["store_kind"]  # it takes the schemas of a test back

SECRET = "s3cret-word"
BAD_URLS = (  # each with a mistake that people make
    f"postgresql://ann:{SECRET}%ZZ@db/fleet",
    f"postgresql://ann:{SECRET}/more@db/fleet",
    f"postgresql://ann:{SECRET}?more@db/fleet",
    f"postgresql://ann:12/{SECRET}@db/fleet",
    f"postgresql:/ann:{SECRET}@db/fleet",
    f"postgresql://ann:{SECRET}@db/fleet?schema=Not-One",
    f"postgresql://ann:{SECRET}@db/fleet?color=red",
    f"postgresql://ann:{SECRET}@127.0.0.1:1/fleet",
    f"postgresql://ann:{SECRET}@[::1/fleet",
    f"postgresql://ann:{SECRET}/fleet",
    f"postgresql://ann@db/fleet?password=x&{SECRET}",
    f"postgresql+psycopg://ann:{SECRET}@db/fleet",
    f"PostgreSQL://ann:{SECRET}@db/fleet",
    f" postgresql://ann:{SECRET}@db/fleet",
    f"host=db user=ann password={SECRET}",
)
LOOKING = (
    ("queue",), ("ps",), ("events",), ("workers",), ("usage",), ("top", "--once"), ("agents",), ("projects",),
    ("limits",), ("policy", "show"), ("hooks",), ("show", "1"), ("why",), ("why", "1"), ("doctor",), ("db", "check"),
    ("db", "retention"), ("token", "list"), ("trace", "export", "--format", "otlp"), ("graph", "ps"), ("logs", "1"),
)  # fmt: skip


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty schema, with a password in both places that a URL has for one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return f"{database_url(tmp_path / 'store').replace('://rota@', f'://rota:{SECRET}@')}&sslpassword={SECRET}"


@pytest.fixture
def filled(url: str, rota: Shell) -> str:
    """A store with an entry that waits for its agent."""
    assert rota("agents", "create", "coder", "--store", url).code == 0
    assert rota("enqueue", "coder", "--store", url).code == 0
    assert rota("pause", "agent", "coder", "--store", url).code == 0
    return url


def mistyped(url: str) -> str:
    """The same URL with a schema that no test makes."""
    return url.replace("schema=", "schema=not_")


@pytest.mark.parametrize("command", [each for each in LOOKING if each != ("doctor",)], ids=" ".join)
def test_a_command_that_looks_creates_no_schema(rota: Shell, url: str, command: tuple[str, ...]) -> None:
    told = rota(*command, "--store", mistyped(url))
    assert told.code == 5, told.err
    assert "there is no rota in the schema" in told.err
    assert "create the store: `rota agents create NAME`" in told.err
    with pytest.raises(StoreMissing):
        store.open(mistyped(url), create=False)


def test_the_schemas_that_have_a_rota_are_named(rota: Shell, filled: str) -> None:
    told = rota("queue", "--store", mistyped(filled), "--json")
    assert '"kernel_store_missing"' in told.err
    assert "Name a schema that has one (" in told.err
    with pytest.raises(StoreMissing):
        store.open(mistyped(filled), read_only=True)


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_no_command_prints_a_password(rota: Shell, filled: str, command: tuple[str, ...]) -> None:
    for more in ((), ("--json",)):
        told = rota(*command, *more, "--store", filled)
        assert SECRET not in told.out + told.err
        if command == ("why", "1"):  # it repeats the address in what it suggests
            assert "--store" in told.out
            assert store.without_password(filled) in told.out


@pytest.mark.parametrize("bad", BAD_URLS)
def test_no_error_repeats_a_password(rota: Shell, bad: str) -> None:
    for command in (
        ("queue",),
        ("doctor",),
        ("db", "copy", bad, "new.db"),
        ("otel", "--once"),
        ("serve", "--print-unit"),
    ):
        told = rota(*command) if "copy" in command else rota(*command, "--store", bad)
        assert told.code != 0 or command[0] in ("doctor", "serve")  # they need not connect
        assert SECRET not in told.out + told.err
        assert "a daemon's address" not in told.out + told.err
    with pytest.raises(InvalidInput) as refused:
        connect(bad)
    assert SECRET not in str(refused.value)


def test_what_a_process_tells_others_has_no_password(
    rota: Shell, filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fleet.toml").write_text(f'store = "{filled}"\n')
    assert SECRET not in load_fleet(tmp_path / "fleet.toml").shown_store  # for hooks, the view and the plan
    unit = rota("serve", "--print-unit", "--store", filled).out
    assert store.without_password(filled).replace("%", "%%") in unit
    assert SECRET not in unit

    settings: list[dict[str, Any]] = []  # of the dashboard, which shows it before anybody has signed in
    web = SimpleNamespace(WebSettings=dict, run_server=lambda given, *_: settings.append(given))
    monkeypatch.setitem(sys.modules, "rota.web", web)
    rota("web", "--store", filled)
    assert settings[0]["store"] == store.without_password(filled)

    started: list[Any] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: started.append((command, options)))
    ExporterProcess(filled)
    ((command, options),) = started
    assert SECRET not in " ".join(command)
    assert options["env"]["ROTA_STORE"] == filled
