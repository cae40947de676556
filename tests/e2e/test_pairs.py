"""Prefill and decode on different engines: the answer is that of one engine alone, and what each of the two did."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.e2e.chats import Chat
from tests.e2e.conftest import MODEL, Router
from tests.fakes.engines import FakeEngine, engine, eventually
from tests.patience import PATIENCE_S

Json = dict[str, Any]
ROLES = {"p": "prefill", "q": "prefill", "c": "decode", "d": "decode"}
POLICY = {
    "scorers": [{"name": "prefix_overlap"}],
    "prefill": {"scorers": [{"name": "round_robin"}]},
    "prefill_from_tokens": 64,
}
IN_TURN = {"scorers": [{"name": "round_robin"}]}
OPTIONS: dict[str, Any] = {"transfer_timeout_s": 2.0}
LONG = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 12
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": LONG}], "max_tokens": 12, "min_tokens": 3},
    "/v1/completions": {"prompt": LONG, "max_tokens": 12, "stop": ["zzz"]},
    "/v1/responses": {"input": LONG, "max_output_tokens": 12},
    "/v1/messages": {"messages": [{"role": "user", "content": LONG}], "max_tokens": 12},
}
PROTOCOLS = pytest.mark.parametrize("protocol", ["mooncake", "nixl"])


class Fleet:
    """A router in front of engines named by their roles."""

    def __init__(self, router: Router, fakes: Mapping[str, FakeEngine]) -> None:
        self.router = router
        self.fakes = fakes

    def asked(self, name: str, path: str) -> list[Json]:
        """Bodies of the generating requests that arrived there."""
        return [json.loads(call.body) for call in self.fakes[name].seen(path)]

    async def hear(self) -> None:
        self.router.engines = list(self.fakes.values())
        await self.router.hear()

    def idle(self) -> bool:
        gauges = [fake.gauges() for fake in self.fakes.values()]
        return self.router.idle() and all((one.running, one.waiting) == (0, 0) for one in gauges)


@asynccontextmanager
async def fleet(
    router: Any, protocol: str, policy: Json = POLICY, roles: Mapping[str, str] = ROLES, **prefill_options: Any
) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        fakes = {}
        for name, role in roles.items():
            options = OPTIONS | (prefill_options if role == "prefill" else {})
            fakes[name] = await stack.enter_async_context(engine(name=name, role=role, transfer=protocol, **options))
        instances = [instance_of(fake, protocol) for fake in fakes.values()]
        running = await stack.enter_async_context(router(instances, policies={"warm": policy}))
        await eventually(lambda: running.core.peers.without_engine_ids() == [])
        yield Fleet(running, fakes)


def instance_of(fake: FakeEngine, protocol: str) -> Json:
    options = fake.server.options
    transfer = {"protocol": protocol}
    if options.role == "prefill" and protocol == "mooncake":
        transfer["bootstrap_url"] = str(fake.server.connectors.bootstrap_url)
    return {"url": fake.url, "name": options.name, "role": options.role, "transfer": transfer}


async def alone(path: str, body: Json) -> str:
    """What an engine answers that computes everything itself."""
    async with engine() as fake, httpx.AsyncClient(base_url=fake.url, timeout=PATIENCE_S) as client:
        return text_of((await client.post(path, json={"model": MODEL, **body})).raise_for_status().json())


def text_of(answer: Json) -> str:
    match answer:
        case {"choices": [{"message": message}]}:
            return str(message["content"])
        case {"choices": [{"text": text}]}:
            return str(text)
        case {"output": [*_, {"content": [{"text": text}]}]}:
            return str(text)
        case {"content": [{"text": text}]}:
            return str(text)
    raise AssertionError(answer)


@PROTOCOLS
@pytest.mark.parametrize("path", BODIES)
async def test_two_engines_answer_like_one(router: Any, protocol: str, path: str) -> None:
    async with fleet(router, protocol) as pair:
        answer = await pair.router.post(path, {"model": MODEL, **BODIES[path]})
        assert answer.status_code == 200, answer.text
        assert text_of(answer.json()) == await alone(path, BODIES[path])
        record = await pair.router.record(answer)
        (attempt,) = record["attempts"]
        half = attempt["prefill"]
        assert (attempt["end"], half["end"], record["status"]) == ("ok", "ok", 200)
        answering, prefilling = attempt["target"].split("/")[0], half["target"].split("/")[0]
        assert (ROLES[answering], ROLES[prefilling]) == ("decode", "prefill")
        assert answer.headers["x-warmroute-target"] == attempt["target"]
        (prefill,) = pair.asked(prefilling, path)
        (decode,) = pair.asked(answering, path)
        assert prefill["kv_transfer_params"]["do_remote_decode"] is True
        assert decode.pop("kv_transfer_params")["do_remote_prefill"] is True
        assert decode == {"model": MODEL, **BODIES[path]}
        # Mooncake's decode engines count what they fetched, Nixl's what the prefill engine had found in its own cache.
        fetched = record["prompt_tokens"] - record["cached_tokens"]
        assert fetched <= 16 if protocol == "mooncake" else record["cached_tokens"] == half["cached_tokens"] == 0
        await eventually(pair.idle)


@PROTOCOLS
async def test_a_conversation_prefills_once_and_then_only_where_it_pays(router: Any, protocol: str) -> None:
    async with fleet(router, protocol) as pair:
        chat = Chat(pair.router, "marley", words=120)
        first = await chat.turn(stream=True)
        await pair.hear()
        second = await chat.turn(stream=True)
        assert first.ok
        assert second.ok
        assert second.target == first.target
        ends = [(await pair.router.record(said.record))["attempts"][0]["prefill"] for said in (first, second)]
        assert [end and end["end"] for end in ends] == ["ok", None], "what is new in the second turn is short"
        trusts = [
            target.overlap_accuracy for instance in pair.router.core.fleet for target in instance.targets.values()
        ]
        assert all(trust.trusted and not trust.overestimated for trust in trusts)


@PROTOCOLS
async def test_a_prefill_engine_that_dies_is_replaced_and_then_done_without(router: Any, protocol: str) -> None:
    async with fleet(router, protocol) as pair:
        path = "/v1/completions"
        pair.fakes["p"].faults(error_rate=1.0)
        answer = await pair.router.post(path, {"model": MODEL, "prompt": "p " + LONG, "max_tokens": 5})
        assert answer.status_code == 200
        record = await pair.router.record(answer)
        told = [(a["end"], a["prefill"]["end"], a["prefill"]["target"]) for a in record["attempts"]]
        assert told == [("prefill", "failed", "p/0"), ("ok", "ok", "q/0")]
        names = [
            body["kv_transfer_params"].get("transfer_id") for body in pair.asked("p", path) + pair.asked("q", path)
        ]
        assert len(set(names)) == (2 if protocol == "mooncake" else 1), "a transfer's id is used once"

        pair.fakes["q"].faults(refuse=True)
        await eventually(lambda: pair.router.core.peers.without_engine_ids() == [])
        answer = await pair.router.post(path, {"model": MODEL, "prompt": "q " + LONG, "max_tokens": 5})
        assert answer.status_code == 200
        record = await pair.router.record(answer)
        assert [a["end"] for a in record["attempts"]] == ["prefill", "prefill", "ok"]
        assert record["attempts"][-1]["prefill"] is None
        assert text_of(answer.json()) == await alone(path, {"prompt": "q " + LONG, "max_tokens": 5})
        assert pair.router.app.services.limiter.in_flight == 0
        await eventually(pair.idle)


@PROTOCOLS
async def test_two_dead_prefill_engines_are_two_deaths(router: Any, protocol: str) -> None:
    async with fleet(router, protocol) as pair:
        for name in "pq":
            pair.fakes[name].faults(die_before_first_byte=1.0)
        answer = await pair.router.post("/v1/completions", {"model": MODEL, "prompt": LONG, "max_tokens": 5})
        assert answer.status_code == 502
        record = (await pair.router.records())[0]
        assert record["poison"]
        assert [a["prefill"]["end"] for a in record["attempts"]] == ["died", "died"]
        await eventually(pair.idle)


@PROTOCOLS
async def test_a_decode_engine_that_dies_is_replaced(router: Any, protocol: str) -> None:
    async with fleet(router, protocol, IN_TURN) as pair:
        path = "/v1/completions"
        pair.fakes["c"].faults(die_before_first_byte=1.0)
        answer = await pair.router.post(path, {"model": MODEL, "prompt": LONG, "max_tokens": 5})
        assert answer.status_code == 200
        record = await pair.router.record(answer)
        assert [(a["target"], a["end"]) for a in record["attempts"]] == [("c/0", "died"), ("d/0", "ok")]
        assert record["attempts"][1]["prefill"]["end"] == "ok", "what the first one fetched is gone: prefilled anew"
        await eventually(pair.idle)


@PROTOCOLS
async def test_a_decode_engine_that_cannot_be_reached_is_replaced(router: Any, protocol: str) -> None:
    async with fleet(router, protocol, IN_TURN) as pair:
        path = "/v1/completions"
        await pair.fakes["c"].server._listener.__aexit__(None, None, None)
        answer = await pair.router.post(path, {"model": MODEL, "prompt": LONG, "max_tokens": 5})
        assert answer.status_code == 200
        first, second = (await pair.router.record(answer))["attempts"]
        assert (first["target"], first["end"], second["target"], second["end"]) == ("c/0", "connect", "d/0", "ok")
        prefills = pair.asked("p", path) + pair.asked("q", path)
        if protocol == "nixl":  # nobody has come for the KV: it is still there
            assert len(prefills) == 1
            assert second["prefill"] == first["prefill"]
        (decode,) = pair.asked("d", path)
        assert decode["kv_transfer_params"]["do_remote_prefill"] is True
        assert text_of(answer.json()) == await alone(path, {"prompt": LONG, "max_tokens": 5})


@PROTOCOLS
async def test_a_fault_of_the_clients_is_told_in_the_prefill_engines_words(router: Any, protocol: str) -> None:
    async with fleet(router, protocol, max_model_len=200) as pair:
        answer = await pair.router.post("/v1/completions", {"model": MODEL, "prompt": LONG * 3, "max_tokens": 5})
        assert answer.status_code == 400
        assert "200" in answer.text
        record = await pair.router.record(answer)
        (attempt,) = record["attempts"]
        assert (attempt["end"], attempt["prefill"]["end"], record["status"]) == ("rejected", "rejected", 400)
        await eventually(pair.idle)


@PROTOCOLS
async def test_a_client_that_leaves_ends_both_halves(router: Any, protocol: str) -> None:
    async with fleet(router, protocol) as pair:
        for fake in pair.fakes.values():
            fake.faults(freeze=True)
        asking = asyncio.create_task(
            pair.router.post("/v1/completions", {"model": MODEL, "prompt": LONG, "max_tokens": 5})
        )
        prefilling = ("p", "q") if protocol == "nixl" else ROLES
        await eventually(lambda: sum(len(pair.asked(n, "/v1/completions")) for n in prefilling) == len(prefilling) // 2)
        asking.cancel()
        await eventually(pair.router.idle)
        (record,) = await pair.router.records()
        (attempt,) = record["attempts"]
        assert (attempt["end"], attempt["prefill"]["end"]) == ("client_gone", "client_gone")


async def test_a_restarted_prefill_engine_is_asked_its_new_name(router: Any) -> None:
    async with fleet(router, "mooncake", roles={"p": "prefill", "d": "decode"}) as pair:
        body = {"model": MODEL, "max_tokens": 5}
        pair.fakes["p"].server.connectors.restart()
        stale = await pair.router.post("/v1/completions", {**body, "prompt": "one " + LONG})
        assert stale.status_code == 500, "it fetched from an engine that is no more, and its policy is to fail"
        await eventually(lambda: pair.router.core.peers.without_engine_ids() == [])
        again = await pair.router.post("/v1/completions", {**body, "prompt": "two " + LONG})
        assert again.status_code == 200
        assert (await pair.router.record(again))["attempts"][0]["prefill"]["end"] == "ok"


@PROTOCOLS
async def test_prefill_engines_never_answer_and_what_cannot_be_split_is_not(router: Any, protocol: str) -> None:
    async with fleet(router, protocol) as pair:
        for number in range(4):
            body = {"model": MODEL, "prompt": f"{number} {LONG}", "n": 2, "max_tokens": 3}
            answer = await pair.router.post("/v1/completions", body)
            assert answer.status_code == 200
            (attempt,) = (await pair.router.record(answer))["attempts"]
            assert (ROLES[attempt["target"][0]], attempt["prefill"]) == ("decode", None)
            answer = await pair.router.post("/tokenize", {"model": MODEL, "prompt": "short"})
            assert ROLES[answer.headers["x-warmroute-target"][0]] == "decode"
        assert pair.asked("p", "/v1/completions") == pair.asked("q", "/v1/completions") == []
