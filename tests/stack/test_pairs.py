"""Prefill and decode on two real engines: the answers of one alone, and what becomes of them when one of two dies.

First engine to engine, then the same pair with a Mooncake Store beneath it. `prefix_overlap` places requests, and a
prompt of which the decode engine would have to compute 256 tokens or more is computed by the prefill engine.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import httpx
import pytest

from router.lab.local_stack.commands import decode, prefill
from router.lab.local_stack.install import Models
from router.lab.local_stack.preflight import free_ports
from router.lab.local_stack.supervisor import RunningStack
from tests.stack.behind import Asked, Behind, running
from tests.stack.bodies import CHAT, COMPLETIONS, Json
from tests.stack.children import until
from tests.stack.engines import BLOCK_TOKENS, MODEL, Engine, small_stack
from tests.stack.over_store import STORE, OverStore, Store, external_hits, reset
from tests.stack.prompts import ids, prose, user

pytestmark = pytest.mark.stack

POLICY: Json = {"scorers": [{"name": "prefix_overlap"}], "prefill_from_tokens": 256}
BODIES: dict[str, tuple[str, Json]] = {
    "ids": (COMPLETIONS, {"prompt": ids("pair", 700), "max_tokens": 24}),
    "long": (COMPLETIONS, {"prompt": ids("long pair", 3000), "max_tokens": 24}),
    "text": (COMPLETIONS, {"prompt": prose("pair", 400), "max_tokens": 24}),
    "chat": (CHAT, {"messages": [user(prose("pair chat", 300))], "max_tokens": 24}),
    "stream": (CHAT, {"messages": [user(prose("pair stream", 500))], "max_tokens": 24, "stream": True}),
    "boundary": (COMPLETIONS, {"prompt": ids("pair boundary", 4 * BLOCK_TOKENS), "max_tokens": 24}),
}
OVER_STORE = "peers over a store"
GREEDY = {"temperature": 0, "ignore_eos": True}


class Pair:
    """A prefill and a decode engine, and the router in front of them."""

    def __init__(self, behind: Behind, model: Path) -> None:
        self.behind = behind
        self.model = model
        self.p, self.d = behind.engines

    def ask(self, path: str, body: Json) -> Asked:
        return self.behind.send(path, body | GREEDY)

    def alone(self, path: str, body: Json) -> str:
        """Return the decode engine's own answer, without leaving the prompt in its cache."""
        answer = self.d.post(path, {"model": MODEL, **body, **GREEDY, "stream": False})
        until("the decode engine has reset its cache", lambda: reset(self.d))
        self.behind.hear(self.d)
        (choice,) = answer["choices"]
        return str(choice["text"] if path == COMPLETIONS else choice["message"]["content"])

    def engine_id(self) -> str:
        """Return the prefill engine's id, which is new at every start."""
        url = self.p.instance()["transfer"]["bootstrap_url"]
        (rank,) = httpx.get(f"{url}/query").raise_for_status().json().values()
        return str(rank["engine_id"])


