"""A receiver of traces on a real socket: takes OTLP over HTTP, decodes it with OpenTelemetry's own messages.

with receiver() as traces:
    ... endpoint=traces.url ...
    spans = await traces.wait(lambda spans: len(spans) == 3)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.fakes.engines import eventually
from tests.patience import PATIENCE_S

KINDS = {1: "internal", 2: "server", 3: "client"}
FAILED = 2


class ReceivedSpan(NamedTuple):
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: dict[str, int]  # times by name, ns
    links: list[str]  # span ids
    failed: bool
    state: str
    resource: dict[str, Any]


class Receiver:
    """What was received, and how posts are answered: with `status`, `200` for taken."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.posts: list[tuple[str, dict[str, str]]] = []  # path and headers
        self.status = 200
        self.url = ""

    def take(self, path: str, headers: dict[str, str], body: bytes) -> int:
        self.posts.append((path, headers))
        if self.status == 200:
            self.spans += list(read_spans(ExportTraceServiceRequest.FromString(body)))  # at once: the test reads them
        return self.status

    async def wait(
        self, true: Callable[[Sequence[ReceivedSpan]], bool], within_s: float = PATIENCE_S
    ) -> list[ReceivedSpan]:
        """Return the spans as soon as `true` is of them."""
        await eventually(lambda: true(self.spans), within_s)
        return list(self.spans)


def read_spans(request: ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for group in request.resource_spans:
        resource = read_attributes(group.resource.attributes)
        for scope in group.scope_spans:
            for span in scope.spans:
                yield ReceivedSpan(
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    KINDS[span.kind],
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    read_attributes(span.attributes),
                    {event.name: event.time_unix_nano for event in span.events},
                    [link.span_id.hex() for link in span.links],
                    span.status.code == FAILED,
                    span.trace_state,
                    resource,
                )


def read_attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Run a receiver on a port of the system's choice."""
    traces = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.send_response(traces.take(self.path, headers, body))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    traces.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield traces
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def draw(spans: Sequence[ReceivedSpan]) -> str:
    """Return the trees of spans as text: durations, names, the service where it changes."""
    known = {span.span_id for span in spans}

    def lines(parent: str | None, depth: int) -> Iterator[str]:
        for span in sorted(spans, key=lambda span: span.start_ns):
            if (span.parent_id if span.parent_id in known else None) == parent:
                took_ms = (span.end_ns - span.start_ns) / 1e6
                yield f"{took_ms:10.2f} ms  {'  ' * depth}{span.name} ({span.resource.get('service.name')})"
                yield from lines(span.span_id, depth + 1)

    return "\n".join(lines(None, 0))


def wait_until(true: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    """Wait outside of an event loop."""
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "did not come true in time"
        time.sleep(0.005)
