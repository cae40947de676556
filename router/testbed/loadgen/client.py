"""A streaming client of both OpenAI endpoints that measures: time to first token, time per token, cached tokens.

Completions take prompts as token ids, so that their length is exact and no tokenizer stands between a workload and an
engine; the answer's own ids come back with it (`return_token_ids`), so that a conversation can go on from what was
really said. Chats take messages of text, as real clients send them. Answers are greedy and of exactly the length asked
for (`ignore_eos`, which vLLM and others know beyond OpenAI's fields). Trouble is a value: a load goes on when one
request fails, and counts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import httpx
import msgspec

from router.clock import Clock

ANSWER_TIMEOUT_S = 900.0  # for an answer, from its request's first byte to its own last one
TIMEOUT = httpx.Timeout(300.0, connect=5.0)  # of silence
DATA, DONE = b"data: ", b"[DONE]"
EXACT_LENGTH = {"temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}


class ClientAnswer(NamedTuple):
    """Times are milliseconds from sending the request; `cached_tokens` None: the engine does not tell."""

    ttft_ms: float
    total_ms: float
    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    target: str | None  # `x-warmroute-target`, where a router stands in between
    record: str | None  # `x-warmroute-record`


class ClientFailure(NamedTuple):
    """No answer, or half of one. `status` None: none came."""

    status: int | None
    reason: str


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None  # as it was called before

    @property
    def speaks(self) -> bool:
        return bool(self.content or self.reasoning or self.reasoning_content)


class _Choice(msgspec.Struct):
    text: str = ""
    token_ids: list[int] | None = None
    delta: _Delta | None = None  # of a chat


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


def bearer(api_key: str | None) -> dict[str, str]:
    return {} if api_key is None else {"authorization": f"Bearer {api_key}"}


class LoadClient:
    """Many requests at once to one server. Used as `async with`. `url` with or without the `/v1` that SDKs want."""

    def __init__(self, url: str, model: str, clock: Clock, api_key: str | None = None) -> None:
        self._model = model
        self._clock = clock
        limits = httpx.Limits(max_connections=None)
        base = url.rstrip("/").removesuffix("/v1")
        self._http = httpx.AsyncClient(
            base_url=base, headers=bearer(api_key), timeout=TIMEOUT, limits=limits, trust_env=False
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def complete(
        self, prompt: Sequence[int], max_tokens: int, salt: str | None = None, session: str | None = None
    ) -> ClientAnswer | ClientFailure:
        """`salt` sets the prompt's cache apart from all others, `session` names the conversation to a router."""
        asked = {"prompt": prompt, "return_token_ids": True} | ({} if salt is None else {"cache_salt": salt})
        return await self._ask("/v1/completions", asked, max_tokens, session)

    async def chat(
        self, messages: Sequence[Mapping[str, str]], max_tokens: int, session: str | None = None
    ) -> ClientAnswer | ClientFailure:
        """Messages of `role` and `content`; `session` as above. The answer has text and no ids."""
        return await self._ask("/v1/chat/completions", {"messages": messages}, max_tokens, session)

    async def _ask(
        self, path: str, asked: Mapping[str, Any], max_tokens: int, session: str | None
    ) -> ClientAnswer | ClientFailure:
        content = msgspec.json.encode({"model": self._model, **asked, "max_tokens": max_tokens} | EXACT_LENGTH)
        headers = {"content-type": "application/json"} | ({} if session is None else {"x-session-id": session})
        began_s = self._clock.now()
        try:
            async with (
                asyncio.timeout(ANSWER_TIMEOUT_S),
                self._http.stream("POST", path, content=content, headers=headers) as response,
            ):
                if response.status_code != 200:
                    return ClientFailure(response.status_code, (await response.aread())[:200].decode(errors="replace"))
                return await self._read(response, began_s)
        except TimeoutError:
            return ClientFailure(None, f"no whole answer within {ANSWER_TIMEOUT_S:.0f} s")
        except httpx.HTTPError as trouble:
            return ClientFailure(None, f"{type(trouble).__name__}: {trouble}")
        except msgspec.DecodeError as trouble:
            return ClientFailure(200, f"a chunk that cannot be read: {trouble}")

    async def _read(self, response: httpx.Response, began_s: float) -> ClientAnswer | ClientFailure:
        first_s = opened_s = usage = None
        text: list[str] = []
        ids: list[int] = []
        async for line in _lines(response):
            if not line.startswith(DATA) or line.rstrip().endswith(DONE):
                continue
            chunk = _decode(line[len(DATA) :])
            if chunk.error is not None:
                return ClientFailure(200, f"the stream broke off: {chunk.error}")
            for choice in chunk.choices:
                now_s = self._clock.now()
                opened_s = now_s if opened_s is None else opened_s
                if first_s is None and (choice.delta is None or choice.delta.speaks):
                    first_s = now_s
                text.append(choice.text if choice.delta is None else choice.delta.content or "")
                ids += choice.token_ids or ()
            usage = chunk.usage or usage
        first_s = opened_s if first_s is None else first_s  # an answer of tokens that spell nothing
        if first_s is None or usage is None:
            return ClientFailure(200, "the stream ended without a token or without usage")
        return ClientAnswer(
            ttft_ms=(first_s - began_s) * 1e3,
            total_ms=(self._clock.now() - began_s) * 1e3,
            text="".join(text),
            token_ids=tuple(ids),
            prompt_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
            cached_tokens=(usage.prompt_tokens_details or _Details()).cached_tokens,
            target=response.headers.get("x-warmroute-target"),
            record=response.headers.get("x-warmroute-record"),
        )


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """Cut at line feeds and nowhere else: JSON may hold U+2028 and others that `str.splitlines` takes for ends."""
    rest = b""
    async for data in response.aiter_bytes():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line
    yield rest
