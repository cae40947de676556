"""Tracing from a configuration and OpenTelemetry's variables, and the real exporter in front of a real receiver."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from router.clock import SystemClock
from router.config.sections.tracing import TracingConfig
from router.errors import ConfigError
from router.features.tracing.build import build_tracing, complete_endpoint, read_headers, read_ratio
from router.features.tracing.tracing import Tracing
from router.telemetry.trace_context import TraceContext
from tests.fakes.otlp import receiver, wait_until
from tests.router.telemetry.records import a_record

SAMPLED = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", None, sampled=True)


def build(environment: dict[str, str] | None = None, **settings: Any) -> Tracing:
    config = TracingConfig.model_validate(settings)
    where = dict.fromkeys(["a/0", "b/0"], ("10.0.0.1", 8000))
    return build_tracing(config, environment or {}, where.get, SystemClock(), instance="run", continues=True)


def test_a_missing_extra_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "router.features.tracing.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"tracing: .*pip install 'warmroute\[otel\]'"):
        build()


@pytest.mark.parametrize(
    ("environment", "ratio"),
    [
        ({}, 0.1),
        ({"OTEL_TRACES_SAMPLER_ARG": "0.25"}, 0.25),
        ({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"}, 0.5),
        ({"OTEL_TRACES_SAMPLER": "traceidratio"}, 1),
        ({"OTEL_TRACES_SAMPLER": "always_on"}, 1),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_off", "OTEL_TRACES_SAMPLER_ARG": "1"}, 0),
    ],
)
def test_the_ratio_of_the_environment(environment: dict[str, str], ratio: float) -> None:
    assert read_ratio(environment) == ratio


@pytest.mark.parametrize("variable", [{"OTEL_TRACES_SAMPLER": "jaeger_remote"}, {"OTEL_TRACES_SAMPLER_ARG": "2"}])
def test_a_ratio_that_means_nothing(variable: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(variable))):
        read_ratio(variable)
    build(variable, sample_ratio=0.1)  # the section goes before the variables


@pytest.mark.parametrize("base", ["http://a:4318", "http://a:4318/", "http://a:4318/v1/traces"])
def test_a_base_url_is_completed(base: str) -> None:
    assert complete_endpoint(base) == "http://a:4318/v1/traces"
    assert complete_endpoint("https://a/otlp/in") == "https://a/otlp/in"


def test_headers_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("# credentials\n\nAuthorization: Basic YTpi\nx-scope:  a: b \n")
    assert read_headers(file) == {"authorization": "Basic YTpi", "x-scope": "a: b"}
    file.write_text("x: y\nsecret value\n")
    with pytest.raises(ConfigError, match="headers:2: not NAME: VALUE") as caught:
        read_headers(file)
    assert "secret" not in str(caught.value)


def test_a_real_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test,zone=a")
    (tmp_path / "headers").write_text("authorization: Bearer t\n")
    with receiver() as traces:
        tracing = build(
            endpoint=traces.url, headers_file=str(tmp_path / "headers"), resource={"zone": "b", "service.name": "edge"}
        )
        tracing.start()
        tracing.end(SAMPLED, a_record(7))
        wait_until(lambda: tracing.stats.exported == 1)
        tracing.close()
    assert [path for path, _ in traces.posts] == ["/v1/traces"]
    assert traces.posts[0][1]["authorization"] == "Bearer t"
    request = traces.spans[0]
    assert (request.trace_id, request.span_id) == (SAMPLED.trace_id, SAMPLED.span)
    assert {"service.name": "edge", "zone": "b", "deployment.environment": "test"}.items() <= request.resource.items()
    attempt = traces.spans[-1]
    assert (attempt.name, attempt.attributes["server.address"]) == ("attempt", "10.0.0.1")


def test_the_variables_say_where_to_and_who(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver() as traces:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", traces.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-scope=mine")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "front")
        tracing = build()
        tracing.start()
        tracing.end(SAMPLED, a_record(7))
        wait_until(lambda: tracing.stats.exported == 1)
        tracing.close()
    path, headers = traces.posts[0]
    assert (path, headers["x-scope"]) == ("/v1/traces", "mine")
    assert {span.resource["service.name"] for span in traces.spans} == {"front"}
