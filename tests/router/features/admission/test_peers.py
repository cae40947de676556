"""Admission over several processes in front of one engine of 400 tokens: one of a host decides for all of its workers,
and room that a host gave away is not given again by another.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from router.config.sections.clients import ServiceClassConfig
from router.control.duty import Duty
from router.control.peers.parts import Message
from router.errors import TooBusy
from router.features.admission.peers import (
    AGAIN_S,
    AdmissionAsked,
    AdmissionBegan,
    AdmissionEnded,
    AdmissionVerdict,
    SharedAdmission,
)
from router.features.admission.pending_request import HeldPrefix
from router.features.admission.waiting import AdmissionStage
from router.fleet.load import Booking
from router.kvcache.events import Key
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import UnknownIds
from router.tasks import Tasks
from router.tenants.tenant import ServiceClass, Tenant
from tests.fakes.engines import eventually
from tests.patience import PATIENCE_S
from tests.router.control.peers.memory_network import MemoryNetwork
from tests.router.features.admission.leased import Leased, enter
from tests.router.features.admission.test_waiting import Scene, a_prompt
from tests.router.scheduling.test_scheduler import IDS, KNOWN, page


class Process(Scene):
    """A process of a host. `duty`: run of the one that decides there."""

    def __init__(self, run: str, group: Group, host: str, duty: str, **settings: Any) -> None:
        super().__init__(**settings)
        self.run = run
        self.duty = Duty(run, held=run == duty)
        self.duty.follow(duty)
        self.peers = group.network.join(run, host)
        clock = self.house.clock
        self.shared = SharedAdmission(self.queues, self.duty, self.peers, group.tasks, clock)
        self.stage = AdmissionStage(self.queues, self.house.core.conversations, self.shared.acquire)
        self.peers.parts.append(self.shared)

    async def acquire(
        self, session: str, tokens: int | TokenizedPrompt | None, tenant: Tenant | None = None, **fields: Any
    ) -> Any:
        known: TokenizedPrompt | UnknownIds
        if tokens is None:
            known = UnknownIds("not_needed")
        elif isinstance(tokens, int):
            known = TokenizedPrompt([0] * tokens, True, "given", {}, 0.0, 0.0)  # type: ignore[arg-type]
        else:
            known = tokens
        arrived_s = self.house.clock.now()
        return Leased(await enter(self.stage, a_prompt(session, **fields), known, tenant, arrived_s))

    def begin(self, session: str, tokens: int | TokenizedPrompt | None, **fields: Any) -> asyncio.Task[Any]:
        return asyncio.create_task(self.acquire(session, tokens, **fields))

    @property
    def counts(self) -> tuple[int, float]:
        """Requests that wait, and tokens of live sessions."""
        states = [admission.state() for admission in self.queues]
        live = [state.live.context_tokens for state in states if state.live is not None]
        return sum(len(state.waiting) for state in states), sum(live)

    @property
    def known(self) -> int:
        (admission_of_m,) = self.queues
        return admission_of_m.state().known


class Group:
    """Processes of one or more hosts."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.tasks = Tasks("test")
        self.all: list[Process] = []

    def add(self, run: str, host: str, duty: str, **settings: Any) -> Process:
        process = Process(run, self, host, duty, **settings)
        self.all.append(process)
        return process

    def end(self, run: str, duty: str | None = None) -> None:
        """End a process; the one with the run `duty` then decides at its host."""
        host = self.network.members[run].host
        self.all = [process for process in self.all if process.run != run]
        for process in self.all:
            if process.peers.host == host:
                process.duty.follow(duty)
        self.network.end(run)

    def advance(self, seconds: float) -> None:
        for process in self.all:
            process.house.clock.advance(seconds)

    def lives(self) -> list[float]:
        return [process.counts[1] for process in self.all]

    async def quiet(self) -> None:
        """Wait until no request waits or runs anywhere."""
        await eventually(lambda: [process.counts for process in self.all] == [(0, 0)] * len(self.all))
        await self.decided()

    async def decided(self) -> None:
        """Wait until no request waits for a verdict."""
        await eventually(lambda: not any(process.shared._asking or process.shared._deciding for process in self.all))


@asynccontextmanager
async def host_of(*runs: str, **settings: Any) -> AsyncIterator[Group]:
    """The workers of one host, of which the first one decides."""
    group = Group()
    for run in runs:
        group.add(run, "host", runs[0], **settings)
    try:
        yield group
    finally:
        await group.tasks.close()


