"""Real ZeroMQ sockets: live messages, replays in both shapes, and each event fault."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from router.clock import ManualClock
from router.kvcache.events import BlocksRemoved, EngineHash, Tier
from router.lab.emulator.kv_publisher import END, EventSockets, KvPublisher
from router.lab.emulator.options import EngineFaults, EngineOptions
from router.tasks import Tasks


class Bench:
    """A publisher and a subscriber that hears it."""

    def __init__(self, publisher: KvPublisher, subscriber: zmq.asyncio.Socket, context: zmq.Context[Any]) -> None:
        self.publisher = publisher
        self.faults = EngineFaults()
        self._subscriber = subscriber
        self._context = context

    def publish(self, *numbers: int) -> None:
        for number in numbers:
            self.publisher.publish([BlocksRemoved([EngineHash(number)], Tier.GPU, 0)])

    async def hear(self, count: int) -> list[int]:
        """The sequence numbers of the next messages."""
        return [int.from_bytes((await self.frames())[1], "big") for _ in range(count)]

    async def frames(self) -> list[bytes]:
        assert await self._subscriber.poll(5000), "nothing came"
        return await self._subscriber.recv_multipart()

    async def silent(self) -> bool:
        return not await self._subscriber.poll(30)

    async def replay(self, *requests: list[bytes]) -> list[list[bytes]]:
        """What comes back for these requests, sent one after the other, up to the first end marker."""
        asker = zmq.asyncio.Socket(self._context, zmq.DEALER)
        asker.connect(self.publisher.replay_endpoint)
        try:
            for request in requests:
                await asker.send_multipart(request)
            answers: list[list[bytes]] = []
            while not answers or answers[-1][-2] != END:
                assert await asker.poll(5000), "the replay does not end"
                answers.append(await asker.recv_multipart())
            return answers
        finally:
            asker.close(linger=0)


@asynccontextmanager
async def bench(**options: Any) -> AsyncIterator[Bench]:
    context: zmq.Context[Any] = zmq.Context()
    sockets = EventSockets()
    tasks = Tasks("test")
    holder: list[Bench] = []
    publisher = KvPublisher(
        sockets, EngineOptions(**options), options.get("ranks", 1) - 1, ManualClock(wall=8.5), lambda: holder[0].faults
    )
    subscriber = zmq.asyncio.Socket(context, zmq.SUB)
    subscriber.connect(publisher.endpoint.replace("*", "127.0.0.1"))
    subscriber.subscribe(options.get("topic", ""))
    holder.append(Bench(publisher, subscriber, context))
    tasks.spawn("replays", publisher.serve_replays())
    try:
        while not await subscriber.poll(2):  # until the subscription has arrived
            publisher.publish([])
        while await subscriber.poll(20):
            await subscriber.recv_multipart()
        publisher.restart()
        yield holder[0]
    finally:
        await tasks.close()
        publisher.close()
        subscriber.close(linger=0)
        context.term()
        sockets.close()


def sequences(answers: Sequence[Sequence[bytes]]) -> list[int]:
    return [int.from_bytes(frames[-2], "big", signed=True) for frames in answers]


async def test_a_message_is_topic_sequence_payload() -> None:
    async with bench(topic="kv@here", ranks=3) as it:
        it.publish(5)
        topic, sequence, payload = await it.frames()
        assert topic == b"kv@here"
        assert sequence == bytes(8)
        wall_s, events, rank = msgspec.msgpack.decode(payload)
        assert (wall_s, rank) == (8.5, 2)
        assert events == [{"type": "BlockRemoved", "block_hashes": [5], "medium": "GPU", "group_idx": 0}]


async def test_replays_what_was_asked_for_and_says_where_it_ends() -> None:
    async with bench() as it:
        it.publish(10, 11, 12, 13)
        live = [await it.frames() for _ in range(4)]
        answers = await it.replay([b"", (2).to_bytes(8, "big")])
        assert answers == [[b"", *live[2]], [b"", *live[3]], [b"", b"", END, b""]]


async def test_the_old_replay_has_no_topic() -> None:
    async with bench(replay_format="bare") as it:
        it.publish(10)
        live = await it.frames()
        assert await it.replay([b"", bytes(8)]) == [[b"", live[1], live[2]], [b"", END, b""]]


async def test_only_so_many_steps_are_kept() -> None:
    async with bench(replay_steps=2) as it:
        it.publish(10, 11, 12)
        assert sequences(await it.replay([b"", bytes(8)])) == [1, 2, -1]


async def test_a_malformed_request_is_not_answered_and_does_no_harm() -> None:
    async with bench() as it:
        it.publish(10)
        assert sequences(await it.replay([b"", b"short"], [b"one too many", b"", bytes(8)], [b"", bytes(8)])) == [0, -1]


async def test_dropped_messages_leave_a_gap_that_a_replay_fills() -> None:
    async with bench() as it:
        it.publish(1)
        it.faults = EngineFaults(drop_events=1.0)
        it.publish(2, 3)
        it.faults = EngineFaults()
        it.publish(4)
        assert await it.hear(2) == [0, 3]
        assert sequences(await it.replay([b"", (1).to_bytes(8, "big")])) == [1, 2, 3, -1]


async def test_duplicates() -> None:
    async with bench() as it:
        it.faults = EngineFaults(duplicate_events=1.0)
        it.publish(1, 2)
        assert await it.hear(4) == [0, 0, 1, 1]


async def test_a_reordered_message_comes_after_the_next() -> None:
    async with bench() as it:
        it.faults = EngineFaults(reorder_events=1.0)
        it.publish(1, 2, 3, 4)
        assert await it.hear(4) == [1, 0, 3, 2]


async def test_delayed_messages_come_later_and_in_order() -> None:
    async with bench() as it:
        it.faults = EngineFaults(delay_events_ms=60)
        it.publish(1, 2)
        assert await it.silent()
        assert await it.hear(2) == [0, 1]


async def test_chance_follows_from_the_seed() -> None:
    async def survivors(seed: int) -> list[int]:
        async with bench(seed=seed) as it:
            it.faults = EngineFaults(drop_events=0.5)
            it.publish(*range(40))
            it.faults = EngineFaults()
            it.publish(99)
            heard = await it.hear(1)
            while heard[-1] != 40:
                heard += await it.hear(1)
            return heard

    first = await survivors(1)
    assert 5 < len(first) < 36
    assert await survivors(1) == first
    assert await survivors(2) != first


async def test_a_wildcard_host_is_told_as_one() -> None:
    async with bench(host="0.0.0.0") as it:
        assert str(it.publisher.source()["endpoint"]).startswith("tcp://*:")


async def test_removals_may_be_hidden_and_the_clock_be_wrong() -> None:
    async with bench() as it:
        it.faults = EngineFaults(hide_removals=True, clock_offset_s=-3600.0)
        it.publish(1)
        assert msgspec.msgpack.decode((await it.frames())[2]) == [8.5 - 3600, [], 0]
