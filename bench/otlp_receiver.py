"""A collector for the bench, in a process of its own: it takes everything, and counts at the end.

It prints its address, `ready` at the first request, and, when its standard input ends, how many spans it got.
"""

from __future__ import annotations

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

__all__: list[str] = []


def main() -> None:
    bodies: list[bytes] = []
    first = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            """Keep a request; it is read at the end."""
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/v1/traces":
                bodies.append(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()
            if not first.is_set():
                first.set()
                print("ready", flush=True)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
    ids: set[bytes] = set()
    for body in bodies:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            ids.update(span.span_id for scope in resource.scope_spans for span in scope.spans)
    print(len(ids), flush=True)


if __name__ == "__main__":
    main()