@asynccontextmanager
async def hosts(*runs: str, **settings: Any) -> AsyncIterator[Group]:
    """Hosts of one process each."""
    group = Group()
    for run in runs:
        group.add(run, f"host {run}", run, **settings)
    try:
        yield group
    finally:
        await group.tasks.close()


# several hosts


async def test_room_that_one_host_gave_away_is_given_by_another_when_it_is_free() -> None:
    async with hosts("a", "b", "c") as group:
        a, b, _ = group.all
        first = await a.acquire("one", 300)
        second = b.begin("two", 300)
        await eventually(lambda: b.counts == (1, 300))
        with first as lease:
            lease.place("a/0", None)
            lease.begin_answer()
            assert (a.waiting, b.waiting) == (0, 1)
        async with asyncio.timeout(PATIENCE_S):
            with await second as lease:
                assert group.lives() == [300, 300, 300]
                b.answered(lease, 310)
        assert group.lives() == [315, 315, 315]
        assert group.network.messages(AdmissionAsked) == [], "nobody waits for another host"


async def test_a_session_that_comes_to_another_host_is_the_same_session() -> None:
    async with hosts("a", "b") as group:
        a, b = group.all
        with await a.acquire("one", 200) as lease:
            a.answered(lease, 200)
        with await b.acquire("one", 250) as lease:
            assert group.lives() == [250, 250]  # not 205 more
            assert lease.waited_s is None
            b.answered(lease, 250)
        assert group.lives() == [255, 255]


async def test_what_a_host_that_is_gone_had_begun_takes_no_room() -> None:
    async with hosts("a", "b") as group:
        a, b = group.all
        await a.acquire("one", 300)
        waiting = b.begin("two", 300)
        await eventually(lambda: b.counts == (1, 300))
        group.network.end("a")
        async with asyncio.timeout(PATIENCE_S):
            with await waiting:
                assert b.live == 300


async def test_after_a_partition_all_count_the_same_requests_and_sessions() -> None:
    async with hosts("a", "b") as group:
        a, b = group.all
        ends_meanwhile, runs_on = await a.acquire("ends", 50), await a.acquire("runs on", 60)
        a.peers.cut_off.add("b")
        a.shared.forget("b")
        b.shared.forget("a")
        with ends_meanwhile as lease:
            a.answered(lease, 50)
        begun = await b.acquire("begun", 100)
        assert group.lives() == [55 + 60, 100]
        a.peers.cut_off.clear()
        for _ in range(2):  # to learn of it twice changes nothing
            group.network.meet("a")
            assert group.lives() == [55 + 60 + 100] * 2
        with runs_on as lease, begun as other:
            a.answered(lease, 60)
            b.answered(other, 100)
        assert group.lives() == [55 + 65 + 105] * 2


async def test_requests_whose_end_was_lost_end_with_the_next_state() -> None:
    async with hosts("a", "b") as group:
        a, b = group.all
        lease = await a.acquire("one", 300)
        group.network.mute.add("b")
        with lease:
            a.answered(lease, 300)
        assert b.live == 300
        group.network.mute.clear()
        group.network.meet("a")
        assert group.lives() == [305, 305]


@pytest.mark.parametrize("rule", ["fit", "thunderagent", "progress_ttl", "concurrency"])
async def test_every_rule_counts_what_others_admit(rule: str) -> None:
    settings = {"name": rule} | ({"per_target": 1} if rule == "concurrency" else {})
    async with hosts("a", "b", rule=settings) as group:
        a, b = group.all
        first = await a.acquire("one", 350)
        first.place("a/0", None)
        second = b.begin("two", 350)
        await eventually(lambda: b.counts[0] == 1)
        with first:
            pass
        b.house.clock.advance(400.0)  # until the last rule is due
        (queue,) = b.queues._queues.values()
        queue.release_waiting()
        async with asyncio.timeout(PATIENCE_S):
            with await second:
                pass


# workers of a host


async def test_the_worker_on_duty_decides_for_the_others_and_all_count_what_runs() -> None:
    async with host_of("a", "b", "c") as group:
        a, b, c = group.all
        first = await b.acquire("one", 300)
        assert first.waited_s is None
        second = c.begin("two", 300)
        await eventually(lambda: a.counts == (1, 300))
        assert (b.counts, c.counts) == ((0, 300), (0, 300)), "requests wait at the one that decides"
        group.advance(2.0)
        with first:
            pass  # nobody answered
        with await second as lease:
            assert (lease.waited_s, lease.rule) == (2.0, "fit")
            assert group.lives() == [300, 300, 300]
            lease.place("a/0", None)
            lease.begin_answer()
            c.answered(lease, 310)
        assert group.lives() == [315, 315, 315]
        assert a.waits == [("m", "new", "passed")]
        assert (b.waits, c.waits) == ([], [])
        assert len(group.network.messages(AdmissionAsked)) == 2
        assert len(group.network.messages(AdmissionBegan)) == 4, "each request, to two others"
        assert group.network.messages(AdmissionBegan, "a") == []


