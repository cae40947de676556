"""A router in front of two emulated engines with a hybrid model: two groups with windows, beside full attention."""

from __future__ import annotations

import random
from typing import Any

from tests.e2e.chats import Chat, promises
from tests.fakes.engines import INSTANT, engine

HYBRID = INSTANT | {"sliding_windows": (64, 200), "blocks": 240}
REQUESTS = 120


async def test_each_promise_is_kept_with_shared_beginnings_turns_and_evictions(router: Any) -> None:
    dice = random.Random(1)
    async with engine(**HYBRID | {"seed": 1}) as a, engine(**HYBRID | {"seed": 2}) as b, router([a, b]) as r:
        chats: list[Chat] = []
        said = []
        for _ in range(REQUESTS):
            if len(chats) < 8:
                chats.append(Chat(r, f"system{dice.randrange(3)}", words=dice.choice((60, 200))))
            chat = dice.choice(chats)
            said.append(await chat.turn(max_tokens=dice.randrange(1, 40)))
            await r.hear()
            if dice.random() < 0.1:
                chats.remove(chat)
        assert all(one.ok for one in said)
        made = await promises(r, said)
        records = [await r.record(one.record) for one in said]
        assert min(one.gauges().cached_blocks for one in (a, b)) > 0.9 * HYBRID["blocks"], "full, so blocks are evicted"
    broken = [(number, one) for number, one in enumerate(made) if one.predicted != one.delivered]
    assert broken == []
    assert sum(one.delivered > 0 for one in made) > REQUESTS / 2
    attempts = [record["attempts"][0] for record in records]
    less = sum(one["predicted_tokens"] < one["expected_tokens"] for one in attempts)
    assert less > REQUESTS / 4, "full attention held more than was re-used"
    assert len({one.target for one in said}) == 2
