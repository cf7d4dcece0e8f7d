"""A quota without control groups: the processes of a session are stopped when they have used it, and continued later.

This is the fallback, and it is coarse. A program notices it, and another program of the same user can undo it. It is
the only use of stop signals: shares are niceness, which leaves no core idle.

A quota is an `Allowance` (policy/replenishment.py): time that was used returns one period later, so it holds in every
window of a period, up to what the processes use before the next look at their clocks. The next look is when they have
used the rest if they go on as since the last one, so a busy session is looked at twice per period and an idle one not
more often.

    20 ms per 100 ms, one busy process:   look at 20 ms → used up, stop   look at 100 ms → 20 ms are back, continue

**When this process dies** nothing may stay stopped. Its reaper then kills or continues every session. A *guard* is
there for the case that both are killed at once: a small shell that knows the sessions, and waits for the end of its
input.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Literal

from rota.clock import Clock
from rota.errors import NotAllowed, NotFound
from rota.host.lineage import descendants_of, send_signal
from rota.host.process_cpu import tree_cpu_ns
from rota.host.session import Session
from rota.host.watchdog import Watchdog
from rota.model.cpu import CpuQuota
from rota.policy import replenishment

__all__ = ["Guard", "QuotaSignals"]

LOOK_NS_MIN = 2_000_000  # between two looks at the clocks of a session
_GUARD = """
trap '' HUP INT QUIT TERM
sessions=
while read -r word session; do
  case $word in
    add) sessions="$sessions $session" ;;
    end) left=; for each in $sessions; do [ "$each" = "$session" ] || left="$left $each"; done; sessions=$left ;;
    close) exit 0 ;;
  esac