async def test_what_the_worker_on_duty_admits_itself_is_held_by_the_others() -> None:
    async with host_of("a", "b") as group:
        a, b = group.all
        first = await a.acquire("one", 300)
        second = b.begin("two", 300)
        await eventually(lambda: a.counts == (1, 300))
        with first as lease:
            a.answered(lease, 50)
        with await second as lease:
            b.answered(lease, 50)
        assert group.lives() == [110, 110]


async def test_other_hosts_hold_places_for_what_workers_admit() -> None:
    async with host_of("a", "b") as group:
        far = group.add("far", "another", "far")
        _, b, _ = group.all
        with await b.acquire("one", 300) as lease:
            lease.place("a/0", None)
            assert group.lives() == [300, 300, 300]
            waiting = far.begin("two", 300)
            await eventually(lambda: far.counts == (1, 300))
            b.answered(lease, 10)
        with await waiting:
            pass
        assert len(group.network.messages(AdmissionAsked)) == 1


async def test_the_verdict_says_which_targets_had_no_room() -> None:
    """One engine is full of prefill work, the other one has room."""
    async with host_of("a", "b", rule={"name": "saturation"}) as group:
        a, b = group.all
        for process in group.all:
            process.house.join("b")
            process.house.core.apply_metrics("b", {0: page(capacity_tokens=400)}, process.house.clock.now())
        bookings: list[Booking] = [a.house.target(id).load_book.book(200_000, 200_000) for id in ("a/0", "b/0")]
        waiting = b.begin("one", 100)
        await eventually(lambda: a.counts[0] == 1)
        bookings[1].release()
        a.queues.queue_of("m").release_waiting()  # type: ignore[union-attr]
        with await waiting as lease:
            assert lease.full == {"a/0"}


async def test_a_session_is_one_session_whichever_workers_its_requests_reach() -> None:
    async with host_of("a", "b", "c") as group:
        for tokens, process in zip((100, 150, 200, 250), [*group.all, group.all[1]], strict=True):
            with await process.acquire("one", tokens) as lease:
                process.answered(lease, tokens)
            assert group.lives() == [tokens + 5] * 3
        assert [process.known for process in group.all] == [1, 1, 1]


async def test_what_sessions_of_two_workers_share_is_charged_once() -> None:
    """Prompts of 1,600 tokens in blocks of 512, of which the first two are the same: 1600 + 576."""
    async with host_of("a", "b", "c") as group:
        for process in group.all:
            process.house.core.apply_metrics("a", {0: page(capacity_tokens=4000)}, process.house.clock.now())
        for number, process in enumerate(group.all[1:]):
            keys = [Key(1), Key(2), Key(3 + number)]
            known = TokenizedPrompt(array("I", [0] * 1600), True, "given", {512: keys}, 0.0, 0.0)
            lease = await process.acquire("xy"[number], known)
            lease.place("a/0", None)
        assert group.lives() == [1600 + 576] * 3


async def test_a_client_that_leaves_while_it_waits_leaves_nothing_in_the_queue() -> None:
    async with host_of("a", "b") as group:
        a, b = group.all
        first = await a.acquire("one", 300)
        second = b.begin("two", 300)
        await eventually(lambda: a.counts == (1, 300))
        second.cancel()
        await asyncio.wait([second])
        await eventually(lambda: a.counts == (0, 300))
        assert a.waits == [("m", "new", "client_gone")]
        with first:
            pass
        await group.quiet()


async def test_a_client_that_leaves_just_when_it_is_admitted_gives_the_place_back() -> None:
    async with host_of("a", "b") as group:
        a, b = group.all
        second, apply = b.begin("two", 300), b.shared.apply

        def cancel_then(message: Message, run: str) -> None:
            apply(message, run)
            if isinstance(message, AdmissionVerdict):
                second.cancel()  # its task has not run since

        b.shared.apply = cancel_then  # type: ignore[method-assign]
        await asyncio.wait([second])
        assert second.cancelled()
        await group.quiet()
        assert a.known == 0


async def test_a_client_that_leaves_while_the_verdict_is_on_its_way_gives_the_place_back() -> None:
    async with host_of("a", "b") as group:
        a, b = group.all
        second = b.begin("two", 300)
        await asyncio.sleep(0)
        with group.network.held():
            await eventually(lambda: a.counts == (0, 300))
            second.cancel()
            await asyncio.wait([second])
        await group.quiet()


