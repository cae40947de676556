"""Failures below the router, on the real stack: no request fails, and what is not known is reported as unknown.

One stack for all, in an order in which each test leaves it intact for the next: first wrong configurations, then a pool
that changes without the router, then processes that are killed and come back.
"""

from __future__ import annotations

import re
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.stack.behind import running
from tests.stack.bodies import CHAT, COMPLETIONS, Json
from tests.stack.children import until
from tests.stack.engines import BLOCK_TOKENS, MODEL, Engine
from tests.stack.over_store import DEADLINE_MS, OLDEST_S, TTL_MS, Fetched, OverStore, Store, reset, table
from tests.stack.prompts import assistant, ids, prose, user

pytestmark = pytest.mark.stack

POOL_BLOCKS = 512

WRONG_HASHES = {  # known from what the engines announced before the router came
    "block_tokens": (64, "but the engines store blocks of 128 tokens: set it to 128"),
    "hash_algo": ("sha256", "but the engines hash by sha256_cbor: set it"),
    "hash_seed": ("0", "but the engines hash without PYTHONHASHSEED: leave it out"),
}
WRONG_KEYS = {  # known from the first prompt that comes
    "cache_prefix": ("other", "set cache_prefix to '' (not 'other')"),
    "name": ("mid", "set name to 'tiny' (not 'mid')"),
    "tensor_parallel": (2, "set tensor_parallel to 1 (not 2)"),
}


def completion(prompt: list[int]) -> Json:
    return {"prompt": prompt, "max_tokens": 4, "temperature": 0}


def ask(over: OverStore, kind: str, prompt: list[int]) -> Fetched:
    return over.fetch(kind, COMPLETIONS, completion(prompt))


def elsewhere(over: OverStore, kind: str, prompt: list[int], home: str) -> Fetched:
    with over.without(home):
        return ask(over, kind, prompt)


def saved(over: OverStore, store: Store, prompt: list[int]) -> Fetched:
    """A new prompt, computed by an engine that has put it into the pool."""
    first = ask(over, "new", prompt)
    over.saved(store, prompt)
    return first


def usable(over: OverStore, store: Store, name: str) -> None:
    """The pool is in use again: a prompt that one engine computes, the other one fetches, and that was foretold."""
    prompt = ids(name, 3 * BLOCK_TOKENS + 5)
    fetched = elsewhere(over, name, prompt, saved(over, store, prompt).asked.instance)
    assert (fetched.predicted, fetched.delivered) == (3 * BLOCK_TOKENS, 3 * BLOCK_TOKENS)


def test_a_wrong_configuration_is_named_in_one_line(
    pooling: list[Engine], store: Store, over: OverStore, model: Path, tmp_path: Path
) -> None:
    """Each in a router of its own, in front of the same engines."""
    usable(over, store, "the right one")
    with ExitStack() as opened:
        wrong = {
            setting: opened.enter_context(
                running(OverStore(setting, pooling, model, tmp_path, {"models": {MODEL: {setting: value}}}))
            )
            for setting, (value, _) in (WRONG_HASHES | WRONG_KEYS).items()
        }
        for router in wrong.values():
            router.wait()
        for setting, (_, said) in WRONG_HASHES.items():
            named(wrong[setting], said)
        asked_at = time.monotonic()
        prompts = {setting: ids(f"wrong {setting}", 3 * BLOCK_TOKENS + 5) for setting in wrong}
        homes = {setting: saved(wrong[setting], store, prompt).asked.instance for setting, prompt in prompts.items()}
        for setting, (_, said) in WRONG_KEYS.items():
            named(wrong[setting], said)
        print(f"\nwrong keys are named within {time.monotonic() - asked_at:.1f} s")
        for setting, router in wrong.items():
            one = elsewhere(router, setting, prompts[setting], homes[setting])
            assert (one.pool, one.predicted, one.delivered) == (None, None, 3 * BLOCK_TOKENS)