done
for each in $sessions; do kill -s "$1" -- "-$each"; done
"""


class Guard:
    """A shell that kills or continues sessions when this process is gone without having closed it."""

    def __init__(self, on_loss: Literal["kill", "continue"]) -> None:
        word = "KILL" if on_loss == "kill" else "CONT"
        self._lock = threading.Lock()
        self._shell = subprocess.Popen(  # noqa: S603  # a constant script
            ["/bin/sh", "-c", _GUARD, "rota-guard", word],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # signals of the terminal are not for it
            env={},
            cwd="/",
        )

    def add(self, session: int) -> None:
        """Watch a session, by the pid of its leader."""
        self._tell(f"add {session}")

    def remove(self, session: int) -> None:
        """Forget a session that has ended."""
        self._tell(f"end {session}")

    def close(self) -> None:
        """End it without any effect."""
        self._tell("close")
        with self._lock, suppress(OSError):
            assert self._shell.stdin is not None  # noqa: S101  # it was opened above
            self._shell.stdin.close()
        self._shell.wait()

    def _tell(self, line: str) -> None:
        with self._lock, suppress(OSError, ValueError):  # it was killed: the reaper is still there
            assert self._shell.stdin is not None  # noqa: S101  # it was opened above
            os.write(self._shell.stdin.fileno(), f"{line}\n".encode())


class _Account:
    """One quota, or none for the time being, and the sessions that share it."""

    def __init__(self, quota: CpuQuota | None, now: int) -> None:
        self.quota = quota
        budget_us, period_us = quota or (1, 1)
        self.allowance = replenishment.full(budget_us * 1_000, period_us * 1_000, now)
        self.sessions: dict[int, int] = {}  # by id: CPU time at the last look
        self.looked_at = now
        self.is_spent = False
        self.timer: int | None = None


class QuotaSignals:
    """Holds sessions to their quotas. Any thread may use it; the work is done on one thread of its own."""

    def __init__(self, clock: Clock, *, cores: int, needs_guard: bool = True) -> None:
        """Without `needs_guard` the caller's guard watches the sessions, from their start to their end."""
        self._clock = clock
        self._cores = max(1, cores)
        self._guard = Guard("kill") if needs_guard else None
        self._watchdog = Watchdog(clock, "rota-quota")
        self._lock = threading.Lock()
        self._accounts: dict[str, _Account] = {}
        self._sessions: dict[int, Session] = {}
        self._stopped: set[int] = set()

    def hold(self, session: Session, quotas: Mapping[str, CpuQuota | None]) -> None:
        """Hold a session that runs to quotas, each shared by the sessions that name the same key; None: to none yet."""
        with self._lock:
            if self._guard is not None:
                self._guard.add(session.pid)
            self._sessions[session.id] = session
            for key, quota in quotas.items():
                self._account(key, quota).sessions[session.id] = _used_ns(session)
                self._look(key)

    def change(self, key: str, quota: CpuQuota | None) -> None:
        """Hold the sessions that name a key to another quota, or to none."""
        with self._lock:
            if key in self._accounts:
                self._account(key, quota)
                self._look(key)

    def has(self, key: str) -> bool:
        """Whether sessions that run name a key."""
        with self._lock:
            return key in self._accounts

    def _account(self, key: str, quota: CpuQuota | None) -> _Account:
        before = self._accounts.get(key)
        if before is not None and before.quota == quota:
            return before
        account = self._accounts[key] = _Account(quota, self._now())
        if before is not None:
            account.sessions = {each: _used_ns(self._sessions[each]) for each in before.sessions}
            self._cancel(before)
        return account

    def release(self, session: Session) -> None:
        """Let go of a session that has ended, or is to end."""
        with self._lock:
            self._sessions.pop(session.id, None)
            if self._guard is not None:
                self._guard.remove(session.pid)
            for key in [key for key, account in self._accounts.items() if session.id in account.sessions]:
                account = self._accounts[key]
                del account.sessions[session.id]
                if not account.sessions:
                    self._cancel(self._accounts.pop(key))
            if session.id in self._stopped:
                self._stopped.discard(session.id)
                _signal_tree(session, signal.SIGCONT)

    def close(self) -> None:
        """Continue every session and end the guard."""
        with self._lock:
            left = list(self._sessions.values())
        for session in left:
            self.release(session)
        self._watchdog.close()
        if self._guard is not None:
            self._guard.close()

    # --- looking at clocks -----------------------------------------------------------------------

    def _now(self) -> int:
        return round(self._clock.monotonic() * 1e9)

    def _due(self, key: str) -> None:
        with self._lock:
            if key in self._accounts:
                self._look(key)

    def _look(self, key: str) -> None:
        """Charge what was used since the last look, stop or continue, and decide when to look again."""
        account, now = self._accounts[key], self._now()
        self._cancel(account)
        if account.quota is None:
            for session_id in account.sessions:
                self._stop_or_continue(session_id)
            return
        used = 0
        for session_id, before in account.sessions.items():
            account.sessions[session_id] = after = max(before, _used_ns(self._sessions[session_id]))
            used += after - before
        if used:
            account.allowance = replenishment.charged(account.allowance, used, account.looked_at)
        account.allowance = replenishment.refilled(account.allowance, now)
        busy = max(1, -(-used // max(1, now - account.looked_at)))  # cores, rounded up
        account.looked_at = now
        left = replenishment.available(account.allowance, now)
        account.is_spent = left <= 0
        for session_id in account.sessions:
            self._stop_or_continue(session_id)
        refill_at = replenishment.next_refill_at(account.allowance, now)
        wait_ns = refill_at - now if account.is_spent and refill_at is not None else left // min(busy, self._cores)
        account.timer = self._watchdog.watch(max(wait_ns, LOOK_NS_MIN) / 1e9, lambda: self._due(key))

    def _stop_or_continue(self, session_id: int) -> None:
        session = self._sessions[session_id]
        is_spent = any(each.is_spent for each in self._accounts.values() if session_id in each.sessions)
        if is_spent:
            self._stopped.add(session_id)
            _signal_tree(session, signal.SIGSTOP)  # again and again: it may have new processes
        elif session_id in self._stopped:
            self._stopped.discard(session_id)
            _signal_tree(session, signal.SIGCONT)

    def _cancel(self, account: _Account) -> None:
        if account.timer is not None:
            self._watchdog.cancel(account.timer)
            account.timer = None


def _used_ns(session: Session) -> int:
    try:
        return tree_cpu_ns(session.pid)
    except NotFound:
        return 0  # it has ended, and `release` follows


def _signal_tree(session: Session, number: int) -> None:
    """Send a signal to a session and to those of its processes that left its group."""
    with suppress(NotAllowed):
        session.signal(number)
    for pid in descendants_of(session.pid):
        send_signal(pid, number)
