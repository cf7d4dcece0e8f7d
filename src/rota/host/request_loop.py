"""The loop of a process with a single thread that starts children for one client: requests in, exits, reports out.

The reaper and the fork server are such processes. The loop never blocks on the client: reports that the client has not
read are buffered, and sent when the socket accepts data again. The client is gone when it closes the request socket;
`client_pidfd` detects the same if the socket is still open elsewhere.

The reaper imports this module, so it imports very little itself.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable

from rota.host.child_exits import ChildSignalFd, ChildWakeupFd
from rota.host.frames import Frame, FrameReader, FrameWriter

__all__ = ["RequestLoop"]


class RequestLoop:
    """Reads requests and notices child exits; `reports` sends to the client."""

    def __init__(
        self,
        requests: socket.socket,
        reports: socket.socket,
        child_exits: ChildSignalFd | ChildWakeupFd,
        *,
        handle: Callable[[Frame], None],
        reap: Callable[[], None],
        client_pidfd: int | None = None,
    ) -> None:
        self.reports = FrameWriter(reports)
        self._requests, self._reports_socket = FrameReader(requests), reports
        self._child_exits = child_exits
        self._handle, self._reap = handle, reap
        self._requests_fd, self._child_exits_fd = requests.fileno(), child_exits.fileno()
        self._client_pidfd = client_pidfd
        self._poll = select.poll()
        for fd in (self._requests_fd, self._child_exits_fd, client_pidfd):
            if fd is not None:
                self._poll.register(fd, select.POLLIN)

    def serve(self, timeout_ms: int | None = None) -> int | None:
        """Wait for events and handle them. Return their number, 0 after the timeout; None when the client is gone."""
        connected = True
        events = self._poll.poll(timeout_ms)
        for fd, _events in events:
            if fd == self._client_pidfd:
                return None
            if fd == self._child_exits_fd:
                self._child_exits.clear()
                self._reap()
            elif fd == self._requests_fd:
                connected = self._read_requests()
            else:  # the report socket accepts data again
                self.reports.flush()
                self._poll.unregister(fd)
        if self.reports:  # the rest is sent when the socket accepts data again
            self._poll.register(self._reports_socket, select.POLLOUT)
        return len(events) if connected else None

    def _read_requests(self) -> bool:
        try:
            frames = self._requests.receive()
        except ConnectionError:
            return False
        for frame in frames or ():
            self._handle(frame)
        return frames is not None

    def flush(self, patience_ms: int) -> None:
        """Send the remaining reports, as long as the client reads, and close."""
        poll = select.poll()
        poll.register(self._reports_socket, select.POLLOUT)
        while self.reports and poll.poll(patience_ms):
            self.reports.flush()
        self.close()

    def close(self) -> None:
        """Discard what is not sent and not handled."""
        self.reports.close()
        self._requests.close()
