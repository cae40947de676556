"""Real engines load from the pool what the router says it holds: to the token, in nearly every request.

Two engines, a Mooncake Store of a few hundred blocks, and the router with its pool. Prompts are made to be in the pool
and not, or only in part, in the cache of the engine that gets them: the engine that computed them is drained, or has
lost its own cache. The tests run in order and share all of it; the last one says how many predictions were right.
"""

from __future__ import annotations

import pytest

from scorers.contract import Speed, Transfer
from tests.stack.bodies import CHAT, COMPLETIONS, Json
from tests.stack.engines import ADAPTER, BLOCK_TOKENS, MODEL
from tests.stack.over_store import OLDEST_S, Fetched, OverStore, Store, table
from tests.stack.prompts import assistant, ids, prose, user

pytestmark = pytest.mark.stack

POOL_BLOCKS = 768


def completion(ids: list[int], **other: object) -> Json:
    return {"prompt": ids, "max_tokens": 2, **other}


def saved_by(over: OverStore, store: Store, prompt: list[int], **other: object) -> str:
    """The engine that computed a new prompt, which is in the pool by now."""
    first = over.fetch("new", COMPLETIONS, completion(prompt, **other))
    assert first.delivered == 0
    over.saved(store, prompt)
    return first.asked.instance


def elsewhere(over: OverStore, kind: str, prompt: list[int], home: str, **other: object) -> Fetched:
    """Send it while the engine that computed the prompt is drained."""
    with over.without(home):
        return over.fetch(kind, COMPLETIONS, completion(prompt, **other))


def whole(prompt: list[int]) -> int:
    """Tokens of the blocks that an engine can load: the last token is always computed."""
    return (len(prompt) - 1) // BLOCK_TOKENS * BLOCK_TOKENS


def test_the_choice_of_expected_ttft(over: OverStore, store: Store) -> None:
    """Idle, who holds the prompt wins; with the holder drained, the other one's price is that of fetching."""
    prompt = ids("choice", 50 * BLOCK_TOKENS + 9)
    home = saved_by(over, store, prompt)
    again = over.fetch("local", COMPLETIONS, completion(prompt))
    assert (again.asked.instance, again.asked.predicted, again.predicted) == (home, whole(prompt), 0)
    assert again.right
    fetched = elsewhere(over, "elsewhere", prompt, home)
    assert fetched.predicted == whole(prompt)
    (row,) = fetched.asked.record["attempts"][-1]["candidates"]
    told = row["speed"]
    speed = Speed(**{**told, "pool": Transfer(**told["pool"])})
    assert speed.pool is not None
    fetching = speed.pool.base_ms + speed.pool.us_per_token * whole(prompt) / 1000
    rest = speed.prefill_ms(len(prompt) - whole(prompt), whole(prompt))
    assert row["cost"] == pytest.approx(fetching + rest)
    assert row["cost"] < speed.prefill_ms(len(prompt), 0) / 2


def test_prompts_of_any_length(over: OverStore, store: Store) -> None:
    for length in (130, 200, 257, 300, 500, 700, 900, 1100, 1500, 2000, 2600, 3300):
        prompt = ids(f"length {length}", length)
        found = elsewhere(over, "elsewhere", prompt, saved_by(over, store, prompt))
        assert found.predicted == whole(prompt)


def test_block_boundaries(over: OverStore, store: Store) -> None:
    for blocks in (2, 3, 5):
        for beyond in (-1, 0, 1):
            prompt = ids(f"boundary {blocks} {beyond}", blocks * BLOCK_TOKENS + beyond)
            found = elsewhere(over, "boundary", prompt, saved_by(over, store, prompt))
            assert found.predicted == whole(prompt)


def test_less_than_a_block_is_in_no_pool(over: OverStore) -> None:
    for length in (1, 50, BLOCK_TOKENS - 1, BLOCK_TOKENS):
        prompt = ids(f"short {length}", length)
        home = over.fetch("short", COMPLETIONS, completion(prompt)).asked.instance
        found = elsewhere(over, "short", prompt, home)
        assert (found.predicted, found.delivered) == (0, 0)


def test_an_engine_that_lost_its_cache(over: OverStore, store: Store) -> None:
    chats = [[user(prose(f"lost {number}", 150 + 40 * number))] for number in range(12)]
    for messages in chats:
        over.fetch("new", CHAT, {"messages": messages, "max_tokens": 2})
        over.saved(store, rendered(over, messages))
    for engine in over.engines:
        over.forget(engine)
    for number, messages in enumerate(chats):
        body = {"messages": messages, "max_tokens": 2, "stream": number % 2 == 0}
        assert over.fetch("lost its cache", CHAT, body).predicted == whole(rendered(over, messages))


