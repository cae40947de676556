"""Send small prompts to one engine, and compare the hits that its events promise with those that it delivers.

Each kind of request is sent twice, to one rank. In between, the engine's events must announce the prompt's blocks
under the router's keys (promised); the second answer reports the tokens that were cached (delivered). Both agree if
the router reads the engine correctly. Prompts begin with a random number, so they hit nothing that is cached; each
has about three blocks and is answered with one token.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import zlib
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from itertools import cycle, islice
from typing import Any, NamedTuple, TypeVar

import httpx
import msgspec

from router.backends.failure import describe_failure
from router.backends.vllm.disaggregation import NIXL_PREFILL, prefill_body, read_kv_params
from router.clock import Clock
from router.config.schema import InstanceConfig
from router.errors import BadRequest
from router.fleet.engine_facts import EventEndpoint
from router.kvcache.events import Key, TargetId
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.operate.doctor.listener import EventListener, ExpectedPrompt
from router.operate.doctor.subject import EngineProbe, KindProbe, StreamProbe
from router.operate.doctor.survey import DEFAULT_BLOCK_TOKENS, EngineSurvey
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.prompt import Endpoint, Prompt
from router.prompt.tokenization.tokenization import Tokenization
from router.prompt.usage import NO_USAGE, Usage, UsageTail

OPEN_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 10.0
AT_ONCE = 3  # prompts at one engine
LAST_S = 1.0  # reserved for the transfer query after the prompts
EVENTS_TIMEOUT_S = 2.0  # from an answer to its events
LONG_BLOCKS = 512  # tokens; a prompt has two blocks if they are at least this long, else three
WORDS = (
    "The harbour was quiet when the letter came, and nobody on the pier could say who had written it or why the "
    "captain had read it twice before he folded it, counted the crates once more and gave the order to wait"
)

Json = dict[str, Any]


class _Kind(NamedTuple):
    name: str
    path: str
    body: Json
    adapter: str | None = None
    salt: str | None = None


class _Rank(NamedTuple):
    """One rank of an instance, to which prompts are sent. `several`: the instance has more ranks."""

    instance: str
    model: str
    client: httpx.AsyncClient
    number: int
    several: bool

    @property
    def target(self) -> TargetId:
        return TargetId(f"{self.instance}/{self.number}")

    @property
    def headers(self) -> dict[str, str]:
        rank = {"x-data-parallel-rank": str(self.number)} if self.several else {}
        return {"content-type": "application/json"} | rank


class _Promise(NamedTuple):
    """The prompt's blocks, and what the engine's events say of them."""

    keys: Sequence[Key]
    wanted_tokens: int  # of whole blocks
    held_tokens: int | None  # of these, announced by events; None: no events come


class _Sent(NamedTuple):
    keys: Sequence[Key]  # of the prompt; empty if its ids are unknown
    result: KindProbe


K = TypeVar("K")
NO_ANSWER = KindProbe("completions", "no answer in time")


class EngineProber:
    """Probes engines. All share one listener, so that a prompt on another engine's stream is recognised."""

    def __init__(self, listener: EventListener, tokenization: Tokenization, clock: Clock) -> None:
        self._listener = listener
        self._tokenization = tokenization
        self._clock = clock
        self._options = ReadOptions(strip_fields=frozenset(), inject_usage=False)

    def subscribe(self, config: InstanceConfig, survey: EngineSurvey) -> list[TargetId]:
        """Subscribe to the engine's streams. Return their targets."""
        targets = []
        for endpoint in configured_endpoints(config, survey):
            target = TargetId(f"{config.id}/{endpoint.rank}")
            self._listener.subscribe(target, survey.model or "", endpoint)
            targets.append(target)
        return targets

    async def probe(
        self, config: InstanceConfig, survey: EngineSurvey, client: httpx.AsyncClient, timeout_s: float
    ) -> EngineProbe:
        """Send the prompts, and return the results that arrive within `timeout_s`. The engine's streams must be
        subscribed.
        """
        end_s = self._clock.now() + timeout_s
        model = survey.model or ""
        streams = {t: s for t, s in self._listener.streams.items() if t.rpartition("/")[0] == config.id}
        await self._listener.wait(lambda: all(stream.opened for stream in streams.values()), OPEN_TIMEOUT_S)
        ranks = sorted({*survey.gauges, *(stream.endpoint.rank for stream in streams.values())}) or [0]
        size = survey.block_tokens or DEFAULT_BLOCK_TOKENS
        at = {rank: _Rank(config.id, model, client, rank, len(ranks) > 1) for rank in ranks}
        plain = {rank: self._send_twice(at[rank], _plain(model, _text(size)), size) for rank in ranks}
        answered = await self._run(plain, end_s)
        described = await self._describe_streams(config, answered)
        kinds = [answered[rank].result if rank in answered else NO_ANSWER for rank in ranks]
        unfinished: list[str] = []
        if kinds[0].error is None:
            observed = next((stream for stream in described if stream.rank == ranks[0]), None)
            size = (observed.block_tokens if observed else None) or size
            waits = observed is not None and observed.own
            others = _other_kinds(model, survey.adapters, size)
            prompts = {kind.name: self._send_twice(at[ranks[0]], kind, size, waits=waits) for kind in others}
            more = await self._run(prompts, end_s - LAST_S)
            kinds += [sent.result for sent in more.values()]
            unfinished = [kind.name for kind in others if kind.name not in more]
        host, params = await self._ask_transfer(config, model, size, client)
        return EngineProbe(tuple(described), tuple(kinds), host, params, tuple(unfinished))

    async def _run(self, prompts: Mapping[K, Coroutine[Any, Any, _Sent]], end_s: float) -> dict[K, _Sent]:
        """Send prompts in this order, a few at once. Return the results of those that were answered by `end_s`."""
        turn, sent = asyncio.Semaphore(AT_ONCE), {}

        async def send(key: K, prompt: Coroutine[Any, Any, _Sent]) -> None:
            async with turn:
                sent[key] = await prompt

        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, end_s - self._clock.now())):
                await asyncio.gather(*(send(key, prompt) for key, prompt in prompts.items()))
        for prompt in prompts.values():
            prompt.close()  # for the prompts that had no turn
        return sent

    async def _describe_streams(self, config: InstanceConfig, results: Mapping[int, _Sent]) -> list[StreamProbe]:
        described = []
        for rank, (keys, _) in results.items():
            target = TargetId(f"{config.id}/{rank}")
            if (observed := self._listener.streams.get(target)) is None:
                continue
            if observed.replay_requested:
                await self._listener.wait(observed.is_replayed, OPEN_TIMEOUT_S)
            own = self._listener.held_blocks(target, keys) > 0
            found_at = None if own else self._listener.find(keys)
            described.append(self._listener.describe(target, rank, own=own, found_at=found_at))
        return described

    async def _send_twice(self, rank: _Rank, kind: _Kind, block_tokens: int, *, waits: bool = True) -> _Sent:
        """Send a prompt twice. Return its keys, and the promised and delivered tokens. `waits`: for its events."""
        body = msgspec.json.encode(kind.body)
        prompt = read_prompt(kind.path, "application/json", body, self._options)
        known = await self._tokenize(prompt, rank.instance, rank.model)
        if isinstance(known, TokenizedPrompt) and kind.salt is None:
            self._listener.expect(rank.target, ExpectedPrompt(known.ids, kind.adapter))
        first = await _post(rank.client, kind.path, body, rank.headers)
        if isinstance(first, str):
            return _Sent((), KindProbe(kind.name, first))
        promise = _Promise((), 0, None)
        why, counted = None, None
        if isinstance(known, TokenizedPrompt):
            counted = len(known.ids) if known.complete else None
            promise = await self._read_promise(rank, kind, known, block_tokens, EVENTS_TIMEOUT_S if waits else 0.0)
        else:
            why = known
        second = await _post(rank.client, kind.path, body, rank.headers)
        if isinstance(second, str):
            return _Sent(promise.keys, KindProbe(kind.name, second))
        counts = counted, first.prompt_tokens, promise.wanted_tokens, promise.held_tokens, second.cached_tokens
        return _Sent(promise.keys, KindProbe(kind.name, None, why, *counts))

    async def _read_promise(
        self, rank: _Rank, kind: _Kind, known: TokenizedPrompt, block_tokens: int, timeout_s: float
    ) -> _Promise:
        """Wait up to `timeout_s` for the events of a prompt that was answered. Their block size replaces
        `block_tokens`.
        """
        target, observed = rank.target, self._listener.streams.get(rank.target)
        keys, wanted = self._split(known, rank.model, kind, block_tokens)
        if observed is None or not observed.opened:
            return _Promise(keys, wanted * block_tokens, None)
        await self._listener.wait(lambda: self._listener.held_blocks(target, keys) >= wanted, timeout_s)
        if observed.block_tokens not in (None, block_tokens):
            block_tokens = observed.block_tokens or block_tokens
            keys, wanted = self._split(known, rank.model, kind, block_tokens)
        held = self._listener.reusable_blocks(target, keys[:wanted])
        return _Promise(keys, wanted * block_tokens, held * block_tokens)

    def _split(self, known: TokenizedPrompt, model: str, kind: _Kind, block_tokens: int) -> tuple[list[Key], int]:
        """Return the keys of the prompt's blocks, and the number of blocks that an engine may keep."""
        root = self._listener.keyring.root(model, kind.adapter, kind.salt)
        keys = self._listener.keyring.chain(root, known.ids, block_tokens)
        return keys, max(0, len(known.ids) - known.complete) // block_tokens

    async def _tokenize(self, prompt: Prompt, instance: str, model: str) -> TokenizedPrompt | str:
        """Return the prompt's ids as the router finds them, or the reason why it finds none."""
        try:
            found = await self._tokenization.tokenize(prompt, model, None, (), (instance,), remember=False)
        except BadRequest as refusal:
            return refusal.message
        return found if isinstance(found, TokenizedPrompt) else found.reason

    async def _ask_transfer(
        self, config: InstanceConfig, model: str, size: int, client: httpx.AsyncClient
    ) -> tuple[str | None, bool | None]:
        """Return the host in the transfer parameters of a Nixl prefill engine's answer, and whether the answer has
        such parameters. Nobody fetches the prompt's blocks; the engine frees them when their lease ends, in 30 s.
        """
        if config.role != "prefill" or config.transfer is None or config.transfer.protocol != "nixl":
            return None, None
        kind = _plain(model, _text(size))
        body = prefill_body(Endpoint.COMPLETIONS, msgspec.json.encode(kind.body), NIXL_PREFILL)
        try:
            answer = await client.post(kind.path, content=body, headers={"content-type": "application/json"})
        except httpx.HTTPError:
            return None, None
        if answer.status_code != 200:
            return None, None
        params = read_kv_params(answer.content)
        host = None if params is None else msgspec.json.decode(params).get("remote_host")
        return host, params is not None


