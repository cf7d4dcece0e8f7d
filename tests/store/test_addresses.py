"""Addresses of stores: what people see of them, and where this host keeps files for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rota.store import host_path, is_postgres, shown_address, without_password
from rota.store.postgres_connection import parse_url

URL = "postgresql://ann:secret@db:5433/fleet?sslmode=require&password=other&schema=rota"


def test_a_path_is_shown_and_used_with_links_resolved(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    path = str(tmp_path / "link" / "rota.db")
    assert shown_address(path) == host_path(path) == str(tmp_path / "rota.db")
    assert not is_postgres(path)


def test_no_password_is_shown_and_the_rest_stays() -> None:
    assert shown_address(URL) == "postgresql://ann@db:5433/fleet?sslmode=require&schema=rota"
    assert shown_address("postgres:///fleet") == "postgres:///fleet"


@pytest.mark.parametrize(("address", "shown"), [
    ("POSTGRESQL://ann:secret@db/fleet", "POSTGRESQL://…"),
    (" postgresql://ann:secret@db/fleet", "postgresql://…"),
    ("postgresql+psycopg://ann:secret@db/fleet", "postgresql+psycopg://…"),
    ("postgresql:/ann:secret@db/fleet", "postgresql://…"),
    ("postgresql://ann:secret/fleet", "postgresql://…"),
    ("postgresql://ann:secret", "postgresql://…"),
    ("postgresql://ann:secret@[::1/fleet", "postgresql://ann@[::1/fleet"),
    ("postgresql://db/fleet?password=not&secret&sslmode=require", "postgresql://db/fleet?sslmode=require"),
    ("postgresql://db/fleet?Password=secret", "postgresql://db/fleet"),
    ("https://ann:secret@host:7682", "https://…"),
    ("host=db user=ann password='a secret' dbname=fleet", "host=db user=ann password=…"),
    ("user=ann password = secret", "user=ann password =…"),
])  # fmt: skip
def test_an_address_that_is_nearly_right_shows_no_password(address: str, shown: str) -> None:
    assert without_password(address) == shown_address(address) == shown


@pytest.mark.parametrize("shown", ["postgresql://db:5433", "postgresql://fe80::1/fleet", "postgresql://[::1]:5433/x"])
def test_an_address_without_a_password_is_shown_whole(shown: str) -> None:
    assert shown_address(shown) == shown


@pytest.mark.parametrize("same", [
    "postgresql://bob@db:5433/fleet?schema=rota",
    "postgres://db:5433/fleet",
    "postgresql://db:5433/fleet?sslmode=disable",
])  # fmt: skip
def test_all_users_of_a_schema_on_a_host_share_its_files(monkeypatch: pytest.MonkeyPatch, same: str) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert host_path(same) == host_path(URL)
    assert host_path(URL).startswith("/state/rota/rota-")
    assert "secret" not in host_path(URL)


@pytest.mark.parametrize("other", [
    "postgresql://db:5433/fleet?schema=rota2",
    "postgresql://db:5433/other?schema=rota",
    "postgresql://db2:5433/fleet?schema=rota",
    "postgresql://ann@/fleet?host=%2Ftmp%2Fa&schema=rota",
])  # fmt: skip
def test_another_store_has_other_files(other: str) -> None:
    assert host_path(other) != host_path(URL)


@pytest.mark.parametrize(("one", "other"), [
    ("postgresql://db/fleet", "postgresql://db:5432/fleet"),
    ("postgresql://db/fleet", "postgresql://DB/fleet?connect_timeout=9"),
    ("postgresql://db/fleet", "postgresql:///fleet?host=db"),
    ("postgresql://db/fleet", "postgresql://ann:secret@/?dbname=fleet&host=db&port=5432"),
    ("postgresql://a,b/fleet", "postgresql://b:5432,a:5432/fleet"),
    ("postgresql://a,b:5433/fleet", "postgresql:///fleet?host=a,b&port=5432,5433"),
    ("postgresql://10.0.0.1/fleet", "postgresql://db/fleet?hostaddr=10.0.0.1"),
    ("postgresql://db/ann", "postgresql://ann@db"),
])  # fmt: skip
def test_the_same_database_written_otherwise_has_the_same_files(one: str, other: str) -> None:
    assert host_path(one) == host_path(other)


@pytest.mark.parametrize(("one", "other"), [
    ("postgresql://db/fleet?hostaddr=10.0.0.1", "postgresql://db/fleet?hostaddr=10.0.0.2"),
    ("postgresql:///?service=one", "postgresql:///?service=two"),
])  # fmt: skip
def test_parameters_that_lead_elsewhere_give_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: str, other: str
) -> None:
    (tmp_path / "services").write_text("[one]\nhost=db\ndbname=fleet\n[two]\nhost=db\ndbname=other\n")
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    assert host_path(one) != host_path(other)
    assert host_path("postgresql:///?service=one") == host_path("postgresql://db/fleet")


@pytest.mark.parametrize(("variable", "value"), [("PGHOST", "db2"), ("PGPORT", "5444"), ("PGDATABASE", "other")])
def test_the_environment_counts_as_it_does_for_libpq(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    before = host_path("postgresql://")
    monkeypatch.setenv(variable, value)
    assert host_path("postgresql://") != before
    assert host_path(URL) == host_path(URL.replace("ann", "bob"))  # what the URL says comes first


def test_the_socket_of_a_long_schema_has_a_path_that_the_system_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/home/somebody/.local/state")
    one, two = (host_path(f"postgresql://db/fleet?schema={'s' * 62}{end}") for end in "ab")
    assert one != two
    assert len(f"{one}-daemon/rota.sock") < 100


def test_without_a_setting_the_state_folder_is_in_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Path(host_path(URL)).parent == tmp_path / ".local" / "state" / "rota"


def test_a_url_without_a_host_means_the_local_socket() -> None:
    assert "dbname=fleet" in parse_url("postgresql:///fleet?schema=one").conninfo
    assert "dbname=fleet" in parse_url("postgresql:///fleet").conninfo
