"""The logs of a store that many hosts share: each host keeps what its own runs print.

What is not here is read at the daemon of the host that has it, if that daemon listens for other machines; otherwise the
error names the host. A command that opened the store itself needs an access token for that, as for any daemon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rota.errors import NotFound, RotaError

if TYPE_CHECKING:
    from rota.model import LogPart, LogPlace
    from rota.rpc import Client
    from rota.service import SchedulerApi

__all__ = ["HostLogs"]

LOOK_S = 5.0  # how often a follower that finds nothing here asks where the attempt is


class HostLogs:
    """Reads logs from the hosts that keep them. A context: it closes its connections at the end."""

    def __init__(self, api: SchedulerApi) -> None:
        self.api = api  # of the store, or of the daemon that was asked first
        self._clients: dict[str, Client] = {}  # by address
        self._followed: tuple[tuple[int, int], float, LogPlace | None] | None = None  # an attempt, when, where it is

    def __enter__(self) -> HostLogs:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients.values():
            client.close()

    def read(self, sched_id: int, attempt: int | None = None, **part: Any) -> LogPart:
        """Read a part of a log here or, if the attempt has printed nothing here, on the host that claimed it last."""
        found = self.api.logs.read(sched_id, attempt, **part)
        if found.total_bytes:
            return found
        place = self._last_place(found)
        return found if place is None or place.is_here else self.read_at(place, sched_id, found.attempt, **part)

    def read_at(self, place: LogPlace, sched_id: int, attempt: int, **part: Any) -> LogPart:
        """Read a part of a log on the host that keeps it; raise NotFound, with its name, if it is out of reach."""
        if place.is_here:
            return self.api.logs.read(sched_id, attempt, **part)
        text = f"the output of attempt {attempt} of entry {sched_id} is on host {place.host}"
        there = f"run there: `rota logs {sched_id} --attempt {attempt}`."
        if place.daemon is None or not place.daemon.startswith("https:"):  # a token is sent to nothing else
            raise NotFound(text, hint=there.capitalize(), sched_id=sched_id)
        try:
            return self._client(place.daemon).logs.read(sched_id, attempt, **part)
        except RotaError as problem:
            text = f"{text}; its daemon at {place.daemon} cannot be asked: {problem.message}"
            hint = f"{problem.hint} Or {there}" if problem.hint else there.capitalize()
            raise NotFound(text, hint=hint, sched_id=sched_id) from problem

    def _client(self, address: str) -> Client:
        from rota.cli.connection import open_client

        if address not in self._clients:
            self._clients[address] = open_client(address, retry_s=0.0)
        return self._clients[address]

    def _last_place(self, found: LogPart) -> LogPlace | None:
        attempt, now = (found.sched_id, found.attempt), self.api.clock.monotonic()
        if self._followed is None or self._followed[0] != attempt or now - self._followed[1] >= LOOK_S:
            places = self.api.logs.places(*attempt)
            self._followed = attempt, now, places[-1] if places else None
        return self._followed[2]
