"""What is reserved for a request, and what it is charged in the end."""

from __future__ import annotations

import asyncio
from array import array
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from router.clock import ManualClock
from router.config.sections.clients import PricesConfig, ServiceClassConfig, TenantLimits
from router.errors import Forbidden, RequestRefused, TooBusy
from router.features.tenants.ledger import DAY_S, Ledger, Reservation
from router.features.tenants.meter import LEAST_ANSWER_TOKENS, Meter
from router.features.tenants.tenant_tables import TenantTables
from router.features.tenants.token_counts import NO_TOKENS, TokenCounts
from router.features.tenants.usage_book import UsageBook
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.answer_ids import ContinuationBudget
from router.prompt.continuable_stream import ContinuableStream
from router.prompt.prompt import Endpoint, Prompt, UnknownIds
from router.scheduling.policy.record import Attempt, PrefillRecord, Record
from router.telemetry.metrics.prometheus import Metrics
from router.tenants.tenant import ServiceClass, Tenant
from scorers.contract import Decode, View
from tests.router.proxy.connections import an_exchange
from tests.router.request.requests import a_request
from tests.router.telemetry.records import POLICY, VIEW, a_record

UNKNOWN = UnknownIds("not_needed")


def a_prompt(path: str = "/v1/completions", body: bytes = b"x" * 400, **known: Any) -> Prompt:
    endpoint = Endpoint(path) if path in {one.value for one in Endpoint} else Endpoint.OTHER
    return Prompt(endpoint, path, "m", body, UNKNOWN, **known)


def tokens(count: int) -> TokenizedPrompt:
    return TokenizedPrompt(array("I", range(count)), True, "local", {}, 0.0, 0.0)


def a_stream(count: int) -> ContinuableStream:
    """Of a completion, of which `count` tokens have passed."""
    stream = ContinuableStream(ContinuationBudget(1 << 20), chat=False)
    for number in range(count):
        choice = {"index": 0, "text": "a", "logprobs": None, "finish_reason": None, "stop_reason": None}
        choice |= {"prompt_token_ids": [1] if number == 0 else None, "token_ids": [number]}
        head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
        stream.feed(b"data: " + msgspec.json.encode(head | {"choices": [choice]}) + b"\n\n")
    return stream


class Scene:
    def __init__(self, **limits: Any) -> None:
        self.clock = ManualClock(0.0, 20_000 * DAY_S)
        self.ledger, self.usage = Ledger(PricesConfig(), self.clock, ""), UsageBook()
        metrics = Metrics(lambda model: True, lambda engine: True)
        self.meter = Meter(
            self.ledger,
            self.usage,
            TenantTables(metrics.counter, metrics.model_label, ()),
            lambda model: 8192,
            self.clock,
        )
        config = ServiceClassConfig(limits=TenantLimits(**limits))
        self.tenant = Tenant("acme", ServiceClass("small", config))
        self.call = an_exchange(path="/v1/completions")
        self.call.tenant = self.tenant

    def reserve(self, prompt: Prompt, known: TokenizedPrompt | UnknownIds = UNKNOWN) -> Reservation:
        opened = self.meter.open(self.call)
        assert isinstance(opened, Reservation)
        try:
            self.meter.reserve(self.call, opened, prompt, known)
        except TooBusy:
            opened.settle(NO_TOKENS)
            raise
        return opened

    def settle(
        self, record: Record, prompt: Prompt | None = None, known: TokenizedPrompt | UnknownIds = UNKNOWN, **more: Any
    ) -> TokenCounts:
        """Return what it was charged."""
        request = a_request(prompt or a_prompt(), known, tenant=self.tenant)
        request.stream, request.events = more.get("stream"), more.get("events", 0)
        self.usage.take()
        self.meter.settle(request, record, None)
        (row,) = self.usage.take()
        assert row.requests == 1
        return row.tokens


def test_who_has_no_limits_has_no_reservation() -> None:
    scene = Scene()
    assert scene.meter.open(scene.call) is None
    scene.call.tenant = None
    assert scene.meter.open(scene.call) is None
    assert (scene.call.own_lines, len(scene.ledger)) == (b"", 0)


