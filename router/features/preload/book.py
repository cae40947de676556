"""Book of preloaded prefixes, and of the requests that hit or missed them.

A prefix is booked by the keys of its first 1, 2, 4, ... blocks, which views also use for the prefixes of a prompt.
The first request at the target that begins with one of these keys settles it: the engine found the blocks in its
cache (hit), or they were gone again (lost). So each token counts once, and later requests, which would have hit
what the first one computed, do not count. A prefix that no request has begun with yet is neither hit nor lost.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from router.kvcache.events import Key, TargetId
from router.prompt.usage import Usage
from router.scheduling.ticket import Ticket

Reason = Literal["join", "drain", "copy"]
"""Why a prefix is loaded: its engine joined, an engine that holds it is drained, or its holders are overloaded."""

LOADS_KEPT = 1_000
KEYS_KEPT = 20_000  # keys waiting for their first request, over all targets; the oldest are dropped


@dataclass(slots=True)
class PreloadedPrefix:
    """A prefix that was loaded ahead."""

    target: TargetId
    reason: Reason
    at_wall_s: float
    tokens: int  # of the prefix
    computed_tokens: int  # of `tokens`; the engine had the others, or fetched them
    pool_tokens: int  # of `tokens`: those that the engine could fetch from the shared pool
    duration_ms: float
    hit_tokens: int = 0
    lost_tokens: int = 0

    @property
    def loaded_tokens(self) -> int:
        """Tokens that the engine did not have before."""
        return self.computed_tokens + self.pool_tokens


class PreloadedKey(NamedTuple):
    """One of the keys of a prefix, and the tokens that it adds to the key before it."""

    prefix: PreloadedPrefix | None  # None: another process of this router loaded it
    tokens: int  # from the prompt's beginning
    added_tokens: int
    reason: Reason


class PreloadBook:
    """The book of one process. `on_loaded` is called with the arguments of `expect` for each prefix that is added;
    `on_settled` with a target and, by key, whether the first request at the target hit it.
    """

    def __init__(self) -> None:
        self.prefixes: deque[PreloadedPrefix] = deque(maxlen=LOADS_KEPT)
        self.loaded_tokens: Counter[tuple[str, str]] = Counter()  # by reason and "computed" or "pool"
        self.settled_tokens: Counter[tuple[str, str]] = Counter()  # by reason and "hit" or "lost"
        self.requests: Counter[tuple[str, str]] = Counter()  # by reason and how they ended
        self.on_loaded: Callable[[TargetId, Reason, tuple[Key, ...], int, int], object] = lambda *prefix: None
        self.on_settled: Callable[[TargetId, dict[Key, bool]], object] = lambda *found: None
        self._keys: dict[TargetId, dict[Key, PreloadedKey]] = {}
        self._count = 0

    def __bool__(self) -> bool:
        """True while a prefix waits for its first request."""
        return self._count > 0

    def note(self, reason: Reason, loaded: PreloadedPrefix | None, keys: Sequence[Key]) -> None:
        """Count a request that was sent to load a prefix; `loaded` is None if it failed. `keys` are as in `add`."""
        self.requests[reason, "failed" if loaded is None else "loaded"] += 1
        if loaded is not None:
            self.add(loaded, keys)

    def add(self, prefix: PreloadedPrefix, keys: Sequence[Key]) -> None:
        """Wait for the first requests with a prefix. `keys` are of its first 1, 2, 4, ... blocks, the last one of
        the whole prefix.
        """
        self.prefixes.append(prefix)
        self.loaded_tokens[prefix.reason, "computed"] += prefix.computed_tokens
        self.loaded_tokens[prefix.reason, "pool"] += prefix.pool_tokens
        self.expect(prefix.target, prefix.reason, keys, prefix.tokens, prefix.loaded_tokens, prefix)
        self.on_loaded(prefix.target, prefix.reason, tuple(keys), prefix.tokens, prefix.loaded_tokens)

    def expect(
        self,
        target: TargetId,
        reason: Reason,
        keys: Sequence[Key],
        tokens: int,
        loaded_tokens: int,
        prefix: PreloadedPrefix | None = None,
    ) -> None:
        """Wait for the first request at `target` with `keys`, as in `add`. The last `loaded_tokens` of `tokens` are
        new.
        """
        waiting = self._keys.setdefault(target, {})
        held = tokens - loaded_tokens
        for i, key in enumerate(keys):
            end = tokens >> (len(keys) - 1 - i)
            if end > held and key not in waiting:
                waiting[key] = PreloadedKey(prefix, end, end - max(held, end // 2 if i else 0), reason)
                self._count += 1
        while self._count > KEYS_KEPT:
            self._drop_oldest()

    def count(self, ticket: Ticket, usage: Usage) -> None:
        """Count, here and in its record, the preloaded tokens that an attempt which has ended hit."""
        alone = ticket.attempt.prefill is None  # else another target computed the prompt
        if self and alone and usage.cached_tokens is not None:
            keys = ticket.attempt.decision.view.prefixes
            ticket.record.preloaded_tokens = self.on_answer(ticket.target.id, keys, usage.cached_tokens)

    def on_answer(self, target: TargetId, keys: Sequence[int], cached_tokens: int) -> int | None:
        """Settle those of a request's `keys` that wait for their first request at `target`. Return the preloaded
        tokens that the request hit; None if none of its keys waited.
        """
        waiting = self._keys.get(target)
        if not waiting or waiting.keys().isdisjoint(keys):
            return None
        found = {key: cached_tokens >= waiting[key].tokens for key in map(Key, keys) if key in waiting}
        hit_tokens = sum(waiting[key].added_tokens for key, hit in found.items() if hit)
        for key, hit in found.items():
            self.settled_tokens[waiting[key].reason, "hit" if hit else "lost"] += waiting[key].added_tokens
        self.settle(target, found)
        self.on_settled(target, found)
        return hit_tokens

    def settle(self, target: TargetId, found: Mapping[Key, bool]) -> None:
        """Stop waiting for these keys, because a request of this router has hit them (True) or found them lost."""
        waiting = self._keys.get(target, {})
        for key, hit in found.items():
            if (settled := waiting.pop(key, None)) is None:
                continue
            self._count -= 1
            if settled.prefix is not None and hit:
                settled.prefix.hit_tokens += settled.added_tokens
            elif settled.prefix is not None:
                settled.prefix.lost_tokens += settled.added_tokens

    def forget(self, target: TargetId) -> None:
        """Stop waiting for the keys of a target that left."""
        self._count -= len(self._keys.pop(target, ()))

    def _drop_oldest(self) -> None:
        target, waiting = next(iter(self._keys.items()))
        if waiting:
            del waiting[next(iter(waiting))]
            self._count -= 1
        if not waiting:
            del self._keys[target]
