"""Admission of followers' requests in the leader's queues, over real channels and a real scheduler of 400 tokens."""

from __future__ import annotations

import asyncio
import socket
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from router.config.sections.listeners import AdmissionConfig
from router.control.workers.admission import FollowerAdmissions, SyncedAdmission
from router.control.workers.broadcast import Broadcast
from router.control.workers.channel import Channel
from router.control.workers.messages import (
    AdmissionAsked,
    AdmissionVerdict,
    AnswerMessage,
    AskMessage,
)
from router.errors import NoTarget, TooBusy
from router.fleet.instance import ServedModel
from router.fleet.worker_share import NO_SHARE
from router.kvcache.events import Key, TargetId
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Endpoint, Prompt, Text, UnknownIds
from router.request.admission.verdicts import AdmissionState
from router.request.admission.waiting import AdmissionQueues
from router.scheduling.policy.record import Record
from router.tasks import Tasks
from tests.fakes.engines import eventually
from tests.router.scheduling.test_scheduler import IDS, KNOWN, House, page

SERVED = ServedModel("m", None)


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Any]:
    return {"uvloop": uvloop.new_event_loop}


class Follower:
    """A follower's admission control, and its end of the channel."""

    def __init__(self, config: AdmissionConfig, house: House) -> None:
        self.house = house
        self.config = config
        self.questions = 0
        self.channel: Channel
        self.admission: SyncedAdmission

    async def connect(self, sock: socket.socket) -> None:
        self.channel = await Channel.open(sock, self.on_message, self.on_close, lambda target: NO_SHARE)
        broadcast: Broadcast = self.channel
        self.admission = SyncedAdmission(self.config, self.house.core, self.house.clock, broadcast)

    def on_message(self, message: Any) -> None:
        if isinstance(message, AdmissionVerdict):
            self.admission.on_verdict(message)
        elif isinstance(message, AskMessage):
            self.questions += 1
            payload = self.admission.encode_local_tokens(int(message.argument))
            self.channel.send(AnswerMessage(message.number, payload))

    def on_close(self) -> None:
        self.admission.close()

    async def acquire(self, session: str, tokens: int | TokenizedPrompt | None) -> Any:
        if tokens is None:
            known: TokenizedPrompt | UnknownIds = UnknownIds("not_needed")
        elif isinstance(tokens, int):
            known = TokenizedPrompt([0] * tokens, True, "given", {}, 0.0, 0.0)  # type: ignore[arg-type]
        else:
            known = tokens
        prompt = Prompt(
            Endpoint.COMPLETIONS, "/v1/completions", "m", b'{"prompt": "x"}', Text("x", True), session=session
        )
        return await self.admission.acquire(prompt, SERVED, known)


class Workers:
    """A leader with `count` instances, the first of 400 tokens, and two followers of it."""

    def __init__(self, count: int = 1, **settings: Any) -> None:
        self.house = House(count=count)
        self.config = AdmissionConfig.model_validate({"enabled": True} | settings)
        self.waits: list[tuple[str, str, str]] = []
        self.tasks = Tasks("test")
        self.queues = AdmissionQueues(
            self.config,
            self.house.core,
            self.house.clock,
            lambda model, queue, end, s: self.waits.append((model, queue, end)),
        )
        self.admissions = FollowerAdmissions(self.queues, self.tasks)
        self.followers = [Follower(self.config, self.house) for _ in range(2)]
        self.channels: list[Channel] = []

    async def connect(self) -> None:
        for number, follower in enumerate(self.followers):
            ours, theirs = socket.socketpair()
            channel = await Channel.open(
                ours,
                lambda message, number=number: self.on_message(number, message),  # type: ignore[misc]
                lambda number=number: self.admissions.drop_worker(number),  # type: ignore[misc]
                lambda target: NO_SHARE,
            )
            self.channels.append(channel)
            await follower.connect(theirs)

    def on_message(self, number: int, message: Any) -> None:
        if isinstance(message, AdmissionAsked):
            self.admissions.begin(number, self.channels[number], message)
        else:
            self.admissions.apply(number, message)

    @property
    def state(self) -> AdmissionState:
        (admission_of_m,) = self.queues
        return admission_of_m.state()

    @property
    def counts(self) -> tuple[int, float]:
        """Requests that wait, and tokens of live sessions."""
        state = self.state
        assert state.live is not None
        return len(state.waiting), state.live.context_tokens

    def answered(self, lease: Any, tokens: int, **fields: Any) -> None:
        record: Record = self.house.record()
        record.status, record.ttft_ms, record.prompt_tokens, record.output_tokens = 200, 1.0, tokens, 5
        lease.record = record


