"""A streaming client of both OpenAI endpoints that measures time to first token, time per token, cached tokens.

Completions take prompts as token ids, so their length is exact and no tokenizer is involved; the ids of the answer
come back with it (`return_token_ids`), so a conversation can continue from the real answer. Chats take messages of
text, as real clients send them. Answers are greedy and of exactly the requested length (`ignore_eos`, which vLLM
and others accept beside OpenAI's fields). A failure is a value, which the load counts before it continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import httpx
import msgspec

from router.backends.failure import describe_failure
from router.clock import Clock
from router.config.pem_files import trust_of

ANSWER_TIMEOUT_S = 900.0  # from the first byte of a request to the last one of its answer
TIMEOUT = httpx.Timeout(300.0, connect=5.0)  # without any byte
DATA, DONE = b"data: ", b"[DONE]"
EXACT_LENGTH = {"temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}


class ClientAnswer(NamedTuple):
    """An answer. Times are milliseconds from sending the request, `pause_ms` is the longest time between two chunks;
    `cached_tokens` None: not reported.
    """

    ttft_ms: float
    pause_ms: float
    total_ms: float
    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    target: str | None  # `x-warmroute-target`; None without a router
    record: str | None  # `x-warmroute-record`


class ClientFailure(NamedTuple):
    """No answer, or an incomplete one. `status` None: no answer."""

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
    reasoning_content: str | None = None  # its earlier name

    @property
    def has_text(self) -> bool:
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


class SessionName(NamedTuple):
    """Session names in a request: its own session's, and the name of the session that started this session. None:
    the request has no such name.
    """

    session: str | None = None
    parent: str | None = None

    def headers(self) -> dict[str, str]:
        names = {"x-session-id": self.session, "x-parent-session-id": self.parent}
        return {header: name for header, name in names.items() if name is not None}


NO_NAME = SessionName()


def bearer(api_key: str | None) -> dict[str, str]:
    """Return the headers that carry the API key."""
    return {} if api_key is None else {"authorization": f"Bearer {api_key}"}


class LoadClient:
    """Client that sends concurrent requests to one server; used with `async with`. `url` may end in `/v1`, which
    SDKs expect. `ca_file` has the certificates to trust; None: the system's CAs.
    """

    def __init__(
        self, url: str, model: str, clock: Clock, api_key: str | None = None, ca_file: str | None = None
    ) -> None:
        self._model = model
        self._clock = clock
        limits = httpx.Limits(max_connections=None)
        base = url.rstrip("/").removesuffix("/v1")
        headers = bearer(api_key)
        self._http = httpx.AsyncClient(
            base_url=base,
            headers=headers,
            timeout=TIMEOUT,
            limits=limits,
            trust_env=False,
            verify=trust_of(base, ca_file),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def complete(
        self, prompt: Sequence[int], max_tokens: int, salt: str | None = None, session: SessionName = NO_NAME
    ) -> ClientAnswer | ClientFailure:
        """Complete a prompt. `salt` separates its cache from all others, `session` names the conversation."""
        body = {"prompt": prompt, "return_token_ids": True} | ({} if salt is None else {"cache_salt": salt})
        return await self._send("/v1/completions", body, max_tokens, session)

    async def chat(
        self, messages: Sequence[Mapping[str, str]], max_tokens: int, session: SessionName = NO_NAME
    ) -> ClientAnswer | ClientFailure:
        """Send messages of `role` and `content`; `session` as in `complete`. The answer has text, no token ids."""
        return await self._send("/v1/chat/completions", {"messages": messages}, max_tokens, session)

    async def _send(
        self, path: str, body: Mapping[str, Any], max_tokens: int, session: SessionName
    ) -> ClientAnswer | ClientFailure:
        content = msgspec.json.encode({"model": self._model, **body, "max_tokens": max_tokens} | EXACT_LENGTH)
        headers = {"content-type": "application/json"} | session.headers()
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
            return ClientFailure(None, f"no complete answer within {ANSWER_TIMEOUT_S:.0f} s")
        except httpx.HTTPError as error:
            return ClientFailure(None, describe_failure(error))
        except msgspec.DecodeError as error:
            return ClientFailure(200, f"a chunk cannot be read: {error}")

    async def _read(self, response: httpx.Response, began_s: float) -> ClientAnswer | ClientFailure:
        first_s = opened_s = last_s = usage = None
        pause_s = 0.0
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
                pause_s, last_s = max(pause_s, now_s - (last_s or now_s)), now_s
                if first_s is None and (choice.delta is None or choice.delta.has_text):
                    first_s = now_s
                text.append(choice.text if choice.delta is None else choice.delta.content or "")
                ids += choice.token_ids or ()
            usage = chunk.usage or usage
        first_s = opened_s if first_s is None else first_s  # an answer whose tokens have no text
        if first_s is None or usage is None:
            return ClientFailure(200, "the stream ended without a token or without usage")
        return ClientAnswer(
            ttft_ms=(first_s - began_s) * 1e3,
            pause_ms=pause_s * 1e3,
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
    """Yield lines split at line feeds only: JSON may contain U+2028, at which `str.splitlines` also splits."""
    rest = b""
    async for data in response.aiter_bytes():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line
    yield rest
