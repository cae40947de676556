"""Load of a target: this router's own bookings, reconciled with the engine's gauges.

The bookings are exact and immediate but cover only this router's requests; the engine's gauges cover the requests
of all clients but are up to a poll interval old. A choice by gauges alone sends every request between two polls to
the same "idle" engine; a choice by bookings alone ignores other routers. So the load is based on the bookings, and
each poll contributes only `elsewhere`, the requests of other clients.

    own     ....3...4...4...3........      peak while the poll is under way = 4
    poll         sent ------ answered      engine: running 5 + waiting 1  ->  elsewhere = 6 - 4 = 2

The engine took its counts at some time between `sent` and `answered`, and a request counts longer here than in the
engine: it is booked before the engine receives it, and released after the engine is done with it. So the *largest*
own count of that time is subtracted. The error is then towards "no other clients", which the next poll of a busy
target corrects within a quarter second. The opposite error, phantom requests on a target that has just become idle,
would keep the target idle until the next slow poll.

KV memory in use is reconciled in the same way. The router counts the distinct blocks of its own prompts
(`live_blocks.py`), including prompts that still wait in the engine, which will take their blocks. The part of the
engine's gauge (`kv_usage`) beyond the largest own count during the poll belongs to other clients, and to answers,
whose growth the router does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from router.fleet.engine_facts import Gauges
from router.fleet.live_blocks import LiveBlocks, LivePrompt
from router.fleet.worker_share import NO_SHARE, WorkerShare
from router.kvcache.events import Key
from scorers.contract import Load, Speed

NO_GAUGES = Gauges(None, None, None, None, None, None, None)


class BatchShare(NamedTuple):
    """Mean of this router's bookings on a target during an answer, including the answer."""

    requests: float
    context_tokens: float


class _LiveShare:
    """The part of the KV memory in use that a booking adds. `own_tokens` are shared with no other prompt: the last
    block if it is not full, or the whole prompt if its keys are unknown.
    """

    def __init__(self, own_tokens: int, prompt: LivePrompt | None, block_tokens: int) -> None:
        self.own_tokens = own_tokens
        self.prompt = prompt
        self.block_tokens = block_tokens


class PrefilledWork(NamedTuple):
    """Work of prefills that are over: uncached tokens and attended pairs."""

    tokens: float
    attended: float