@asynccontextmanager
async def workers(**settings: Any) -> AsyncIterator[Workers]:
    made = Workers(**settings)
    await made.connect()
    try:
        yield made
    finally:
        for channel in [*made.channels, *(follower.channel for follower in made.followers)]:
            channel.close()
        await made.tasks.close()


async def test_what_one_worker_runs_holds_back_what_another_one_gets() -> None:
    async with workers() as w:
        one, other = w.followers
        first = await one.acquire("a", 300)
        assert first.waited_s is None
        second = asyncio.create_task(other.acquire("b", 300))
        await eventually(lambda: w.counts == (1, 300))
        w.house.clock.advance(2.0)
        with first:
            pass  # nobody answered
        lease = await second
        assert lease.waited_s == 2.0
        assert w.counts == (0, 300)
        with lease:
            lease.on_placed("a/0", None)
            lease.on_first_byte()
            w.answered(lease, 310)
        await eventually(lambda: w.counts == (0, 315))
        assert w.waits == [("m", "new", "passed")]
        await eventually(lambda: len(w.admissions) == 0)


async def test_a_follower_is_told_which_targets_had_no_room() -> None:
    """One engine is full of prefill work, the other one has room."""
    async with workers(count=2, rule={"name": "saturation"}) as w:
        w.house.core.apply_metrics("b", {0: page(capacity_tokens=400)}, w.house.clock.now())
        books = [w.house.core.fleet.target(TargetId(id)).load_book for id in ("a/0", "b/0")]  # type: ignore[union-attr]
        bookings = [book.book(200_000, 200_000) for book in books]
        waiting = asyncio.create_task(w.followers[0].acquire("a", 100))
        await eventually(lambda: len(w.admissions) == 1 and len(w.state.waiting) == 1)
        bookings[1].release()
        w.queues.queue_of("m").release_waiting()  # type: ignore[union-attr]
        with await waiting as lease:
            assert lease.full == {"a/0"}


async def test_a_session_is_one_session_whichever_workers_its_requests_reach() -> None:
    async with workers() as w:
        for tokens, follower in zip((100, 150, 200), [*w.followers, w.followers[0]], strict=True):
            with await follower.acquire("a", tokens) as lease:
                w.answered(lease, tokens)
            await eventually(lambda tokens=tokens: w.counts == (0, tokens + 5))
        assert w.state.known == 1


async def test_what_sessions_of_two_workers_share_is_charged_once() -> None:
    """Prompts of 1,600 tokens in blocks of 512, of which the first two are the same: 1600 + 576."""
    async with workers() as w:
        w.house.core.apply_metrics("a", {0: page(capacity_tokens=4000)}, w.house.clock.now())
        for number, follower in enumerate(w.followers):
            keys = [Key(1), Key(2), Key(3 + number)]
            known = TokenizedPrompt(array("I", [0] * 1600), True, "given", {512: keys}, 0.0, 0.0)
            lease = await follower.acquire("ab"[number], known)
            lease.on_placed("a/0", None)
        await eventually(lambda: w.counts == (0, 1600 + 576))


async def test_a_client_that_leaves_while_it_waits_leaves_nothing_in_the_leaders_queue() -> None:
    async with workers() as w:
        one, other = w.followers
        first = await one.acquire("a", 300)
        second = asyncio.create_task(other.acquire("b", 300))
        await eventually(lambda: w.counts == (1, 300))
        second.cancel()
        await asyncio.wait([second])
        await eventually(lambda: w.counts == (0, 300))
        assert w.waits == [("m", "new", "client_gone")]
        with first:
            pass
        await eventually(lambda: (w.counts, len(w.admissions)) == ((0, 0), 0))
        assert w.state.known == 0


