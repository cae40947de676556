"""Traces of requests: what a receiver gets, and what the engines are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.e2e.conftest import MODEL, Router
from tests.e2e.test_pairs import LONG, fleet
from tests.e2e.workers import Clients, all_up, run_of, say, until
from tests.fakes.engines import FakeEngine, engine, eventually
from tests.fakes.otlp import ReceivedSpan, Receiver, receiver

CHAT = "/v1/chat/completions"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
FLAGGED = f"00-{TRACE}-{PARENT}-01"
UNFLAGGED = f"00-{TRACE}-{PARENT}-00"


@pytest.fixture
def traces() -> Iterator[Receiver]:
    with receiver() as running:
        yield running


def traced(traces: Receiver, **settings: Any) -> dict[str, Any]:
    return {"endpoint": traces.url, "sample_ratio": 1, "slow_s": None} | settings


def chat(content: str = "hello there") -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 4, "stream": True}


def whole(count: int = 1) -> Callable[[Sequence[ReceivedSpan]], bool]:
    """As many traces have arrived; those of one request come together."""
    return lambda spans: sum(span.kind == "server" for span in spans) == count


def told(fake: FakeEngine, path: str = CHAT) -> list[str]:
    """The `traceparent` of each request that arrived there."""
    return [call.headers["traceparent"] for call in fake.seen(path)]


def by_name(spans: Sequence[ReceivedSpan]) -> dict[str, ReceivedSpan]:
    assert len({span.name for span in spans}) == len(spans), [span.name for span in spans]
    return {span.name: span for span in spans}


async def nothing_more(router: Router, traces: Receiver) -> None:
    """The queue of traces is empty and closed, so what did not arrive by now never does."""
    tracing = router.app.features["tracing"].tracing
    assert tracing is not None
    tracing.close()


async def test_one_request_is_one_tree(router: Any, traces: Receiver) -> None:
    async with engine(name="a") as fake, router([fake], tracing=traced(traces)) as r:
        answer = await r.post(CHAT, chat())
        spans = by_name(await traces.wait(whole()))
        record = await r.record(answer)
        assert list(spans) == [f"chat {MODEL}", "tokens", "match", "decide", "attempt"]
        request, attempt, decide = spans[f"chat {MODEL}"], spans["attempt"], spans["decide"]
        assert {span.trace_id for span in spans.values()} == {record["trace_id"]}
        assert request.parent_id == ""
        assert {span.parent_id for span in spans.values() if span is not request} == {request.span_id}
        assert [span.kind for span in spans.values()] == ["server", "internal", "internal", "internal", "client"]
        assert told(fake) == [f"00-{request.trace_id}-{attempt.span_id}-01"]
        assert request.resource["service.name"] == "warmroute"
        assert request.resource["service.instance.id"] == record["id"].partition("-")[0]
        assert not any(span.failed for span in spans.values())

        host, _, port = fake.address.rpartition(":")
        decision = record["attempts"][0]
        expected = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "vllm",
            "gen_ai.request.model": MODEL,
            "gen_ai.request.stream": True,
            "gen_ai.usage.input_tokens": record["prompt_tokens"],
            "gen_ai.usage.output_tokens": record["output_tokens"],
            "gen_ai.usage.cache_read.input_tokens": record["cached_tokens"],
            "http.response.status_code": 200,
            "warmroute.record": record["id"],
            "warmroute.policy": "warm",
            "warmroute.target": record["target"],
        }
        assert expected.items() <= request.attributes.items()
        assert "error.type" not in request.attributes
        named = {"server.address": host, "server.port": int(port), "warmroute.overlap_tokens": 0}
        assert named.items() <= attempt.attributes.items()
        assert decide.attributes["warmroute.policy"] == decision["policy"]
        assert decide.attributes["warmroute.predicted_ttft_ms"] > 0
        assert "warmroute.margin" not in decide.attributes  # there was nobody else
        assert spans["tokens"].attributes["warmroute.tokens"] == record["prompt_tokens_counted"]

        for span in spans.values():  # within the request, one after the other
            assert request.start_ns <= span.start_ns <= span.end_ns <= request.end_ns + 1000, span
        assert spans["tokens"].end_ns <= spans["match"].start_ns + 1000
        assert spans["match"].end_ns <= decide.start_ns + 1000
        assert decide.end_ns <= attempt.start_ns + 1000
        assert request.start_ns < request.events["first byte"] <= request.end_ns
        assert (request.end_ns - request.start_ns) / 1e6 == pytest.approx(record["duration_ms"], abs=0.01)


async def test_a_retry_links_to_the_attempt_before(router: Any, traces: Receiver) -> None:
    async with engine(name="a") as a, engine(name="b") as b, router([a, b], tracing=traced(traces)) as r:
        for fake in (a, b):
            fake.faults(refuse=True)
        assert (await r.post(CHAT, chat())).status_code == 503
        spans = await traces.wait(whole())
        first, second = (span for span in spans if span.name == "attempt")
        assert (first.links, second.links) == ([], [first.span_id])
        assert first.attributes["warmroute.end"] == second.attributes["error.type"] == "busy"
        assert first.attributes["warmroute.target"] != second.attributes["warmroute.target"]
        assert first.failed
        assert first.end_ns <= second.start_ns
        assert [span.name for span in spans].count("decide") == 2
        assert {told(fake)[0] for fake in (a, b)} == {f"00-{s.trace_id}-{s.span_id}-01" for s in (first, second)}
        request = spans[0]
        assert request.failed
        assert request.attributes["error.type"] == "busy"


async def test_a_client_s_trace_goes_on(router: Any, traces: Receiver) -> None:
    async with engine() as fake, router([fake], tracing=traced(traces, sample_ratio=0)) as r:
        answer = await r.post(CHAT, chat(), headers={"traceparent": FLAGGED, "tracestate": "vendor=1"})
        assert answer.status_code == 200
        spans = by_name(await traces.wait(whole()))
        request = spans[f"chat {MODEL}"]
        assert (request.trace_id, request.parent_id, request.state) == (TRACE, PARENT, "vendor=1")
        call = fake.seen(CHAT)[0]
        assert call.headers["traceparent"] == f"00-{TRACE}-{spans['attempt'].span_id}-01"
        assert call.headers["tracestate"] == "vendor=1"


async def test_a_client_decides_whether_its_trace_is_sampled(router: Any, traces: Receiver) -> None:
    async with engine() as fake, router([fake], tracing=traced(traces)) as r:
        record = await r.record(await r.post(CHAT, chat(), headers={"traceparent": UNFLAGGED}))
        await nothing_more(r, traces)
        assert traces.spans == []
        (sent,) = told(fake)
        assert (sent[:35], sent[-3:], record["trace_id"]) == (UNFLAGGED[:35], "-00", TRACE)


@pytest.mark.parametrize(
    ("header", "settings"),
    [
        (f"00-{'0' * 32}-{PARENT}-01", {}),
        (f"00-{TRACE.upper()}-{PARENT}-01", {}),
        (f"ff-{TRACE}-{PARENT}-01", {}),
        (f"{FLAGGED}-more", {}),
        ("00-1-2-03", {}),
        (FLAGGED, {"edge": {"strip_headers": ["Traceparent"]}}),
    ],
)
async def test_what_is_no_trace_is_not_continued(router: Any, traces: Receiver, header: str, settings: Any) -> None:
    async with engine() as fake, router([fake], tracing=traced(traces), **settings) as r:
        await r.post(CHAT, chat(), headers={"traceparent": header, "tracestate": "vendor=1"})
        request = (await traces.wait(whole()))[0]
        assert (request.parent_id, request.state) == ("", "")
        assert request.trace_id != TRACE
        assert told(fake)[0][3:35] == request.trace_id
        assert "tracestate" not in fake.seen(CHAT)[0].headers


async def test_failed_and_slow_requests_are_exported_in_any_case(router: Any, traces: Receiver) -> None:
    async with engine() as fake, router([fake], tracing=traced(traces, sample_ratio=0)) as r:
        await r.post(CHAT, chat())
        await r.post(CHAT, chat() | {"temperature": "hot"})  # the client's mistake
        fake.faults(die_before_first_byte=1)
        answer = await r.post(CHAT, chat())
        spans = await traces.wait(whole())
        assert spans[0].attributes["http.response.status_code"] == answer.status_code
        assert spans[0].attributes["error.type"] == "died"
        assert {sent[-2:] for sent in told(fake)} == {"00"}
    async with engine() as fake, router([fake], tracing=traced(traces, sample_ratio=0, slow_s=1e-6)) as r:
        await r.post(CHAT, chat())
        await traces.wait(whole(2))


async def test_a_request_that_is_turned_away_has_a_span(router: Any, traces: Receiver) -> None:
    limits = {"concurrent": 1}
    async with engine(decode_ms_per_token=5) as fake, router(
        [fake], limits=limits, tracing=traced(traces, sample_ratio=0)
    ) as r:  # fmt: skip
        first = asyncio.ensure_future(r.post(CHAT, chat() | {"max_tokens": 100}))
        await eventually(lambda: fake.seen(CHAT))
        assert (await r.post(CHAT, chat())).status_code == 429
        assert (await r.post(CHAT, chat(), headers={"traceparent": FLAGGED})).status_code == 429
        (refused,) = await traces.wait(len)
        assert (refused.name, refused.parent_id, refused.kind, refused.failed) == ("chat", PARENT, "server", False)
        assert refused.attributes["http.response.status_code"] == 429
        assert refused.start_ns <= refused.end_ns
        await first
    async with router(tracing=traced(traces, sample_ratio=0), wait=False) as r:
        await r.post(CHAT, b"{", headers={"traceparent": FLAGGED})  # the client's mistake
        assert (await r.post(CHAT, chat())).status_code == 503  # a failure: sampled or not
        refused = (await traces.wait(whole(2)))[1]
        assert (refused.failed, refused.attributes["http.response.status_code"]) == (True, 503)


@pytest.mark.parametrize("protocol", ["mooncake", "nixl"])
async def test_both_halves_of_a_pair_have_a_span(router: Any, traces: Receiver, protocol: str) -> None:
    def start(engines: Any, **settings: Any) -> Any:
        return router(engines, tracing=traced(traces), **settings)

    async with fleet(start, protocol, roles={"p": "prefill", "d": "decode"}) as f:
        await f.router.post(CHAT, chat(LONG))
        spans = by_name(await traces.wait(whole()))
        attempt, prefill = spans["attempt"], spans["prefill"]
        assert prefill.parent_id == attempt.span_id
        assert (attempt.attributes["warmroute.target"], prefill.attributes["warmroute.target"]) == ("d/0", "p/0")
        assert told(f.fakes["d"]) == [f"00-{attempt.trace_id}-{attempt.span_id}-01"]
        assert told(f.fakes["p"]) == [f"00-{attempt.trace_id}-{prefill.span_id}-01"]
        assert attempt.start_ns <= prefill.start_ns < prefill.end_ns <= attempt.end_ns


async def test_a_dead_receiver_costs_nothing_but_traces(router: Any, traces: Receiver) -> None:
    traces.status = 400  # not repeated by the exporter
    async with engine() as fake, router([fake], tracing=traced(traces, queue=2)) as r:
        await r.post(CHAT, chat())
        await eventually(lambda: traces.posts)
        for _ in range(4):
            assert (await r.post(CHAT, chat())).status_code == 200
        assert await r.metric("warmroute_traces_total", end="exported") == 0
        assert await r.metric("warmroute_traces_total", end="failed") == 1
        assert await r.metric("warmroute_traces_total", end="dropped") == 2


async def test_exemplars_are_in_the_page_that_can_have_them(router: Any, traces: Receiver) -> None:
    both = {"accept": "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3"}
    async with engine() as fake, router([fake], tracing=traced(traces, sample_ratio=0)) as r:
        await r.post(CHAT, chat(), headers={"traceparent": UNFLAGGED})
        assert "trace_id" not in (await r.http.get("/metrics", headers=both)).text
        record = await r.record(await r.post(CHAT, chat(), headers={"traceparent": FLAGGED}))
        answer = await r.http.get("/metrics", headers=both)
        assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        families = {family.name: family for family in text_string_to_metric_families(answer.text)}
        for name, ms in (("ttft_seconds", "ttft_ms"), ("request_duration_seconds", "duration_ms")):
            (exemplar,) = (s.exemplar for s in families[f"warmroute_{name}"].samples if s.exemplar is not None)
            assert exemplar.labels == {"trace_id": TRACE}
            assert exemplar.value == pytest.approx(record[ms] / 1e3, abs=1e-6)
        plain = await r.http.get("/metrics")
        assert plain.headers["content-type"].startswith("text/plain")
        assert "trace_id" not in plain.text
    async with engine() as fake, router([fake]) as r:
        assert (await r.http.get("/metrics", headers=both)).headers["content-type"].startswith("text/plain")


async def test_every_worker_exports_its_own(router_process: Any, fleet_config: Any, traces: Receiver) -> None:
    async with engine() as fake, router_process(fleet_config([fake], workers=2, tracing=traced(traces))) as r:
        await all_up(r)
        async with Clients(r) as clients:
            said = [await say(client, "hello", max_tokens=2) for client in clients.each]
            runs = {run_of(one) for one in said}
            assert len(runs) == 2
            wanted = {one.record for one in said}
            await traces.wait(lambda spans: wanted <= {span.attributes.get("warmroute.record") for span in spans})
            assert {span.resource["service.instance.id"] for span in traces.spans} == runs
            await until(lambda: exported(r, 2))  # counted when the collector's answer has arrived


async def exported(router: Any, traces: int) -> bool:
    return bool(await router.metric("warmroute_traces_total", end="exported") >= traces)


async def test_without_tracing_there_is_no_trace(router: Any) -> None:
    async with engine() as fake, router([fake]) as r:
        record = await r.record(await r.post(CHAT, chat()))
        assert record["trace_id"] is None
        assert "traceparent" not in fake.seen(CHAT)[0].headers
        assert await r.metric("warmroute_traces_total") == 0
