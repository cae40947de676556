"""One tree of spans, the router's and a real engine's, in a real receiver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from router.lab.local_stack.commands import EngineExtras
from router.lab.local_stack.install import Models
from router.lab.local_stack.supervisor import RunningStack
from tests.fakes.otlp import ReceivedSpan, Receiver, draw, receiver
from tests.stack.behind import Behind, running
from tests.stack.bodies import CHAT
from tests.stack.children import until
from tests.stack.engines import Engine, small_stack
from tests.stack.prompts import prose, user

pytestmark = pytest.mark.stack

PROTOCOL = {
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
    "OTEL_SERVICE_NAME": "vllm",
    "OTEL_BSP_SCHEDULE_DELAY": "100",  # ms between two posts of its spans
}
ENGINE_SPAN = "llm_request"
POLICY = {"scorers": [{"name": "warm"}]}


class Traced(NamedTuple):
    """A router and the engine behind it, which post their spans to one receiver."""

    behind: Behind
    engine: Engine
    received: Receiver


@pytest.fixture(scope="module")
def traced(models: Models, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    logs = tmp_path_factory.mktemp("traces")
    with ExitStack() as opened:
        received = opened.enter_context(receiver())
        extras = EngineExtras(("--otlp-traces-endpoint", f"{received.url}/v1/traces"), PROTOCOL)
        stack = opened.enter_context(RunningStack(small_stack(models, logs, engines=1), [extras]))
        engine = opened.enter_context(Engine(stack, stack.engines[0].name))
        engine.wait()
        tracing = {"endpoint": received.url, "sample_ratio": 0}
        settings = {"policies": {"warm": POLICY}, "tracing": tracing}
        behind = opened.enter_context(running(Behind("router", [engine], model, settings, logs)))
        behind.wait()
        yield Traced(behind, engine, received)


def of_trace(received: Receiver, trace_id: str) -> list[ReceivedSpan]:
    return [span for span in received.spans if span.trace_id == trace_id]


def names(spans: Sequence[ReceivedSpan]) -> list[str]:
    return sorted(span.name for span in spans)


def test_the_engine_s_spans_hang_below_the_attempt(traced: Traced) -> None:
    trace_id, client = "5ca1ab1e" * 4, "decafbad" * 2
    traced.behind.http.headers["traceparent"] = f"00-{trace_id}-{client}-01"
    asked = traced.behind.send(CHAT, {"messages": [user(prose("traced", 300))], "max_tokens": 24, "stream": True})
    until("both have posted", lambda: ENGINE_SPAN in names(of_trace(traced.received, trace_id)) and len(
        of_trace(traced.received, trace_id)) > 5)  # fmt: skip
    spans = of_trace(traced.received, trace_id)
    print(f"\n{draw(spans)}\n")
    for span in sorted(spans, key=lambda span: span.start_ns):
        print(span.name, {name: value for name, value in span.attributes.items() if not name.startswith("code.")})
    by_name = {span.name: span for span in spans}
    request, attempt, engine = by_name["chat tiny"], by_name["attempt"], by_name[ENGINE_SPAN]
    assert request.parent_id == client
    assert attempt.parent_id == request.span_id
    assert engine.parent_id == attempt.span_id
    assert {span.resource["service.name"] for span in spans} == {"warmroute", "vllm"}
    assert asked.record["trace_id"] == trace_id
    assert engine.attributes["gen_ai.usage.prompt_tokens"] == request.attributes["gen_ai.usage.input_tokens"]
    assert attempt.start_ns - 1e6 <= engine.start_ns <= attempt.end_ns  # one machine, one clock


def test_an_engine_is_told_what_is_not_sampled(traced: Traced) -> None:
    """Without a header an engine that traces at all traces every request."""
    traced.behind.http.headers.pop("traceparent", None)
    body = {"messages": [user(prose("untraced", 300))], "max_tokens": 4}
    asked = traced.behind.send(CHAT, body)
    before = len(traced.received.spans)
    traced.engine.post(CHAT, {"model": "tiny", **body})
    until("its own request is traced", lambda: ENGINE_SPAN in names(traced.received.spans[before:]))
    assert of_trace(traced.received, asked.record["trace_id"]) == []
