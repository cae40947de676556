"""Ask an engine over HTTP what it is, describe it in words, and recommend what to turn on at it.

The survey covers health, models, version, metrics, event sources, and two tiny completions: vLLM reports
`cached_tokens` only for a prompt that hit the cache, so the same prompt is sent twice.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx

from router.backends.vllm.info import read_event_sources, read_models
from router.backends.vllm.metrics import read_gauges
from router.fleet.engine_facts import EventEndpoint, Gauges, ModelCard
from router.fleet.engine_limits import OverLimit

PREFIX_CACHING = re.compile(rb'^vllm:cache_config_info\{.*?enable_prefix_caching="(True|False)"', re.MULTILINE)
DEFAULT_BLOCK_TOKENS = 16
EVENTS = (
    '{"enable_kv_cache_events": true, "publisher": "zmq", '
    '"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"}'
)


class EngineSurvey(NamedTuple):
    """The answers of one engine; `None` means that it did not say."""

    url: str
    error: str | None = None  # why it cannot be used now; everything else is empty then
    version: str | None = None
    cards: tuple[ModelCard, ...] = ()
    gauges: Mapping[int, Gauges] = {}  # by rank
    prefix_caching: bool | None = None
    sources: tuple[EventEndpoint, ...] | None = None  # None: no GET /kv_event_sources, as before vLLM 0.31
    unreachable: tuple[str, ...] = ()  # event and replay endpoints that refuse a connection from here
    cached_tokens: bool | None = None  # usage.prompt_tokens_details of an answer whose prompt was cached

    @property
    def model(self) -> str | None:
        """The base model's name."""
        return next((card.id for card in self.cards if card.parent is None), None)

    @property
    def root(self) -> str | None:
        """The base model's path at the engine."""
        return next((card.root for card in self.cards if card.parent is None), None)


class Advice(NamedTuple):
    """A change of the engine's command line, and what it is good for."""

    flags: str
    reason: str


def describe_engine(survey: EngineSurvey) -> list[str]:
    """Return the facts of an engine that answered, one line per subject."""
    adapters = [card.id for card in survey.cards if card.parent is not None]
    ranks = [gauges for _, gauges in sorted(survey.gauges.items())]
    blocks = next((gauges.block_tokens for gauges in ranks if gauges.block_tokens), None)
    capacity = [gauges.capacity_tokens for gauges in ranks if gauges.capacity_tokens]
    facts = [
        f"vLLM {survey.version or 'of unknown version'}, model {survey.model}",
        f"{len(ranks)} ranks" if len(ranks) > 1 else "",
        f"blocks of {blocks:,} tokens" if blocks else "block size unknown",
        f"KV cache of {sum(capacity):,} tokens" if capacity else "",
        f"adapters {', '.join(adapters)}" if adapters else "",
    ]
    return [", ".join(fact for fact in facts if fact), *_describe_events(survey), _describe_cached_tokens(survey)]


def _describe_events(survey: EngineSurvey) -> list[str]:
    if survey.sources is None:
        return ["KV events: unknown; this version has no GET /kv_event_sources"]
    if not survey.sources:
        return ["KV events: off"]
    lines = []
    for source in survey.sources:
        replay = f"replay at {source.replay_endpoint}" if source.replay_endpoint else "replay off"
        refused = [end for end in (source.endpoint, source.replay_endpoint) if end in survey.unreachable]
        trouble = f"; not reachable from here: {', '.join(map(str, refused))}" if refused else ""
        lines.append(f"KV events: rank {source.rank} at {source.endpoint}, {replay}{trouble}")
    return lines


def _describe_cached_tokens(survey: EngineSurvey) -> str:
    states = {True: "on", False: "off", None: "unknown"}
    return f"cached_tokens in usage: {states[survey.cached_tokens]}"


