"""When a prefix is sent: on a real scheduler, with the engine's answers and the time in the test's hands."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from router.backends.fetch import HttpAnswer
from router.backends.kv_store import NoKvStore
from router.clock import ManualClock
from router.config import schema
from router.control.core import build_scheduler
from router.features.preload import preloader
from router.features.preload.book import PreloadBook
from router.features.preload.booking import book_preload, settle_preload
from router.features.preload.budget import PreloadBudget
from router.features.preload.preloader import PreloadEnd, Preloader
from router.features.preload.recent_prompts import RecentPrompt, RecentPrompts
from router.fleet.engine_facts import EventEndpoint, Gauges, ModelCard
from router.fleet.instance import Target
from router.kvcache.events import TargetId
from router.prompt.usage import Usage
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.policy import build_policy
from tests.fakes.caches import RING, Cache, prompt_of

ANSWER = {"usage": {"prompt_tokens": 16, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}}
LEAST = build_policy("least", schema.PolicyConfig.model_validate({"scorers": [{"name": "least_requests"}]}))


class House:
    """A fleet with one engine, `a`, whose answers are given by `answer`."""

    def __init__(self, share: float = 0.5) -> None:
        self.clock = ManualClock(100.0)
        self.core = build_scheduler(schema.Config(seed=1), PolicySet({"least": LEAST}, "least"), RING, self.clock)
        self.core.fleet.join(schema.InstanceConfig(url="http://a:8000", name="a"))
        self.core.add_instance("a", [ModelCard("m", "/m", None, 8192)], [EventEndpoint(0, "tcp://a:5557", None, "")])
        self.core.apply_metrics("a", {0: Gauges(0, 0, 0.0, 4, 400, None, None)}, 100.0)
        self.core.indexer.on_batch(TargetId("a/0"), Cache().batch())
        self.sent: list[dict[str, Any]] = []
        self.status = 200
        self.budget, self.book = PreloadBudget(share), PreloadBook()
        self.preloader = Preloader(self.budget, self.book, self.core, RING, NoKvStore(), self.fetch, self.clock)

    @property
    def target(self) -> Target:
        target = self.core.fleet.target(TargetId("a/0"))
        assert target is not None
        return target

    async def fetch(self, instance: str, path: str, body: bytes | None = None, **options: Any) -> HttpAnswer:
        book = self.target.load_book
        self.sent.append(msgspec.json.decode(body) | options | {"booked": (book.requests, book.prefill_tokens)})
        self.clock.advance(0.2)
        return HttpAnswer(self.status, msgspec.json.encode(ANSWER))

    def load(self, timeout_s: float = 60.0) -> Awaitable[PreloadEnd]:
        return self.preloader.load(self.target, prompt(), "join", timeout_s)


def prompt(adapter: str | None = None) -> RecentPrompt:
    kept = RecentPrompts(10_000)
    kept.add(prompt_of(range(16), adapter=adapter), "m", adapter)
    (found,) = {one.prefixes: one for one in kept.by_prefix().values()}.values()
    return found


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Callable[[House, Callable[[float], object]], None]:
    """Let each wait of the preloader pass at once: the clock moves on, and `then` is called with the time."""

    def install(house: House, then: Callable[[float], object] = lambda now: None) -> None:
        async def sleep(seconds: float) -> None:
            house.clock.advance(seconds)
            then(house.clock.now())

        monkeypatch.setattr(preloader.asyncio, "sleep", sleep)

    return install


async def saved(house: House) -> House:
    """A second in which budget was saved."""
    assert house.preloader.saved_ms == 0
    house.clock.advance(1.0)
    assert house.preloader.saved_ms > 0
    return house


async def test_it_is_booked_while_it_is_computed_then_expected_there_and_teaches_the_speed() -> None:
    house = await saved(House())
    assert await house.load() == "loaded"
    (sent,) = house.sent
    assert (sent["model"], sent["prompt"], sent["max_tokens"], sent["rank"]) == ("m", [*range(16), 15], 1, None)
    assert sent["booked"] == (1, 16)
    assert house.target.load_book.requests == 0
    known = prompt_of([*range(16), 99])
    (estimate,) = house.core.view_builder.estimates(known, [house.target]).values()
    assert estimate.overlap is not None
    assert estimate.overlap.expected_tokens == 16
    assert house.target.latency_model.speed(house.clock.now()).samples == 1
    assert house.book.prefixes[0].duration_ms == pytest.approx(200)


async def test_a_failure_books_and_expects_nothing() -> None:
    house = await saved(House())
    house.status = 500
    assert await house.load() == "failed"
    assert house.target.load_book.requests == 0
    (estimate,) = house.core.view_builder.estimates(prompt_of([*range(16), 99]), [house.target]).values()
    assert estimate.overlap is not None
    assert estimate.overlap.expected_tokens == 0
    assert not house.book
    assert dict(house.book.requests) == {("join", "failed"): 1}


async def test_a_spent_budget_is_waited_for(passing: Any) -> None:
    house = await saved(House(share=0.02))
    passing(house)
    house.budget.charge(1020)  # of 20 ms: a second of prefill is owed, which takes 50 s
    began_at = house.clock.now()
    price_ms = house.target.latency_model.speed(began_at).prefill_ms(16, 0)
    assert await house.load(timeout_s=10) == "late"
    assert house.sent == []
    assert await house.load(timeout_s=60) == "loaded"
    assert house.clock.now() - began_at == pytest.approx(50.3, abs=0.2)
    assert house.preloader.saved_ms == pytest.approx(0.02 * 200 - price_ms, abs=2)


async def test_an_engine_that_gets_no_requests_costs_nothing() -> None:
    house = await saved(House())
    house.budget.charge(10_000)
    house.core.drain("a", True)
    assert await house.load() == "loaded"
    assert house.preloader.saved_ms == pytest.approx(500 - 10_000)


async def test_clients_go_first(passing: Any) -> None:
    house = await saved(House())
    booking = house.target.book(100, 100)
    passing(house, lambda now: booking.on_first_byte() if now > 105 else None)
    assert await house.load() == "loaded"
    assert house.clock.now() == pytest.approx(105.25, abs=0.1)


async def test_a_page_on_which_its_own_request_waited_does_not_hold_up_the_next(passing: Any) -> None:
    house = await saved(House())
    passing(house)
    booking = house.target.book(100, 100)
    house.core.fleet.begin_poll("a")
    house.core.apply_metrics("a", {0: Gauges(0, 1, 0.0, 4, 400, None, None)}, house.clock.now())
    booking.release()
    assert await house.load(timeout_s=1.0) == "loaded"
    house.core.fleet.begin_poll("a")
    house.core.apply_metrics("a", {0: Gauges(0, 1, 0.0, 4, 400, None, None)}, house.clock.now())
    assert await house.load(timeout_s=1.0) == "late"  # this one is another client's


async def test_one_at_a_time_for_each_target(passing: Any) -> None:
    house = await saved(House(share=1.0))
    seen: list[int] = []
    began, wait, fetch = asyncio.Event(), asyncio.Event(), house.fetch

    async def slow(*args: Any, **options: Any) -> HttpAnswer:
        seen.append(house.target.load_book.requests)
        began.set()
        await wait.wait()
        return await fetch(*args, **options)

    house.preloader._fetch = slow  # type: ignore[assignment]
    first = asyncio.create_task(house.load())
    await began.wait()
    passing(house)
    assert await house.load(timeout_s=1.0) == "late"
    wait.set()
    assert await first == "loaded"
    assert seen == [1]


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_target_that_left_or_does_not_serve_the_adapter_gets_nothing(leaves: bool) -> None:
    house = await saved(House())
    target = house.target
    if leaves:
        house.core.remove_instance("a")
    wanted = prompt(None if leaves else "poet")
    assert await house.preloader.load(target, wanted, "join", 1.0) == "gone"
    assert house.sent == []


def test_answers_to_preloads_prove_the_index_of_a_target_wrong_as_those_to_clients_do() -> None:
    house, cache, held = House(), Cache(), prompt_of(range(16))
    cache.batch()  # the one that the house has got
    house.core.indexer.on_batch(house.target.id, cache.batch(cache.stored(range(16))))
    for answers in (1, 2):
        booked = book_preload(house.core, house.target, held, "join", None, house.clock.now())
        house.core.indexer.on_batch(house.target.id, cache.batch(cache.stored(range(16))))
        settle_preload(house.core, booked, Usage(16, 0, 1), house.clock.now(), 0.0)
        assert house.target.overlap_accuracy.contradictions == (answers == 2)


def test_prompts_are_kept_as_the_engine_reads_them() -> None:
    assert prompt().ids == array("I", range(16))
