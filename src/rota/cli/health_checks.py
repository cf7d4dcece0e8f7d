"""The checks of `rota doctor`: installation, store, platform. A bad finding says how to fix it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import apsw

from rota.cli.connection import is_file, open_file
from rota.cli.health_finding import Finding, Verdict
from rota.cli.output import now, span
from rota.cli.retention_text import retention_lines
from rota.errors import RotaError
from rota.host import Capabilities, cpu_states, detect
from rota.kernel import Kernel
from rota.model import CpuSettings, Event, lost_worker_text
from rota.policy import make, names
from rota.service import RunLogs, StorePolicies, make_policy
from rota.store import SQLITE_OLDEST, check_address, is_postgres, without_password

__all__ = ["Finding", "examine"]

FREE_BYTES_MIN = 256 * 1024 * 1024  # below this a store may soon be unable to write
LOG_BYTES_MAX = 256 * 1024 * 1024  # a larger write-ahead log has a reader that never ends
LOGS_SURPLUS = 1.1  # how far the logs of runs may be over their maxima before they are removed
RECENT_S = 3_600.0  # how long trouble that is over is mentioned
RECENT_EVENTS = 100_000  # events that are searched for it
WORKERS_NAMED_MAX = 5  # workers that are named in one line
_OF_AN_EXTRA = re.compile(r"(?P<package>[\w.-]+).*\bextra == ['\"](?P<extra>\w+)['\"]")  # as packages declare it

Part = Callable[[str], Iterator[Finding]]


def examine(address: str) -> Iterator[Finding]:
    """Run all checks."""
    for part in _PARTS:
        yield from part(address)


# --- the installation ----------------------------------------------------------------------------


def _installation(_: str) -> Iterator[Finding]:
    part = "installation"
    yield Finding(part, "good", f"rota {metadata.version('rota')} on Python {platform.python_version()}")
    version = apsw.sqlite_lib_version()
    safe = tuple(map(int, version.split("."))) >= SQLITE_OLDEST
    fix = "" if safe else "This version can lose commits: pip install --upgrade apsw."
    yield Finding(part, "good" if safe else "bad", f"SQLite {version}", fix)
    extras = _extras()
    there, missing = ([name for name, is_there in extras.items() if is_there is kind] for kind in (True, False))
    others = f"; not installed: {', '.join(missing)}" if missing else ""
    yield Finding(part, "good", f"extras: {', '.join(there) or 'none'}{others}")
    yield from _policies(part)


def _extras() -> dict[str, bool]:
    """Return rota's extras, and whether all packages of each are installed."""
    found: dict[str, bool] = {}
    for requirement in metadata.requires("rota") or ():
        match = _OF_AN_EXTRA.match(requirement)
        if match is not None:
            found[match["extra"]] = found.get(match["extra"], True) and _is_installed(match["package"])
    return dict(sorted(found.items()))


def _is_installed(package: str) -> bool:
    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _policies(part: str) -> Iterator[Finding]:
    """Load every policy: one of another package may fail, and it is better to know before a claim needs it."""
    broken = []
    for name in names():
        try:
            make(name)
        except Exception as problem:  # another package may raise anything
            broken.append(f"{name} ({problem})")
    fix = "Repair or remove the package that provides it." if broken else ""
    words = f"policies that do not load: {', '.join(broken)}" if broken else f"{len(names())} policies"
    yield Finding(part, "bad" if broken else "good", words, fix)


# --- the store -----------------------------------------------------------------------------------


def _store(address: str) -> Iterator[Finding]:
    part = "store"
    if is_postgres(address):
        yield from _database(part, address)
        return
    try:
        check_address(address)
    except RotaError as problem:
        yield Finding(part, "bad", problem.message, problem.hint)
        return
    if not is_file(address):
        shown = without_password(address)
        yield Finding(part, "note", f"{shown} is a daemon's address: run `rota doctor` where its file is")
        return
    path = Path(address)
    if not path.exists():
        yield Finding(part, "note", f"{path} does not exist", "Create it: rota agents create NAME.")
        yield from _room(part, path)
        return
    yield from _room(part, path)
    yield from _rights(part, path)
    try:
        with open_file(address, read_only=True) as kernel:  # a diagnosis migrates nothing
            yield from _inside(part, kernel)
    except RotaError as problem:
        yield Finding(part, "bad", problem.message, problem.hint)


def _database(part: str, address: str) -> Iterator[Finding]:
    try:
        from rota.cli.database_checks import examine_server

        health, findings = examine_server(address)
        yield from findings
        if health.schema_version is None:
            words = f"the schema {health.schema} has no rota"
            yield Finding(part, "note", words, "Create it: rota agents create NAME.")
        else:
            with open_file(address, read_only=True) as kernel:  # processes of an older rota may use it
                yield from _inside(part, kernel)
    except RotaError as problem:
        yield Finding(part, "bad", problem.message, problem.hint)
    except ModuleNotFoundError as problem:
        yield Finding(part, "bad", f"a store on PostgreSQL needs {problem.name}", "pip install 'rota[postgres]'")