async def test_a_verdict_for_a_client_that_has_left_unheard_gives_the_place_back() -> None:
    async with host_of("a", "b") as group:
        a, b = group.all
        second = b.begin("two", 300)
        await asyncio.sleep(0)
        with group.network.held():
            await eventually(lambda: a.counts == (0, 300))
            second.cancel()
            await asyncio.wait([second])
            group.network.drop(AdmissionEnded)
        assert len(group.network.messages(AdmissionEnded)) == 2, "sent again when the verdict came"
        await group.quiet()


async def test_a_wait_that_is_too_long_is_refused_with_the_words_of_the_one_that_decides() -> None:
    async with host_of("a", "b", max_wait_s=0.02) as group:
        a, b = group.all
        first = await a.acquire("one", 300)
        second = b.begin("two", 300)
        await eventually(lambda: a.counts == (1, 300))
        group.advance(0.03)
        with pytest.raises(TooBusy, match="number 1 in the queue") as refused:
            await second
        assert (refused.value.code, refused.value.retry_after_s) == ("no_room", 1)
        with first:
            pass
        await group.quiet()


async def test_a_worker_that_ends_gives_its_places_back_and_leaves_the_queue() -> None:
    async with host_of("a", "b", "c") as group:
        a, b, c = group.all
        await b.acquire("one", 300)
        waiting = [process.begin(name, 300) for process, name in ((b, "two"), (c, "three"))]
        await eventually(lambda: a.counts == (2, 300))
        group.end("b", "a")
        lease = await waiting[1]
        assert group.lives() == [300, 300]
        with lease:
            pass
        await group.quiet()
        assert [process.known for process in (a, c)] == [0, 0]
        waiting[0].cancel()
        await asyncio.wait(waiting[:1])


async def test_when_the_one_that_decides_ends_the_next_one_knows_what_runs_and_those_that_wait_query_it() -> None:
    async with host_of("a", "b", "c") as group:
        _, b, c = group.all
        first = await c.acquire("one", 300)
        waiting = [process.begin(name, 300) for process, name in ((b, "two"), (c, "three"))]
        await eventually(lambda: group.all[0].counts == (2, 300))
        group.end("a", "b")
        await eventually(lambda: b.counts == (2, 300))
        with first:
            pass
        ended = 0
        async with asyncio.timeout(PATIENCE_S):
            for each in waiting:
                with await each:
                    ended += 1
                    assert group.lives() == [300, 300]
        assert ended == 2
        await group.quiet()


async def test_while_nobody_decides_each_worker_does_for_itself() -> None:
    async with host_of("a", "b", "c") as group:
        _, b, c = group.all
        await c.acquire("one", 300)
        waiting = b.begin("two", 300)
        await eventually(lambda: group.all[0].counts == (1, 300))
        group.end("a", None)
        await eventually(lambda: b.counts == (1, 300))
        group.end("c", None)
        with await waiting:
            pass


@pytest.mark.parametrize("lost", ["query", "verdict"])
async def test_a_query_or_a_verdict_that_was_lost_is_sent_again(lost: str) -> None:
    async with host_of("a", "b") as group:
        a, b = group.all
        group.network.mute.add("a" if lost == "query" else "b")
        waiting = b.begin("one", 300)
        await eventually(lambda: group.network.messages(AdmissionAsked))
        await eventually(lambda: a.counts == (0, 0.0 if lost == "query" else 300.0))
        b.shared.ask_again()
        assert len(group.network.messages(AdmissionAsked)) == 1, "not so soon"
        group.network.mute.clear()
        group.advance(AGAIN_S)
        b.shared.ask_again()
        async with asyncio.timeout(PATIENCE_S):
            with await waiting:
                assert group.lives() == [300, 300]
        await group.quiet()


async def test_a_query_that_is_repeated_waits_once() -> None:
    async with host_of("a", "b") as group:
        a, b = group.all
        first = await a.acquire("one", 300)
        waiting = b.begin("two", 300)
        await eventually(lambda: a.counts == (1, 300))
        for _ in range(3):
            group.advance(AGAIN_S)
            b.shared.ask_again()
        await asyncio.sleep(0)
        assert a.counts == (1, 300)
        with first:
            pass
        with await waiting as lease:
            assert lease.waited_s == 3 * AGAIN_S
        await group.quiet()