class Booking:
    """One request's share of a target's load, from the choice until the first `release`."""

    __slots__ = (
        "_attended",
        "_began",
        "_ended",
        "_live",
        "_load_book",
        "_prefilled",
        "_prompt_tokens",
        "_released",
        "_uncached_tokens",
        "alone",
        "has_room",
    )

    def __init__(
        self,
        load_book: LoadBook,
        uncached_tokens: int,
        prompt_tokens: int,
        alone: bool,
        has_room: bool,
        live: _LiveShare,
    ) -> None:
        self._load_book = load_book
        self._live = live
        self._uncached_tokens = uncached_tokens
        self._attended = attended_pairs(uncached_tokens, prompt_tokens - uncached_tokens)
        self._prompt_tokens = prompt_tokens
        self._began: tuple[int, int] | None = None  # requests and context tokens of the target at the first byte
        self._ended: tuple[int, int] | None = None  # requests and context tokens just before the release
        self._prefilled: PrefilledWork | None = None  # at the target, at the first byte
        self._released = False
        self.alone = alone  # no other request waited for its first byte, so its TTFT is the engine's speed
        self.has_room = has_room  # else the engine may let it wait until other requests have freed memory

    def on_first_byte(self) -> None:
        """Release the prefill's share. Later calls, and calls after `release`, have no effect."""
        if self._began is None:
            self._end_prefill()
            before = self._load_book.prefilled
            self._load_book.prefilled = PrefilledWork(
                before.tokens + self._uncached_tokens, before.attended + self._attended
            )
            self._prefilled = self._load_book.prefilled

    def _end_prefill(self) -> None:
        load_book = self._load_book
        self._began = (load_book.requests, load_book.context_tokens)
        load_book.on_change()
        load_book.prefilling -= 1
        load_book.prefill_tokens -= self._uncached_tokens
        load_book.prefill_attended -= self._attended

    def release(self) -> bool:
        """Release the whole booking. Returns False, and counts a double release, if it was released before."""
        load_book = self._load_book
        if self._released:
            load_book.double_releases += 1
            return False
        if self._began is None:
            self._end_prefill()
        else:
            self._ended = (load_book.requests, load_book.context_tokens)
        self._released = True
        load_book.on_change()
        load_book.requests -= 1
        load_book.prompt_tokens -= self._prompt_tokens
        load_book.context_tokens -= self._prompt_tokens
        load_book._remove_live(self._live)
        return True

    @property
    def batch(self) -> BatchShare | None:
        """The target's load during the answer, as the mean of the loads at the answer's start and end. None before
        the release, and for a request that never had a first byte.
        """
        if self._began is None or self._ended is None:
            return None
        return BatchShare((self._began[0] + self._ended[0]) / 2, (self._began[1] + self._ended[1]) / 2)

    def prefilled_per_step(self, steps: int) -> PrefilledWork | None:
        """Return the prefills of other requests that ended at the target since this one's first byte, divided by the
        `steps` of its answer. None without a first byte, and when other processes book at the target, whose prefills
        are not known.
        """
        load_book, before = self._load_book, self._prefilled
        if before is None or load_book.siblings.requests:
            return None
        now = load_book.prefilled
        return PrefilledWork((now.tokens - before.tokens) / steps, (now.attended - before.attended) / steps)


