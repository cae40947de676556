"""Query an engine over HTTP for its health, models, version, metrics and event endpoints.

`warmroute init` and `warmroute doctor` begin with this survey. Only `reports_cached_tokens` makes an engine compute
anything: vLLM reports `cached_tokens` only for a prompt that hit the cache, so this function sends the same prompt
twice.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import httpx

from router.backends.failure import NOT_TLS, UNTRUSTED, describe_failure
from router.backends.vllm.info import read_event_sources, read_models
from router.backends.vllm.metrics import read_gauges
from router.fleet.engine_facts import EventEndpoint, Gauges, ModelCard
from router.fleet.engine_limits import OverLimit

CONFIG_LABELS = re.compile(rb"^vllm:cache_config_info\{(.*)\} 1\.0$", re.MULTILINE)
HASH_ALGO = re.compile(rb'prefix_caching_hash_algo="(\w{1,32})"')
CREATED = re.compile(rb"^(vllm:prefix_cache_queries_created\{[^}]*\} [0-9.e+]+)$", re.MULTILINE)
DEFAULT_BLOCK_TOKENS = 16
METRICS_READS = 4  # each on its own connection: two engines behind one address are missed with a chance of 1 in 8

Refusal = Literal["unreachable", "slow", "plain", "untrusted", "key", "unhealthy", "other"]
"""Why an engine cannot be used: no connection, no answer in time, no TLS, its certificate, its API key, or
its answer.
"""


class EngineSurvey(NamedTuple):
    """The answers of one engine. None: not reported."""

    url: str
    error: str | None = None  # why it cannot be used now; everything else is empty then
    version: str | None = None
    cards: tuple[ModelCard, ...] = ()
    gauges: Mapping[int, Gauges] = {}  # by rank
    sources: tuple[EventEndpoint, ...] | None = None  # None: no GET /kv_event_sources, as before vLLM 0.31
    unreachable: tuple[str, ...] = ()  # event and replay endpoints that refuse a connection from here
    cached_tokens: bool | None = None  # whether usage of a cached prompt has prompt_tokens_details
    refusal: Refusal | None = None  # the kind of `error`
    hash_algo: str | None = None  # --prefix-caching-hash-algo
    announced: tuple[str, ...] = ()  # event endpoints as the engine has them in its settings, such as tcp://*:5557
    starts: frozenset[bytes] = frozenset()  # start times of its counters; more than its ranks: several engines

    @property
    def model(self) -> str | None:
        """The base model's name."""
        return next((card.id for card in self.cards if card.parent is None), None)

    @property
    def root(self) -> str | None:
        """The base model's path at the engine."""
        return next((card.root for card in self.cards if card.parent is None), None)

    @property
    def adapters(self) -> dict[str, str | None]:
        """The engine's LoRA adapters, with their paths."""
        return {card.id: card.root for card in self.cards if card.parent is not None}

    @property
    def prefix_caching(self) -> bool | None:
        """Whether all ranks keep prefixes, from the engine's metrics page. None: unknown."""
        known = [each.prefix_caching for each in self.gauges.values() if each.prefix_caching is not None]
        return all(known) if known else None

    @property
    def block_tokens(self) -> int | None:
        """Tokens per block, from the engine's metrics page. None: unknown."""
        return next((gauges.block_tokens for gauges in self.gauges.values() if gauges.block_tokens), None)


async def survey_url(url: str, api_key: str | None = None, timeout_s: float = 5.0) -> EngineSurvey:
    """Return the facts that the engine at `url` reports, and whether it reports cached tokens."""
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout_s) as client:
        survey = await survey_engine(client, url)
        if survey.error is not None or survey.model is None or survey.prefix_caching is False:
            return survey
        try:
            return survey._replace(cached_tokens=await reports_cached_tokens(client, survey))
        except (httpx.HTTPError, ValueError) as failure:
            return _failed(url, failure)


