"""Admission over several routers in front of one engine of 400 tokens: room that one gave away is not given again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.control.replicas.admission import SharedAdmission
from router.control.replicas.frames import decode_messages, decode_replica_frame, encode_replica_frame
from router.control.workers.messages import Message
from tests.router.request.admission.test_waiting import Scene


class Admitting(Scene):
    """A router. What it sends arrives at once at all others of `group` while it is not `cut_off`."""

    def __init__(self, run: str, group: dict[str, Admitting], **settings: Any) -> None:
        super().__init__(**settings)
        self.run = run
        self.group = group
        self.cut_off = False
        self.shared = SharedAdmission(self.queues, self.send, self.heard_runs)
        group[run] = self

    def heard_runs(self) -> list[str]:
        heard = [run for run, other in self.group.items() if other is not self and not other.cut_off]
        return [] if self.cut_off else heard

    def send(self, message: Message) -> None:
        for run in self.heard_runs():
            self.group[run].hear([message], self.run)

    def hear(self, messages: list[Message], run: str) -> None:
        frame = decode_replica_frame(encode_replica_frame("news", run, 0, 0.0, messages))
        assert frame is not None
        found, skipped = decode_messages(frame)
        assert skipped == 0
        for message in found:
            self.shared.apply(message, run)


def routers(*runs: str, **settings: Any) -> list[Admitting]:
    group: dict[str, Admitting] = {}
    made = [Admitting(run, group, **settings) for run in runs]
    look(*made)
    return made


def look(*routers: Admitting) -> None:
    for router in routers:
        router.shared.poll()


def meet(*routers: Admitting) -> None:
    """Each hears the state of all others, as after a partition."""
    for router in routers:
        router.cut_off = False
    look(*routers)
    states = [(router.run, [*router.shared.state()]) for router in routers]
    for router in routers:
        for run, state in states:
            if run != router.run:
                router.hear(state, run)


def lives(*routers: Admitting) -> list[float]:
    return [router.live for router in routers]


async def test_room_that_one_router_gave_away_is_given_by_another_when_it_is_free() -> None:
    a, b, c = routers("a", "b", "c")
    first = await a.acquire("one", 300)
    second = asyncio.create_task(b.acquire("two", 300))
    await asyncio.sleep(0)
    assert (lives(a, b), b.waiting, a.waiting) == ([300, 300], 1, 0)
    with first as lease:
        lease.on_placed("a/0", None)
        lease.on_first_byte()
        assert b.waiting == 1
    async with asyncio.timeout(2):
        with await second as lease:
            assert lives(a, b, c) == [300, 300, 300]
            b.answered(lease, 310)
    assert lives(a, b, c) == [315, 315, 315]


async def test_a_session_that_comes_to_another_router_is_the_same_session() -> None:
    a, b = routers("a", "b")
    with await a.acquire("one", 200) as lease:
        a.answered(lease, 200)
    with await b.acquire("one", 250) as lease:
        assert lives(a, b) == [250, 250]  # not 205 more
        assert lease.waited_s is None
        b.answered(lease, 250)
    assert lives(a, b) == [255, 255]


async def test_what_a_router_that_is_gone_had_begun_takes_no_room() -> None:
    a, b = routers("a", "b")
    await a.acquire("one", 300)
    waiting = asyncio.create_task(b.acquire("two", 300))
    await asyncio.sleep(0)
    assert b.waiting == 1
    a.cut_off = True
    look(b)
    async with asyncio.timeout(2):
        with await waiting:
            assert b.live == 300


async def test_after_a_partition_all_count_the_same_requests_and_sessions() -> None:
    a, b = routers("a", "b")
    ends_meanwhile, runs_on = await a.acquire("ends", 50), await a.acquire("runs on", 60)
    a.cut_off = True
    look(a, b)
    with ends_meanwhile as lease:
        a.answered(lease, 50)
    begun = await b.acquire("begun", 100)
    assert lives(a, b) == [55 + 60, 100]
    meet(a, b)
    assert lives(a, b) == [55 + 60 + 100] * 2
    meet(a, b)  # hearing it twice changes nothing
    assert lives(a, b) == [55 + 60 + 100] * 2
    with runs_on as lease, begun as other:
        a.answered(lease, 60)
        b.answered(other, 100)
    assert lives(a, b) == [55 + 65 + 105] * 2


async def test_requests_that_ended_unheard_end_with_the_next_state() -> None:
    a, b = routers("a", "b")
    lease = await a.acquire("one", 300)
    a.group.pop("b")  # messages to it are lost, though it is heard
    with lease:
        a.answered(lease, 300)
    assert b.live == 300
    a.group["b"] = b
    meet(a, b)
    assert lives(a, b) == [305, 305]


@pytest.mark.parametrize("rule", ["fit", "thunderagent", "progress_ttl", "concurrency"])
async def test_every_rule_counts_what_others_admit(rule: str) -> None:
    a, b = routers("a", "b", rule={"name": rule} | ({"per_target": 1} if rule == "concurrency" else {}))
    first = await a.acquire("one", 350)
    first.on_placed("a/0", None)
    second = asyncio.create_task(b.acquire("two", 350))
    await asyncio.sleep(0)
    assert not second.done()
    with first:
        pass
    b.house.clock.advance(400.0)  # until the last rule is due
    (queue,) = b.queues._queues.values()
    queue.release_waiting()
    async with asyncio.timeout(2):
        with await second:
            pass