def _room(part: str, path: Path) -> Iterator[Finding]:
    folder = path.absolute().parent
    if not os.access(folder, os.W_OK):
        yield Finding(part, "bad", f"{folder} is not writable", "Change its permissions, or move the store.")
        return
    free = shutil.disk_usage(folder).free
    low = free < FREE_BYTES_MIN
    yield Finding(
        part, "bad" if low else "good", f"{free / 2**30:.1f} GiB free", "Free some disk space." if low else ""
    )


def _rights(part: str, path: Path) -> Iterator[Finding]:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o022:
        yield Finding(part, "bad", f"other users may write to {path} ({mode:o})", f"chmod go-w {path}")
    elif mode & 0o044:
        yield Finding(part, "note", f"other users may read {path} ({mode:o}), including payloads", f"chmod 600 {path}")
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        size = f"{log.stat().st_size / 2**20:,.0f} MiB"
        yield Finding(
            part, "note", f"the write-ahead log is {size}", "Stop the process that has kept a read open for hours."
        )


def _inside(part: str, kernel: Kernel) -> Iterator[Finding]:
    info = kernel.info()
    yield Finding(part, "good", f"schema version {info['schema_version']}, {info['event_count']:,} events")
    normal_at = kernel.normal_durability_at()
    if normal_at is not None:
        words = f'opened with durability="normal" {span(now() - normal_at)} ago: a power cut loses acknowledged work'
        yield Finding(part, "note", words, 'Open it with durability="full" where no acknowledged work may be lost.')
    problems = kernel.check()
    for problem in problems:
        yield Finding(part, "bad", problem, "Restore a backup; keep the damaged file for analysis.")
    if not problems:
        yield Finding(part, "good", "no damage found")
    yield from _retention(part, kernel)
    yield from _policy_in_force("work", kernel)
    yield from _workers("work", kernel)
    yield from _work("work", kernel)
    yield from _recent("the last hour", kernel)
    yield from _logs("logs", kernel)


def _retention(part: str, kernel: Kernel) -> Iterator[Finding]:
    status = kernel.retention.status()
    kept, *rest = retention_lines(status)
    is_on = status.setting.enabled
    yield Finding(part, "good" if is_on else "note", kept, "" if is_on else "rota db retention --on")
    yield from (Finding(part, "good", line) for line in rest)


def _policy_in_force(part: str, kernel: Kernel) -> Iterator[Finding]:
    in_force = StorePolicies(kernel.policies).get()
    words = f"policy {in_force.sentence()}; shares count {in_force.share_by}"
    try:
        make_policy(in_force.name, in_force.params, "thread")
    except RotaError as problem:
        fix = "Install its package, or choose another: rota policy set NAME."
        yield Finding(part, "bad", f"{words}: {problem.message}, so strict order replaces it", fix)
    else:
        yield Finding(part, "good", words)


def _workers(part: str, kernel: Kernel) -> Iterator[Finding]:
    found = kernel.workers.list(lost=True)
    alive = [worker for worker in found if worker.alive]
    for worker in found:
        if worker.silent or not worker.alive:
            state, since = "silent" if worker.alive else "lost", span(now() - worker.seen_at)
            words = f"worker {worker.worker_id} on {worker.host} is {state}: last seen {since} ago"
            look = f"ps -o pid,stat,cmd -p {worker.os_pid} (T is stopped: kill -CONT {worker.os_pid})"
            yield Finding(part, "note", words, f"On {worker.host}: {look}." if worker.os_pid else "rota workers")
    if alive:
        slots, running = sum(worker.slots for worker in alive), sum(worker.running for worker in alive)
        names = ", ".join(worker.worker_id for worker in alive[:WORKERS_NAMED_MAX])
        more = ", …" if len(alive) > WORKERS_NAMED_MAX else ""
        yield Finding(part, "good", f"workers: {names}{more}; {running:,} of {slots:,} slots in use")
    else:
        yield Finding(part, "note", "no worker is running: nothing starts", "rota run fleet.toml")


