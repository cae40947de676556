"""Nothing that a client sends may make the router fail, hang, or keep a count that it should have given back.

Hypothesis makes requests that are nearly right, far more dangerous than noise; each is judged by what every request
must obey: an answer in time, never a 500 of our own making, an error in the right shape. After all of them the router
must be as it was before the first.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any

import httpx
import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.e2e.strategies import (
    MODEL,
    bodies,
    breaks,
    content_types,
    header_names,
    header_values,
    methods,
    noises,
    paths,
    queries,
    written,
)
from tests.fakes.engines import engine, eventually

BY_CACHE = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
BY_LOAD = ("/v1/embeddings", "/v1/rerank", "/v1/score", "/tokenize", "/detokenize", "/v1/messages/count_tokens")
ANSWER_S = 5.0
FUZZ = settings(
    max_examples=40,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


class Alarm(logging.Handler):
    """Collects what is logged as an error: trouble that no client sees."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(self.format(record))


class House:
    """A router with its engines on a loop of its own, so that hypothesis' plain functions can ask it things."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.routed: Any = None

    def run(self, work: Coroutine[Any, Any, Any], deadline_s: float = 30.0) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(deadline_s)

    def close(self) -> None:
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def ask(self, method: str, path: str, body: bytes, headers: list[tuple[bytes, bytes]]) -> httpx.Response:
        """One request; fails the test when no answer comes in time."""
        return self.run(self._ask(method, path, body, headers), ANSWER_S * 2)

    async def _ask(self, method: str, path: str, body: bytes, headers: list[tuple[bytes, bytes]]) -> httpx.Response:
        async with asyncio.timeout(ANSWER_S):
            return await self.routed.http.request(method, path, content=body, headers=headers)

    def raw(self, data: bytes) -> bytes:
        """What comes back for these bytes until the router closes, or has nothing to say for a while."""
        return self.run(self._raw(data), ANSWER_S * 2)

    async def _raw(self, data: bytes) -> bytes:
        host, port = self.routed.url.rpartition("//")[2].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        got = b""
        try:
            writer.write(data)
            writer.write_eof()
            async with asyncio.timeout(ANSWER_S):
                while piece := await reader.read(65536):
                    got += piece
        except ConnectionError:
            pass
        finally:
            writer.close()
        return got


@pytest.fixture(scope="module")
def house(router_of_module: Callable[..., Any]) -> Iterator[House]:
    """Two engines, one with ranks and adapters, behind one router; at the end everything must be given back."""
    house, alarm = House(), Alarm()
    logging.getLogger().addHandler(alarm)
    fakes = [engine(loras=("poet",), ranks=2, answer_tokens=3), engine(model="other", answer_tokens=3)]
    running = [house.run(fake.__aenter__()) for fake in fakes]
    routing = router_of_module(running, limits={"body_bytes": 100_000})
    house.routed = house.run(routing.__aenter__())
    try:
        yield house
        still_well(house)
        assert alarm.heard == []
    finally:
        logging.getLogger().removeHandler(alarm)
        house.run(routing.__aexit__(None, None, None))
        for fake in fakes:
            house.run(fake.__aexit__(None, None, None))
        house.close()


def still_well(house: House) -> None:
    """It serves, and it holds nothing."""
    right = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}).encode()
    answer = house.ask("POST", "/v1/chat/completions", right, [(b"content-type", b"application/json")])
    assert answer.status_code == 200
    house.run(eventually(house.routed.idle))
    records = house.run(house.routed.records(1000))
    assert [record["id"] for record in records if not record["done"]] == []
    assert house.run(house.routed.metric("warmroute_in_flight_requests")) == 0
    assert house.run(house.routed.metric("warmroute_target_requests")) == 0
    assert house.run(house.routed.metric("warmroute_tokenizer_mismatches_total")) == 0


def judge(answer: httpx.Response, path: str) -> None:
    """What holds for every answer. A 5xx may only be an engine's own."""
    ours = "x-warmroute-target" not in answer.headers
    assert not (ours and answer.status_code >= 500), answer.text
    if ours and answer.status_code >= 400:
        error = answer.json()["error"]
        assert error["message"]
        if path.startswith("/v1/messages"):
            assert answer.json()["type"] == "error"
        else:
            assert set(error) == {"message", "type", "param", "code"}


