"""Reads vLLM's metrics page into one `Gauges` per rank, parsing only the lines that routing needs.

A page has 66 KB and over 700 lines, of which nine matter; a full Prometheus parser takes 10 ms for it, which is too
much for polling a fleet. Here `bytes.find` jumps to each metric, and only its lines are parsed, labels with their
escapes included. In the Prometheus format a metric's lines are adjacent, so the first other line ends the search;
except for a histogram's sums, which lie between the buckets: there the search continues.

Versions: `vllm:kv_cache_usage_perc` was `vllm:gpu_cache_usage_perc` up to 0.11; `cache_config_info` carries every cache
setting as a label, "None" where it is unset. Missing and invalid values are `None`, and no page raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from math import isfinite

from router.fleet.engine_facts import Gauges, PoolTransferCounts

LABEL = re.compile(rb'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
MAX_VALUE = 1e15  # larger counts are invalid

Labels = Mapping[bytes, bytes]
PerRank = dict[int, float]

NO_LABELS: Labels = {}
LOADED: Labels = {b"operation": b"load_get", b"status": b"ok"}


def read_gauges(page: bytes) -> dict[int, Gauges]:
    """Return the gauges of each rank (label `engine`, 0 where there is none); {} if nothing could be read."""
    page = b"\n" + page
    running = _gauge(page, b"vllm:num_requests_running", float.__add__)
    waiting = _gauge(page, b"vllm:num_requests_waiting", float.__add__)
    usage = _gauge(page, b"vllm:kv_cache_usage_perc", max) or _gauge(page, b"vllm:gpu_cache_usage_perc", max)
    generated = _gauge(page, b"vllm:generation_tokens_total", float.__add__)
    caches = {rank: labels for rank, labels, _ in _lines(page, b"vllm:cache_config_info")}
    ranks = sorted({*running, *waiting, *usage, *caches})
    loads = _pool_loads(page)
    lora = _lora(page) if len(ranks) == 1 else {}  # its line names no rank
    return {
        rank: Gauges(
            _count(running.get(rank)),
            _count(waiting.get(rank)),
            _share(usage.get(rank)),
            _number(caches.get(rank, {}).get(b"block_size")),
            _capacity_tokens(caches.get(rank, {})),
            _names(lora.get(b"running_lora_adapters")),
            _number(lora.get(b"max_lora")),
            _names(lora.get(b"waiting_lora_adapters")),
            loads.get(rank),
            _count(generated.get(rank)),
        )
        for rank in ranks
    }


def _gauge(page: bytes, name: bytes, join: Callable[[float, float], float], only: Labels = NO_LABELS) -> PerRank:
    """Return the metric by rank from the lines with labels `only`; `join` combines lines of several model names."""
    values: PerRank = {}
    for rank, labels, value in _lines(page, name):
        if 0 <= value < MAX_VALUE and only.items() <= labels.items():
            values[rank] = join(values[rank], value) if rank in values else value
    return values


def _pool_loads(page: bytes) -> dict[int, PoolTransferCounts]:
    """Return what MooncakeStoreConnector's workers loaded from the store, by rank, without failed attempts. A rank that
    has never loaded has no such lines. One key is one block of one worker and cache group.
    """
    operations, keys, seconds = (
        _gauge(page, b"vllm:mooncake_store_operation_" + part, float.__add__, LOADED)
        for part in (b"total", b"keys_total", b"time_seconds_sum")
    )
    return {
        rank: PoolTransferCounts(int(operations[rank]), int(keys[rank]), seconds[rank])
        for rank in operations.keys() & keys.keys() & seconds.keys()
    }


def _lora(page: bytes) -> Labels:
    """Return the labels of the present LoRA state: vLLM keeps a line for every earlier set of names and writes the time
    as its value, so the largest is the latest.
    """
    latest = max(_lines(page, b"vllm:lora_requests_info"), key=lambda line: line[2], default=None)
    return {} if latest is None else latest[1]


def _names(value: bytes | None) -> frozenset[str] | None:
    if value is None:
        return None
    return frozenset(name.strip().decode("utf-8", "replace") for name in value.split(b",") if name.strip())


def _lines(page: bytes, name: bytes) -> Iterator[tuple[int, Labels, float]]:
    """Yield every sample of one metric: rank, labels, finite value."""
    needle = b"\n" + name
    at = page.find(needle)
    while at >= 0:
        start = at + len(needle)
        end = page.find(b"\n", start)
        line = page[start : end if end >= 0 else len(page)]
        if line[:1] in (b"{", b" "):
            if (sample := _sample(line)) is not None:
                yield sample
            if end < 0 or not (page.startswith(name, end + 1) or name.endswith(b"_sum")):
                return
            at = page.find(needle, end)
        else:  # another metric with the same prefix
            at = page.find(needle, start)


def _sample(line: bytes) -> tuple[int, Labels, float] | None:
    """Parse `{a="b",...} value [timestamp]`: labels may hold spaces and braces, what follows them may not."""
    head, _, tail = line.rpartition(b"}")
    labels = {key: _unescape(value) for key, value in LABEL.findall(head)}
    try:
        rank = int(labels.get(b"engine", b"0"))
        value = float(tail.split()[0])
    except (ValueError, IndexError):
        return None
    return (rank, labels, value) if rank >= 0 and isfinite(value) else None


def _unescape(value: bytes) -> bytes:
    if b"\\" not in value:
        return value
    return ESCAPE.sub(lambda match: b"\n" if match[1] == b"n" else match[1], value)


def _count(value: float | None) -> int | None:
    return None if value is None else int(value)


def _share(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _number(value: bytes | None) -> int | None:
    """Return a label's positive whole number; `None` for anything else."""
    if value is None or not value.isdigit() or len(value) > 15:
        return None
    return int(value) or None


def _capacity_tokens(cache: Labels) -> int | None:
    """Return the KV tokens that fit: stated by newer versions, blocks times block size before."""
    if (tokens := _number(cache.get(b"kv_cache_size_tokens"))) is not None:
        return tokens
    blocks, size = _number(cache.get(b"num_gpu_blocks")), _number(cache.get(b"block_size"))
    return None if blocks is None or size is None else blocks * size
