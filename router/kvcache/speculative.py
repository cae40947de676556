"""What we sent and no event has told of yet.

`SpeculativeBlocks` is for targets with a trusted stream, for seconds: a burst on one new prefix must not scatter over
the fleet because the first request's blocks are not announced before its prefill is scheduled. It ends as soon as the
engine speaks, so that a block stored and evicted again is not believed in.

`ApproximateBlocks` is for targets without one, for minutes: whatever we sent there is taken to be cached, within a
bound and an age.

Both know keys and targets only; the caller brings the time (monotonic seconds).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from router.kvcache.events import Key, TargetId


@dataclass(slots=True, eq=False)
class SpeculativePrompt:
    """One request's: the keys it will bring into its target's cache, unless it fails."""

    target: TargetId
    keys: Sequence[Key]


class SpeculativeBlocks:
    """Keys that requests on their way will have cached.

    An expectation holds while its request waits for its first byte (engines announce blocks when they schedule them,
    which a queue can delay), and for `ttl_s` after. Every `sent` must be followed by `first_byte` or `failed`.
    `max_blocks` bounds all targets together; beyond it the oldest give way.

    A key is counted, not owned: one that was stored, evicted and expected anew within `ttl_s` may end with the first
    request that brought it. It errs on the side of expecting too little.
    """

    def __init__(self, ttl_s: float, max_blocks: int = 1_000_000) -> None:
        self._ttl_s = ttl_s
        self._max_blocks = max_blocks
        self._blocks = 0  # in `_live`
        self._live: dict[SpeculativePrompt, None] = {}  # as sent
        self._due: deque[tuple[float, SpeculativePrompt]] = deque()  # as they run out
        self._waiting: Counter[TargetId] = Counter()  # how many live ones each has
        # Who gets a key: the only target whose only request brings it, as with most; else how many bring it to each.
        self._bringing: dict[Key, TargetId | Counter[TargetId]] = {}

    def add(self, target: TargetId, keys: Sequence[Key], now: float) -> SpeculativePrompt:
        """A request went to `target` that will bring it `keys`: those it does not hold yet."""
        self._end_due(now)
        expectation, bringing = SpeculativePrompt(target, keys), self._bringing
        for key in keys:
            if key not in bringing:
                bringing[key] = target
            else:
                self._one_more(key, target)
        self._blocks += len(keys)
        self._live[expectation] = None
        self._waiting[target] += 1
        while self._blocks > self._max_blocks:
            self._end(next(iter(self._live)))
        return expectation

    def on_first_byte(self, expectation: SpeculativePrompt, now: float) -> None:
        """Its prefill is done: the events are out, if any come."""
        self._due.append((now + self._ttl_s, expectation))

    def discard(self, expectation: SpeculativePrompt) -> None:
        """The request ended before its first byte."""
        self._end(expectation)

    def confirm(self, target: TargetId, keys: Sequence[Key]) -> None:
        """The target's events told of `keys`: from now on only events speak of them."""
        if target in self._waiting:
            self._drop(keys, target, every=True)

    def forget(self, target: TargetId) -> None:
        """Nothing is expected of `target` any more: it restarted or left."""
        if target in self._waiting:
            for expectation in [live for live in self._live if live.target == target]:
                self._end(expectation)

    def targets_expecting(self, key: Key, now: float) -> Collection[TargetId]:
        """Targets that a request on its way will bring `key`."""
        self._end_due(now)
        whom = self._bringing.get(key)
        if whom is None:
            return ()
        return whom.keys() if isinstance(whom, Counter) else (whom,)

    def leading_blocks(self, target: TargetId, keys: Sequence[Key], held_blocks: int, now: float) -> int:
        """Leading blocks of `keys` that `target` holds (`held_blocks`, from the index) or, right after, will hold."""
        self._end_due(now)
        if target not in self._waiting:
            return held_blocks
        blocks, bringing = held_blocks, self._bringing
        while blocks < len(keys):
            whom = bringing.get(keys[blocks])
            if whom != target and not (isinstance(whom, Counter) and target in whom):
                break
            blocks += 1
        return blocks

    def _end_due(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            self._end(self._due.popleft()[1])

    def _end(self, expectation: SpeculativePrompt) -> None:
        if expectation not in self._live:
            return
        del self._live[expectation]
        self._blocks -= len(expectation.keys)
        target = expectation.target
        self._drop(expectation.keys, target, every=False)
        if self._waiting[target] == 1:
            del self._waiting[target]
        else:
            self._waiting[target] -= 1
        expectation.keys = ()  # it may still be due, or in its request's hands

    def _one_more(self, key: Key, target: TargetId) -> None:
        whom = self._bringing[key]
        if not isinstance(whom, Counter):
            whom = self._bringing[key] = Counter((whom,))
        whom[target] += 1

    def _drop(self, keys: Sequence[Key], target: TargetId, *, every: bool) -> None:
        """`target` does not get `keys`, by one request or by every one."""
        bringing = self._bringing
        for key in keys:
            whom = bringing.get(key)
            if whom == target:
                del bringing[key]
            elif isinstance(whom, Counter) and target in whom:
                whom[target] = 0 if every else whom[target] - 1
                if not whom[target]:
                    del whom[target]
                if not whom:
                    del bringing[key]


class ApproximateBlocks:
    """What was sent to each target, at most `max_blocks` blocks of it, none older than `ttl_s`.

    Two generations instead of a list in order of use: new keys go into the young one, which becomes the old one when
    it holds half of the bound, and the old one is dropped whole. A prompt is always entered whole, from its first
    block, so a block is never remembered without, or longer than, those before it: the run's end can be bisected.
    """

    def __init__(self, max_blocks: int, ttl_s: float) -> None:
        self._generation_blocks = max(1, max_blocks // 2)
        self._ttl_s = ttl_s
        self._young: dict[TargetId, dict[Key, float]] = {}
        self._old: dict[TargetId, dict[Key, float]] = {}
        self._twice: dict[TargetId, int] = {}  # how many keys are in both generations
        self._sent_at: dict[TargetId, float] = {}

    def add(self, target: TargetId, keys: Sequence[Key], now: float) -> None:
        """A prompt went to `target`; `keys` are all its blocks, from the first."""
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

    def leading_blocks(self, target: TargetId, keys: Sequence[Key], now: float) -> int:
        """Leading blocks of `keys` that `target` probably holds."""
        young, old = self._young.get(target, {}), self._old.get(target, {})
        oldest = now - self._ttl_s

        def missing(key: Key) -> bool:
            return max(young.get(key, oldest), old.get(key, oldest)) <= oldest

        return bisect_left(keys, True, key=missing)

    def count(self, target: TargetId, now: float) -> int:
        """How many blocks it probably holds, of whatever prompts: each once, and none when the last one sent is too
        old. Otherwise those that are too old are counted until their generation goes.
        """
        young = self._young.get(target)
        if not young or now - self._sent_at[target] >= self._ttl_s:
            return 0
        return len(young) + len(self._old.get(target, ())) - self._twice[target]

    def forget(self, target: TargetId) -> None:
        """Nothing is believed of `target` any more."""
        for table in (self._young, self._old, self._twice, self._sent_at):
            table.pop(target, None)
