"""What engines and the pool's master count themselves: the proof of where a hit came from, read before and after.

A router or a client can only report what it was told; vLLM counts each prompt token by where its KV came from, and
Mooncake counts keys saved, loaded and evicted. The pages say nothing about one request, so a difference belongs to a
request only while it is alone, and only once the counters have moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, Self, TypeVar

import httpx
from prometheus_client.parser import text_string_to_metric_families

from router.clock import Clock
from router.errors import WarmrouteError

LOOK_EVERY_S = 0.02


class CountersUnavailable(WarmrouteError):
    """A server's page could not be had, or is no metrics page."""


class CounterPage:
    """The samples of one metrics page."""

    def __init__(self, text: str) -> None:
        """Raises ValueError where it is none."""
        self._samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def total(self, name: str, **labels: str) -> float | None:
        """The sum over all samples of this name that carry these labels; None: there is none.

        The parser gives a counter that was written without `_total`, as some of Mooncake's are, that ending.
        """
        names = (name, f"{name}_total")
        found = [s.value for s in self._samples if s.name in names and labels.items() <= s.labels.items()]
        return sum(found) if found else None

    def label(self, name: str, label: str) -> str | None:
        return next((s.labels[label] for s in self._samples if s.name == name and label in s.labels), None)


class EngineCounts(NamedTuple):
    """Of one vLLM engine, all its ranks: totals since its start, or differences. None: its page has no such counter."""

    prompt_tokens: float | None
    local_tokens: float | None  # found in the engine's own cache
    pool_tokens: float | None  # brought by its KV connector
    loaded_keys: float | None
    loaded_bytes: float | None
    load_s: float | None
    failed_keys: float | None  # not loaded after all: computed, though counted as the pool's (vLLM counts the promise)
    saved_keys: float | None
    saved_bytes: float | None

    @classmethod
    def read(cls, page: CounterPage) -> Self:
        def store(what: str, operation: str) -> float | None:
            return page.total(f"vllm:mooncake_store_operation_{what}", operation=operation)

        return cls(
            prompt_tokens=page.total("vllm:prompt_tokens_total"),
            local_tokens=page.total("vllm:prefix_cache_hits_total"),
            pool_tokens=page.total("vllm:external_prefix_cache_hits_total"),
            loaded_keys=store("keys_total", "load_get"),
            loaded_bytes=store("bytes_total", "load_get"),
            load_s=store("time_seconds_sum", "load_get"),
            failed_keys=store("failed_keys_total", "load_get"),
            saved_keys=store("keys_total", "save_put"),
            saved_bytes=store("bytes_total", "save_put"),
        )

    @property
    def computed_tokens(self) -> float | None:
        """What neither cache gave."""
        if self.prompt_tokens is None or self.local_tokens is None:
            return None
        return self.prompt_tokens - self.local_tokens - (self.pool_tokens or 0)


class MasterCounts(NamedTuple):
    """Of a Mooncake master: `keys` and `bytes` it holds now (or by how much they changed), the others are counters."""

    keys: float | None
    bytes: float | None
    stored_keys: float | None  # writes completed
    loaded_keys: float | None  # reads granted from memory
    loaded_bytes: float | None
    evicted_keys: float | None

    @classmethod
    def read(cls, page: CounterPage) -> Self:
        return cls(
            keys=page.total("master_key_count"),
            bytes=page.total("master_allocated_bytes"),
            stored_keys=page.total("master_batch_put_end_items_total"),
            loaded_keys=page.total("mem_cache_hit_nums_"),
            loaded_bytes=page.total("mem_cache_hit_bytes_total"),
            evicted_keys=page.total("master_evicted_key_count"),
        )


Counts = TypeVar("Counts", EngineCounts, MasterCounts)
Seen = TypeVar("Seen")


def subtract_counts(after: Counts, before: Counts) -> Counts:
    """Field by field. A counter that a server shows only once it has counted something began at 0."""
    pairs = zip(after, before, strict=True)
    return type(after)(*(None if now is None else now - (then or 0.0) for now, then in pairs))


def add_counts(counts: Iterable[EngineCounts]) -> EngineCounts:
    """Of several engines; None only where no engine has such a counter."""
    return EngineCounts(
        *(
            sum(known) if (known := [value for value in column if value is not None]) else None
            for column in zip(*counts, strict=True)
        )
    )


async def fetch_counters(http: httpx.AsyncClient, url: str) -> CounterPage:
    """The page at `url`/metrics. Raises NoCounters."""
    try:
        answer = await http.get(f"{url}/metrics")
        answer.raise_for_status()
        return CounterPage(answer.text)
    except (httpx.HTTPError, ValueError) as trouble:
        raise CountersUnavailable(f"{url}/metrics: {trouble or type(trouble).__name__}") from trouble


async def poll_until(
    clock: Clock, deadline_s: float, look: Callable[[], Awaitable[Seen]], good: Callable[[Seen], bool]
) -> Seen:
    """Looks until what is seen is good or the time is up; the last seen, which the caller judges."""
    end_s = clock.now() + deadline_s
    while not good(seen := await look()) and clock.now() < end_s:  # noqa: ASYNC110  another process changes it
        await asyncio.sleep(LOOK_EVERY_S)
    return seen