def judge_raw(answer: bytes) -> None:
    """The same of bytes from the wire; no answer at all is one, too."""
    status = answer.split(b" ", 2)[1:2]
    assert not status or status[0] < b"500" or b"x-warmroute-target" in answer, answer


JSON_HEADERS = [(b"content-type", b"application/json")]


@pytest.mark.parametrize("path", BY_CACHE)
def test_bodies_that_are_nearly_right(house: House, path: str) -> None:
    @FUZZ
    @given(body=bodies)
    def ask(body: dict[str, Any]) -> None:
        judge(house.ask("POST", path, written(body), JSON_HEADERS), path)

    ask()
    still_well(house)


def test_bodies_of_the_other_endpoints(house: House) -> None:
    @FUZZ
    @given(path=st.sampled_from(BY_LOAD), body=bodies)
    def ask(path: str, body: dict[str, Any]) -> None:
        judge(house.ask("POST", path, written(body), JSON_HEADERS), path)

    ask()
    still_well(house)


def test_bodies_that_are_damaged(house: House) -> None:
    """Cut short, with a byte changed, or with something between."""

    @FUZZ
    @given(
        path=st.sampled_from(BY_CACHE + BY_LOAD),
        body=bodies,
        at=st.integers(0, 400),
        cut=st.integers(0, 3),
        put=breaks,
        kind=content_types,
    )
    def ask(path: str, body: dict[str, Any], at: int, cut: int, put: bytes, kind: bytes) -> None:
        whole = written(body)
        damaged = whole[:at] + put + whole[at + cut :]
        judge(house.ask("POST", path, damaged, [(b"content-type", kind)]), path)

    ask()
    still_well(house)


def test_paths_and_methods(house: House) -> None:
    @FUZZ
    @given(method=methods, path=paths, query=queries)
    def ask(method: str, path: str, query: str) -> None:
        line = f"{method} {path}{query} HTTP/1.1\r\n".encode("latin-1")
        judge_raw(house.raw(line + b"host: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}"))

    ask()
    still_well(house)


def test_headers(house: House) -> None:
    body = b'{"model":"warm-tiny","prompt":"hi"}'

    @FUZZ
    @given(
        headers=st.lists(st.tuples(header_names, header_values), max_size=5),
        length=st.booleans(),
        cut=st.integers(-30, 30),
    )
    def ask(headers: list[tuple[bytes, bytes]], length: bool, cut: int) -> None:
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        if length:
            lines += b"content-length: %d\r\n" % len(body)
        sent = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + lines + b"\r\n" + body
        judge_raw(house.raw(sent[: len(sent) - max(0, cut)]))

    ask()
    still_well(house)


def test_noise(house: House) -> None:
    @FUZZ
    @given(noise=noises)
    def ask(noise: bytes) -> None:
        got = house.raw(noise)
        assert not got or got.startswith(b"HTTP/1.1 4"), got

    ask()
    still_well(house)


def test_clients_that_leave_at_any_moment(house: House) -> None:
    """Cut after any number of bytes sent or received."""
    body = json.dumps({"model": MODEL, "prompt": "leave " * 50, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    sent = head % len(body) + body

    async def leave(after_sent: int, after_got: int) -> None:
        host, port = house.routed.url.rpartition("//")[2].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent[:after_sent])
        if after_sent >= len(sent):
            async with asyncio.timeout(ANSWER_S):
                await reader.read(after_got)
        writer.transport.abort()

    @FUZZ
    @given(after_sent=st.integers(0, len(sent) * 2), after_got=st.integers(1, 2000))
    def ask(after_sent: int, after_got: int) -> None:
        house.run(leave(after_sent, after_got))

    ask()
    still_well(house)
