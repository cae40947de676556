"""Blocks of prompts sent to targets that no event has announced yet.

`SpeculativeBlocks` is for targets with a trusted stream, for seconds: a burst on one new prefix must not scatter
over the fleet because the first request's blocks are not announced before its prefill is scheduled. An entry ends
as soon as the engine announces the block, so a block stored and evicted again is not counted.

`ApproximateBlocks` is for targets without a trusted stream, for minutes: every prompt sent to one is assumed to
be cached, within a size limit and an age limit.

For a hybrid model (`tail_groups.py`) a prompt on its way is also expected to leave tails, at its end and where it parts
from what the target holds.

Both deal with keys and targets only; the caller passes the time (monotonic seconds).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from router.kvcache.events import Key, TargetId


@dataclass(slots=True, eq=False)
class SpeculativePrompt:
    """The keys that one request will bring into its target's cache unless it fails."""

    target: TargetId
    keys: Sequence[Key]
    tails: Sequence[Key] = ()  # the last keys of tails
    forgotten: bool = False  # its target's cache was emptied meanwhile, before or after its blocks were computed


class _ExpectedKeys:
    """The targets that will get a key: one target with one request, as with most keys, or a count per target."""

    __slots__ = ("table",)

    def __init__(self) -> None:
        self.table: dict[Key, TargetId | Counter[TargetId]] = {}

    def add(self, keys: Sequence[Key], target: TargetId) -> None:
        """Add one request that brings `keys` to `target`."""
        table = self.table
        for key in keys:
            targets = table.get(key)
            if targets is None:
                table[key] = target
                continue
            if not isinstance(targets, Counter):
                targets = table[key] = Counter((targets,))
            targets[target] += 1

    def drop(self, keys: Sequence[Key], target: TargetId, *, every: bool) -> None:
        """Remove `keys` of `target` once, or for every request that brings them."""
        table = self.table
        for key in keys:
            targets = table.get(key)
            if targets == target:
                del table[key]
            elif isinstance(targets, Counter) and target in targets:
                targets[target] = 0 if every else targets[target] - 1
                if not targets[target]:
                    del targets[target]
                if not targets:
                    del table[key]

    def targets(self, key: Key) -> Collection[TargetId]:
        """Return the targets that will get `key`."""
        targets = self.table.get(key)
        if targets is None:
            return ()
        return targets.keys() if isinstance(targets, Counter) else (targets,)


