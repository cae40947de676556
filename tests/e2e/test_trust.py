"""Engines whose events are wrong or stop: how many answers it takes until what is expected of them is right again.

One engine and some chats, a request at a time: at a request per second the answers are seconds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from router.fleet.instance import Target
from tests.e2e.chats import Chat, chats
from tests.e2e.conftest import Router
from tests.fakes.engines import FakeEngine, engine

CHATS = 8
ANSWERS = 5  # within which expectations are right again
MOST_ANSWERS = 500  # in the second without an event after which a stream counts as silent
BLOCK = 16


class House(NamedTuple):
    """A router, its only engine, and chats that the engine has cached."""

    router: Router
    fake: FakeEngine
    talks: list[Chat]

    @property
    def target(self) -> Target:
        (instance,) = self.router.core.fleet
        return instance.targets[0]

    @property
    def accuracy(self) -> Any:
        return self.target.overlap_accuracy

    @property
    def sequencer(self) -> Any:
        return self.router.core.indexer.sequencer(self.target.id)

    async def count_wrong(self, answers: int) -> list[int]:
        """Give so many answers, to the chats in turn; return the numbers of those that were expected to find more in
        the cache than they did, or much less.
        """
        wrong = []
        for number in range(answers):
            said = await self.talks[number % CHATS].turn(max_tokens=BLOCK + 4)
            assert said.ok
            record = await self.router.record(said.record)
            expected, found = record["attempts"][-1]["expected_tokens"] or 0, record["cached_tokens"]  # unknown: 0
            if abs(expected - found) > BLOCK:
                wrong.append(number + 1)
        return wrong


@pytest.fixture
async def house(router: Any) -> AsyncIterator[House]:
    async with engine() as fake, router([fake]) as r:
        made = House(r, fake, chats(r, "talk", CHATS))
        await made.count_wrong(CHATS)
        await r.hear()
        assert await made.count_wrong(CHATS) == []
        yield made


async def test_a_cache_that_was_dropped_without_an_event(house: House, caplog: pytest.LogCaptureFixture) -> None:
    """Two answers with a proof make the router forget the index: the blocks of the other chats, which are gone as well,
    are expected no more, and those of the first chats, which were computed again, not at once.
    """
    house.fake.faults(hide_removals=True)
    (await house.router.http.post(f"{house.fake.url}/reset_prefix_cache")).raise_for_status()
    assert max(await house.count_wrong(CHATS)) <= ANSWERS
    assert max(await house.count_wrong(CHATS)) <= ANSWERS
    assert await house.count_wrong(CHATS) == []
    assert house.accuracy.trusted
    assert house.accuracy.contradictions == 1
    assert await house.router.metric("warmroute_stream_contradictions_total") == 1
    assert "answers contradict its events" in caplog.text


async def test_events_that_stop(house: House) -> None:
    house.fake.faults(drop_events=1.0)
    wrong, answers = [], 0
    while not house.sequencer.silent:
        wrong += await house.count_wrong(1)
        answers += 1
        assert answers < MOST_ANSWERS
    wrong += await house.count_wrong(2 * CHATS)
    assert len(wrong) <= ANSWERS
    assert await house.router.metric("warmroute_stream_trusted") == 0
    house.fake.faults(drop_events=0.0)
    assert len(await house.count_wrong(2 * CHATS)) <= 1
    assert house.sequencer.trusted


async def test_an_engine_that_restarts_empty(house: House) -> None:
    house.fake.restart()
    assert len(await house.count_wrong(2 * CHATS)) <= ANSWERS
    assert await house.count_wrong(CHATS) == []
    assert house.accuracy.trusted
