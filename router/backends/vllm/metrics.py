"""Reads vLLM's metrics page into one `Gauges` per rank, parsing only the lines that routing needs.

A page has 66 KB and over 700 lines, of which ten matter; a full Prometheus parser takes 10 ms for it, which is too
much for polling a fleet. Here `bytes.find` jumps to each metric, and only its lines are parsed, labels with their
escapes included. In the Prometheus format a metric's lines are adjacent, so the first line of another metric ends
the search. A histogram's sums are an exception: they lie between the buckets, so their search continues.

A page is as long as an engine makes it, so the part that is parsed is bounded (`PARSED_BYTES`), and the regular
expressions take linear time. A page beyond the bound is not read at all.

Versions: `vllm:kv_cache_usage_perc` was `vllm:gpu_cache_usage_perc` up to 0.11; `cache_config_info` carries every
cache setting as a label, "None" where it is unset. Missing and invalid values become None, and no page raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from math import isfinite

from router.fleet.engine_facts import Gauges, PoolTransferCounts
from router.fleet.engine_limits import (
    MAX_BLOCK_TOKENS,
    MAX_CAPACITY_TOKENS,
    MAX_MODELS,
    MAX_RANKS,
    NAME_CHARS,
    OverLimit,
)

LABEL = re.compile(  # the labels that matter; a quote inside a value has a backslash, so no value contains ="
    rb"[{,] *+(engine|operation|status|block_size|num_gpu_blocks|kv_cache_size_tokens|enable_prefix_caching|max_lora"
    rb'|running_lora_adapters|waiting_lora_adapters)="([^"\\]*+(?:\\.[^"\\]*+)*+)"'
)
ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
MAX_VALUE = 1e15  # larger counts are invalid
PAGE_BYTES = 8 * 1024 * 1024  # of `MAX_RANKS` ranks
PARSED_BYTES = 1024 * 1024  # of the lines that matter, which take 0.4 MB for `MAX_RANKS` ranks
LINE_COST_BYTES = 128  # counted for each line beside its own bytes
VALUE_BYTES = 64 * 1024  # of a label; a longer value is ignored

Labels = Mapping[bytes, bytes]
PerRank = dict[int, float]

NO_LABELS: Labels = {}
SWITCHES: Mapping[bytes, bool] = {b"True": True, b"False": False}
LOADED: Labels = {b"operation": b"load_get", b"status": b"ok"}


class _TooMuch(Exception):
    """The lines that matter have more than `PARSED_BYTES`."""


class _Page:
    """A page, with the number of bytes that may still be parsed."""

    def __init__(self, text: bytes) -> None:
        self.text = text  # begins with a line break
        self._left_bytes = PARSED_BYTES

    def take(self, size: int) -> None:
        """Count a line that is parsed. Raises _TooMuch beyond `PARSED_BYTES`."""
        self._left_bytes -= size + LINE_COST_BYTES
        if self._left_bytes < 0:
            raise _TooMuch


def read_gauges(page: bytes) -> dict[int, Gauges] | OverLimit:
    """Return the gauges of each rank (label `engine`, 0 where there is none); {} if nothing could be read."""
    try:
        gauges = _read(_Page(b"\n" + page))
    except _TooMuch:
        return OverLimit("metrics_page", f"more than {PARSED_BYTES:,} bytes of /metrics are about what routing needs")
    if len(gauges) > MAX_RANKS:
        return OverLimit("ranks", f"more than {MAX_RANKS} ranks in /metrics")
    return gauges


def _read(page: _Page) -> dict[int, Gauges]:
    running = _gauge(page, b"vllm:num_requests_running", float.__add__)
    waiting = _gauge(page, b"vllm:num_requests_waiting", float.__add__)
    usage = _gauge(page, b"vllm:kv_cache_usage_perc", max) or _gauge(page, b"vllm:gpu_cache_usage_perc", max)
    generated = _gauge(page, b"vllm:generation_tokens_total", float.__add__)
    started = _gauge(page, b"process_start_time_seconds", max).get(0)  # without labels
    caches = {rank: labels for rank, labels, _ in _lines(page, b"vllm:cache_config_info")}
    ranks = sorted({*running, *waiting, *usage, *caches})
    loads = _pool_loads(page)
    lora = _lora(page) if len(ranks) == 1 else NO_LABELS  # the metric's line names no rank
    return {
        rank: Gauges(
            _count(running.get(rank)),
            _count(waiting.get(rank)),
            _share(usage.get(rank)),
            _number(caches.get(rank, {}).get(b"block_size"), MAX_BLOCK_TOKENS),
            _capacity_tokens(caches.get(rank, {})),
            _names(lora.get(b"running_lora_adapters")),
            _number(lora.get(b"max_lora"), MAX_MODELS),
            _names(lora.get(b"waiting_lora_adapters")),
            loads.get(rank),
            _count(generated.get(rank)),
            _number(caches.get(rank, {}).get(b"num_gpu_blocks"), MAX_CAPACITY_TOKENS),
            SWITCHES.get(caches.get(rank, {}).get(b"enable_prefix_caching", b"")),
            started,
        )
        for rank in ranks
    }


def _gauge(page: _Page, name: bytes, join: Callable[[float, float], float], only: Labels = NO_LABELS) -> PerRank:
    """Return the metric by rank from the lines with the labels `only`; `join` combines the lines of several
    models.
    """
    values: PerRank = {}
    for rank, labels, value in _lines(page, name):
        if 0 <= value < MAX_VALUE and only.items() <= labels.items():
            values[rank] = join(values[rank], value) if rank in values else value
    return values


def _pool_loads(page: _Page) -> dict[int, PoolTransferCounts]:
    """Return the loads from the store by MooncakeStoreConnector's workers, by rank, without failed attempts. A rank
    that has never loaded has no such lines. One key is one block of one worker and cache group.
    """
    operations, keys, seconds = (
        _gauge(page, b"vllm:mooncake_store_operation_" + part, float.__add__, LOADED)
        for part in (b"total", b"keys_total", b"time_seconds_sum")
    )
    return {
        rank: PoolTransferCounts(int(operations[rank]), int(keys[rank]), seconds[rank])
        for rank in operations.keys() & keys.keys() & seconds.keys()
    }


def _lora(page: _Page) -> Labels:
    """Return the labels of the current LoRA state. vLLM keeps a line for every earlier set of names and writes the
    time as its value, so the line with the largest value is the latest. Returns no labels for an engine that has
    run so long that it has thousands of lines, too many to examine.
    """
    try:
        latest = max(_lines(_Page(page.text), b"vllm:lora_requests_info"), key=lambda line: line[2], default=None)
    except _TooMuch:
        return NO_LABELS
    return NO_LABELS if latest is None else latest[1]


def _names(value: bytes | None) -> frozenset[str] | None:
    if value is None or value.count(b",") >= MAX_MODELS:
        return None
    names = (name.strip() for name in value.split(b","))
    return frozenset(name.decode("utf-8", "replace") for name in names if 0 < len(name) <= NAME_CHARS)


def _lines(page: _Page, name: bytes) -> Iterator[tuple[int, Labels, float]]:
    """Yield every sample of one metric: rank, labels, finite value."""
    text, needle = page.text, b"\n" + name
    at = text.find(needle)
    while at >= 0:
        start = at + len(needle)
        end = text.find(b"\n", start)
        size = (end if end >= 0 else len(text)) - start
        page.take(size)
        line = text[start : start + size]
        if line[:1] in (b"{", b" "):
            if (sample := _sample(line)) is not None:
                yield sample
            if end < 0 or not (text.startswith(name, end + 1) or name.endswith(b"_sum")):
                return
            at = text.find(needle, end)
        else:  # another metric with the same prefix
            at = text.find(needle, start)


def _sample(line: bytes) -> tuple[int, Labels, float] | None:
    """Parse `{a="b",...} value [timestamp]`: labels may contain spaces and braces, the rest of the line may not."""
    head, _, tail = line.rpartition(b"}")
    labels = {key: _unescape(value) for key, value in LABEL.findall(head) if len(value) <= VALUE_BYTES}
    engine = labels.get(b"engine", b"0")
    try:
        rank = int(engine) if len(engine) < 10 else -1
        value = float(tail.split(maxsplit=1)[0])
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


def _number(value: bytes | None, most: int) -> int | None:
    """Return a label's whole number from 1 to `most`; None for anything else."""
    if value is None or not value.isdigit() or len(value) > 15:
        return None
    return number if 0 < (number := int(value)) <= most else None


def _capacity_tokens(cache: Labels) -> int | None:
    """Return the KV tokens that fit: as stated by newer versions, else blocks times block size. None: unknown."""
    if (tokens := _number(cache.get(b"kv_cache_size_tokens"), MAX_CAPACITY_TOKENS)) is not None:
        return tokens
    size = _number(cache.get(b"block_size"), MAX_BLOCK_TOKENS)
    blocks = None if size is None else _number(cache.get(b"num_gpu_blocks"), MAX_CAPACITY_TOKENS // size)
    return None if blocks is None or size is None else blocks * size