def test_the_estimate_is_the_prompt_and_the_usual_answer_within_its_cap() -> None:
    scene = Scene(concurrent=100)
    assert scene.reserve(a_prompt(), tokens(70)).estimate == TokenCounts(70, 0, LEAST_ANSWER_TOKENS)
    assert scene.reserve(a_prompt(output_tokens=9), tokens(70)).estimate == TokenCounts(70, 0, 9)
    scene.settle(a_record(output_tokens=40))
    assert scene.reserve(a_prompt()).estimate == TokenCounts(100, 0, 256), "4 bytes per token where it is unknown"
    scene.settle(a_record(output_tokens=512))
    assert scene.reserve(a_prompt(output_tokens=900), tokens(70)).estimate == TokenCounts(70, 0, 512)
    assert scene.reserve(a_prompt(output_tokens=9, answers=3), tokens(70)).estimate == TokenCounts(70, 0, 27)
    assert scene.reserve(a_prompt(body=b"x" * 10**6)).estimate.input_tokens == 8192, "no longer than a context"
    assert scene.reserve(a_prompt("/v1/embeddings")).estimate == TokenCounts(100, 0, 0)
    assert scene.reserve(a_prompt("/tokenize")).estimate == NO_TOKENS


def test_a_guess_alone_refuses_nobody_for_ever() -> None:
    scene = Scene(tokens_per_minute=80)
    with scene.reserve(a_prompt(), tokens(70)) as reserved:
        assert reserved is not None
        assert reserved.estimate == TokenCounts(70, 0, 10)
    with scene.reserve(a_prompt()) as reserved:
        assert reserved.estimate == TokenCounts(80, 0, 0)
    with pytest.raises(TooBusy, match="it can never fit") as raised:
        scene.reserve(a_prompt(), tokens(81))
    assert (raised.value.code, raised.value.retry_after_s) == ("tokens_per_minute", None)


def test_a_prompt_that_is_certain_to_be_too_long_is_refused_untokenised() -> None:
    scene = Scene(tokens_per_minute=80)
    with pytest.raises(TooBusy, match="it can never fit"):
        scene.reserve(a_prompt(body=b"x" * 80 * 17), UnknownIds("too_long"))


def test_a_refusal_says_limit_use_and_time_and_is_counted_once() -> None:
    scene = Scene(requests_per_minute=1)
    scene.reserve(a_prompt())
    scene.clock.advance(20.5)
    with pytest.raises(TooBusy) as raised:
        scene.reserve(a_prompt())
    refusal = raised.value
    said = "the limit `requests_per_minute` is reached: 1 of 1 requests were made in the last 60 s; try again in 40 s"
    assert (refusal.message, refusal.code, refusal.retry_after_s) == (said, "requests_per_minute", 40)
    assert b"x-ratelimit-remaining-requests: 0\r\n" in scene.call.own_lines
    scene.meter.on_refusal(scene.tenant, refusal)
    scene.meter.on_refusal(scene.tenant, Forbidden("no"))
    scene.meter.on_refusal(scene.tenant, RequestRefused("no"))
    scene.meter.on_refusal(None, Forbidden("no"))
    assert [(row.model, row.refused) for row in scene.usage.take()] == [
        ("", {"requests_per_minute": 1, "forbidden": 1, "other": 1}),
    ]


def test_an_engines_count_is_what_is_charged() -> None:
    scene = Scene()
    assert scene.settle(a_record()) == TokenCounts(61 - 32, 32, 7)
    assert scene.settle(a_record(cached_tokens=None)) == TokenCounts(61, 0, 7)
    assert scene.settle(a_record(cached_tokens=99)) == TokenCounts(0, 61, 7)


UNCOUNTED: dict[str, Any] = {"prompt_tokens": None, "cached_tokens": None, "output_tokens": None}


def ended(end: Any, view: View = VIEW, **known: Any) -> Record:
    attempt = Attempt(POLICY.decide(view), 32, 36, 4, end, **known)
    return a_record(attempts=[attempt], **UNCOUNTED)


def test_a_whole_answer_without_a_count_is_charged_as_estimated() -> None:
    scene = Scene()
    assert scene.settle(ended("ok"), known=tokens(60)) == TokenCounts(60, 0, LEAST_ANSWER_TOKENS)
    assert scene.settle(ended("ok"), known=tokens(60), stream=a_stream(12)) == TokenCounts(60, 0, 12)
    assert scene.settle(ended("ok"), a_prompt("/v1/embeddings")) == TokenCounts(100, 0, 0)


def test_what_broke_off_is_charged_what_the_engine_was_given_and_made() -> None:
    scene = Scene()
    stream = a_prompt(stream=True)
    gone = ended("client_gone")
    assert scene.settle(gone, stream) == TokenCounts(20, 40, 0), "36 may have been cached, and 4 in the pool"
    assert scene.settle(gone, stream, stream=a_stream(5)) == TokenCounts(20, 40, 5)
    assert scene.settle(gone, stream, events=14) == TokenCounts(20, 40, 10)
    refused = ended("ok")
    refused.status = 400
    assert scene.settle(refused, stream) == NO_TOKENS
    assert scene.settle(a_record(attempts=[], **UNCOUNTED), stream) == NO_TOKENS
    unknown = ended("broken")
    unknown.prompt_tokens_counted = None
    assert scene.settle(unknown, stream) == TokenCounts(60, 40, 0), "4 bytes per token where it is unknown"