def configured_endpoints(config: InstanceConfig, survey: EngineSurvey) -> list[EventEndpoint]:
    """Return the endpoints at which the router subscribes to the engine's events."""
    if isinstance(config.kv_events, list):
        return [EventEndpoint(s.rank, s.endpoint, s.replay_endpoint, s.topic) for s in config.kv_events]
    return list(survey.sources or ()) if config.kv_events == "auto" else []


async def _post(client: httpx.AsyncClient, path: str, body: bytes, headers: Mapping[str, str]) -> Usage | str:
    """Return the usage in the answer, or why there is none."""
    try:
        answer = await client.post(path, content=body, headers=dict(headers), timeout=ANSWER_TIMEOUT_S)
    except httpx.TimeoutException:
        return "no answer in time"
    except httpx.HTTPError as failure:
        return f"no answer: {describe_failure(failure)}"
    if answer.status_code != 200:
        return f"status {answer.status_code}"
    tail = UsageTail(Endpoint(path))
    tail.feed(answer.content)
    return tail.read_usage() or NO_USAGE


def _text(block_tokens: int) -> str:
    """Return a text of at least two blocks, or three if blocks are short. Every word has at least one token."""
    blocks = 2 if block_tokens >= LONG_BLOCKS else 3
    words = islice(cycle(WORDS.split()), blocks * block_tokens + 8)
    return f"Entry {secrets.randbits(64)}. " + " ".join(words)