async def test_a_query_says_what_time_its_deadline_leaves_then() -> None:
    async with host_of("a", "b") as group:
        b = group.all[1]
        group.network.mute.add("a")
        waiting = b.begin("one", 10, ttft_ms=10_000)
        await eventually(lambda: group.network.messages(AdmissionAsked))
        group.advance(4.0)
        b.shared.ask_again()
        assert [asked.left_s for asked in group.network.messages(AdmissionAsked)] == [10.0, 6.0]
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_a_client_that_left_unheard_leaves_the_queue_with_the_next_state() -> None:
    async with host_of("a", "b") as group:
        a, b = group.all
        first = await a.acquire("one", 300)
        waiting = b.begin("two", 300)
        await eventually(lambda: a.counts == (1, 300))
        group.network.mute.add("a")
        waiting.cancel()
        await asyncio.wait([waiting])
        group.network.mute.clear()
        assert a.counts == (1, 300)
        group.network.send_state("b", "a")
        await eventually(lambda: a.counts == (0, 300))
        with first:
            pass
        await group.quiet()


async def test_after_a_gap_between_workers_all_count_the_same() -> None:
    async with host_of("a", "b", "c") as group:
        _, b, c = group.all
        first = await b.acquire("one", 100)
        first.place("a/0", 10)
        with await c.acquire("two", 50) as lease:
            c.answered(lease, 50)
        late = group.add("d", "host", "a")
        group.network.meet("d")
        group.network.meet("d")
        assert group.lives() == [155] * 4
        waiting = late.begin("three", 300)
        await eventually(lambda: group.all[0].counts[0] == 1)
        with first as lease:
            b.answered(lease, 10)
        with await waiting:
            assert group.lives() == [370] * 4


@pytest.mark.parametrize("held", [True, False])
async def test_a_query_says_what_instances_hold_of_the_prompt_only_when_that_matters(held: bool) -> None:
    """Of 40 tokens 36 can be used. After 390 tokens of another session nothing fits: a turn whose context some instance
    holds begins, another one is parked.
    """
    async with host_of("a", "b", "c") as group:
        a, b, c = group.all
        if held:
            for process in group.all:
                process.house.stored("a/0")
        with await b.acquire("s", KNOWN) as lease:
            b.answered(lease, len(IDS))
        assert a.counts == (0, len(IDS) + 5)
        assert [asked.held for asked in group.network.messages(AdmissionAsked)] == [None]
        big = await b.acquire("big", 355)
        turn = c.begin("s", KNOWN)
        if held:
            with await turn as lease:
                assert lease.waited_s is None
        else:
            await eventually(lambda: a.counts[0] == 1)
            (admission_of_m,) = a.queues
            assert [queued.admission.queue for queued in admission_of_m.state().waiting] == ["parked"]
        found = HeldPrefix(36, ("a/0",)) if held else HeldPrefix(0, ())
        assert group.network.messages(AdmissionAsked)[-1].held == found
        with big:
            pass
        with await turn if not held else await c.acquire("t", None):
            pass


async def test_requests_begin_when_admission_is_turned_off() -> None:
    async with host_of("a", "b") as group:
        a, b = group.all
        first = await b.acquire("one", 300)
        second = b.begin("two", 300)
        await eventually(lambda: a.counts == (1, 300))
        a.switch(enabled=False)
        late = await b.acquire("three", 300)  # of a worker that has not applied the switch
        with first, await second, late as lease:
            assert lease is None
        b.switch(enabled=False)
        with await b.acquire("four", 300) as lease:
            assert lease is None
        await group.decided()


async def test_what_a_request_claims_reaches_all() -> None:
    async with host_of("a", "b") as group:
        b = group.all[1]
        tenant = Tenant("acme", ServiceClass("gold", ServiceClassConfig(weight=3.0)))
        with await b.acquire("one", 100, tenant, priority=-2):
            (asked,) = group.network.messages(AdmissionAsked)
            (began,) = group.network.messages(AdmissionBegan)
        assert (asked.tenant, asked.weight, asked.priority, asked.left_s) == ("acme", 3.0, -2, None)
        assert (began.tenant, began.weight) == ("acme", 3.0)


async def test_2048_at_once_leave_nothing_when_their_workers_end() -> None:
    async with host_of("a", "b", "c") as group:
        a, b, c = group.all
        asked = [(b, c)[n % 2].begin(f"s{n}", 100) for n in range(2048)]
        await eventually(lambda: a.counts == (2044, 400))
        group.end("b", "a")
        group.end("c", "a")
        await eventually(lambda: (a.counts, a.known) == ((0, 0), 0))
        for each in asked:
            each.cancel()
        await asyncio.wait(asked)
        assert group.network.messages(AdmissionEnded, "a") == []