class SpeculativeBlocks:
    """Keys that requests in flight will add to their targets' caches.

    An entry is valid while its request waits for its first byte (engines announce blocks when they schedule them,
    which a queue can delay), and for `ttl_s` after. Every `add` must be followed by `on_first_byte` or `discard`.
    `max_blocks` limits all targets together; beyond it the oldest entries are dropped.

    Keys are counted, not owned: a key that was stored, evicted and expected anew within `ttl_s` may end with the
    first request that brought it, so the error is towards expecting too little.
    """

    def __init__(self, ttl_s: float, max_blocks: int = 1_000_000) -> None:
        self._ttl_s = ttl_s
        self._max_blocks = max_blocks
        self._blocks = 0  # in `_live`
        self._live: dict[SpeculativePrompt, None] = {}  # in the order of sending
        self._due: deque[tuple[float, SpeculativePrompt]] = deque()  # in the order of expiry
        self._waiting: Counter[TargetId] = Counter()  # live prompts by target
        self._expecting = _ExpectedKeys()
        self._tails = _ExpectedKeys()  # the last keys of tails

    def add(self, target: TargetId, keys: Sequence[Key], now: float, tails: Sequence[Key] = ()) -> SpeculativePrompt:
        """Record that a request sent to `target` will cache `keys`, which `target` does not hold yet, and leave tails
        of a hybrid model that end with these keys.
        """
        self._expire(now)
        prompt = SpeculativePrompt(target, keys, tails)
        self._expecting.add(keys, target)
        self._tails.add(tails, target)
        self._blocks += len(keys)
        self._live[prompt] = None
        self._waiting[target] += 1
        while self._blocks > self._max_blocks:
            self.discard(next(iter(self._live)))
        return prompt

    def on_first_byte(self, prompt: SpeculativePrompt, now: float) -> None:
        """Start the expiry of `prompt`: its prefill is done and its events are published."""
        self._due.append((now + self._ttl_s, prompt))

    def confirm(self, target: TargetId, keys: Sequence[Key]) -> None:
        """Drop `keys` of `target`: events have announced them, so only events count from now on."""
        if target in self._waiting:
            self._expecting.drop(keys, target, every=True)

    def forget(self, target: TargetId) -> None:
        """Drop everything expected of `target`, which restarted or left."""
        if target in self._waiting:
            for prompt in [live for live in self._live if live.target == target]:
                prompt.forgotten = True
                self.discard(prompt)

    def targets_expecting(self, key: Key, now: float) -> Collection[TargetId]:
        """Return the targets to which a request in flight will bring `key`."""
        self._expire(now)
        return self._expecting.targets(key)

    def leading_blocks(self, target: TargetId, keys: Sequence[Key], held_blocks: int, now: float) -> int:
        """Return how many leading blocks of `keys` the target holds (`held_blocks`, by the index) or will hold
        soon.
        """
        self._expire(now)
        if target not in self._waiting:
            return held_blocks
        blocks, expecting = held_blocks, self._expecting.table
        while blocks < len(keys):
            targets = expecting.get(keys[blocks])
            if targets != target and not (isinstance(targets, Counter) and target in targets):
                break
            blocks += 1
        return blocks

    def find_tails(self, keys: Sequence[Key], now: float) -> dict[TargetId, list[int]]:
        """Return the numbers of leading blocks, in order, at which prompts on their way to a target will leave a tail,
        for each target with any.
        """
        self._expire(now)
        found: dict[TargetId, list[int]] = {}
        if tails := self._tails.table:
            for blocks, key in enumerate(keys, 1):
                if key in tails:
                    for target in self._tails.targets(key):
                        found.setdefault(target, []).append(blocks)
        return found

    def _expire(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            self.discard(self._due.popleft()[1])

    def discard(self, prompt: SpeculativePrompt) -> None:
        """Drop `prompt`, whose request ended before its first byte, or which has expired."""
        if prompt not in self._live:
            return
        del self._live[prompt]
        self._blocks -= len(prompt.keys)
        target = prompt.target
        self._expecting.drop(prompt.keys, target, every=False)
        self._tails.drop(prompt.tails, target, every=False)
        if self._waiting[target] == 1:
            del self._waiting[target]
        else:
            self._waiting[target] -= 1
        prompt.keys = ()  # the request and the expiry queue may still refer to it


class ApproximateBlocks:
    """Keys of the prompts sent to each target: at most `max_blocks`, none older than `ttl_s`.

    Two generations instead of a list in order of use: new keys go into the young generation, which becomes the old
    one when it holds half of the limit, and the old one is dropped whole. A prompt is always added whole, from its
    first block, so a block is never kept without, or longer than, its predecessors: the end of the run can be
    bisected.
    """

    def __init__(self, max_blocks: int, ttl_s: float) -> None:
        self._generation_blocks = max(1, max_blocks // 2)
        self._ttl_s = ttl_s
        self._young: dict[TargetId, dict[Key, float]] = {}
        self._old: dict[TargetId, dict[Key, float]] = {}
        self._twice: dict[TargetId, int] = {}  # number of keys in both generations
        self._sent_at: dict[TargetId, float] = {}

    def add(self, target: TargetId, keys: Sequence[Key], now: float) -> None:
        """Record that a prompt was sent to `target`; `keys` are all its blocks, from the first."""
        keys = keys[: self._generation_blocks]
        young = self._young.setdefault(target, {})
        known = bisect_left(keys, True, key=lambda key: key not in young)
        if len(young) + len(keys) - known > self._generation_blocks:
            self._old[target] = young
            young = self._young[target] = {}
            self._twice[target] = known = 0
        old = self._old.get(target, {})
        self._twice[target] = self._twice.get(target, 0) + sum(key in old for key in keys[known:])
        self._sent_at[target] = now
        young.update(dict.fromkeys(keys, now))

    def adopt(self, target: TargetId, keys: Sequence[Key], now: float) -> None:
        """Replace the record of `target` by the blocks that it held until now, none without its predecessors."""
        self.forget(target)
        self._old[target] = dict.fromkeys(keys, now)

    def leading_blocks(self, target: TargetId, keys: Sequence[Key], now: float) -> int:
        """Return how many leading blocks of `keys` the target probably holds."""
        young, old = self._young.get(target, {}), self._old.get(target, {})
        oldest = now - self._ttl_s

        def missing(key: Key) -> bool:
            return max(young.get(key, oldest), old.get(key, oldest)) <= oldest

        return bisect_left(keys, True, key=missing)

    def count(self, target: TargetId, now: float) -> int:
        """Return how many blocks the target probably holds, of all prompts; 0 when the last prompt sent is older
        than `ttl_s`. Older blocks are counted until their generation is dropped.
        """
        young = self._young.get(target)
        if not young or now - self._sent_at[target] >= self._ttl_s:
            return 0
        return len(young) + len(self._old.get(target, ())) - self._twice[target]

    def forget(self, target: TargetId) -> None:
        """Drop everything recorded for `target`."""
        for table in (self._young, self._old, self._twice, self._sent_at):
            table.pop(target, None)