def _work(part: str, kernel: Kernel) -> Iterator[Finding]:
    counts = kernel.queue.counts()
    yield Finding(part, "good", ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "no entries")
    paused_by = kernel.projects.fleet_paused_by()
    if paused_by is not None:
        yield Finding(part, "note", f"the fleet was paused by {paused_by}", "rota resume fleet")
    breached = kernel.ledger.list_breached()
    if breached:
        pids = ", ".join(sorted({str(line.pid) for line in breached}))
        yield Finding(part, "note", f"agents over their grants: {pids}", "rota ledger breached")
    at = now()
    runs, _ = kernel.queue.list(state="dispatched", limit=1_000)
    late = [run for run in runs if run.claim_expires_at is not None and run.claim_expires_at < at]
    if late:
        since = max(at - (run.claim_expires_at or at) for run in late)
        claims = "1 claim has" if len(late) == 1 else f"{len(late):,} claims have"
        words = f"{claims} expired, the first {span(since)} ago, and no worker has claimed since"
        yield Finding(part, "note", words, "Start a worker: its first claim takes them back.")


def _fell_back(event: Event) -> tuple[str, str]:
    failure, policy = event.payload["failure"], event.payload["policy"]
    where, there = (f" at {event.author}", " there") if event.author else ("", "")
    words = f"policy {policy} {failure}{where} ({event.payload['detail']}), and strict order replaced it{there}"
    choose = "Correct or install it there, or choose another: rota policy set NAME."
    return words, f'{choose} policy_isolation = "process" contains it.'


def _jumped(event: Event) -> tuple[str, str]:
    words = f"the wall clock jumped by {event.payload['by_s']:+,.0f} s; what was measured in seconds was not affected"
    return words, "Check the time service of this machine."


def _lost(event: Event) -> tuple[str, str]:
    worker, host, entries = (event.payload[field] for field in ("worker_id", "host", "entries"))
    return lost_worker_text(worker, host, entries), "rota run fleet.toml"


_TROUBLE = {
    "kernel.policy.fell_back": _fell_back,
    "kernel.clock.jumped": _jumped,
    "kernel.worker.lost": _lost,
}


def _recent(part: str, kernel: Kernel) -> Iterator[Finding]:
    """What went wrong lately, also if it is over: the last event of each kind, and how many there were."""
    at = now()
    found: dict[str, list[Event]] = {}
    for event in kernel.journal.tail(max(0, kernel.journal.cursor() - RECENT_EVENTS), kinds=tuple(_TROUBLE)):
        if event.ts >= at - RECENT_S:
            found.setdefault(event.kind, []).append(event)
    for kind, events in found.items():
        words, fix = _TROUBLE[kind](events[-1])
        times = "" if len(events) == 1 else f" ({len(events):,} times)"
        yield Finding(part, "note", f"{span(max(0.0, at - events[-1].ts))} ago{times}: {words}", fix)


def _logs(part: str, kernel: Kernel) -> Iterator[Finding]:
    logs = RunLogs(kernel)
    (runs, size), (runs_max, bytes_max) = logs.usage(), logs.maxima()
    words = f"output of {runs:,} runs, {_size(size)}; kept: at most {runs_max:,} runs and {_size(bytes_max)}"
    if runs > LOGS_SURPLUS * runs_max or size > LOGS_SURPLUS * bytes_max:
        fix = "The next run that prints removes the oldest; logs_max and logs_bytes_max in the fleet file set both."
        yield Finding(part, "note", words, fix)
    else:
        yield Finding(part, "good", words)


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


# --- the platform --------------------------------------------------------------------------------


def _platform(_: str) -> Iterator[Finding]:
    """The system, and what it lets rota do with processes, found by trying."""
    found = detect()
    linux = found.system == "Linux"
    fix = "" if linux else "The queue works; process control needs Linux."
    yield Finding("platform", "good" if linux else "note", f"{found.system} {found.kernel}", fix)
    yield Finding("platform", "good", f"{len(found.cores)} cores")
    yield from _controls("controls", found)


def _controls(part: str, found: Capabilities) -> Iterator[Finding]:
    for offer in found.offers:
        words = f"{offer.name}: {offer.for_what}"
        yield Finding(part, "good", words) if offer.works else Finding(part, "note", f"no {words}", offer.why_not)
    holds = [support.feature for support in found.cgroups if support.works]
    words = f"control groups ({found.cgroup_backend}): {', '.join(holds) or 'none'}"
    missing = next((support.why_not for support in found.cgroups if not support.works), "")
    yield Finding(part, "good" if holds and not missing else "note", words, missing)
    yield from (Finding(part, *told) for told in _cpu_settings(found))


def _cpu_settings(found: Capabilities) -> Iterator[tuple[Verdict, str, str]]:
    """What the `cpu` settings of agents and projects amount to here."""
    support = {each.feature: each for each in found.cgroups}
    settings = CpuSettings(weight=1, quota="20ms/100ms", cores=str(found.cores[-1]), lease=1)
    for each in cpu_states(settings, support, usable=frozenset(found.cores)):
        verdict: Verdict = "good" if each.state == "enforced" else "note"
        yield verdict, f"cpu {each.setting}: {each.state}, {each.how}", ""


_PARTS: tuple[Part, ...] = (_installation, _store, _platform)
