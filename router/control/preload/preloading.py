"""The parts that load prefixes ahead, together, and their description for the admin API."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import Any, NamedTuple

from router.control.preload.copies import HotCopies
from router.control.preload.handoff import HandOff
from router.control.preload.preloader import Preloader
from router.control.preload.warmup import WarmUp
from router.fleet.preload_book import PreloadBook

PREFIXES_LISTED = 100


class Preloading(NamedTuple):
    """The parts of a router that load prefixes ahead."""

    preloader: Preloader
    warmup: WarmUp | None  # None: engines that join get nothing
    handoff: HandOff | None  # None: engines are drained at once
    copies: HotCopies | None  # None: no copies are made


def describe_preloads(preloading: Preloading | None, book: PreloadBook) -> dict[str, Any]:
    """Describe the newest prefixes that were loaded ahead, what requests hit of them, and the warm-ups, as plain JSON
    types. `saved_ms`: prefill time that may be taken now; None where nothing is loaded ahead.
    """
    warmup, handoff = (None, None) if preloading is None else (preloading.warmup, preloading.handoff)
    warmups = {} if warmup is None else warmup.states
    handoffs = {} if handoff is None else handoff.states
    return {
        "saved_ms": None if preloading is None else round(preloading.preloader.saved_ms, 3),
        "loaded_tokens": _describe_counts(book.loaded_tokens),
        "settled_tokens": _describe_counts(book.settled_tokens),
        "warmups": [{"id": id} | asdict(state) for id, state in warmups.items()],
        "handoffs": [{"id": id} | asdict(state) for id, state in handoffs.items()],
        "prefixes": [asdict(prefix) for prefix in islice(reversed(book.prefixes), PREFIXES_LISTED)],
    }


def _describe_counts(counts: dict[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    """Return counts by two labels as a dict of dicts."""
    found: dict[str, dict[str, int]] = {}
    for (reason, label), count in counts.items():
        found.setdefault(reason, {})[label] = count
    return found
