"""Ask an engine over HTTP what it is: health, models, version, metrics, event sources, and two tiny completions.

vLLM reports `cached_tokens` only for a prompt that hit the cache, so the same prompt is sent twice.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any
from urllib.parse import urlsplit

import httpx

from router.backends.vllm.info import read_event_sources, read_models
from router.backends.vllm.metrics import read_gauges
from router.cli.init.findings import EngineSurvey
from router.fleet.engine_facts import EventEndpoint

PREFIX_CACHING = re.compile(rb'^vllm:cache_config_info\{.*?enable_prefix_caching="(True|False)"', re.MULTILINE)
DEFAULT_BLOCK_TOKENS = 16


async def survey_engine(url: str, api_key: str | None = None, timeout_s: float = 5.0) -> EngineSurvey:
    """Return what the engine at `url` says of itself; an engine that does not answer has `error` set."""
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout_s) as client:
        try:
            health = await client.get("/health")
            if health.status_code != 200:
                return EngineSurvey(url, error=f"GET /health: {health.status_code}")
            listing = await client.get("/v1/models")
            cards = read_models(listing.content) if listing.status_code == 200 else None
            if not cards:
                hint = "; is --api-key-env right?" if listing.status_code in (401, 403) else ""
                return EngineSurvey(url, error=f"GET /v1/models: {listing.status_code} and no list of models{hint}")
            page = (await client.get("/metrics")).content
            gauges = read_gauges(page)
            caching = PREFIX_CACHING.search(page)
            sources = await _event_sources(client, url)
            survey = EngineSurvey(
                url,
                version=_text(await client.get("/version"), "version"),
                cards=tuple(cards),
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
    return None if found is None else tuple(found)


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
