"""Counters read from recorded pages of vLLM 0.32.0 and of Mooncake 0.3.13's master."""

from __future__ import annotations

import httpx
import pytest

from router.clock import SystemClock
from tests.bench.real_stack.engine_counters import (
    CounterPage,
    CountersUnavailable,
    EngineCounts,
    MasterCounts,
    add_counts,
    fetch_counters,
    poll_until,
    subtract_counts,
)
from tests.fakes.engines import engine
from tests.paths import DATA


def page(name: str) -> CounterPage:
    return CounterPage((DATA / name).read_text())


def test_a_vllm_page() -> None:
    counts = EngineCounts.read(page("vllm-0.32-metrics.txt"))
    assert counts.prompt_tokens == 78626
    assert counts.local_tokens == 24192
    assert counts.pool_tokens == 24192
    assert counts.computed_tokens == 30242  # as the page's prompt_tokens_by_source_total{source="local_compute"}
    assert (counts.loaded_keys, counts.loaded_bytes) == (189, 1.98180864e8)
    assert counts.load_s == pytest.approx(0.179916252)
    assert counts.failed_keys == 0
    assert (counts.saved_keys, counts.saved_bytes) == (224, 2.34881024e8)
    assert page("vllm-0.32-metrics.txt").label("vllm:cache_config_info", "block_size") == "128"


def test_a_master_page() -> None:
    counts = MasterCounts.read(page("mooncake-0.3.13-master-metrics.txt"))
    assert counts == MasterCounts(
        keys=451, bytes=472907776, stored_keys=457, loaded_keys=189, loaded_bytes=198180864, evicted_keys=0
    )


def test_what_a_page_does_not_have_is_unknown() -> None:
    assert EngineCounts.read(CounterPage("")) == EngineCounts(*[None] * 9)
    assert EngineCounts.read(CounterPage("")).computed_tokens is None


def test_an_engine_without_a_connector_computes_what_its_cache_does_not_give() -> None:
    ranks = 'vllm:prompt_tokens_total{engine="0"} 70\nvllm:prompt_tokens_total{engine="1"} 30\n'
    counts = EngineCounts.read(CounterPage(ranks + 'vllm:prefix_cache_hits_total{engine="0"} 40\n'))
    assert counts.prompt_tokens == 100  # over all ranks
    assert counts.pool_tokens is None
    assert counts.computed_tokens == 60


def test_differences_and_sums_keep_the_unknown_unknown() -> None:
    before = EngineCounts(100, 10, None, None, None, None, None, None, None)
    after = EngineCounts(150, 30, None, 4, None, None, None, None, None)
    assert subtract_counts(after, before) == EngineCounts(
        50, 20, None, 4, None, None, None, None, None
    )  # loads began meanwhile
    assert add_counts([before, after]) == EngineCounts(250, 40, None, 4, None, None, None, None, None)


async def test_a_server_without_a_page_is_named() -> None:
    async with engine() as fake, httpx.AsyncClient() as http:
        assert EngineCounts.read(await fetch_counters(http, fake.url)).prompt_tokens == 0
        with pytest.raises(CountersUnavailable, match=r"/nowhere/metrics: .*404"):
            await fetch_counters(http, f"{fake.url}/nowhere")


async def test_looking_ends_when_it_is_good_or_late() -> None:
    values = iter(range(100))

    async def look() -> int:
        return next(values)

    assert await poll_until(SystemClock(), 5.0, look, lambda number: number == 3) == 3
    assert await poll_until(SystemClock(), 0.0, look, lambda number: False) == 4