@pytest.mark.parametrize("end", ["client_gone", "cut", "deadline"])
def test_a_prompt_is_charged_whose_client_leaves_before_the_answer_begins(end: str) -> None:
    before = ended(end)
    before.ttft_ms = before.status = None
    assert Scene().settle(before, a_prompt(stream=True)) == TokenCounts(20, 40, 0)


@pytest.mark.parametrize("end", ["died", "connect", "busy", "rejected"])
def test_nothing_is_charged_where_no_engine_took_it_or_it_is_the_engines_fault(end: str) -> None:
    before = ended(end)
    before.ttft_ms = before.status = None
    assert Scene().settle(before) == NO_TOKENS
    half = ended("died", prefill=PrefillRecord(POLICY.decide(VIEW), 30, 31, "ok", cached_tokens=16))
    half.ttft_ms = None
    assert Scene().settle(half, a_prompt(stream=True)) == TokenCounts(44, 16, 0), (
        "the other half has computed the prompt"
    )


def test_an_answer_that_could_not_pass_is_charged_by_the_time_that_it_was_made_in() -> None:
    scene = Scene()
    decode = Decode(base_ms=20.0, us_per_request=0.0, ns_per_context_token=0.0, samples=9, age_s=1.0)
    row = VIEW.rows[0]
    view = VIEW._replace(rows=(row._replace(speed=row.speed._replace(decode=decode)),))
    prefill_ms = row.speed.prefill_ms(20, 40)
    gone = ended("client_gone", view=view, duration_ms=prefill_ms + 20.0 * 50.5)
    gone.ttft_ms = gone.status = None
    assert scene.settle(gone) == TokenCounts(20, 40, 50)
    assert scene.settle(gone, a_prompt(answers=3)) == TokenCounts(20, 40, 150)
    assert scene.settle(gone, a_prompt(output_tokens=30)) == TokenCounts(20, 40, 30)
    assert scene.settle(gone, a_prompt("/v1/embeddings")) == TokenCounts(20, 40, 0)
    unlearned = ended("client_gone")
    assert scene.settle(unlearned) == TokenCounts(20, 40, LEAST_ANSWER_TOKENS), "what was reserved"


def test_answers_that_were_hung_up_on_are_learned_from() -> None:
    scene = Scene(concurrent=100)
    scene.settle(ended("client_gone"), a_prompt(stream=True), events=4 + 2048)
    assert scene.reserve(a_prompt(), tokens(70)).estimate == TokenCounts(70, 0, 2048)


def test_a_prompt_that_never_fits_is_not_counted_without_end() -> None:
    scene = Scene(tokens_per_minute=1000, budget_per_day=1e9)
    for _ in range(4):
        with pytest.raises(TooBusy, match="it can never fit"):
            scene.reserve(a_prompt(), tokens(4000))
    assert scene.ledger.used_today("acme") == 4 * 250
    with pytest.raises(TooBusy, match="1,000 of 1,000 tokens were used"):
        scene.meter.open(scene.call)
    assert scene.ledger.in_progress("acme") == 0


def test_a_client_that_leaves_while_its_prompt_is_counted_is_charged_for_that() -> None:
    scene = Scene(tokens_per_minute=1000)
    opened = scene.meter.open(scene.call)
    assert isinstance(opened, Reservation)
    with suppress(asyncio.CancelledError), opened:
        scene.meter.begin_counting(opened, a_prompt(body=b"x" * 6400))
        raise asyncio.CancelledError
    assert scene.ledger.used_today("acme") == 100
    with scene.reserve(a_prompt(), tokens(100)):
        pass  # what was reserved, and reached no engine
    assert scene.ledger.used_today("acme") == 100


def test_what_is_used_up_is_refused_before_anything_is_known_of_the_request() -> None:
    scene = Scene(tokens_per_minute=300)
    scene.reserve(a_prompt(), tokens(300))
    with pytest.raises(TooBusy, match="300 of 300 tokens were used in the last 60 s; try again in 60 s"):
        scene.meter.open(scene.call)
    assert isinstance(scene.meter.open(scene.call, least=NO_TOKENS), Reservation)