def rendered(over: OverStore, messages: list[Json]) -> list[int]:
    return over.engines[0].render(CHAT, {"model": MODEL, "messages": messages})


def test_conversations_that_move(over: OverStore, store: Store) -> None:
    """To the other engine and back: what it holds of its own is used first, and the pool adds the rest."""
    for number in range(4):
        messages = [{"role": "system", "content": prose(f"moves {number}", 200)}]
        away = over.engines[number % 2].name
        for turn in range(6):
            messages.append(user(prose(f"turn {turn} {number}", 120)))
            with over.without(away):
                body = {"messages": messages, "max_tokens": 30, "ignore_eos": True, "stream": turn % 2 == 1}
                asked = over.fetch("conversation", CHAT, body).asked
            over.saved(store, rendered(over, messages))
            messages.append(assistant(asked.text))
            if turn % 2 == 1:
                away = asked.instance
        moved = over.fetched[-6:]
        assert moved[2].predicted
        assert moved[4].predicted
        assert moved[4].asked.predicted  # it was here before


def test_a_system_prompt_in_common(over: OverStore, store: Store) -> None:
    system = {"role": "system", "content": prose("common", 700)}
    home = over.fetch("new", CHAT, {"messages": [system, user("Hello")], "max_tokens": 2}).asked.instance
    over.saved(store, rendered(over, [system, user("Hello")]))
    (other,) = (engine for engine in over.engines if engine.name != home)
    for number in range(10):
        over.forget(other)
        with over.without(home):
            body = {"messages": [system, user(prose(f"own {number}", 100))], "max_tokens": 2}
            assert (over.fetch("system prompt", CHAT, body).predicted or 0) >= 4 * BLOCK_TOKENS


def test_salts_and_adapters_have_blocks_of_their_own(over: OverStore, store: Store) -> None:
    models = over.engines[0].get("/v1/models")["data"]
    (path,) = (model["root"] for model in models if model["id"] == ADAPTER)
    for number in range(4):
        prompt = ids(f"salted {number}", 400 + 100 * number)
        for kind, other, key in (
            ("salted", {"cache_salt": "x"}, {"salt": "x"}),
            ("adapter", {"model": ADAPTER}, {"adapter": (ADAPTER, path)}),
        ):
            home = over.fetch("new", COMPLETIONS, completion(prompt, **other)).asked.instance
            over.saved(store, prompt, **key)
            assert elsewhere(over, kind, prompt, home, **other).predicted == whole(prompt)
        assert elsewhere(over, "other salt", prompt, home, cache_salt="y").predicted == 0


def test_a_pool_that_evicts(over: OverStore, store: Store) -> None:
    """After all prompts so far, more than fit: what is left of them is predicted."""
    old = [ids(f"old {number}", (3 + number % 8) * BLOCK_TOKENS + 20) for number in range(24)]
    homes = [over.fetch("new", COMPLETIONS, completion(prompt)).asked.instance for prompt in old]
    over.saved(store, old[-1])
    crowd = 0
    while (left := sum(map(store.blocks, old))) > 100:  # of 156
        body = completion(ids(f"crowd {crowd}", 20 * BLOCK_TOKENS))
        over.engines[crowd % 2].post(COMPLETIONS, {"model": MODEL, **body})
        crowd += 1
        assert crowd < 100, "nothing is evicted"
    for prompt, home in zip(reversed(old), reversed(homes), strict=True):
        elsewhere(over, "evicting", prompt, home)
    print(f"\n{crowd} prompts of 20 blocks later {left} of 156 blocks were left")


def test_nearly_every_prediction_was_right(over: OverStore) -> None:
    """Counted are requests that came for something that was only in the pool, or was thought to be."""
    print(table(over.fetched))
    pooled = [one for one in over.fetched if one.delivered or one.predicted]
    right = sum(one.right for one in pooled)
    print(f"only in the pool: {right} of {len(pooled)} right; {len(over.fetched)} requests in all")
    assert len(pooled) >= 60
    assert right >= 0.95 * len(pooled)
    assert all(one.pool is not None and one.pool["age_s"] <= OLDEST_S for one in pooled)