class LoadBook:
    """One target's bookings in flight, as running totals, and the engine's last gauges. The totals cover the whole
    router: in a router of several processes they include the other workers' bookings as last reported (`siblings`).
    """

    __slots__ = (
        "_live_blocks",
        "_peak",
        "_peak_tokens",
        "booked_tokens",
        "context_tokens",
        "double_releases",
        "elsewhere",
        "gauges",
        "gauges_at",
        "on_change",
        "output_tokens_per_s",
        "prefill_attended",
        "prefill_tokens",
        "prefilled",
        "prefilling",
        "prompt_tokens",
        "requests",
        "siblings",
        "unbooked_tokens",
    )

    def __init__(self, changed: Callable[[], object] = lambda: None) -> None:
        """`changed` is called when anything below changes, except by a poll, so that a cached `load` can be
        dropped.
        """
        self.on_change = changed
        self.requests = 0
        self.prefilling = 0  # requests without a first byte yet
        self.prefill_tokens = 0  # uncached prompt tokens of the prefilling requests
        self.prefill_attended = 0.0  # (new x earlier token) pairs of the prefilling requests: the quadratic work
        self.prefilled = PrefilledWork(0, 0.0)  # by this process, all that had a first byte
        self.prompt_tokens = 0  # tokens of the whole prompts of all bookings
        self.context_tokens = 0  # tokens that fill the cache: prompts only, as growing answers are not counted
        self.booked_tokens = 0  # tokens of KV memory that these prompts use; shared blocks count once
        self._live_blocks = LiveBlocks()
        self.siblings = NO_SHARE  # the part booked by other workers of this router
        self.double_releases = 0  # bugs of callers; tests assert 0
        self.gauges = NO_GAUGES
        self.gauges_at: float | None = None  # when the last answered poll was sent: the earliest time of its values
        self.elsewhere: int | None = None  # requests of other clients; None: unknown
        self.output_tokens_per_s: float | None = None  # of all clients, by the engine's counter between two polls
        self.unbooked_tokens: int | None = None  # tokens of KV memory in use beyond our bookings; None: unknown
        self._peak = self._peak_tokens = 0

    def book(
        self, uncached_tokens: int, prompt_tokens: int, keys: Sequence[Key] = (), block_tokens: int = 0
    ) -> Booking:
        """Book a request at the moment of the choice. The target still has to compute `uncached_tokens`; `keys` are
        the keys of the prompt's full blocks of `block_tokens`, empty if unknown.
        """
        alone = not self.prefilling and not self.gauges.waiting
        live = self._add_live(keys, block_tokens, prompt_tokens)
        capacity_tokens = self.gauges.capacity_tokens
        has_room = capacity_tokens is None or self.live_tokens <= capacity_tokens
        booking = Booking(self, uncached_tokens, prompt_tokens, alone, has_room, live)
        self.on_change()
        self.requests += 1
        self.prefilling += 1
        self.prefill_tokens += uncached_tokens
        self.prefill_attended += booking._attended
        self.prompt_tokens += prompt_tokens
        self.context_tokens += prompt_tokens
        if self.requests > self._peak:
            self._peak = self.requests
        return booking

    def _add_live(self, keys: Sequence[Key], block_tokens: int, prompt_tokens: int) -> _LiveShare:
        """Add a prompt to the KV memory in use, and return its share."""
        if keys and block_tokens:
            live_blocks = self._live_blocks
            count, prompt = live_blocks.count, live_blocks.add(keys)
            own_tokens = block_tokens if prompt_tokens > len(keys) * block_tokens else 0
            self.booked_tokens += (live_blocks.count - count) * block_tokens + own_tokens
        else:
            prompt, own_tokens = None, prompt_tokens
            self.booked_tokens += own_tokens
        if self.booked_tokens > self._peak_tokens:
            self._peak_tokens = self.booked_tokens
        return _LiveShare(own_tokens, prompt, block_tokens)

    def _remove_live(self, live: _LiveShare) -> None:
        """Remove a share that `_add_live` returned."""
        live_blocks = self._live_blocks
        count = live_blocks.count
        if live.prompt is not None:
            live_blocks.remove(live.prompt)
        self.booked_tokens -= (count - live_blocks.count) * live.block_tokens + live.own_tokens

    @property
    def own(self) -> WorkerShare:
        """The part of the totals that this process has booked itself."""
        return self._total().minus(self.siblings)

    def _total(self) -> WorkerShare:
        """Return the bookings of the router as a whole."""
        return WorkerShare(
            self.requests,
            self.prefilling,
            self.prefill_tokens,
            self.prefill_attended,
            self.prompt_tokens,
            self.context_tokens,
            self.booked_tokens,
        )

    def set_siblings(self, siblings: WorkerShare) -> None:
        """Replace the other workers' part of the totals."""
        # Differences, not a new sum: replicas change this often. They are exact: `prefill_attended` counts halves.
        before = self.siblings
        self.siblings = siblings
        self.on_change()
        self.requests += siblings.requests - before.requests
        self.prefilling += siblings.prefilling - before.prefilling
        self.prefill_tokens += siblings.prefill_tokens - before.prefill_tokens
        self.prefill_attended = self.prefill_attended - before.prefill_attended + siblings.prefill_attended
        self.prompt_tokens += siblings.prompt_tokens - before.prompt_tokens
        self.context_tokens += siblings.context_tokens - before.context_tokens
        self.booked_tokens += siblings.booked_tokens - before.booked_tokens
        self._peak = max(self._peak, self.requests)
        self._peak_tokens = max(self._peak_tokens, self.booked_tokens)

    def begin_poll(self) -> None:
        """Start tracking the largest own counts, until the poll is answered."""
        self._peak, self._peak_tokens = self.requests, self.booked_tokens

    @property
    def others_waiting(self) -> bool:
        """Whether the engine's queue may contain requests of other clients."""
        return bool(self.elsewhere and self.gauges.waiting)

    def apply_gauges(self, gauges: Gauges, sent_at: float) -> None:
        """Apply the gauges of a poll sent at `sent_at`. Does not call `on_change`: the target determines what
        changed.
        """
        self.output_tokens_per_s = self._rate(gauges, sent_at)
        self.gauges = gauges
        self.gauges_at = sent_at
        if gauges.running is None or gauges.waiting is None:
            self.elsewhere = None
        else:
            self.elsewhere = max(0, gauges.running + gauges.waiting - self._peak)
        if gauges.kv_usage is None or gauges.capacity_tokens is None:
            self.unbooked_tokens = None
        else:
            self.unbooked_tokens = max(0, round(gauges.kv_usage * gauges.capacity_tokens) - self._peak_tokens)

    def forget_gauges(self) -> None:
        """Make the gauges unknown again, because the process that reported them is or may be gone."""
        self.on_change()
        self.gauges = NO_GAUGES
        self.gauges_at = self.elsewhere = self.output_tokens_per_s = self.unbooked_tokens = None

    def _rate(self, gauges: Gauges, sent_at: float) -> float | None:
        """Return answer tokens per second since the last poll; None if unknown or the counter fell (a restart)."""
        before, after = self.gauges.output_tokens, gauges.output_tokens
        if before is None or after is None or self.gauges_at is None or after < before or sent_at <= self.gauges_at:
            return None
        return round((after - before) / (sent_at - self.gauges_at), 3)

    @property
    def live_tokens(self) -> int:
        """Tokens of KV memory in use or booked, of all clients as far as known."""
        return self.booked_tokens + (self.unbooked_tokens or 0)

    def count_live(self, keys: Sequence[Key]) -> int | None:
        """Return how many of these leading blocks live requests use; None if other workers have booked some."""
        return None if self.siblings.requests else self._live_blocks.count_leading(keys)

    def queued_ms(self, speed: Speed) -> float:
        """Return the booked prefill work in ms, priced per request: the base, linear and attention parts are
        additive. KV that a booked prompt will load from a slower tier counts as context of this work, not as work:
        engines load while they compute (vLLM parks the request meanwhile), so later requests wait only for the
        computing.
        """
        return price_prefills(speed, self.prefilling, self.prefill_tokens, self.prefill_attended)

    def rounded_queued_ms(self, speed: Speed) -> float:
        """Return `queued_ms` as in a `Load`, rounded to the microsecond."""
        return (self.queued_ms(speed) * 1e3 + 0.5) // 1 / 1e3 if self.prefilling else 0.0  # faster than `round`

    def load(self, speed: Speed, now: float) -> Load:
        """Return the contract's `Load`. Times are rounded to the microsecond and ages to the millisecond, because
        decisions are logged and finer digits do not compress.
        """
        gauges = self.gauges
        return Load(
            self.requests,
            self.prefilling,
            self.prefill_tokens,
            self.context_tokens,
            self.rounded_queued_ms(speed),
            gauges.running,
            gauges.waiting,
            gauges.kv_usage,
            self.elsewhere,
            None if self.gauges_at is None else ((now - self.gauges_at) * 1e3 + 0.5) // 1 / 1e3,
            gauges.adapters,
            gauges.max_adapters,
            gauges.waiting_adapters,
            self.prompt_tokens,
            self.output_tokens_per_s,
            self.live_tokens,
        )


def price_prefills(speed: Speed, prefills: int, tokens: int, attended: float) -> float:
    """Return the ms of several prefills, as the sum of `Speed.prefill_ms`: of `tokens` new tokens and `attended` pairs
    in total.
    """
    linear_us = speed.us_per_token * tokens + speed.ns_per_token_context * attended / 1000
    return speed.base_ms * prefills + linear_us / 1000


def attended_pairs(new: int, context: int) -> float:
    """Return the number of token pairs in attention for `new` tokens after `context`, as in `Speed.prefill_ms`."""
    return new * (context + new / 2)