@pytest.fixture(scope="module", params=["peers", OVER_STORE])
def pair(
    request: pytest.FixtureRequest, models: Models, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    logs, store = tmp_path_factory.mktemp("pair"), request.param == OVER_STORE
    with ExitStack() as opened:
        extras = [prefill(free_ports(1)[0], store), decode(store)]
        stack = opened.enter_context(RunningStack(small_stack(models, logs, **(STORE if store else {})), extras))
        engines = [opened.enter_context(Engine(stack, server.name)) for server in stack.engines]
        for engine in engines:
            engine.wait()
        behind = opened.enter_context(running(Behind("router", engines, model, {"policies": {"warm": POLICY}}, logs)))
        behind.wait()
        yield Pair(behind, model)


def half(asked: Asked) -> Json:
    """The prefill half of its last attempt."""
    found: Json = asked.record["attempts"][-1]["prefill"]
    assert found is not None, asked.record["attempts"]
    return found


@pytest.mark.parametrize("body", BODIES)
def test_two_engines_answer_like_one(pair: Pair, body: str) -> None:
    alone = pair.alone(*BODIES[body])
    before = external_hits(pair.d)
    asked = pair.ask(*BODIES[body])
    pair.behind.hear(pair.d)
    handed = external_hits(pair.d) - before
    tokens = asked.record["prompt_tokens"]
    print(f"\n{body}: {tokens} tokens, {handed} handed over, prefill {half(asked)['duration_ms']:.0f} ms")
    assert asked.text == alone
    (attempt,) = asked.record["attempts"]
    assert (attempt["end"], half(asked)["end"]) == ("ok", "ok")
    assert (asked.instance, half(asked)["target"]) == (pair.d.name, f"{pair.p.name}/0")
    assert tokens - handed < BLOCK_TOKENS


def test_what_the_decode_engine_holds_is_not_prefilled_again(pair: Pair) -> None:
    path, body = BODIES["ids"]
    assert half(pair.ask(path, body))["end"] == "ok"
    pair.behind.hear(pair.d)
    before = external_hits(pair.d)
    longer = {**body, "prompt": [*body["prompt"], *ids("a little more", 100)]}
    asked = pair.ask(path, longer)
    assert asked.record["attempts"][-1]["prefill"] is None
    assert asked.cached == 5 * BLOCK_TOKENS
    assert external_hits(pair.d) == before


@pytest.mark.parametrize("pair", ["peers"], indirect=True)
def test_a_prefill_engine_that_dies_midway(pair: Pair) -> None:
    """The engine dies with the request. The decode engine computes the prompt itself; a new prefill engine has a new
    name, and is used again.
    """
    midway = COMPLETIONS, {"prompt": ids("midway", 1000), "max_tokens": 24}
    later = COMPLETIONS, {"prompt": ids("after the restart", 700), "max_tokens": 24}
    alone = [pair.alone(*body) for body in (midway, later)]
    name, old = pair.p.name, pair.engine_id()
    with ThreadPoolExecutor(1) as thread:
        os.killpg(pair.p.stack.server(name).pid, signal.SIGSTOP)  # so that it cannot be done before it dies
        asking = thread.submit(pair.ask, *midway)
        until("the pair is at work", lambda: at_work(pair.behind))
        pair.p.stack.kill(name)
        asked = asking.result(60.0)
    ends = [(attempt["end"], (attempt["prefill"] or {}).get("end")) for attempt in asked.record["attempts"]]
    assert (asked.text, ends) == (alone[0], [("prefill", "died"), ("ok", None)])
    print(f"\nanswered {asked.record['duration_ms']:.0f} ms after the request came")
    until(f"{name} is down", lambda: pair.behind.state(name) == "down")
    pair.p.stack.start(name)
    pair.p.wait()
    assert pair.engine_id() != old
    numbers = count()
    until("it is used again", lambda: prefills(pair, ids(f"again {next(numbers)}", 400)), 30.0)
    asked = pair.ask(*later)
    assert (asked.text, half(asked)["end"]) == (alone[1], "ok")


def at_work(behind: Behind) -> bool:
    """Return whether the last request has a prefill half in progress."""
    (record,) = behind.admin.get("/admin/records", params={"limit": 1}).raise_for_status().json()["records"]
    halves = [attempt["prefill"] for attempt in record["attempts"]]
    return not record["done"] and any(one is not None and one["end"] == "running" for one in halves)


def prefills(pair: Pair, prompt: list[int]) -> bool:
    asked = pair.ask(COMPLETIONS, {"prompt": prompt, "max_tokens": 1})
    return asked.record["attempts"][-1]["prefill"] is not None


@pytest.mark.parametrize("pair", [OVER_STORE], indirect=True)
def test_what_the_pool_holds_is_not_prefilled_again(pair: Pair, tmp_path: Path) -> None:
    """The peer hands a new prompt over, and saves it. The decode engine that has lost it fetches it from the pool.

    With two connectors vLLM tells nobody what it saves, so what the router has heard of the pool must not stand long.
    """
    policies = {"warm": {**POLICY, "scorers": [{"name": "expected_ttft"}]}}
    with (
        running(
            OverStore("pooling", pair.behind.engines, pair.model, tmp_path, {"ttl_ms": 1}, policies=policies)
        ) as over,
        Store(pair.d.stack) as store,
    ):
        over.wait()
        for number in range(4):
            prompt = ids(f"pooled pair {number}", 600 + 100 * number)
            body = {"prompt": prompt, "max_tokens": 24, **GREEDY}
            first = over.fetch("handed over", COMPLETIONS, body)
            assert (half(first.asked)["end"], first.predicted, first.delivered) == ("ok", 0, len(prompt))
            over.saved(store, prompt)
            over.forget(pair.d)
            again = over.fetch("from the pool", COMPLETIONS, body)
            assert again.asked.record["attempts"][-1]["prefill"] is None
            assert again.predicted == again.delivered == (len(prompt) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
            assert again.asked.text == first.asked.text
