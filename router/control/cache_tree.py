"""The live page's view of the cache, computed on demand: prefixes that recent prompts share, and their holders."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from router.kvcache.events import Key, Tier
from router.scheduling.scheduler import Scheduler
from router.telemetry.shared_prefixes import WINDOW_S, SharedPrefix, merge_prefixes

HOLDERS_LISTED = 20  # of each prefix; all are counted
PREFIXES_PER_TURN = 50  # of the event loop: at 500 holders each about a millisecond


def find_block_tokens(scheduler: Scheduler) -> dict[str, int]:
    """Return the smallest block size of each model; views name prefixes in blocks of this size."""
    models = {instance.base for instance in scheduler.fleet if instance.base is not None}
    sizes = {model: scheduler.block_sizes(model) for model in models}
    return {model: min(known) for model, known in sizes.items() if known}


async def describe_cache(
    scheduler: Scheduler, parts: Iterable[list[SharedPrefix]], block_tokens: dict[str, int], limit: int
) -> dict[str, Any]:
    """Return at most `limit` prefixes, those that most recent prompts share, with their holders, and the duplicate
    copies. `parts` are the workers' prefixes, counted with the block sizes in `block_tokens`.
    """
    described = []
    for n, prefix in enumerate(merge_prefixes(parts)[:limit]):
        described.append(_describe(scheduler, prefix, block_tokens.get(prefix.model)))
        if n % PREFIXES_PER_TURN == PREFIXES_PER_TURN - 1:
            await asyncio.sleep(0)
    return {"window_s": WINDOW_S, "prefixes": described, "copies": _describe_copies(scheduler)}


def _describe(scheduler: Scheduler, prefix: SharedPrefix, size: int | None) -> dict[str, Any]:
    gpu, slower = scheduler.indexer.holders(Key(prefix.key))
    return {
        "id": f"{prefix.key:016x}",
        "parent": None if prefix.parent is None else f"{prefix.parent:016x}",
        "model": prefix.model,
        "blocks": prefix.blocks,
        "tokens": None if size is None else prefix.blocks * size,
        "requests": prefix.requests,
        "hits": prefix.hits if prefix.known else None,
        "answers": prefix.known,
        "last_s": prefix.last_s,
        "holders": len(gpu),
        "holders_slower": len(slower),
        "targets": gpu[:HOLDERS_LISTED],
    }


def _describe_copies(scheduler: Scheduler) -> dict[str, Any]:
    """Describe the blocks on all GPUs. Token counts are None if the targets' block sizes differ or are not all
    known yet.
    """
    fleet, copies = scheduler.fleet, scheduler.indexer.copies(Tier.GPU)
    targets = [target for instance in fleet for target in instance.targets.values()]
    sizes = {target.block_tokens for target in targets}
    size = next(iter(sizes)) if len(sizes) == 1 else None
    capacities = [target.capacity_tokens for target in targets]
    capacity = None if None in capacities else sum(tokens for tokens in capacities if tokens is not None)
    twice = max(0, copies.held - copies.different)
    return {
        "held_blocks": copies.held,
        "different_blocks": min(copies.held, copies.different),
        "held_tokens": None if size is None else copies.held * size,
        "duplicate_tokens": None if size is None else twice * size,
        "capacity_tokens": capacity,
    }
