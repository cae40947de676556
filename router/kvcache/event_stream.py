"""The state of one target's event stream and of what the index made of it, as the admin API and metrics show it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from router.kvcache.event_sequencer import EventSequencer
from router.kvcache.index import IndexStats


class EventStream(NamedTuple):
    """State of one target's event stream, for the admin API and metrics."""

    sequencer: EventSequencer | None  # None: the target has no stream
    stats: IndexStats
    batches: int  # live and replayed
    malformed: int
    skipped: Mapping[str, int]
    turned_over: bool  # as many blocks were announced since the start as the cache holds
    overfull: int  # times that more was held than its GPU has room for, and so was forgotten
    keyless_blocks: int  # cached, of a stream joined late, of prompts that are not known
    recalled_blocks: int  # learned by other evidence than their events, since it joined