async def survey_engine(client: httpx.AsyncClient, url: str) -> EngineSurvey:
    """Return the facts that the engine behind `client` reports; an engine that does not answer has `error` set."""
    try:
        health = await client.get("/health")
        if health.status_code != 200:
            refusal: Refusal = "unhealthy" if health.status_code >= 500 else "other"
            return EngineSurvey(url, f"GET /health: {health.status_code}", refusal=refusal)
        listing = await client.get("/v1/models")
        models = read_models(listing.content) if listing.status_code == 200 else None
        if models is None or not models.cards:
            denied = listing.status_code in (401, 403)
            hint = "; is --api-key-env right?" if denied else ""
            error = f"GET /v1/models: {listing.status_code} and no list of models{hint}"
            return EngineSurvey(url, error, refusal="key" if denied else "other")
        page = (await client.get("/metrics")).content
        gauges = read_gauges(page)
        if isinstance(gauges, OverLimit):
            return EngineSurvey(url, gauges.detail, refusal="other")
        labels = CONFIG_LABELS.search(page)
        algo = HASH_ALGO.search(labels[1]) if labels else None
        answer = await client.get("/kv_event_sources")
        sources = _event_sources(answer, url)
        return EngineSurvey(
            url,
            version=_text(await client.get("/version"), "version"),
            cards=tuple(models.cards),
            gauges=gauges,
            sources=sources,
            unreachable=await list_unreachable(sources or ()),
            hash_algo=None if algo is None else algo[1].decode(),
            announced=_announced(answer),
            starts=frozenset(CREATED.findall(page)),
        )
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as failure:
        return _failed(url, failure)


async def read_starts(client: httpx.AsyncClient) -> frozenset[bytes]:
    """Return when the counters of the processes behind the client's address started, over several connections."""
    answers = [client.get("/metrics", headers={"connection": "close"}) for _ in range(METRICS_READS)]
    pages = await asyncio.gather(*answers, return_exceptions=True)
    return frozenset(at for page in pages if isinstance(page, httpx.Response) for at in CREATED.findall(page.content))


def _failed(url: str, failure: Exception) -> EngineSurvey:
    refusal: Refusal = "other"
    reason = describe_failure(failure)
    if isinstance(failure, httpx.TimeoutException):
        refusal = "slow"
    elif isinstance(failure, httpx.TransportError):
        refusal = "plain" if reason == NOT_TLS else "untrusted" if reason.startswith(UNTRUSTED) else "unreachable"
    return EngineSurvey(url, f"no answer: {reason}", refusal=refusal)


def _event_sources(answer: httpx.Response, url: str) -> tuple[EventEndpoint, ...] | None:
    found = read_event_sources(answer.content, urlsplit(url).hostname or "") if answer.status_code == 200 else None
    return None if found is None or isinstance(found, OverLimit) else tuple(found)


def _announced(answer: httpx.Response) -> tuple[str, ...]:
    try:
        entries: Any = answer.json() if answer.status_code == 200 else {}
    except ValueError:
        return ()
    endpoints = (entry.get("endpoint") for entry in entries.values() if isinstance(entry, dict))
    return tuple(endpoint for endpoint in endpoints if isinstance(endpoint, str))


async def list_unreachable(sources: tuple[EventEndpoint, ...]) -> tuple[str, ...]:
    """Return the TCP endpoints that refuse a connection from this machine."""
    endpoints = [end for source in sources for end in (source.endpoint, source.replay_endpoint) if end is not None]
    answers = await asyncio.gather(*map(_connects, endpoints))
    return tuple(endpoint for endpoint, connects in zip(endpoints, answers, strict=True) if not connects)


async def _connects(endpoint: str) -> bool:
    """Return whether a TCP connection to `endpoint` succeeds; True for an endpoint of another transport."""
    try:
        address = urlsplit(endpoint)
        if address.scheme != "tcp":
            return True
        async with asyncio.timeout(2.0):
            _, writer = await asyncio.open_connection(address.hostname, address.port)
    except (OSError, ValueError):
        return False
    writer.close()
    return True


async def reports_cached_tokens(client: httpx.AsyncClient, survey: EngineSurvey) -> bool | None:
    """Return whether the answer to a cached prompt reports cached tokens. None if the completions fail."""
    block_tokens = survey.block_tokens or DEFAULT_BLOCK_TOKENS
    body = {"model": survey.model, "prompt": "warm " * (2 * block_tokens + 2), "max_tokens": 1}
    for _ in range(2):
        answer = await client.post("/v1/completions", json=body)
        if answer.status_code != 200:
            return None
    usage = answer.json().get("usage")
    return isinstance(usage, dict) and usage.get("prompt_tokens_details") is not None


def _text(answer: httpx.Response, key: str) -> str | None:
    try:
        value: Any = answer.json()[key] if answer.status_code == 200 else None
    except (ValueError, KeyError, TypeError):
        return None
    return value if isinstance(value, str) else None
