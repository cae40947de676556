"""The working set of each model: the KV that requests re-use, whether or not its sessions are active at the moment.

A session between two turns has no request in flight, so no load book shows it, but its next turn needs its KV.
Blocks that only one prompt used may never be requested again. So the working set consists of the blocks that at
least two prompts of the last `KEEP_S` had (Denning's working set, 1968, restricted to re-used blocks like LRU-2).
If the caches are smaller than the working set, its blocks are evicted before their next use and computed again,
whichever instance a request goes to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from router.fleet.instance import Instance
from router.fleet.live_blocks import LiveBlocks, LivePrompt
from router.kvcache.events import Key
from router.kvcache.tokenized_prompt import TokenizedPrompt

# docs/measurements/autoscaling.md: with 60 s twice as many requests of agents miss their limit, with 120 s no fewer.
KEEP_S = 90.0
STEP_TOKENS = 512  # keys are chained, so every 32nd key of 16-token blocks is nearly as good, in 1/32 of the memory
COUNT_EVERY_S = 5.0


class WorkingSet:
    """The prompts of one model and role in the last `KEEP_S`."""

    def __init__(self) -> None:
        self._blocks = LiveBlocks()
        self._recent: deque[tuple[float, LivePrompt]] = deque()
        self._counted_at: float | None = None
        self._tokens = 0

    def add(self, keys: Sequence[Key], now: float) -> None:
        """Add a prompt, by its keys at every `STEP_TOKENS` tokens."""
        self._expire(now)
        if keys:
            self._recent.append((now, self._blocks.add(keys)))

    def count_tokens(self, now: float) -> int:
        """Return the number of distinct tokens that at least two prompts had; up to `COUNT_EVERY_S` old."""
        if self._counted_at is None or now - self._counted_at >= COUNT_EVERY_S:
            self._expire(now)
            self._counted_at = now
            self._tokens = self._blocks.count_reused() * STEP_TOKENS
        return self._tokens

    def _expire(self, now: float) -> None:
        recent = self._recent
        while recent and recent[0][0] < now - KEEP_S:
            self._blocks.remove(recent.popleft()[1])


class WorkingSets:
    """The working sets by base model and role, for the requests that this process places."""

    def __init__(self) -> None:
        self._sets: dict[tuple[str, str], WorkingSet] = {}

    def add(self, instance: Instance, prompt: TokenizedPrompt, now: float) -> None:
        """Add a prompt that goes to `instance`."""
        if instance.base is not None:
            key = instance.base, instance.config.role
            if (found := self._sets.get(key)) is None:
                found = self._sets[key] = WorkingSet()
            found.add(prompt.keys_every(STEP_TOKENS), now)

    def count_tokens(self, model: str, role: str, now: float) -> int | None:
        """Return the size of a working set in tokens; None before the first prompt."""
        found = self._sets.get((model, role))
        return None if found is None else found.count_tokens(now)
