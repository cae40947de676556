"""Counters of engines and of the pool's master, read before and after: the proof of where a hit came from.

A router or a client can only repeat what was reported to it; vLLM counts each prompt token by the source of its KV, and
Mooncake counts keys saved, loaded and evicted. The pages do not name requests, so a difference belongs to a request
only while that is the only one, and only once the counters have moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, Self, TypeVar

import httpx
from prometheus_client.parser import text_string_to_metric_families

from router.clock import Clock
from router.errors import WarmrouteError

POLL_INTERVAL_S = 0.02
COUNTER_TIMEOUT_S = 5.0


class CountersUnavailable(WarmrouteError):
    """A server's metrics page could not be fetched or parsed."""


class CounterPage:
    """The samples of one metrics page."""

    def __init__(self, text: str) -> None:
        """Parse a page. Raises ValueError when it is not a metrics page."""
        self._samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def total(self, name: str, **labels: str) -> float | None:
        """Return the sum of the samples of this name with these labels, `None` when there is none.

        The parser appends `_total` to a counter that was written without it, as some of Mooncake's are.
        """
        names = (name, f"{name}_total")
        values = [s.value for s in self._samples if s.name in names and labels.items() <= s.labels.items()]
        return sum(values) if values else None

    def label(self, name: str, label: str) -> str | None:
        """Value of a label of the first sample of this name that has it, else `None`."""
        return next((s.labels[label] for s in self._samples if s.name == name and label in s.labels), None)


class EngineCounts(NamedTuple):
    """Counters of one vLLM engine over all ranks, or their differences; `None`: its page does not have the counter."""

    prompt_tokens: float | None
    local_tokens: float | None  # found in the engine's own cache
    pool_tokens: float | None  # loaded by its KV connector
    loaded_keys: float | None
    loaded_bytes: float | None
    load_s: float | None
    failed_keys: float | None  # not loaded after all: computed, but counted as the pool's (vLLM counts at the lookup)
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
        """Prompt tokens that no cache had."""
        if self.prompt_tokens is None or self.local_tokens is None:
            return None
        return self.prompt_tokens - self.local_tokens - (self.pool_tokens or 0)


class MasterCounts(NamedTuple):
    """Counts of a Mooncake master: `keys` and `bytes` it holds now (or their change); the others are counters."""

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
Value = TypeVar("Value")


def subtract_counts(after: Counts, before: Counts) -> Counts:
    """Subtract field by field. A counter that appears only once it has counted something began at 0."""
    pairs = zip(after, before, strict=True)
    return type(after)(*(None if now is None else now - (then or 0.0) for now, then in pairs))


def add_counts(counts: Iterable[EngineCounts]) -> EngineCounts:
    """Add the counters of several engines; `None` only where no engine has the counter."""
    columns = ([value for value in column if value is not None] for column in zip(*counts, strict=True))
    return EngineCounts(*(sum(known) if known else None for known in columns))


async def fetch_counters(http: httpx.AsyncClient, url: str) -> CounterPage:
    """Fetch the page at `url`/metrics. Raises CountersUnavailable when that fails."""
    try:
        answer = await http.get(f"{url}/metrics")
        answer.raise_for_status()
        return CounterPage(answer.text)
    except (httpx.HTTPError, ValueError) as error:
        raise CountersUnavailable(f"{url}/metrics: {error or type(error).__name__}") from error


async def count_growth(
    clock: Clock, read: Callable[[], Awaitable[EngineCounts]], before: EngineCounts, tokens: int
) -> EngineCounts:
    """Wait until the engines have counted `tokens` more prompt tokens, at most 5 s; return the growth."""
    expected = (before.prompt_tokens or 0.0) + tokens
    after = await poll_until(clock, COUNTER_TIMEOUT_S, read, lambda counts: (counts.prompt_tokens or 0.0) >= expected)
    return subtract_counts(after, before)


async def poll_until(
    clock: Clock, timeout_s: float, read: Callable[[], Awaitable[Value]], accept: Callable[[Value], bool]
) -> Value:
    """Read until the value is accepted or the time is up; return the last value, which the caller checks."""
    end_s = clock.now() + timeout_s
    while not accept(value := await read()) and clock.now() < end_s:  # noqa: ASYNC110  another process changes it
        await asyncio.sleep(POLL_INTERVAL_S)
    return value
