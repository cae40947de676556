"""vLLM's metrics page -> one `Gauges` per rank, reading only the lines that routing needs.

A page is 66 KB and over 700 lines of which five matter; a full Prometheus parser takes 10 ms for it, which polling a
fleet cannot afford. Here `bytes.find` jumps to each wanted metric (Prometheus promises that its lines stand
together, so the first other line ends it), and only those lines are parsed, labels with their escapes included.

Versions: `vllm:kv_cache_usage_perc` was `vllm:gpu_cache_usage_perc` up to 0.11; `cache_config_info` carries every
cache setting as a label, "None" where it is unset. What a page does not say, or says in a way that makes no sense,
is None, and no page raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from math import isfinite

from router.engines.base import Gauges

LABEL = re.compile(rb'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
MOST = 1e15  # beyond it a count is nonsense

Labels = dict[bytes, bytes]
PerRank = dict[int, float]


def scan(page: bytes) -> dict[int, Gauges]:
    """The page's ranks (label `engine`, 0 where there is none) with what it says of each; {} if it says nothing."""
    page = b"\n" + page
    running = _gauge(page, b"vllm:num_requests_running", float.__add__)
    waiting = _gauge(page, b"vllm:num_requests_waiting", float.__add__)
    usage = _gauge(page, b"vllm:kv_cache_usage_perc", max) or _gauge(page, b"vllm:gpu_cache_usage_perc", max)
    caches = {rank: labels for rank, labels, _ in _lines(page, b"vllm:cache_config_info")}
    ranks = sorted({*running, *waiting, *usage, *caches})
    lora = _lora(page) if len(ranks) == 1 else {}  # its line names no rank: with several it is nobody's
    return {
        rank: Gauges(
            _count(running.get(rank)),
            _count(waiting.get(rank)),
            usage.get(rank),
            _number(caches.get(rank, {}).get(b"block_size")),
            _capacity_tokens(caches.get(rank, {})),
            _names(lora.get(b"running_lora_adapters")),
            _number(lora.get(b"max_lora")),
            _names(lora.get(b"waiting_lora_adapters")),
        )
        for rank in ranks
    }


def _gauge(page: bytes, name: bytes, join: Callable[[float, float], float]) -> PerRank:
    """The metric by rank. One engine may have a line per model name: `join` makes them one."""
    values: PerRank = {}
    for rank, _, value in _lines(page, name):
        if 0 <= value < MOST:
            values[rank] = join(values[rank], value) if rank in values else value
    return values


def _lora(page: bytes) -> Labels:
    """The labels that tell of LoRA now. vLLM leaves a line behind for every set of names there ever was and writes the
    time as its value, so the largest is the latest.
    """
    latest = max(_lines(page, b"vllm:lora_requests_info"), key=lambda line: line[2], default=None)
    return {} if latest is None else latest[1]


def _names(value: bytes | None) -> frozenset[str] | None:
    if value is None:
        return None
    return frozenset(name.strip().decode("utf-8", "replace") for name in value.split(b",") if name.strip())


def _lines(page: bytes, name: bytes) -> Iterator[tuple[int, Labels, float]]:
    """Every sample of one metric: rank, labels, finite value."""
    needle = b"\n" + name
    at = page.find(needle)
    while at >= 0:
        start = at + len(needle)
        end = page.find(b"\n", start)
        line = page[start : end if end >= 0 else len(page)]
        if line[:1] in (b"{", b" "):
            if (sample := _sample(line)) is not None:
                yield sample
            if end < 0 or not page.startswith(name, end + 1):
                return
            at = end
        else:  # another metric whose name begins alike
            at = page.find(needle, start)


def _sample(line: bytes) -> tuple[int, Labels, float] | None:
    """`{a="b",...} value [timestamp]`: labels may hold spaces and braces, what follows them may not."""
    head, _, tail = line.rpartition(b"}")
    labels = {key: _unescaped(value) for key, value in LABEL.findall(head)}
    try:
        rank = int(labels.get(b"engine", b"0"))
        value = float(tail.split()[0])
    except (ValueError, IndexError):
        return None
    return (rank, labels, value) if rank >= 0 and isfinite(value) else None


def _unescaped(value: bytes) -> bytes:
    if b"\\" not in value:
        return value
    return ESCAPE.sub(lambda match: b"\n" if match[1] == b"n" else match[1], value)


def _count(value: float | None) -> int | None:
    return None if value is None else int(value)


def _number(value: bytes | None) -> int | None:
    """A label that holds a positive whole number; anything else ("None") is unknown."""
    if value is None or not value.isdigit() or len(value) > 15:
        return None
    return int(value) or None


def _capacity_tokens(cache: Labels) -> int | None:
    """KV tokens that fit: said outright by newer versions, blocks times block size before."""
    if (said := _number(cache.get(b"kv_cache_size_tokens"))) is not None:
        return said
    blocks, size = _number(cache.get(b"num_gpu_blocks")), _number(cache.get(b"block_size"))
    return None if blocks is None or size is None else blocks * size