def named(router: OverStore, said: str) -> None:
    """Its admin page and its log say what is wrong, once."""
    until(f"`{said}` is named", lambda: trouble(router) is not None, 30.0)
    line = trouble(router)
    assert line is not None
    assert line.startswith(f"pool.models.{MODEL}")
    assert said in line
    logged = [one for one in router.child.log.read_text().splitlines() if f"pool.models.{MODEL}" in one]
    assert len(logged) == 1, logged
    assert logged[0].endswith(line)


def trouble(router: OverStore) -> str | None:
    return next((model["trouble"] for model in router.told()["models"]), None)


def test_a_pool_that_is_wiped_is_followed(over: OverStore, store: Store) -> None:
    prompts = [ids(f"wiped {number}", 2 * BLOCK_TOKENS + 5) for number in range(14)]
    homes = [ask(over, "new", prompt).asked.instance for prompt in prompts]
    for prompt in prompts:
        over.saved(store, prompt)
    (engine,) = (engine for engine in over.engines if engine.name == homes[0])
    until("the pool is wiped", lambda: reset(engine, reset_external="true"))
    wiped_at = time.monotonic()
    assert not any(map(store.blocks, prompts))
    late = []
    for prompt, home in zip(prompts, homes, strict=True):
        asked_at = time.monotonic()
        with over.without(home):
            one = ask(over, "wiped", prompt)
        if 1000 * (asked_at - wiped_at) > TTL_MS:
            late.append(one)
    print(f"\n{len(late)} asked more than {TTL_MS} ms later{table(over.fetched[-14:])}")
    assert late
    assert all((one.predicted, one.delivered) == (0, 0) for one in late)


def test_a_full_pool_that_evicts_is_followed(over: OverStore, store: Store) -> None:
    """Predictions may be as old as their TTL: right are those that were asked for later than that."""
    prompts = [ids(f"evicted {number}", 6 * BLOCK_TOKENS + 5) for number in range(12)]
    homes = [saved(over, store, prompt).asked.instance for prompt in prompts]
    crowd = 0
    while (left := sum(map(store.blocks, prompts))) > 48:  # of 72
        body = {"model": MODEL, "prompt": ids(f"crowd {crowd}", 20 * BLOCK_TOKENS), "max_tokens": 1}
        over.engines[crowd % 2].post(COMPLETIONS, body)
        crowd += 1
        assert crowd < 100, "nothing is evicted"
    asked = [elsewhere(over, "evicted", *of) for of in zip(reversed(prompts), reversed(homes), strict=True)]
    print(f"\n{crowd} prompts of 20 blocks later {left} of 72 blocks were left{table(asked)}")
    assert all(one.pool is not None and one.pool["age_s"] <= OLDEST_S for one in asked)
    assert sum(one.right for one in asked) >= len(asked) - 1  # one may be evicted between the two looks at it


def test_an_instance_is_killed(over: OverStore, store: Store) -> None:
    """Its sessions go on at the other one, which fetches what the dead one had computed."""
    sessions = [[user(prose(f"session {number}", 300))] for number in range(6)]
    homes = [turn(over, store, messages).asked.instance for messages in sessions]
    dead = homes[0]
    stack = over.engine(dead).stack
    stack.kill(dead)
    killed_at = time.monotonic()
    for messages, home in zip(sessions, homes, strict=True):
        if home == dead:
            messages.append(user("And then?"))
            body = {"messages": messages, "max_tokens": 8}
            one = over.fetch("killed", CHAT, body)
            assert one.asked.instance != dead
            assert one.delivered >= 2 * BLOCK_TOKENS
    served = time.monotonic() - killed_at
    until(f"{dead} is down", lambda: over.state(dead) == "down")
    moved = homes.count(dead)
    print(f"\n{moved} sessions served elsewhere within {served:.1f} s{table(over.fetched[-moved:])}")
    stack.start(dead)
    over.engine(dead).wait()
    until(f"{dead} is ready", lambda: over.state(dead) == "ready", 30.0)
    usable(over, store, "after an instance")


