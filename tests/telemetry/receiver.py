"""A collector in the test process: it takes OTLP requests, protobuf over HTTP, and keeps what was sent."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

PATIENCE_S = 20.0
MESSAGES: dict[str, tuple[Any, Any]] = {
    "/v1/traces": (ExportTraceServiceRequest, ExportTraceServiceResponse),
    "/v1/metrics": (ExportMetricsServiceRequest, ExportMetricsServiceResponse),
    "/v1/logs": (ExportLogsServiceRequest, ExportLogsServiceResponse),
}


class Collector:
    """What a collector has got. `refuse` makes it answer so many requests with an error first."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.refuse = 0
        self.endpoint = ""
        self._guard = threading.Lock()
        self.arrived = threading.Event()

    def take(self, path: str, headers: dict[str, str], body: bytes) -> bytes | None:
        request, response = MESSAGES[path]
        with self._guard:
            if self.refuse > 0:
                self.refuse -= 1
                return None
            self.requests.append((path, request.FromString(body)))
            self.headers.append(headers)
        self.arrived.set()
        return bytes(response().SerializeToString())

    def until(self, happened: Callable[[], bool]) -> None:
        """Wait until what has arrived makes a condition true."""
        while not happened():
            assert self.arrived.wait(PATIENCE_S), "nothing more has arrived"
            self.arrived.clear()

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for path, request in list(self.requests)
            if path == "/v1/traces"
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def logs(self) -> list[Any]:
        return [
            record
            for path, request in list(self.requests)
            if path == "/v1/logs"
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        ]

    @property
    def metrics(self) -> dict[str, Any]:
        """The last value of each metric."""
        return {
            metric.name: metric
            for path, request in list(self.requests)
            if path == "/v1/metrics"
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    @property
    def resource(self) -> dict[str, Any]:
        found = next(request for path, request in self.requests if path == "/v1/traces")
        return attributes(found.resource_spans[0].resource)


def attributes(holder: Any) -> dict[str, Any]:
    """The attributes of a message as plain values."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in holder.attributes}


@contextmanager
def collector() -> Iterator[Collector]:
    """Serve a collector on a free port."""
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:  # the name that the library asks for
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.headers["Content-Type"] == "application/x-protobuf"
            answer = found.take(self.path, dict(self.headers), body)
            self.send_response(400 if answer is None else 200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer or b"")))
            self.end_headers()
            self.wfile.write(answer or b"")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