def _plain(model: str, text: str) -> _Kind:
    return _Kind("completions", "/v1/completions", {"model": model, "prompt": text, "max_tokens": 1, "temperature": 0})


def _other_kinds(model: str, adapters: Mapping[str, str | None], block_tokens: int) -> list[_Kind]:
    def text() -> str:
        return _text(block_tokens)

    chat, salt = "/v1/chat/completions", f"doctor-{secrets.randbits(64)}"
    one = {"model": model, "max_tokens": 1, "temperature": 0}
    image = {"type": "image_url", "image_url": {"url": _pixel()}}
    kinds = [
        _Kind("chat", chat, one | {"messages": [{"role": "user", "content": text()}]}),
        _Kind("responses", "/v1/responses", {"model": model, "max_output_tokens": 1, "store": False, "input": text()}),
        _Kind(
            "messages", "/v1/messages", one | {"system": "Be terse.", "messages": [{"role": "user", "content": text()}]}
        ),
        _Kind("salt", "/v1/completions", one | {"prompt": text(), "cache_salt": salt}, salt=salt),
        _Kind(
            "media",
            chat,
            one | {"messages": [{"role": "user", "content": [{"type": "text", "text": text()}, image]}]},
        ),
    ]
    if adapters:
        name = min(adapters)
        kinds.append(_Kind("lora", "/v1/completions", one | {"model": name, "prompt": text()}, adapter=name))
    return kinds


def _pixel() -> str:
    """Return a PNG of 28 by 28 white pixels, the smallest that vision models take, as a data URL."""
    side = 28

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    head = side.to_bytes(4, "big") * 2 + bytes((8, 2, 0, 0, 0))
    rows = zlib.compress((b"\0" + b"\xff" * 3 * side) * side)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()
