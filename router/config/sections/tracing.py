"""The `tracing` section: OpenTelemetry spans of requests, and where they are sent."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from router.config.sections.base import WEB, PathName, Positive, Seconds, Section, Shape

ReceiverUrl = Annotated[
    str, Shape(r"^https?://[^\s/?#@]+(/[^\s?#]*)?$", "a URL without user and query, such as http://collector:4318", WEB)
]


class TracingConfig(Section):
    """OpenTelemetry spans of requests, posted as OTLP over HTTP. Needs the packages of `warmroute[otel]`. The usual
    variables of OpenTelemetry hold where nothing is set here, also those without a key (compression, certificates,
    timeout).
    """

    endpoint: ReceiverUrl | None = None
    """URL of an OTLP receiver, such as http://collector:4318; without a path, /v1/traces is added; null:
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT, else http://localhost:4318"""
    sample_ratio: float | None = Field(default=None, ge=0, le=1)
    """share of requests whose trace is sampled, of those that come without a traceparent; null: OTEL_TRACES_SAMPLER
    and OTEL_TRACES_SAMPLER_ARG, else 0.1. A client's traceparent decides by its own flag, unless
    `edge.strip_headers` lists traceparent
    """
    slow_s: Seconds | None = 60.0
    """a request that takes longer from its arrival to its end is exported even if it is not sampled, and so is one
    that failed, seconds; null: only failed ones are
    """
    headers_file: PathName | None = None
    """file with a header per line (NAME: VALUE) to be sent with every export, for the receiver's credentials; null:
    OTEL_EXPORTER_OTLP_TRACES_HEADERS, OTEL_EXPORTER_OTLP_HEADERS, else none"""
    resource: dict[str, str] = {}
    """attributes of this router in every trace; service.name is OTEL_SERVICE_NAME, else warmroute, and
    OTEL_RESOURCE_ATTRIBUTES are added"""
    queue: Positive = 2048
    """requests whose spans may wait to be sent; beyond it they are dropped and counted"""
