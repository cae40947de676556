"""Slots go round, and none is lost, whatever ends a wait."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from router.prompt.tokenization.fair_slots import FairSlots


async def begin(slots: FairSlots, client: str) -> asyncio.Task[None]:
    task = asyncio.create_task(slots.take(client))
    await asyncio.sleep(0)
    return task


async def test_one_client_leaves_a_slot_for_the_next() -> None:
    slots = FairSlots(3)
    mine = [await begin(slots, "a") for _ in range(10)]
    assert [task.done() for task in mine] == [True, True] + [False] * 8
    other = await begin(slots, "b")
    assert other.done()
    slots.give_back("a")
    await asyncio.sleep(0)
    assert [task.done() for task in mine] == [True, True] + [False] * 8, "with another's, its share is one"
    slots.give_back("b")
    await asyncio.sleep(0)
    assert sum(task.done() for task in mine) == 3
    for task in mine:
        task.cancel()


async def test_clients_that_wait_take_turns() -> None:
    slots, order = FairSlots(1), list[str]()

    async def work(client: str) -> None:
        await slots.take(client)
        order.append(client)
        await asyncio.sleep(0)
        slots.give_back(client)

    await asyncio.gather(*(work(client) for client in "aaaabbc"))
    assert order == list("aabcaba")


@pytest.mark.parametrize("seed", range(20))
async def test_no_slot_is_lost_by_waits_that_are_given_up(seed: int) -> None:
    random, slots, inside = Random(seed), FairSlots(4), list[str]()

    async def work(client: str) -> None:
        await slots.take(client)
        try:
            inside.append(client)
            assert len(inside) <= 4
            for _ in range(random.randrange(4)):
                await asyncio.sleep(0)
        finally:
            inside.remove(client)
            slots.give_back(client)

    tasks = []
    for _ in range(200):
        tasks.append(asyncio.create_task(work(random.choice("abc"))))
        if random.random() < 0.4:
            random.choice(tasks).cancel()
        for _ in range(random.randrange(3)):
            await asyncio.sleep(0)
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(end) for end in ends} <= {type(None), asyncio.CancelledError}
    assert slots._share.taken == 0
    assert not slots._waiting
