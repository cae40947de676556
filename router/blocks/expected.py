"""What we sent and no event has told of yet.

`Expected` is for targets with a trusted stream, for seconds: a burst on one new prefix must not scatter over the
fleet because the first request's blocks are not announced before its prefill is scheduled. It ends as soon as the
engine speaks, so that a block stored and evicted again is not believed in.

`Approximate` is for targets without one, for minutes: whatever we sent there is taken to be cached, within a bound
and an age.

Both know keys and targets only; the caller brings the time (monotonic seconds).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from router.blocks.events import Key, TargetId


@dataclass(slots=True, eq=False)
class Expectation:
    """One request's: the keys it will bring into its target's cache, unless it fails."""

    target: TargetId
    keys: Sequence[Key]


class Expected:
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
        self._live: dict[Expectation, None] = {}  # as sent
        self._due: deque[tuple[float, Expectation]] = deque()  # as they run out
        self._requests: dict[TargetId, dict[Key, int]] = {}  # how many requests bring a key

    def sent(self, target: TargetId, keys: Sequence[Key], now: float) -> Expectation:
        """A request went to `target` that will bring it `keys`: those it does not hold yet."""
        self._end_due(now)
        expectation = Expectation(target, keys)
        requests = self._requests.setdefault(target, {})
        for key in keys:
            requests[key] = requests.get(key, 0) + 1
        self._blocks += len(keys)
        self._live[expectation] = None
        while self._blocks > self._max_blocks:
            self._end(next(iter(self._live)))
        return expectation

    def first_byte(self, expectation: Expectation, now: float) -> None:
        """Its prefill is done: the events are out, if any come."""
        self._due.append((now + self._ttl_s, expectation))

    def failed(self, expectation: Expectation) -> None:
        """The request ended before its first byte."""
        self._end(expectation)

    def stored(self, target: TargetId, keys: Sequence[Key]) -> None:
        """The target's events told of `keys`: from now on only events speak of them."""
        if requests := self._requests.get(target):
            for key in keys:
                requests.pop(key, None)

    def forget(self, target: TargetId) -> None:
        """Nothing is expected of `target` any more: it restarted or left."""
        self._requests.pop(target, None)

    def bringing(self, key: Key, now: float) -> set[TargetId]:
        """Targets that a request on its way will bring `key`."""
        self._end_due(now)
        return {target for target, requests in self._requests.items() if key in requests}

    def run(self, target: TargetId, keys: Sequence[Key], held_blocks: int, now: float) -> int:
        """Leading blocks of `keys` that `target` holds (`held_blocks`, from the index) or, right after, will hold."""
        self._end_due(now)
        requests = self._requests.get(target)
        if not requests:
            return held_blocks
        blocks = held_blocks
        while blocks < len(keys) and keys[blocks] in requests:
            blocks += 1
        return blocks

    def _end_due(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            self._end(self._due.popleft()[1])

    def _end(self, expectation: Expectation) -> None:
        if expectation not in self._live:
            return
        del self._live[expectation]
        self._blocks -= len(expectation.keys)
        requests = self._requests.get(expectation.target, {})
        for key in expectation.keys:
            if (left := requests.get(key, 0) - 1) > 0:
                requests[key] = left
            elif left == 0:
                del requests[key]
        expectation.keys = ()  # it may still be due, or in its request's hands


class Approximate:
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

    def sent(self, target: TargetId, keys: Sequence[Key], now: float) -> None:
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

    def run(self, target: TargetId, keys: Sequence[Key], now: float) -> int:
        """Leading blocks of `keys` that `target` probably holds."""
        young, old = self._young.get(target, {}), self._old.get(target, {})
        oldest = now - self._ttl_s

        def missing(key: Key) -> bool:
            return max(young.get(key, oldest), old.get(key, oldest)) <= oldest

        return bisect_left(keys, True, key=missing)

    def blocks(self, target: TargetId, now: float) -> int:
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