def recommend(survey: EngineSurvey) -> list[Advice]:
    """Return what to turn on at the engine for exact cache knowledge; none when all of it is on."""
    advice = []
    if survey.prefix_caching is False:
        advice.append(Advice("--enable-prefix-caching", "without it no request can hit a cache"))
    if survey.sources is None or not survey.sources:
        reason = "the router then knows each cached block; without events it remembers what it sent"
        advice.append(Advice(f"--kv-events-config '{EVENTS}'", reason))
    elif any(source.replay_endpoint is None for source in survey.sources):
        reason = "after a lost event or a restart of the router, replay restores what it knows"
        advice.append(Advice('"replay_endpoint": "tcp://*:5657" in --kv-events-config', reason))
    if survey.cached_tokens is False:
        reason = "the router then compares each predicted hit with the delivered one"
        advice.append(Advice("--enable-prompt-tokens-details", reason))
    if not survey.gauges:
        advice.append(Advice("no --disable-log-stats", "the router reads queue lengths and cache size from /metrics"))
    return advice


async def survey_engine(url: str, api_key: str | None = None, timeout_s: float = 5.0) -> EngineSurvey:
    """Return what the engine at `url` says of itself; an engine that does not answer has `error` set."""
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout_s) as client:
        try:
            health = await client.get("/health")
            if health.status_code != 200:
                return EngineSurvey(url, error=f"GET /health: {health.status_code}")
            listing = await client.get("/v1/models")
            models = read_models(listing.content) if listing.status_code == 200 else None
            if models is None or not models.cards:
                hint = "; is --api-key-env right?" if listing.status_code in (401, 403) else ""
                return EngineSurvey(url, error=f"GET /v1/models: {listing.status_code} and no list of models{hint}")
            page = (await client.get("/metrics")).content
            gauges = read_gauges(page)
            if isinstance(gauges, OverLimit):
                return EngineSurvey(url, error=gauges.detail)
            caching = PREFIX_CACHING.search(page)
            sources = await _event_sources(client, url)
            survey = EngineSurvey(
                url,
                version=_text(await client.get("/version"), "version"),
                cards=tuple(models.cards),
                gauges=gauges,
                prefix_caching=None if caching is None else caching[1] == b"True",
                sources=sources,
                unreachable=await _unreachable(sources or ()),
            )
            if survey.model is None or survey.prefix_caching is False:
                return survey
            blocks = [each.block_tokens for each in gauges.values() if each.block_tokens]
            reported = await _reports_cached_tokens(client, survey.model, max(blocks, default=DEFAULT_BLOCK_TOKENS))
            return survey._replace(cached_tokens=reported)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as failure:
            return EngineSurvey(url, error=f"no answer: {str(failure) or type(failure).__name__}")


async def _event_sources(client: httpx.AsyncClient, url: str) -> tuple[EventEndpoint, ...] | None:
    answer = await client.get("/kv_event_sources")
    found = read_event_sources(answer.content, urlsplit(url).hostname or "") if answer.status_code == 200 else None
    return None if found is None or isinstance(found, OverLimit) else tuple(found)


async def _unreachable(sources: tuple[EventEndpoint, ...]) -> tuple[str, ...]:
    """Return the TCP endpoints that refuse a connection from this machine."""
    endpoints = [end for source in sources for end in (source.endpoint, source.replay_endpoint) if end is not None]
    refused = []
    for endpoint in endpoints:
        address = urlsplit(endpoint)
        if address.scheme != "tcp":
            continue
        try:
            async with asyncio.timeout(2.0):
                _, writer = await asyncio.open_connection(address.hostname, address.port)
            writer.close()
        except OSError:
            refused.append(endpoint)
    return tuple(refused)


async def _reports_cached_tokens(client: httpx.AsyncClient, model: str, block_tokens: int) -> bool | None:
    """Return whether a cached prompt's answer says so; None when the engine answers no completions."""
    body = {"model": model, "prompt": "warm " * (2 * block_tokens + 2), "max_tokens": 1}
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
