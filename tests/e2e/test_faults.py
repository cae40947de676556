"""Every fault of the emulated engines under a load of chats, and what must hold all the same, each within a bound.

Two halves. Where the *events* lie or stop, requests must not notice, and promises must be right again after a quiet
moment. Where the *engine* fails, each failure costs what it must and no more: who gets an error, how many engines see
a request, how long it takes until traffic has moved and come back.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import uuid
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from typing import Any

import httpx
import pytest

from router.config.sections.listeners import LimitsConfig
from router.fleet.instance import InstanceState, Target
from router.fleet.load import LoadBook
from router.kvcache.events import BlocksRemoved, BlocksStored, EngineHash, Tier
from router.lab.emulator.options import EngineFaults, EngineOptions
from router.lab.emulator.supervisor import EmbeddedFleet, EmulatedEngine
from tests.e2e.chats import PATH, Chat, ask, beside, chats, crowd, kept, promises
from tests.e2e.conftest import MODEL, Router
from tests.fakes.engines import INSTANT, FakeEngine, engine, eventually, is_proof
from tests.patience import PATIENCE_S

QUICK_HEALTH = {"interval_s": 0.1, "timeout_s": 0.5, "failures": 2}
EVERYTHING = {"drop_events": 0.2, "duplicate_events": 0.2, "reorder_events": 0.2}


@asynccontextmanager
async def engines(count: int, **options: Any) -> AsyncIterator[list[FakeEngine]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(engine(name=f"e{n}", seed=n, **options)) for n in range(count)]


async def nudge(fleet: Sequence[FakeEngine | EmulatedEngine]) -> None:
    """One more message from everyone: what is lost at the very end of a stream cannot be known before."""
    for one in fleet:
        async with httpx.AsyncClient(base_url=one.url, timeout=PATIENCE_S) as client:
            body = {"model": MODEL, "prompt": [1500 + n for n in range(40)], "cache_salt": uuid.uuid4().hex}
            (await client.post("/v1/completions", json=body | {"max_tokens": 1})).raise_for_status()


def target(router: Router, fake: FakeEngine) -> Target:
    return next(i for i in router.core.fleet if i.config.url == fake.url).targets[0]


def state(router: Router, fake: FakeEngine) -> InstanceState:
    return target(router, fake).instance.state


def breaker(router: Router, fake: FakeEngine) -> str:
    return target(router, fake).breaker.state(router.core._clock.now())


def book(router: Router, fake: FakeEngine) -> Any:
    """The sequence book of its stream."""
    stream = router.core.indexer.describe_stream(target(router, fake).id)
    assert stream is not None
    return stream.sequencer


def blocks(router: Router, target_id: str) -> int:
    stream = router.core.indexer.describe_stream(target_id)  # type: ignore[arg-type]
    return 0 if stream is None else sum(stream.stats.blocks)


def asked(fake: FakeEngine) -> int:
    """Generating requests that arrived there."""
    return len(fake.seen(PATH))


def member_of(member: EmulatedEngine) -> dict[str, str]:
    """A child process as an instance of the configuration."""
    return {"url": member.url, "name": member.name}


def at(router: Router, name: str) -> LoadBook:
    """The books of a one-rank instance."""
    instance = router.core.fleet.get(name)
    assert instance is not None
    return instance.targets[0].load_book


async def settled_down(router: Router) -> None:
    """Nothing is left under way, nowhere, and everything was given back once."""
    await eventually(router.idle)
    assert [t.load_book.double_releases for i in router.core.fleet for t in i.targets.values()] == [0] * len(
        router.engines
    )
    await eventually(lambda: all(fake.gauges().running == fake.gauges().waiting == 0 for fake in router.engines))


def with_health(fleet: Sequence[FakeEngine]) -> dict[str, Any]:
    """The `fleet` section with probes that notice soon."""
    return {"instances": [{"url": one.url} for one in fleet], "health": QUICK_HEALTH}


async def held_by(router: Router, fake: FakeEngine | str, name: str) -> Chat:
    """A chat whose history is cached at `fake` (or target) and nowhere else, so that its next turn goes there."""
    wanted = fake if isinstance(fake, str) else target(router, fake).id
    for number in range(100):
        chat = Chat(router, f"{name}{number}")
        if (await chat.turn(max_tokens=2)).target == wanted:
            await router.hear()
            return chat
    raise AssertionError("chance never sent a chat there")


# -- the events lie


@pytest.mark.parametrize(
    ("faults", "shows", "wire"),
    [
        ({"drop_events": 0.2}, "gaps", {}),
        ({"duplicate_events": 0.5}, "duplicates", {}),
        ({"reorder_events": 0.3}, "gaps", {}),
        ({"delay_events_ms": 30}, "lag_s", {}),
        (EVERYTHING, "replays", {}),
        (EVERYTHING, "replays", {"events_format": "array", "replay_format": "bare"}),
    ],
    ids=["drop", "duplicate", "reorder", "delay", "everything", "everything in the old format"],
)
async def test_disturbed_streams_heal(router, faults, shows, wire) -> None:
    async with engines(3, **wire) as fleet, router(fleet) as r:
        replays = [book(r, one).replays for one in fleet]
        for one in fleet:
            one.faults(**faults)
        talks = chats(r, "disturbed", 10)
        assert all(said.ok for said in await crowd(talks, 3))
        for one in fleet:
            one.faults(**dict.fromkeys(faults, 0))
        await nudge(fleet)
        await r.hear()
        assert kept(await promises(r, await crowd(talks, 1)))
        assert sum(getattr(book(r, one), shows) for one in fleet) > (sum(replays) if shows == "replays" else 0)
        if shows == "gaps":
            assert sum(book(r, one).replays for one in fleet) > sum(replays)
        assert all(book(r, one).restarts == 0 and not book(r, one).joined_late for one in fleet)
        await r.hear()
        for one in fleet:  # no copy too many, none too few
            assert blocks(r, target(r, one).id) == one.gauges().cached_blocks
        await settled_down(r)


async def test_a_silent_replay_endpoint_does_not_blind_the_router_for_a_busy_engine(router) -> None:
    """While a replay is waited for, the engine publishes more than is kept for so long."""
    async with engines(1, blocks=300_000, faults=EngineFaults(silent_replays=True)) as (fake,):
        publisher = fake.server.cores.all[0].publisher
        assert publisher is not None

        async def be_busy() -> None:
            """Announce a prompt of 12,000 tokens after the other, and that the engine evicts it."""
            for number in count():
                hashes, tokens = [EngineHash(number * 1000 + n) for n in range(750)], array("I", range(12_000))
                stored = BlocksStored(hashes, None, tokens, 16, Tier.GPU, 0, None, str(number), None)
                publisher.publish([stored, BlocksRemoved(hashes, Tier.GPU, 0)])
                await asyncio.sleep(0.01)

        async def compute(r: Router, first: int) -> dict[str, Any]:
            body = {"model": MODEL, "prompt": [first, *range(12_000)], "max_tokens": 1}
            return await r.record((await r.post("/v1/completions", body)).raise_for_status())

        async with router([fake], wait=False, index={"replay_timeout_s": 0.2}) as r:
            busy = asyncio.create_task(be_busy())
            await eventually(lambda: any(one.state is InstanceState.READY for one in r.core.fleet))
            await eventually(lambda: book(r, fake).replay_silent and book(r, fake).trusted)
            for number in range(3):
                await compute(r, number)
                told = publisher._sequence
                await eventually(lambda told=told: book(r, fake).last_seq >= told - 1)
                again = await compute(r, number)
                assert again["attempts"][-1]["predicted_tokens"] == again["cached_tokens"] == 12_000
            assert book(r, fake).replays == 2
            (shown,) = (await r.instances()).values()
            stream = shown["targets"][0]["stream"]
            assert (stream["replay_silent"], stream["joined_late"]) == (True, True)
            assert stream["replay_endpoint"] == publisher.replay_endpoint
            busy.cancel()


async def test_what_no_gpu_can_hold_is_forgotten(router) -> None:
    """Blocks of a process that is gone, of which no number shows that another one announces the next ones."""
    async with engines(1, blocks=64) as (fake,), router([fake]) as r:
        publisher = fake.server.cores.all[0].publisher
        assert publisher is not None
        hashes = [EngineHash(number) for number in range(50)]
        publisher.publish([BlocksStored(hashes, None, array("I", range(800)), 16, Tier.GPU, 0, None, None, None)])
        body = {"model": MODEL, "max_tokens": 1}
        await r.post("/v1/completions", body | {"prompt": [*range(100), *range(480)]})
        await r.hear()
        (shown,) = (await r.instances()).values()
        stream = shown["targets"][0]["stream"]
        assert (stream["overfull"], stream["joined_late"]) == (1, True)
        assert await r.metric("warmroute_stream_overfull_total") == 1
        record = await r.record(await r.post("/v1/completions", body | {"prompt": list(range(801))}))
        assert record["attempts"][-1]["predicted_tokens"] == 0, "800 were believed"


async def test_what_was_sent_bridges_late_events(router) -> None:
    """A burst on one new prefix stays together although its events come when all of it has been answered."""
    async with engines(3) as fleet, router(fleet) as r:
        for one in fleet:
            one.faults(drop_events=1)
        burst = [(await Chat(r, "new").turn()) for _ in range(6)]
        assert len({said.target for said in burst}) == 1
        attempts = [(await r.record(said.record))["attempts"][-1] for said in burst]
        assert [attempt["predicted_tokens"] for attempt in attempts] == [0] * 6
        assert [attempt["expected_tokens"] > 0 for attempt in attempts] == [False] + [True] * 5
        for one in fleet:
            one.faults(drop_events=0)
        await nudge(fleet)  # shows the gap, which is replayed
        await r.hear()
        assert kept(await promises(r, [await Chat(r, "new").turn()]))


async def test_an_engine_core_that_restarts_behind_its_server_is_relearned(router) -> None:
    async with engines(2, decode_ms_per_token=10) as fleet, router(fleet) as r:
        victim = fleet[0]
        talks = chats(r, "before", 10)
        assert all(said.ok for said in await crowd(talks, 2))
        assert blocks(r, target(r, victim).id) > 0
        async with beside(crowd(talks, 1)) as under_way:
            await eventually(lambda: victim.gauges().running > 0)
            victim.restart()
            said = await under_way
        assert all(one.ok or (one.stream and one.error and one.target == target(r, victim).id) for one in said)
        await nudge(fleet)
        await r.hear()
        assert book(r, victim).restarts == 1
        assert blocks(r, target(r, victim).id) == victim.gauges().cached_blocks
        assert all(one.ok for one in await crowd(talks, 1))  # what was lost is computed again
        await r.hear()
        assert kept(await promises(r, await crowd(talks, 1)))
        await settled_down(r)


async def test_joined_late_and_the_replay_does_not_reach_back(router) -> None:
    """What was cached before the oldest batch that is left is unknown: it may be found, and is never promised."""
    async with engines(1, replay_steps=2) as fleet:
        async with router(fleet) as first:
            talks = chats(first, "early", 6)
            await crowd(talks, 2)
        async with router(fleet) as r:
            assert book(r, fleet[0]).joined_late
            for talk in talks:
                talk.client = r
            said = await crowd(talks, 1)
            promised = await promises(r, said)
            assert all((one.predicted or 0) <= one.delivered for one in promised)
            assert any((one.predicted or 0) < one.delivered for one in promised)
            unknown = [(await r.record(one.record))["attempts"][0]["candidates"][0]["overlap"] for one in said]
            assert None in unknown  # not "holds nothing"
            fresh = chats(r, "fresh", 4)
            await crowd(fresh, 1)
            await r.hear()
            assert kept(await promises(r, await crowd(fresh, 1)))


async def test_joined_late_and_the_replay_reaches_back(router) -> None:
    """Right from the first request."""
    async with engines(2) as fleet:
        async with router(fleet) as first:
            talks = chats(first, "early", 6)
            await crowd(talks, 2)
        async with router(fleet) as r:
            assert not any(book(r, one).joined_late for one in fleet)
            for talk in talks:
                talk.client = r
            assert kept(await promises(r, await crowd(talks, 1)))


async def test_an_engine_without_events_keeps_its_sessions(router) -> None:
    async with engines(3, events=False) as fleet, router(fleet) as r:
        talks = chats(r, "quiet", 9)
        turns = [await crowd(talks, 1) for _ in range(4)]
        for each in zip(*turns, strict=True):
            assert len({said.target for said in each}) == 1
        assert len({said.target for said in turns[0]}) > 1
        for said in turns[-1]:
            record = await r.record(said.record)
            assert {row["overlap"]["source"] for row in record["attempts"][0]["candidates"]} == {"approximate"}
            assert record["attempts"][0]["predicted_tokens"] is None  # nobody promised
            # The last answer was never sent there, only made there: it is found and was not to be known.
            assert 0 < record["attempts"][0]["expected_tokens"] <= record["cached_tokens"]
            assert record["cached_tokens"] - record["attempts"][0]["expected_tokens"] <= 32


# -- the engine fails


async def test_a_frozen_engine_costs_its_requests_a_deadline_and_then_nothing(router) -> None:
    limits = {"first_byte_timeout_s": 3.0}
    async with engines(3) as fleet, router(fleet, limits=limits, fleet=with_health(fleet)) as r:
        frozen = fleet[0]
        talk = await held_by(r, frozen, "cold")
        before = asked(frozen)
        frozen.faults(freeze=True)
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with beside(crowd([talk, *chats(r, "other", 11)], 1)) as waiting:
            await eventually(lambda: state(r, frozen) is InstanceState.DOWN)
            said = await waiting
        assert loop.time() - began < PATIENCE_S / 2  # the client waits for `PATIENCE_S`; alone it takes 4 s
        late = [one for one in said if not one.ok]
        assert said[0] in late
        assert {one.status for one in late} == {504}
        assert all(one.error["message"] == "the engine did not begin to answer in time" for one in late)
        assert len(late) == asked(frozen) - before
        moved = await crowd([talk, *chats(r, "moved", 8)], 2)
        assert all(one.ok and one.target != target(r, frozen).id for one in moved)
        frozen.faults(freeze=False)
        await eventually(lambda: state(r, frozen) is InstanceState.READY)
        assert (await held_by(r, frozen, "thawed")) is not None
        await settled_down(r)


async def test_errors_are_tried_elsewhere_and_open_the_breaker_which_closes_by_requests(router) -> None:
    """No client sees a 500 that only one engine answers. Three in a row, and the target is left alone until one
    request at a time may try it.
    """
    breaking = {"failures": 3, "open_s": 3.0}  # in which the next two requests are placed
    async with (
        engines(2, decode_ms_per_token=120) as fleet,  # slow enough that the trial lasts until the others are placed
        router(fleet, fleet=with_health(fleet) | {"breaker": breaking}) as r,
    ):
        sick, well = fleet
        talks = [await held_by(r, sick, f"sticky {n}") for n in range(5)]
        sick.faults(error_rate=1)
        said = [await talk.turn(stream=bool(n % 2)) for n, talk in enumerate(talks[:3])]
        assert all(one.ok and one.target == target(r, well).id for one in said)
        assert [await ends(r, one) for one in said] == [["failed", "ok"]] * 3
        assert await r.metric("warmroute_retries_total", reason="engine_5xx") == 3
        assert breaker(r, sick) == "open"
        before = asked(sick)
        elsewhere = await crowd([Chat(r, "meanwhile"), Chat(r, "also")], 2)
        assert all(one.ok and one.target == target(r, well).id for one in elsewhere)
        assert asked(sick) == before
        await eventually(lambda: breaker(r, sick) == "half_open")
        assert await ends(r, await talks[3].turn()) == ["failed", "ok"]  # the trial: it goes back to rest
        assert breaker(r, sick) == "open"
        sick.faults(error_rate=0)
        await eventually(lambda: breaker(r, sick) == "half_open")
        at_once = await asyncio.gather(*(talks[4].turn(forget=True) for _ in range(5)))
        assert Counter(one.target for one in at_once) == {target(r, sick).id: 1, target(r, well).id: 4}
        assert all(one.ok for one in at_once)
        assert breaker(r, sick) == "closed"
        await settled_down(r)


async def test_an_error_of_two_engines_is_the_answer_and_the_prompt_is_not_tried_twice_again(router) -> None:
    """The prompt may be the cause: a client that repeats it must not use up the retries of all."""
    patient = {"breaker": {"failures": 1000}}
    async with engines(3) as fleet, router(fleet, fleet=patient, limits={"retry_burst": 4, "retry_ratio": 0.0}) as r:
        for fake in fleet:
            fake.faults(error_rate=1)
        bad, other = Chat(r, "bad"), Chat(r, "other")
        said = [await bad.turn(), await bad.turn(stream=True), await other.turn()]
        assert [one.status for one in said] == [500] * 3
        assert all("fault error_rate" in one.error["message"] for one in said)
        assert [await ends(r, one) for one in said] == [["failed", "failed"], ["failed"], ["failed", "failed"]]
        assert await r.metric("warmroute_engine_attempts_total", end="engine_5xx") == 5
        assert await r.metric("warmroute_errors_total", reason="engine_5xx") == 3
        for fake in fleet:
            fake.faults(error_rate=0)
        assert (await bad.turn()).ok
        await settled_down(r)


async def test_an_error_is_not_tried_elsewhere_without_a_budget(router) -> None:
    async with engines(2) as fleet, router(fleet, limits={"retry_burst": 0}) as r:
        talk = await held_by(r, fleet[0], "sticky")
        fleet[0].faults(error_rate=1)
        said = await talk.turn()
        assert (said.status, await ends(r, said)) == (500, ["failed"])


async def ends(router: Router, said: Any) -> list[str]:
    """How its attempts ended."""
    return [attempt["end"] for attempt in (await router.record(said.record))["attempts"]]


async def test_a_client_s_mistakes_never_trip_a_breaker(router) -> None:
    async with engines(1) as fleet, router(fleet, fleet=with_health(fleet) | {"breaker": {"failures": 2}}) as r:
        said = await asyncio.gather(
            *(ask(r, [{"role": "user", "content": "hello"}], stream=bool(n % 2), max_tokens=10**6) for n in range(20))
        )
        assert {one.status for one in said} == {400}
        assert asked(fleet[0]) == 20
        assert breaker(r, fleet[0]) == "closed"
        assert (await Chat(r, "fine").turn()).ok


async def test_a_full_engine_is_passed_over_within_the_budget(router) -> None:
    limits = {"retry_ratio": 0.0, "retry_burst": 3}
    async with engines(2) as fleet, router(fleet, limits=limits) as r:
        full, other = fleet
        talks = [await held_by(r, full, f"sticky{n}-") for n in range(4)]
        full.faults(refuse=True)
        for talk in talks[:3]:
            said = await talk.turn()
            assert said.ok
            assert said.target == target(r, other).id
            attempts = (await r.record(said.record))["attempts"]
            assert [attempt["end"] for attempt in attempts] == ["busy", "ok"]
        said = await talks[3].turn()
        assert said.status == 503  # the engine's own words
        assert said.error["message"] == "The engine takes no requests."
        assert [attempt["end"] for attempt in (await r.record(said.record))["attempts"]] == ["busy"]
        assert breaker(r, full) == "closed"  # full is not broken


async def test_all_engines_full_is_said_after_each_was_asked_once(router) -> None:
    async with engines(3) as fleet, router(fleet) as r:
        for one in fleet:
            one.faults(refuse=True)
        said = await Chat(r, "unlucky").turn()
        assert (said.status, said.error["code"]) == (503, 503)
        assert [asked(one) for one in fleet] == [1, 1, 1]
        await settled_down(r)


async def test_one_engine_that_dies_on_requests_costs_nobody_anything(router) -> None:
    async with engines(3) as fleet, router(fleet) as r:
        fleet[0].faults(die_before_first_byte=1)
        said = await crowd(chats(r, "lucky", 30), 2)
        assert all(one.ok for one in said)
        records = [await r.record(one.record) for one in said]
        ends = Counter(tuple(attempt["end"] for attempt in record["attempts"]) for record in records)
        assert set(ends) == {("ok",), ("died", "ok")}
        assert not any(record["poison"] for record in records)
        await settled_down(r)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_poison_prompt_touches_two_engines(router, stream) -> None:
    async with engines(4) as fleet, router(fleet) as r:
        for one in fleet:
            one.faults(die_before_first_byte=1)
        said = await Chat(r, "poison").turn(stream=stream)
        assert (said.status, said.error["code"]) == (502, "engine_died")
        touched = [asked(one) for one in fleet if asked(one)]
        assert len(touched) == 2
        assert max(touched) <= 2  # a reused connection that ends without a byte: once more on a fresh one
        record = (await r.records(1))[0]
        assert record["poison"]
        assert [attempt["end"] for attempt in record["attempts"]] == ["died", "died"]
        assert await r.metric("warmroute_poison_requests_total") == 1
        await settled_down(r)


async def test_a_prompt_that_kills_the_whole_process_touches_two_engines(router) -> None:
    """The second one's pooled connection ends without a byte and a new one is refused: it took the request all the
    same, so this was a death, and not an engine that could not be reached.
    """
    async with mortals(4) as fleet, router([one.url for one in fleet], wait=False) as r:
        await eventually(lambda: [instance.state for instance in r.core.fleet] == [InstanceState.READY] * 4)
        said = await Chat(r, "killer").turn()
        assert (said.status, said.error["code"]) == (502, "engine_died")
        assert sum(one.asked > 0 for one in fleet) == 2
        record = (await r.records(1))[0]
        assert record["poison"]
        assert [attempt["end"] for attempt in record["attempts"]] == ["died", "died"]


class Mortal:
    """A server that is gone, listener and all, with the first prompt it gets."""

    def __init__(self) -> None:
        self.url = ""
        self.asked = 0
        self._listener: asyncio.Server

    async def start(self) -> None:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    def end(self) -> None:
        self._listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head)
                asked = await reader.readexactly(int(length[1]) if length else 0)
                if head.startswith(b"POST /v1/chat/completions ") and not is_proof(head, asked):
                    break
                card = {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
                body = json.dumps(card).encode() if b"/v1/models" in head else b""
                status = b"200 OK" if body or b"/health" in head else b"404 Not Found"
                writer.write(b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
            self.asked += 1
            self.end()
        writer.transport.abort()


@asynccontextmanager
async def mortals(count: int) -> AsyncIterator[list[Mortal]]:
    fleet = [Mortal() for _ in range(count)]
    for one in fleet:
        await one.start()
    try:
        yield fleet
    finally:
        for one in fleet:
            one.end()


async def test_a_death_in_the_middle_ends_the_stream_with_an_error_event(router) -> None:
    async with engines(3) as fleet, router(fleet) as r:
        dying = fleet[0]
        talk = await held_by(r, dying, "sticky")
        before = [asked(one) for one in fleet]
        dying.faults(die_mid_stream=1)
        said = await talk.turn(stream=True)
        assert said.status == 200
        assert said.text
        assert said.error == {
            "message": "the engine closed the connection",
            "type": "upstream_error",
            "param": None,
            "code": "engine_failed",
        }
        record = await r.record(said.record)
        assert [attempt["end"] for attempt in record["attempts"]] == ["broken"]
        assert [asked(one) for one in fleet] == [before[0] + 1, *before[1:]]
        whole = await talk.turn()  # not streamed: nothing was sent yet, so another may try
        assert whole.ok
        assert whole.target != target(r, dying).id
        await settled_down(r)


@pytest.mark.parametrize("cut_after_bytes", [1, 100])
async def test_a_whole_answer_whose_engine_dies_while_it_sends_it_is_asked_for_again_once(
    router, cut_after_bytes
) -> None:
    async with engines(3) as fleet, router(fleet) as r:
        talk = await held_by(r, fleet[0], "sticky")
        fleet[0].faults(die_after_bytes=cut_after_bytes)
        said = await talk.turn()
        assert said.ok
        assert [attempt["end"] for attempt in (await r.record(said.record))["attempts"]] == ["died", "ok"]
        for one in fleet:
            one.faults(die_after_bytes=cut_after_bytes)
        said = await Chat(r, "poison").turn()
        assert (said.status, said.error["code"]) == (502, "engine_died")
        await settled_down(r)


async def test_a_slow_engine_gets_less(router) -> None:
    queues = {"scorers": [{"name": "queue_depth"}]}
    async with engines(3, decode_ms_per_token=10) as fleet:  # more than what CPU time adds on a busy machine
        fleet[0].faults(slow=20)
        async with router(fleet, policies={"warm": queues}) as r:
            said = await crowd(chats(r, "hurry", 12), 6)
            assert all(one.ok for one in said)
            share = Counter(one.target for one in said)[target(r, fleet[0]).id] / len(said)
            assert share < 0.3  # a third would be blind
            await settled_down(r)


async def test_an_engine_that_says_it_is_unwell_is_left_alone_and_comes_back_with_what_it_has(router) -> None:
    async with engines(2) as fleet, router(fleet, fleet=with_health(fleet)) as r:
        unwell = fleet[0]
        talk = await held_by(r, unwell, "sticky")
        unwell.faults(unhealthy=True)
        await eventually(lambda: state(r, unwell) is InstanceState.DOWN)
        before = asked(unwell)
        assert all(one.ok for one in await crowd(chats(r, "meanwhile", 6), 2))
        assert asked(unwell) == before
        unwell.faults(unhealthy=False)
        await eventually(lambda: state(r, unwell) is InstanceState.READY)
        await r.hear()
        said = await talk.turn()  # its cache was replayed
        assert said.target == target(r, unwell).id
        assert kept(await promises(r, [said]))


async def test_a_client_that_leaves_is_forgotten_at_once(router) -> None:
    """In the middle of its answer or before it has begun: the engine stops, the booking is given back, once."""
    async with engines(2, prefill_tokens_per_s=2000, decode_ms_per_token=20) as fleet, router(fleet) as r:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "long " * 400}], "max_tokens": 2000}
        async with r.client() as leaving:
            async with leaving.stream("POST", PATH, json=body | {"stream": True, "ignore_eos": True}) as answer:
                ids = [answer.headers["x-warmroute-record"]]
                async for _ in answer.aiter_lines():
                    break
            assert r.booked == 1
        await settled_down(r)
        async with beside(r.post(PATH, body | {"cache_salt": "other"})):
            await eventually(lambda: r.booked == 1 and sum(asked(one) for one in fleet) == 2)
        await eventually(lambda: r.booked == 0)
        ids.append((await r.records(1))[0]["id"])
        for id in ids:
            record = await r.record(id)
            assert [attempt["end"] for attempt in record["attempts"]] == ["client_gone"]
        await settled_down(r)
        assert sum(one.gauges().cancelled for one in fleet) == 2
        assert all(breaker(r, one) == "closed" for one in fleet)


# -- kill -9


def begun(books: LoadBook) -> int:
    """Requests that are past their first byte."""
    return books.requests - books.prefilling


def ripe(router: Router, fleet: EmbeddedFleet) -> list[EmulatedEngine]:
    """Whose end would cut several streams, and make more requests homeless than the retry budget lets move."""
    books = [(member, at(router, member.name)) for member in fleet.members]
    return [member for member, its in books if begun(its) >= 3 and its.prefilling > LimitsConfig().retry_burst]


async def slow_down(members: Sequence[EmulatedEngine], factor: float) -> None:
    """Let engines take `factor` times as long for each step."""
    async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
        for member in members:
            (await http.post(f"{member.url}/emulate/faults", json={"slow": factor})).raise_for_status()


async def test_kill_9_under_load(router) -> None:
    """Only streams that had begun at the victim end with an error; all others do not notice. It comes back empty,
    and its cache is known again.
    """
    slow = INSTANT | {"decode_ms_per_token": 200, "answer_tokens": 20}  # an answer takes 4 s
    options = [EngineOptions(**slow | {"name": f"k{n}", "seed": n}) for n in range(4)]
    async with EmbeddedFleet(options) as fleet, router([member_of(m) for m in fleet.members]) as r:
        talks = chats(r, "steady", 120)
        assert all(said.ok for said in await crowd(talks[:40], 1, max_tokens=2))
        await slow_down(fleet.members, 10)  # until all are there
        async with beside(crowd(talks, 1, max_tokens=30)) as under_way:
            await eventually(lambda: r.booked == len(talks) and ripe(r, fleet))
            victim = ripe(r, fleet)[0]
            streaming = begun(at(r, victim.name))
            assert blocks(r, f"{victim.name}/0") > 0
            os.kill(victim.pid, signal.SIGKILL)
            await eventually(lambda: blocks(r, f"{victim.name}/0") == 0)  # at once: it is back soon, with new ones
            await slow_down([each for each in fleet.members if each != victim], 1)
            said = await under_way
        failed = [one for one in said if not one.ok]
        assert len(failed) >= streaming  # answers whose first bytes were still on their way have begun, too
        assert {(one.status, one.stream, one.instance) for one in failed} == {(200, True, victim.name)}
        assert {one.error["code"] for one in failed if one.error} == {"engine_failed"}
        records = [await r.record(one.record) for one in failed]
        assert all([attempt["end"] for attempt in record["attempts"]] == ["broken"] for record in records)
        await eventually(lambda: victim not in fleet.members)
        await eventually(lambda: r.core.fleet.get(victim.name).state is InstanceState.READY)
        talk = await held_by(r, f"{victim.name}/0", "relearned")
        async with asyncio.timeout(PATIENCE_S):
            while not blocks(r, f"{victim.name}/0"):  # what it published before the subscription was back is replayed
                await nudge([victim])
        again = await talk.turn(max_tokens=2)
        assert again.instance == victim.name
        assert kept(await promises(r, [again]))
        await eventually(r.idle)
