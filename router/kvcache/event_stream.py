"""The state of one target's event stream and of the index built from it, as the admin API and metrics show it."""

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
    overfull: int  # times that more was held than its GPU has room for, so that all was forgotten
    keyless_blocks: int  # cached blocks of a stream joined late, of unknown prompts
    recalled_blocks: int  # learned by evidence other than their events, since the target joined
