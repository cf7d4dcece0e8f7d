"""HTTPS with real certificates: clients that trust the CA, and clients that do not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from rota import Rota
from rota.errors import DaemonUntrusted, InvalidInput, StoreUnavailable
from rota.kernel import ScheduleSpec
from rota.rpc import connect, connect_async
from tests.cli.shell import Shell, make_shell
from tests.daemon.harness import PATIENCE_S, Process, make_token


class Secure(NamedTuple):
    """A daemon with HTTPS, and what its clients need."""

    url: str
    token: str
    ca_file: str
    daemon: Process


class Certificates(NamedTuple):
    """A CA, and a certificate for 127.0.0.1 with its key."""

    ca_file: str
    certificate: str
    key: str


def make_certificates(folder: Path, *names: str) -> Certificates:
    folder.mkdir()
    authority = trustme.CA()
    ca_file, certificate, key = (folder / name for name in ("ca.pem", "certificate.pem", "key.pem"))
    authority.cert_pem.write_to_path(ca_file)
    issued = authority.issue_cert(*names)
    issued.private_key_pem.write_to_path(key)
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    return Certificates(str(ca_file), str(certificate), str(key))


@pytest.fixture(scope="module")
def other_ca(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A CA that did not sign the daemon's certificate."""
    return make_certificates(tmp_path_factory.mktemp("other") / "certificates", "127.0.0.1").ca_file


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    folder = tmp_path_factory.mktemp("tls")
    made = make_certificates(folder / "certificates", "127.0.0.1")
    path = str(folder / "rota.db")
    listen = ("--listen", "127.0.0.1:0", "--tls-cert", made.certificate, "--tls-key", made.key)
    daemon = Process(path, *listen)
    yield Secure(daemon.addresses[1], make_token(path, "admin"), made.ca_file, daemon)
    assert daemon.stop() == 0
    assert not [line for line in daemon.log if "Traceback" in line]


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the machine's own settings."""
    for name in ("ROTA_CA_FILE", "ROTA_ACCESS_TOKEN", "ROTA_ACCESS_TOKEN_FILE", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


# --- who trusts it -------------------------------------------------------------------------------


def test_a_client_that_trusts_the_certificate_works_as_over_http(secure: Secure) -> None:
    assert secure.url.startswith("https://")
    with connect(secure.url, token=secure.token, ca_file=secure.ca_file) as client:
        pid = client.create_agent("reader", "callable")
        sched_id = client.enqueue(ScheduleSpec(pid, payload={"url": "a page"}))
        (entry,) = client.claim("worker", wait_s=PATIENCE_S)
        assert entry.payload == {"url": "a page"}
        assert client.complete(sched_id, "completed", token=entry.token) == ("dispatched", "completed")


def test_the_ca_can_come_from_the_environment(secure: Secure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_CA_FILE", secure.ca_file)
    monkeypatch.setenv("ROTA_ACCESS_TOKEN", secure.token)
    with connect(secure.url) as client:
        assert "agent_count" in client.info()


def test_the_async_client_uses_the_same_ca(secure: Secure) -> None:
    async def total() -> int:
        async with connect_async(secure.url, token=secure.token, ca_file=secure.ca_file) as client:
            return len(await client.queue.counts())

    assert asyncio.run(total()) >= 0


def test_rota_runs_agents_over_https(secure: Secure) -> None:
    with Rota(secure.url, token=secure.token, ca_file=secure.ca_file) as rota:

        @rota.agent("adder")
        def adder(_ctx: object, left: int, right: int) -> int:
            return left + right

        job = adder.enqueue(left=1, right=2)
        assert rota.run(until_idle=True).runs == 1
        assert job.result() == 3


# --- who does not --------------------------------------------------------------------------------


def test_an_untrusted_certificate_raises_immediately_with_a_hint(secure: Secure) -> None:
    """Retrying for `retry_s` would not help."""
    with connect(secure.url, token=secure.token, retry_s=1e9) as client, pytest.raises(DaemonUntrusted) as caught:
        client.info()
    assert f"the certificate of {secure.url} is not trusted" in caught.value.message
    assert "ca_file" in caught.value.hint
    assert "ROTA_CA_FILE" in caught.value.hint
    assert caught.value.data["address"] == secure.url


def test_another_ca_is_not_trusted(secure: Secure, other_ca: str) -> None:
    with (
        connect(secure.url, token=secure.token, ca_file=other_ca, retry_s=1e9) as client,
        pytest.raises(DaemonUntrusted),
    ):
        client.info()


def test_a_certificate_for_another_host_is_not_trusted(secure: Secure) -> None:
    url = secure.url.replace("127.0.0.1", "localhost")
    with (
        connect(url, token=secure.token, ca_file=secure.ca_file, retry_s=1e9) as client,
        pytest.raises(DaemonUntrusted, match="localhost") as caught,
    ):
        client.info()
    assert caught.value.hint == "Use a host name that is in the daemon's certificate."


def test_failed_handshakes_do_not_harm_the_daemon(secure: Secure) -> None:
    for _ in range(5):
        with connect(secure.url, retry_s=0.0) as client, pytest.raises(DaemonUntrusted):
            client.info()
    with connect(secure.url, token=secure.token, ca_file=secure.ca_file) as client:
        assert "agent_count" in client.info()


# --- what else can be wrong ----------------------------------------------------------------------


def test_an_invalid_ca_file_is_rejected_before_anything_is_sent(secure: Secure, tmp_path: Path) -> None:
    not_pem = tmp_path / "text.pem"
    not_pem.write_text("no certificate")
    for wrong in (str(tmp_path / "none.pem"), str(not_pem)):
        with pytest.raises(InvalidInput, match="ca_file") as caught:
            connect(secure.url, token=secure.token, ca_file=wrong)
        assert caught.value.field == "ca_file"


def test_http_to_a_tls_daemon_suggests_https(secure: Secure) -> None:
    url = secure.url.replace("https:", "http:")
    with connect(url, token=secure.token, retry_s=0.0) as client, pytest.raises(StoreUnavailable, match="https"):
        client.info()


def test_https_to_a_plain_daemon_suggests_http(tmp_path: Path) -> None:
    plain = Process(str(tmp_path / "rota.db"), "--listen", "127.0.0.1:0")
    url = plain.addresses[1].replace("http:", "https:")
    try:
        with connect(url, retry_s=1e9) as client, pytest.raises(StoreUnavailable, match="begins with `http:`"):
            client.info()
    finally:
        plain.stop()


@pytest.mark.parametrize("missing", ["certificate", "key"])
def test_a_daemon_without_its_certificate_does_not_start(tmp_path: Path, missing: str) -> None:
    made = make_certificates(tmp_path / "certificates", "127.0.0.1")._asdict() | {missing: str(tmp_path / "none.pem")}
    options = ("--listen", "127.0.0.1:0", "--tls-cert", made["certificate"], "--tls-key", made["key"])
    with pytest.raises(AssertionError) as caught:
        Process(str(tmp_path / "rota.db"), *options)
    output = str(caught.value)
    assert "none.pem" in output
    assert "Traceback" not in output


def test_a_key_of_another_certificate_is_rejected(tmp_path: Path) -> None:
    mine, other = make_certificates(tmp_path / "mine", "127.0.0.1"), make_certificates(tmp_path / "other", "127.0.0.1")
    options = ("--listen", "127.0.0.1:0", "--tls-cert", mine.certificate, "--tls-key", other.key)
    with pytest.raises(AssertionError) as caught:
        Process(str(tmp_path / "rota.db"), *options)
    assert "--tls-key" in str(caught.value)
    assert "Traceback" not in str(caught.value)


# --- the command line ----------------------------------------------------------------------------


@pytest.fixture
def rota(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return make_shell(monkeypatch, capsys)


def test_the_command_line_takes_both_files_as_options(rota: Shell, secure: Secure, tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(secure.token + "\n")
    answer = rota("--ca-file", secure.ca_file, "--token-file", token_file, "ps", "--store", secure.url, "--json")
    assert (answer.code, answer.err) == (0, "")
    assert "entries" in answer.json


def test_on_the_command_line_an_untrusted_daemon_is_one_line(rota: Shell, secure: Secure) -> None:
    answer = rota("ps", "--store", secure.url)
    assert (answer.code, answer.out) == (6, "")
    assert answer.err.count("\n") == 1
    assert "--ca-file" in answer.err
    assert "Traceback" not in answer.err
