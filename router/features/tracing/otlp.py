"""Sends spans by OpenTelemetry's SDK: its resource, its encoding, and its OTLP exporter over HTTP.

This is the only module that imports the SDK, and is loaded if tracing is configured (`warmroute[otel]`). Spans have
ended when they reach this module, so the SDK's tracer is not needed: its spans take locks and look for samplers,
processors and limits, which would double the cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Attributes, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.span import TraceState

from router.features.tracing.spans import RequestSpan
from router.telemetry.trace_context import TraceContext

SCOPE = "warmroute"
KINDS = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}
SAMPLED = TraceFlags(TraceFlags.SAMPLED)
FAILED, UNSET = Status(StatusCode.ERROR), Status(StatusCode.UNSET)
SHORT_BODY_BYTES = 64 * 1024


class OtlpSender:
    """Sends spans to `endpoint`, the full URL; None: the endpoint of the OTEL_* variables. `resource` has
    attributes of this process in addition to those of the variables and of the service.
    """

    def __init__(
        self,
        endpoint: str | None,
        headers: Mapping[str, str] | None,
        resource: Mapping[str, str],
        *,
        version: str,
        instance: str,
    ) -> None:
        self._exporter = OTLPSpanExporter(endpoint, headers=headers, session=_open_session())
        own = {SERVICE_VERSION: version, SERVICE_INSTANCE_ID: instance}
        found = Resource({SERVICE_NAME: "warmroute"}).merge(_detect()).merge(Resource({**own, **resource}))
        self._resource = _FixedResource(found.attributes)
        self._scope = InstrumentationScope(SCOPE, version)

    def build(self, trace: TraceContext, spans: Sequence[RequestSpan]) -> list[ReadableSpan]:
        """Return one trace's spans in the SDK's form."""
        trace_id = int(trace.trace_id, 16)
        state = None if trace.state is None else TraceState.from_header([trace.state.decode("latin-1")])

        def context(span_id: str, *, remote: bool = False) -> SpanContext:
            return SpanContext(trace_id, int(span_id, 16), remote, SAMPLED, state)

        own = {span.span_id: context(span.span_id) for span in spans}
        return [
            ReadableSpan(
                span.name,
                own[span.span_id],
                None if span.parent_id is None else own.get(span.parent_id) or context(span.parent_id, remote=True),
                self._resource,
                {name: value for name, value in span.attributes.items() if value is not None},
                () if span.first_byte_s is None else (Event("first byte", timestamp=_nanoseconds(span.first_byte_s)),),
                () if span.link is None else (Link(context(span.link)),),
                KINDS[span.kind],
                None,
                FAILED if span.error else UNSET,
                _nanoseconds(span.start_s),
                _nanoseconds(span.end_s),
                self._scope,
            )
            for span in spans
        ]

    def send(self, spans: Sequence[ReadableSpan]) -> bool:
        """Post spans, and return whether they were accepted. Blocks up to the exporter's timeout, with retries."""
        return self._exporter.export(spans) is SpanExportResult.SUCCESS

    def close(self) -> None:
        """End a `send` that is waiting to retry."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


def _open_session() -> requests.Session:
    """Return a session that drops the bodies of answers: `requests` would read them whole, however long they are."""
    session = requests.Session()
    session.stream = True
    session.hooks["response"].append(_drop_body)
    return session


def _drop_body(response: requests.Response, **_: Any) -> None:
    """Read a short body, after which the connection is used again; otherwise close the connection."""
    response.raw.read1(SHORT_BODY_BYTES)
    response.close()


class _FixedResource(Resource):
    """A resource with a stored hash: the SDK uses the hash at every span, and computes it from JSON of all
    attributes.
    """

    def __init__(self, attributes: Attributes) -> None:
        super().__init__(attributes)
        self._fixed_hash = super().__hash__()

    def __hash__(self) -> int:
        return self._fixed_hash


def _detect() -> Resource:
    """Return the attributes of this service from the environment variables."""
    found = Resource.create().attributes
    unknown = str(found.get(SERVICE_NAME, "")).startswith("unknown_service")
    return Resource({name: value for name, value in found.items() if name != SERVICE_NAME or not unknown})


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
