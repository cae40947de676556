"""The picker behind a real Envoy, in both profiles, with emulated engines and the real openai client.

What the picker does message by message is tested in `tests/e2e/test_picker.py`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from router.lab.emulator.options import EngineOptions
from router.lab.emulator.supervisor import EmbeddedFleet
from router.lab.local_stack.preflight import free_ports
from tests.e2e.conftest import LOCAL, MODEL, Router, RouterProcess, _router, _router_process, config_of
from tests.fakes.engines import INSTANT, FakeEngine, engine, engine_process, eventually
from tests.gateway.configurations import BUFFERED, CONFORMING, DESTINATION, THIN, configuration
from tests.gateway.envoy import Envoy

CHAT = "/v1/chat/completions"
PROFILES = pytest.mark.parametrize("mode", [CONFORMING, THIN], ids=["conforming", "thin"])
HELLO: list[Any] = [{"role": "user", "content": "hello there"}]
SLOW: dict[str, Any] = {"decode_ms_per_token": 20, "answer_tokens": 40}


def chat(content: str = "hello there", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}


def follows(router: Router) -> bool:
    """Envoy sends its access log to the picker: it begins with the first entry."""
    picker: Any = router.app._picker
    return bool(picker._log.follows("127.0.0.1"))


async def read_rest(pieces: AsyncIterator[bytes]) -> None:
    async for _ in pieces:
        pass


class Fleet:
    """Engines, a router with a picker, an Envoy that asks it, and a client of that."""

    def __init__(self, router: Router, engines: list[FakeEngine], envoy: Envoy, http: httpx.AsyncClient) -> None:
        self.router, self.engines, self.envoy, self.http = router, engines, envoy, http

    def openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.envoy.url('inference')}/v1", api_key="none", max_retries=0)

    async def ends(self, record: str) -> list[str]:
        """How the attempts of a record ended."""
        found = await self.router.record(record)
        return [attempt["end"] for attempt in found["attempts"]]


@pytest.fixture
def fleet(envoy: Callable[[str], Any]) -> Callable[..., Any]:
    """`fleet(mode, engine={}, picker={}, envoy={}, **sections)`: a running `Fleet`; at its end the books are empty."""

    @asynccontextmanager
    async def start(mode: dict[str, str], **options: Any) -> AsyncIterator[Fleet]:
        of_engine, of_envoy = options.pop("engine", {}), options.pop("envoy", {})
        section = LOCAL | {"health_port": 0, "tls": "off"} | options.pop("picker", {})
        async with engine(**of_engine) as a, engine(**of_engine) as b:
            if of_envoy.get("engines") == "listed":
                of_envoy["engines"] = [a.address, b.address]
            async with _router([a, b], picker=section, **options) as router:
                given = {"logs": mode is THIN, "tls": section["tls"] != "off"} | of_envoy
                async with envoy(configuration(router.app.picker_port or 0, mode, **given)) as gateway:
                    await gateway.until_healthy("picker")
                    limits = httpx.Limits(max_connections=None)
                    async with httpx.AsyncClient(base_url=gateway.url("inference"), timeout=30, limits=limits) as http:
                        yield Fleet(router, [a, b], gateway, http)
                        await eventually(router.idle)

    return start


# what clients see


@PROFILES
async def test_the_openai_client_chats_streams_and_calls_tools(fleet: Any, mode: dict[str, str]) -> None:
    async with fleet(mode) as f, f.openai() as client:
        raw = await client.chat.completions.with_raw_response.create(model=MODEL, messages=HELLO, max_tokens=8)
        answer = raw.parse()
        assert answer.usage.completion_tokens == 8
        assert raw.headers["x-warmroute-target"].removesuffix("/0") in {fake.address for fake in f.engines}
        record = await f.router.record(raw.headers["x-warmroute-record"])
        assert (record["output_tokens"], record["attempts"][0]["end"]) == (8, "ok")
        stream = await client.chat.completions.with_raw_response.create(
            model=MODEL, messages=HELLO, max_tokens=8, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream.parse()]
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 8
        record = await f.router.record(stream.headers["x-warmroute-record"])
        assert (record["output_tokens"], record["attempts"][0]["end"]) == (8, "ok")
        tool: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
        choice: Any = {"type": "function", "function": {"name": "weather"}}
        called = await client.chat.completions.create(model=MODEL, messages=HELLO, tools=[tool], tool_choice=choice)
        assert called.choices[0].message is not None
        assert [card.id for card in (await client.models.list()).data] == [MODEL]


@PROFILES
async def test_usage_that_nobody_asked_for_is_not_seen(fleet: Any, mode: dict[str, str]) -> None:
    async with fleet(mode) as f:
        answer = await f.http.post(CHAT, json=chat(stream=True))
        assert (answer.text.endswith("data: [DONE]\n\n"), '"usage"' in answer.text) == (True, False)
        record = await f.router.record(answer.headers["x-warmroute-record"])
        assert (record["output_tokens"] is None) == (mode is THIN)


@PROFILES
async def test_usage_of_an_answer_that_comes_in_many_pieces(fleet: Any, mode: dict[str, str]) -> None:
    async with fleet(mode, engine={"blocks": 4000, "answer_tokens": 20_000}) as f:
        answer = await f.http.post(CHAT, json=chat(max_tokens=20_000))
        assert len(answer.content) > 65_536
        record = await f.router.record(answer.headers["x-warmroute-record"])
        assert record["output_tokens"] == answer.json()["usage"]["completion_tokens"]
        assert record["attempts"][0]["end"] == "ok"


@pytest.mark.parametrize("mode", [CONFORMING, THIN, BUFFERED], ids=["conforming", "thin", "buffered"])
@pytest.mark.parametrize("size", [320_000, 6_000_000])
async def test_large_bodies_arrive_unchanged(fleet: Any, mode: dict[str, str], size: int) -> None:
    async with fleet(mode, engine={"max_model_len": 10_000_000}, tokens={"budget_ms": 1.0}) as f:
        body = json.dumps(chat("word " * (size // 5), max_tokens=1)).encode()
        answer = await f.http.post(CHAT, content=body, headers={"content-type": "application/json"})
        if mode is BUFFERED and size > 1_000_000:
            assert answer.status_code == 413, "over Envoy's buffer"
            return
        assert answer.status_code in (200, 400), answer.text  # 400: longer than the engine's context
        got = [seen.body for fake in f.engines for seen in fake.seen(CHAT)]
        assert [hashlib.sha256(one).digest() for one in got] == [hashlib.sha256(body).digest()]


@PROFILES
async def test_refusals_are_in_the_clients_dialect(fleet: Any, mode: dict[str, str]) -> None:
    async with fleet(mode, limits={"body_bytes": 100_000}) as f:
        messages = await f.http.post("/v1/messages", json=chat(max_tokens=4) | {"model": "none"})
        assert (messages.status_code, messages.json()["error"]["type"]) == (404, "not_found_error")
        assert (await f.http.post(CHAT, content=b"{")).json()["error"]["type"] == "invalid_request_error"
        assert (await f.http.post(CHAT, json=chat("x" * 200_000))).status_code == 413
        assert (await f.http.get("/metrics")).status_code == 404
        for instance in f.router.core.fleet:
            f.router.core.drain(instance.id, True)
        none = await f.http.post(CHAT, json=chat())
        assert (none.status_code, none.json()["error"]["type"]) == (503, "overloaded_error")
        assert none.headers["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"


async def test_tls_is_on_by_default(fleet: Any) -> None:
    async with fleet(CONFORMING, picker={"tls": "self-signed"}) as f:
        assert (await f.http.post(CHAT, json=chat())).status_code == 200


async def test_only_the_subset_that_the_gateway_names(fleet: Any) -> None:
    async with fleet(CONFORMING, envoy={"subset_header": True}) as f:
        for fake in f.engines:
            answer = await f.http.post(CHAT, json=chat(), headers={"x-test-subset": fake.address})
            assert answer.headers["x-warmroute-target"] == f"{fake.address}/0"
        assert (await f.http.post(CHAT, json=chat(), headers={"x-test-subset": "10.9.9.9:1"})).status_code == 503


# who fails


@PROFILES
async def test_a_client_that_leaves_ends_the_engines_work(fleet: Any, mode: dict[str, str]) -> None:
    async with fleet(mode, engine=SLOW) as f:
        assert (
            await f.http.post(CHAT, json=chat(max_tokens=1))
        ).status_code == 200  # the first end opens the log stream
        await eventually(lambda: mode is CONFORMING or follows(f.router))
        async with f.http.stream("POST", CHAT, json=chat(stream=True)) as answer:
            await anext(answer.aiter_raw())
        assert await f.ends(answer.headers["x-warmroute-record"]) == ["cut" if mode is CONFORMING else "client_gone"]
        await eventually(lambda: all(fake.gauges().running == 0 for fake in f.engines))


@pytest.mark.parametrize(("mode", "logs"), [(CONFORMING, False), (CONFORMING, True), (THIN, True)])
async def test_an_engine_that_dies_breaks_its_answer_and_gets_no_more(
    envoy: Any, mode: dict[str, str], logs: bool
) -> None:
    section = LOCAL | {"health_port": 0, "tls": "off"}
    async with (
        engine_process(**SLOW) as member,
        engine() as other,
        _router([member(), other], picker=section) as router,
        envoy(configuration(router.app.picker_port or 0, mode, logs=logs)) as gateway,
        httpx.AsyncClient(base_url=gateway.url("inference"), timeout=30) as http,
    ):
        await gateway.until_healthy("picker")
        assert (await http.post(CHAT, json=chat())).status_code == 200
        await eventually(lambda: not logs or follows(router))
        router.core.drain(other.address, True)
        async with http.stream("POST", CHAT, json=chat(stream=True)) as answer:
            pieces = answer.aiter_raw()
            await anext(pieces)
            os.kill(member().pid, signal.SIGKILL)
            with pytest.raises(httpx.RemoteProtocolError):
                await read_rest(pieces)
        found = await router.record(answer.headers["x-warmroute-record"])
        assert [attempt["end"] for attempt in found["attempts"]] == ["broken" if logs else "cut"]
        router.core.drain(other.address, False)
        for _ in range(3):  # at most one is lost to what is not known yet
            last = await http.post(CHAT, json=chat())
        assert last.status_code == 200
        await eventually(router.idle)


async def test_envoy_tries_the_list_and_the_record_says_who_served(fleet: Any) -> None:
    async with fleet(CONFORMING, picker={"fallbacks": 2}, envoy={"engines": "listed"}) as f:
        prompt = "the same words " * 100
        first = (await f.http.post(CHAT, json=chat(prompt))).headers["x-warmroute-target"]
        warm, other = sorted(f.engines, key=lambda fake: f"{fake.address}/0" != first)
        warm.faults(refuse=True)
        answer = await f.http.post(CHAT, json=chat(prompt))
        assert answer.status_code == 200
        record = await f.router.record(answer.headers["x-warmroute-record"])
        served = [(attempt["target"], attempt["end"]) for attempt in record["attempts"]]
        assert served == [(f"{warm.address}/0", "connect"), (f"{other.address}/0", "ok")]
        assert len(other.seen(CHAT)) == 1


@PROFILES
async def test_a_client_cannot_name_its_destination(fleet: Any, mode: dict[str, str]) -> None:
    async with fleet(mode) as f:
        admin = str(f.envoy.admin.base_url).removeprefix("http://").rstrip("/")
        answer = await f.http.post(CHAT, json=chat(), headers={DESTINATION: admin})
        assert answer.headers["x-warmroute-target"].removesuffix("/0") in {fake.address for fake in f.engines}


# a picker that is away


@asynccontextmanager
async def picker_process(engines: Any, port: int, folder: Path) -> AsyncIterator[RouterProcess]:
    section = {"host": "127.0.0.1", "port": port, "health_port": 0, "tls": "off"}
    async with _router_process(config_of(engines, picker=section), folder) as running:
        yield running


@pytest.mark.parametrize("strip", [True, False])
@pytest.mark.parametrize("listed", [True, False])
async def test_failing_open_and_closed(envoy: Any, tmp_path: Path, strip: bool, listed: bool) -> None:
    """Without a picker: closed it is 500; open, a cluster that knows its engines serves, one of any address does not,
    whatever the client names, if that is removed early.
    """
    async with engine() as a, engine() as b:
        engines = [a.address, b.address] if listed else None
        for fail_open in (False, True):
            given = configuration(free_ports(1)[0], CONFORMING, engines=engines, fail_open=fail_open, strip=strip)
            async with envoy(given) as gateway, httpx.AsyncClient(base_url=gateway.url("inference")) as http:
                answer = await http.post(CHAT, json=chat(), headers={DESTINATION: a.address})
                if not fail_open:
                    assert answer.status_code == 500
                elif listed or not strip:
                    assert answer.status_code == 200
                else:
                    assert answer.status_code == 503


async def test_answers_outlive_the_picker_in_the_thin_profile(envoy: Any, tmp_path: Path) -> None:
    """300 answers that have begun arrive whole while the picker is killed and started again."""
    port = free_ports(1)[0]
    options = [
        EngineOptions(name=f"e{i}", seed=i, **(INSTANT | {"decode_ms_per_token": 40, "answer_tokens": 100}))
        for i in range(2)
    ]
    async with EmbeddedFleet(options) as fleet, envoy(configuration(port, THIN, logs=True)) as gateway:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=gateway.url("inference"), timeout=60, limits=limits) as http:
            begun: set[int] = set()

            async def stream(number: int) -> str:
                seen = ""
                async with http.stream("POST", CHAT, json=chat(f"story {number}", stream=True)) as answer:
                    assert answer.status_code == 200
                    async for piece in answer.aiter_text():
                        begun.add(number)
                        seen += piece
                return seen

            async with picker_process(fleet.members, port, tmp_path) as first:
                await gateway.until_healthy("picker")
                answers = [asyncio.create_task(stream(number)) for number in range(300)]
                await eventually(lambda: len(begun) == 300, 30)
                first.process.send_signal(signal.SIGKILL)
                await first.process.wait()
            assert not any(answer.done() for answer in answers)
            async with picker_process(fleet.members, port, tmp_path) as second:
                await eventually(lambda: second.process.returncode is None)
                seen = await asyncio.gather(*answers)
                assert sum(text.endswith("data: [DONE]\n\n") and text.count("data: ") == 102 for text in seen) == 300
                await gateway.until_healthy("picker")
                assert (await http.post(CHAT, json=chat())).status_code == 200


@PROFILES
async def test_sigterm_takes_no_more_and_lets_open_answers_end(
    envoy: Any, tmp_path: Path, mode: dict[str, str]
) -> None:
    port = free_ports(1)[0]
    async with (
        engine(**SLOW) as a,
        envoy(configuration(port, mode, logs=True)) as gateway,
        picker_process([a], port, tmp_path) as running,
        httpx.AsyncClient(base_url=gateway.url("inference"), timeout=30) as http,
    ):
        await gateway.until_healthy("picker")
        assert (await http.post(CHAT, json=chat(max_tokens=1))).status_code == 200  # opens the log stream
        async with http.stream("POST", CHAT, json=chat(stream=True)) as answer:
            pieces = answer.aiter_text()
            seen = await anext(pieces)
            running.process.send_signal(signal.SIGTERM)
            async for piece in pieces:
                seen += piece
        assert seen.endswith("data: [DONE]\n\n")
        assert await asyncio.wait_for(running.process.wait(), 10) == 0
        assert (await http.post(CHAT, json=chat())).status_code == 500
