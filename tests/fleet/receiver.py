"""An HTTP server for the tests of hooks: it keeps what it receives and answers as it is told."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Request(NamedTuple):
    """What was received."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class Receiver:
    """What a server has received, and what it answers: one status for each request, then 200."""

    def __init__(self, *statuses: int) -> None:
        self.requests: list[Request] = []
        self.statuses = list(statuses)
        self.url = ""
        self.release = threading.Event()  # a request that hangs (status 0) ends when this is set

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request.body for request in self.requests]


@contextmanager
def receiving(*statuses: int, tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Run a server. The status 0 means: do not answer."""
    receiver = Receiver(*statuses)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status = receiver.statuses.pop(0) if receiver.statuses else 200
            receiver.requests.append(Request(self.path, headers, body))
            if status == 0:
                receiver.release.wait()
                return
            self.send_response(status)
            if status == 302:
                self.send_header("location", receiver.url + "/elsewhere")
            answer = b"all is well" if status == 200 else b"not now"
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    receiver.url = f"http{'' if tls is None else 's'}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.release.set()
        server.shutdown()
        server.server_close()
        thread.join()
