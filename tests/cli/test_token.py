"""`rota token`, on a file and through its daemon."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from rota.cli import app
from rota.errors import InvalidInput, StoreUnavailable, Unauthenticated
from rota.rpc import Client, connect
from tests.daemon.harness import serving


def rota(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("through_daemon", [False, True])
def test_a_token_is_made_listed_used_and_revoked(tmp_path: Path, through_daemon: bool) -> None:
    path = str(tmp_path / "rota.db")
    with serving(path) as served:
        where = served.unix if through_daemon else path
        token = rota("token", "create", "ci", "--scope", "enqueue:alpha,beta", "--expires", "30d", "--store", where)
        token = token.strip()
        (line,) = msgspec.json.decode(rota("token", "list", "--json", "--store", where))
        assert (line["name"], line["scope"], line["projects"]) == ("ci", "enqueue", ["alpha", "beta"])
        assert line["expires_at"] - line["created_at"] == pytest.approx(30 * 86_400)
        assert token.split("_", 2)[2] not in str(line)
        with connect(served.url, token=token) as client:
            assert client.queue.counts() == {}
            assert "is revoked" in rota("token", "revoke", line["token_id"], "--store", where)
            for _ in range(1_000):
                try:
                    client.queue.counts()
                except Unauthenticated:
                    break
            with pytest.raises(Unauthenticated, match="revoked"):
                client.queue.counts()


def call_until_refused(client: Client) -> None:
    """A daemon learns of another process's change a moment later."""
    for _ in range(1_000):
        client.queue.counts()


@pytest.mark.parametrize("through_daemon", [False, True])
def test_a_rotated_token_keeps_its_rights_and_its_old_secret_ends(tmp_path: Path, through_daemon: bool) -> None:
    path = str(tmp_path / "rota.db")
    with serving(path) as served:
        where = served.unix if through_daemon else path
        first = rota("token", "create", "ci", "--scope", "read", "--store", where).strip()
        token_id = first.split("_")[1]
        second = rota("token", "rotate", token_id, "--overlap", "1h", "--store", where).strip()
        assert (second.split("_")[1], second == first) == (token_id, False)
        with connect(served.url, token=first) as old, connect(served.url, token=second) as new:
            assert old.queue.counts() == new.queue.counts() == {}  # both are valid for an hour
            output = tmp_path / "secret"
            rota("token", "rotate", token_id, "--output", str(output), "--store", where)
            for client in (old, new):
                with pytest.raises(Unauthenticated):
                    call_until_refused(client)
        with connect(served.url, token=output.read_text().strip()) as newest:
            assert newest.queue.counts() == {}
        rota("token", "revoke", token_id, "--store", where)
        with pytest.raises(InvalidInput, match="is revoked"):
            rota("token", "rotate", token_id, "--store", where)


def test_times_of_tokens_are_local(tmp_path: Path) -> None:
    path = str(tmp_path / "rota.db")
    rota("token", "create", "ci", "--scope", "read", "--expires", "2h", "--store", path)
    (line,) = msgspec.json.decode(rota("token", "list", "--json", "--store", path))
    listed = rota("token", "list", "--store", path)
    local = datetime.fromtimestamp(line["created_at"]).astimezone()
    assert f"{local:%H:%M:%S} (" in listed
    assert "in 2.0 h" in listed or "in 1.9 h" in listed or "in 120.0 min" in listed


def test_looking_for_tokens_makes_no_store(tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    for words in (("list",), ("revoke", "1")):
        with pytest.raises(StoreUnavailable, match="there is no store"):
            rota("token", *words, "--store", str(path))
    assert not path.exists()


@pytest.mark.parametrize(
    "wrong", [("--scope", "root"), ("--scope", "read", "--expires", "soon"), ("--scope", "work:a")]
)
def test_a_token_that_makes_no_sense_is_refused(tmp_path: Path, wrong: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput):
        rota("token", "create", "ci", *wrong, "--store", str(tmp_path / "rota.db"))


def test_a_token_is_written_to_a_new_private_file(tmp_path: Path) -> None:
    path, file = str(tmp_path / "rota.db"), tmp_path / "token"
    printed = rota("token", "create", "ci", "--scope", "read", "--output", str(file), "--store", path)
    assert "rota_" not in printed
    assert file.stat().st_mode & 0o777 == 0o600
    with serving(path) as served, connect(served.url, token_file=str(file)) as client:
        assert client.queue.counts() == {}
    with pytest.raises(InvalidInput, match="cannot be created: File exists"):
        rota("token", "create", "ci", "--scope", "read", "--output", str(file), "--store", path)
    with pytest.raises(InvalidInput):
        rota("token", "create", "ci", "--scope", "root", "--output", str(tmp_path / "other"), "--store", path)
    assert not (tmp_path / "other").exists()
    assert len(msgspec.json.decode(rota("token", "list", "--json", "--store", path))) == 1
