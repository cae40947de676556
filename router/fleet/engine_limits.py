"""Bounds on the memory and work that one engine can cause in the router, whatever it answers, and counts of the
excesses of each instance.

An engine that exceeds a bound must not affect requests to other engines. Everything beyond the bound is dropped,
the excess is counted, and one line is logged. If the engine's facts are then unreliable (`DISTRUSTING`), the
instance is distrusted as well: its events are ignored and it is treated as an instance without events, until it
joins again with sane values. The bounds on messages are in `backends/vllm/kv_events.py`, the bounds on index
entries in `kvcache/indexer.py`.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple, get_args

Limit = Literal[
    "ranks",
    "models",
    "answer",
    "metrics_page",
    "message",
    "unread_events",
    "blocks",
    "block_size",
    "groups",
    "encoding",
]
LIMITS: tuple[Limit, ...] = get_args(Limit)
DISTRUSTING = frozenset(("ranks", "metrics_page", "message", "unread_events", "blocks", "block_size", "groups"))

MAX_RANKS = 128  # of one instance: vLLM's internal data parallelism behind one API server stays far below
MAX_MODELS = 1000  # model names of one instance, adapters included; each is a row in every table of models
NAME_CHARS = 256  # longer names of models, adapters, topics and engines are ignored
PATH_CHARS = 1024  # longer paths of models are ignored
MAX_CONTEXT_TOKENS = 1 << 30  # a longer context is invalid
MAX_BLOCK_TOKENS = 1 << 16  # hybrid models have blocks of a few thousand tokens
MAX_CAPACITY_TOKENS = 1 << 30  # of one rank's cache: 64 TB at 64 KB per token


class OverLimit(NamedTuple):
    """A report or message of an engine that exceeds a bound."""

    limit: Limit
    detail: str  # as in "more than 128 ranks in /metrics"


class LimitBook:
    """Counts how often one instance exceeded each bound, and records whether it is distrusted for that."""

    __slots__ = ("counts", "distrust", "logged")

    def __init__(self) -> None:
        self.counts: Counter[Limit] = Counter()
        self.distrust: OverLimit | None = None
        self.logged: set[Limit] = set()  # since the instance joined

    def record(self, over: OverLimit) -> bool:
        """Count `over`. Return True if it should be logged: the first time for this bound since the instance
        joined.
        """
        self.counts[over.limit] += 1
        if over.limit in DISTRUSTING and self.distrust is None:
            self.distrust = over
        if over.limit in self.logged:
            return False
        self.logged.add(over.limit)
        return True

    def begin(self) -> None:
        """Trust the instance, which has joined again. The counts are retained."""
        self.distrust = None
        self.logged.clear()
