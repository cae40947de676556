"""The load client against an emulated engine: what it measures, and trouble as a value."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing, suppress

import pytest

from router.clock import SystemClock
from router.lab.loadgen.client import ClientAnswer, ClientFailure, LoadClient, SessionName
from tests.fakes.engines import engine

PROMPT = list(range(1000, 1100))


async def test_an_answer_and_its_cache_hit() -> None:
    async with engine(model="m", decode_ms_per_token=2.0) as fake, LoadClient(fake.url, "m", SystemClock()) as client:
        cold = await client.complete(PROMPT, 8)
        warm = await client.complete(PROMPT, 8)
    assert isinstance(cold, ClientAnswer)
    assert isinstance(warm, ClientAnswer)
    assert (cold.prompt_tokens, cold.output_tokens, len(cold.token_ids)) == (100, 8, 8)
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 96)  # 6 whole blocks of 16 in 99 tokens
    assert warm.token_ids == cold.token_ids
    assert warm.text == cold.text
    assert 0 < cold.ttft_ms < cold.total_ms
    assert cold.target is None  # no router in between


async def test_a_salt_sets_the_cache_apart() -> None:
    async with engine(model="m") as fake, LoadClient(fake.url, "m", SystemClock()) as client:
        cold = await client.complete(PROMPT, 4)
        salted = await client.complete(PROMPT, 4, salt="mine")
    assert isinstance(cold, ClientAnswer)
    assert isinstance(salted, ClientAnswer)
    assert salted.cached_tokens == 0
    assert salted.token_ids == cold.token_ids


async def test_the_request_is_greedy_and_exact() -> None:
    async with engine(model="m") as fake, LoadClient(fake.url, "m", SystemClock()) as client:
        await client.complete(PROMPT, 3)
        body = json.loads(fake.seen("/v1/completions")[0].body)
    assert (body["temperature"], body["ignore_eos"], body["max_tokens"], body["prompt"]) == (0, True, 3, PROMPT)
    assert "cache_salt" not in body


async def test_refusals_cuts_and_silence_are_values() -> None:
    async with engine(model="m") as fake, LoadClient(fake.url, "m", SystemClock()) as client:
        fake.faults(refuse=True)
        refused = await client.complete(PROMPT, 4)
        assert isinstance(refused, ClientFailure)
        assert refused.status == 503
        fake.faults(refuse=False, die_mid_stream=1.0)
        cut = await client.complete(PROMPT, 4)
        assert isinstance(cut, ClientFailure)
    async with LoadClient(fake.url, "m", SystemClock()) as client:
        gone = await client.complete(PROMPT, 4)
    assert isinstance(gone, ClientFailure)
    assert gone.status is None
    assert "connection refused" in gone.reason


CHAT = [{"role": "system", "content": " the of and" * 30}, {"role": "user", "content": " to in is"}]


async def test_a_chat_is_measured_alike_and_answers_in_text() -> None:
    async with engine(model="m", decode_ms_per_token=2.0) as fake, LoadClient(fake.url, "m", SystemClock()) as client:
        cold = await client.chat(CHAT, 8, session=SessionName("s-1", "p-1"))
        warm = await client.chat(CHAT, 8, session=SessionName("s-1", "p-1"))
        (call, _) = fake.seen("/v1/chat/completions")
    assert isinstance(cold, ClientAnswer)
    assert isinstance(warm, ClientAnswer)
    body = json.loads(call.body)
    assert (body["temperature"], body["ignore_eos"], body["max_tokens"], body["messages"]) == (0, True, 8, CHAT)
    assert (call.headers["x-session-id"], call.headers["x-parent-session-id"]) == ("s-1", "p-1")
    assert (cold.output_tokens, cold.token_ids, cold.cached_tokens) == (8, (), 0)
    assert warm.cached_tokens is not None
    assert warm.cached_tokens > 64
    assert warm.text == cold.text != ""
    assert 0 < cold.ttft_ms < cold.total_ms


async def test_a_key_is_sent_and_an_sdks_url_is_understood() -> None:
    async with engine(model="m", api_key="secret") as fake:
        async with LoadClient(f"{fake.url}/v1/", "m", SystemClock(), "secret") as client:
            assert isinstance(await client.chat(CHAT, 2), ClientAnswer)
        async with LoadClient(fake.url, "m", SystemClock()) as client:
            refused = await client.chat(CHAT, 2)
    assert isinstance(refused, ClientFailure)
    assert refused.status == 401


class Scripted:
    """A server that sends these bytes as the body of any answer, in these pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces
        self.ended = asyncio.Event()

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *gone: object) -> None:
        await self.ended.wait()
        self._server.close()
        await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(ConnectionError):  # a client that has seen enough goes
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\n\r\n")
            for piece in self._pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.01)
        self.ended.set()


def data(chunk: str) -> bytes:
    return f"data: {chunk}\n\n".encode()


OPENING = data('{"choices": [{"delta": {"role": "assistant", "content": ""}}]}')
USAGE = data('{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}') + b"data: [DONE]\n\n"


async def test_lines_end_at_line_feeds_and_nowhere_else() -> None:
    odd = "one\u2028two\x85three"
    spoken = data('{"choices": [{"delta": {"content": "' + odd + '"}}]}')
    cut = len(spoken) // 2
    async with (
        Scripted(OPENING, spoken[:cut], spoken[cut:], USAGE) as url,
        LoadClient(url, "m", SystemClock()) as client,
    ):
        answer = await client.chat(CHAT, 2)
    assert isinstance(answer, ClientAnswer)
    assert answer.text == odd
    assert answer.cached_tokens is None  # not told is not 0


async def test_the_first_token_is_the_first_that_speaks_thoughts_included() -> None:
    thought = data('{"choices": [{"delta": {"reasoning": "hm"}}]}')
    spoken = data('{"choices": [{"delta": {"content": "yes"}}]}')
    pieces = (OPENING, OPENING, thought, spoken, USAGE)  # 10 ms apart
    async with Scripted(*pieces) as url, LoadClient(url, "m", SystemClock()) as client:
        answer = await client.chat(CHAT, 2)
    assert isinstance(answer, ClientAnswer)
    assert answer.text == "yes"
    assert 20 <= answer.ttft_ms <= answer.total_ms - 10


async def test_an_answer_that_spells_nothing_began_with_its_first_chunk() -> None:
    async with Scripted(OPENING, USAGE) as url, LoadClient(url, "m", SystemClock()) as client:
        answer = await client.chat(CHAT, 2)
    assert isinstance(answer, ClientAnswer)
    assert (answer.text, answer.output_tokens) == ("", 2)
    assert 0 < answer.ttft_ms < answer.total_ms


@pytest.mark.parametrize("content", [b"", OPENING, data("no json"), data('{"error": {"message": "full"}}')])
async def test_an_answer_that_is_none_is_a_value(content: bytes) -> None:
    async with Scripted(content) as url, LoadClient(url, "m", SystemClock()) as client:
        answer = await client.chat(CHAT, 2)
    assert isinstance(answer, ClientFailure)
    assert answer.status == 200
