"""A streaming client of the completions endpoint that measures: time to first token, time per token, cached tokens.

Prompts are token ids, so that their length is exact and no tokenizer stands between a workload and an engine; the
answer's own ids come back with it (`return_token_ids`), so that a conversation can go on from what was really said.
Trouble is a value: a load goes on when one request fails, and counts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import httpx
import msgspec

from router.clock import Clock

TIMEOUT = httpx.Timeout(300.0, connect=5.0)
DATA, DONE = "data: ", "[DONE]"


class Answer(NamedTuple):
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

    @property
    def tpot_ms(self) -> float | None:
        """Mean time per token after the first; None: there was only one."""
        return (self.total_ms - self.ttft_ms) / (self.output_tokens - 1) if self.output_tokens > 1 else None


class Failed(NamedTuple):
    """No answer, or half of one. `status` None: none came."""

    status: int | None
    reason: str


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Choice(msgspec.Struct):
    text: str = ""
    token_ids: list[int] | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class Client:
    """Many requests at once to one server. Used as `async with`."""

    def __init__(self, url: str, model: str, clock: Clock) -> None:
        self._model = model
        self._clock = clock
        limits = httpx.Limits(max_connections=None)
        self._http = httpx.AsyncClient(base_url=url, timeout=TIMEOUT, limits=limits, trust_env=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def complete(
        self, prompt: Sequence[int], max_tokens: int, salt: str | None = None, session: str | None = None
    ) -> Answer | Failed:
        """A greedy answer of exactly `max_tokens` tokens. `salt` sets the prompt's cache apart from all others,
        `session` names the conversation to a router.
        """
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        content = msgspec.json.encode(body if salt is None else body | {"cache_salt": salt})
        headers = {"content-type": "application/json"} | ({} if session is None else {"x-session-id": session})
        began_s = self._clock.now()
        try:
            async with self._http.stream("POST", "/v1/completions", content=content, headers=headers) as response:
                if response.status_code != 200:
                    return Failed(response.status_code, (await response.aread())[:200].decode(errors="replace"))
                return await self._read(response, began_s)
        except httpx.HTTPError as trouble:
            return Failed(None, f"{type(trouble).__name__}: {trouble}")
        except msgspec.DecodeError as trouble:
            return Failed(200, f"a chunk that cannot be read: {trouble}")

    async def _read(self, response: httpx.Response, began_s: float) -> Answer | Failed:
        first_s = usage = None
        text: list[str] = []
        ids: list[int] = []
        async for line in response.aiter_lines():
            if not line.startswith(DATA) or line.endswith(DONE):
                continue
            chunk = _decode(line[len(DATA) :])
            if chunk.error is not None:
                return Failed(200, f"the stream broke off: {chunk.error}")
            for choice in chunk.choices:
                first_s = self._clock.now() if first_s is None else first_s
                text.append(choice.text)
                ids += choice.token_ids or ()
            usage = chunk.usage or usage
        if first_s is None or usage is None:
            return Failed(200, "the stream ended without a token or without usage")
        return Answer(
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