async def test_a_worker_that_dies_gives_back_what_its_requests_held_and_leaves_the_queue() -> None:
    async with workers() as w:
        dying, staying = w.followers
        await dying.acquire("a", 300)
        asked = [asyncio.create_task(f.acquire(name, 300)) for f, name in ((dying, "b"), (staying, "c"))]
        await eventually(lambda: w.counts == (2, 300))
        w.channels[0].close()
        lease = await asked[1]
        assert w.counts == (0, 300)
        with pytest.raises(NoTarget):  # its own end of the channel is closed as well
            await asked[0]
        with lease:
            pass
        await eventually(lambda: (w.counts, len(w.admissions), w.state.known) == ((0, 0), 0, 0))


async def test_without_the_leader_what_waits_is_refused_and_what_comes_too() -> None:
    async with workers() as w:
        one, other = w.followers
        await one.acquire("a", 300)
        waiting = asyncio.create_task(other.acquire("b", 300))
        await eventually(lambda: w.counts == (1, 300))
        w.channels[1].close()
        with pytest.raises(NoTarget, match="stopping") as refused:
            await waiting
        assert refused.value.retry_after_s == 1
        with pytest.raises(NoTarget):
            await other.acquire("c", 1)


async def test_a_wait_that_is_too_long_is_refused_with_what_the_leader_says() -> None:
    async with workers(max_wait_s=0.02) as w:
        first = await w.followers[0].acquire("a", 300)
        second = asyncio.create_task(w.followers[1].acquire("b", 300))
        await eventually(lambda: w.counts == (1, 300))
        w.house.clock.advance(0.03)
        with pytest.raises(TooBusy, match="number 1 in the queue") as refused:
            await second
        assert (refused.value.code, refused.value.retry_after_s) == ("no_room", 1)
        with first:
            pass
        await eventually(lambda: len(w.admissions) == 0)


@pytest.mark.parametrize("held", [True, False])
async def test_a_worker_is_asked_what_instances_hold_of_its_prompt_only_when_that_matters(held: bool) -> None:
    """Of 40 tokens 36 can be used. After 390 tokens of another session nothing fits: a turn whose context some instance
    holds begins, another one is parked.
    """
    async with workers() as w:
        one, other = w.followers
        if held:
            w.house.stored("a/0")
        with await one.acquire("s", KNOWN) as lease:
            w.answered(lease, len(IDS))
        await eventually(lambda: w.counts == (0, len(IDS) + 5))
        assert one.questions == 0
        big = await one.acquire("big", 355)
        turn = asyncio.create_task(other.acquire("s", KNOWN))
        if held:
            with await turn as lease:
                assert lease.waited_s is None
        else:
            await eventually(lambda: [queued.admission.queue for queued in w.state.waiting] == ["parked"])
        assert other.questions == 1
        with big:
            pass
        with await turn if not held else await other.acquire("t", None):
            pass


async def test_requests_begin_when_admission_is_turned_off() -> None:
    async with workers() as w:
        one, other = w.followers
        first = await one.acquire("a", 300)
        second = asyncio.create_task(other.acquire("b", 300))
        await eventually(lambda: w.counts == (1, 300))
        off = AdmissionConfig()
        w.queues.switch(off)
        late = await one.acquire("c", 300)  # of a worker that has not applied the switch
        with first, await second, late as lease:
            assert lease is None
        other.admission.follow(w.house.core.selector.policy_set)  # where it is off
        with await other.acquire("d", 300) as lease:
            assert lease is None
        await eventually(lambda: len(w.admissions) == 0)


async def test_2048_at_once_leave_nothing_when_their_workers_die() -> None:
    async with workers() as w:
        asked = [asyncio.create_task(w.followers[n % 2].acquire(f"s{n}", 100)) for n in range(2048)]
        await eventually(lambda: len(w.admissions) == 2048 and w.counts == (2044, 400))
        for channel in w.channels:
            channel.close()
        ends = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(end, NoTarget) for end in ends) == 2044
        await eventually(lambda: (len(w.admissions), w.counts, w.state.known) == (0, (0, 0), 0))