def turn(over: OverStore, store: Store, messages: list[Json]) -> Fetched:
    one = over.fetch("new", CHAT, {"messages": messages, "max_tokens": 8})
    over.saved(store, over.engines[0].render(CHAT, {"model": MODEL, "messages": messages}))
    messages.append(assistant(one.asked.text))
    return one


def test_the_master_is_killed(over: OverStore, store: Store) -> None:
    """Engines wait 4.3 s for a dead master with each prompt of a block or more, and then compute. The router does not
    wait, and says so. When the master is back, so is the memory's owner, by itself.
    """
    prompt = ids("before the master", 3 * BLOCK_TOKENS + 5)
    home = saved(over, store, prompt).asked.instance
    stack = over.engines[0].stack
    stack.kill("master")
    unknown = sum(map(over.answers, ("silent", "no_leader")))
    bodies = [completion(ids(f"no master {number}", 300)) for number in range(3)]
    asked = [over.send(COMPLETIONS, body) for body in bodies]
    with over.without(home):
        asked.append(over.send(COMPLETIONS, completion(prompt)))
    for one in asked:
        (attempt,) = one.record["attempts"]
        assert (one.record["status"], attempt["end"], attempt["pool_tokens"]) == (200, "ok", None)
        assert one.record["stages"]["pool_ms"] < DEADLINE_MS
    assert sum(map(over.answers, ("silent", "no_leader"))) == unknown + 4
    assert over.told()["leader"] is None
    spent = [(f"{one.record['stages']['pool_ms']:.1f}", f"{one.record['duration_ms']:.0f}") for one in asked]
    print("\nno master, ms for the pool and in all:", spent)
    started_at = time.monotonic()
    stack.start("master")
    stack.wait("master")
    until("the router follows the master again", lambda: over.told()["leader"] is not None)
    led = time.monotonic() - started_at
    until("the memory's owner is back", lambda: store.capacity_bytes() > 0, 60.0)
    print(f"leads after {led:.1f} s, has memory after {time.monotonic() - started_at:.1f} s")
    usable(over, store, "after the master")


def test_the_owner_of_the_memory_is_killed(over: OverStore, store: Store) -> None:
    """The master does not know for a while, so blocks are promised that nobody can load: engines compute them."""
    prompts = [ids(f"before the client {number}", 3 * BLOCK_TOKENS + 5) for number in range(3)]
    before = [saved(over, store, prompt) for prompt in prompts]
    stack = over.engines[0].stack
    stack.kill("client")
    killed_at = time.monotonic()
    for prompt, first in zip(prompts, before, strict=True):
        again = elsewhere(over, "no client", prompt, first.asked.instance)
        assert again.asked.text == first.asked.text
    new = ask(over, "no client", ids("after the client", 300))
    print("\nno client:", [f"{one.asked.record['duration_ms']:.0f} ms" for one in (*over.fetched[-4:-1], new)])
    until("the master drops what is lost", lambda: not any(map(store.blocks, prompts)), 60.0)
    print(f"the master drops the blocks after {time.monotonic() - killed_at:.1f} s{table(over.fetched[-4:])}")
    started_at = time.monotonic()
    stack.start("client")
    stack.wait("client")
    usable(over, store, "after the client")
    print(f"usable after {time.monotonic() - started_at:.1f} s")


def test_nothing_failed(over: OverStore) -> None:
    assert all(one.asked.record["status"] == 200 for one in over.fetched)
    page = over.http.get("/metrics").text
    kinds = dict(re.findall(r'warmroute_pool_answers_total\{answer="(\w+)"\} (\S+)', page))
    print("\nanswers of the pool:", kinds)
    assert {"held", "nothing", "no_leader"} <= set(kinds)
