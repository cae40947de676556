"""Bounds on what one engine can make the router hold or do, whatever it answers, and what happened at each
instance.

An engine over a bound must not be felt by requests to other engines. What is beyond the bound is not taken in, it
is counted, and one line is logged. Where the engine's facts cannot be relied on any more (`DISTRUSTING`), the
instance is distrusted as well: its events are ignored and it is served as one without events, until it joins again
with sane values. The bounds on messages are in `backends/vllm/kv_events.py`, those on index entries in
`kvcache/indexer.py`.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple, get_args

Limit = Literal[
    "ranks", "models", "answer", "metrics_page", "message", "unread_events", "blocks", "block_size", "encoding"
]
LIMITS: tuple[Limit, ...] = get_args(Limit)
DISTRUSTING = frozenset(("ranks", "metrics_page", "message", "unread_events", "blocks", "block_size"))

MAX_RANKS = 128  # of one instance: vLLM's internal data parallelism behind one API server stays far below
MAX_MODELS = 1000  # model names of one instance, adapters included; each is a row in every table of models
NAME_CHARS = 256  # longer names of models, adapters, topics and engines are ignored
PATH_CHARS = 1024  # longer paths of models are ignored
MAX_CONTEXT_TOKENS = 1 << 30  # a longer context is not one
MAX_BLOCK_TOKENS = 1 << 16  # hybrid models have blocks of a few thousand tokens
MAX_CAPACITY_TOKENS = 1 << 30  # of one rank's cache: 64 TB at 64 KB per token


class OverLimit(NamedTuple):
    """A report or message of an engine that is larger than the router takes in."""

    limit: Limit
    detail: str  # as in "more than 128 ranks in /metrics"


class LimitBook:
    """Counts how often one instance went over each bound, and keeps whether that cost its trust."""

    __slots__ = ("counts", "distrust", "logged")

    def __init__(self) -> None:
        self.counts: Counter[Limit] = Counter()
        self.distrust: OverLimit | None = None
        self.logged: set[Limit] = set()  # since it joined

    def record(self, over: OverLimit) -> bool:
        """Count `over`. Return True the first time since the instance joined: then it is worth a log line."""
        self.counts[over.limit] += 1
        if over.limit in DISTRUSTING and self.distrust is None:
            self.distrust = over
        if over.limit in self.logged:
            return False
        self.logged.add(over.limit)
        return True

    def begin(self) -> None:
        """Trust the instance, which has joined again. The counts go on."""
        self.distrust = None
        self.logged.clear()
