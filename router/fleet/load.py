"""How busy a target is: our own books, reconciled with what the engine says of itself.

The books are exact and immediate but see only this router's requests; the engine's gauges see everybody's but are up
to a poll interval old. Choosing by gauges alone sends every request between two polls to the same "idle" engine;
choosing by books alone is blind to other routers. So the books lead, and from each poll we keep only what they cannot
know: `elsewhere`, the requests that were not ours.

    own     ....3...4...4...3........      peak while the poll is under way = 4
    poll         sent ------ answered      engine: running 5 + waiting 1  ->  elsewhere = 6 - 4 = 2

The engine looked at itself somewhere between `sent` and `answered`, and its view of our requests trails ours at both
ends (we book before it hears of a request, and release after it is done with it). So the *largest* own count of that
time is subtracted: the error then goes towards "nobody else", which the next poll of a busy target corrects within a
quarter second. The other error, phantom strangers on a target that has just become idle, would keep it idle until
the next slow poll.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import add, sub
from typing import NamedTuple

from router.fleet.engine_facts import Gauges
from scorers.contract import Load, Speed

NO_GAUGES = Gauges(None, None, None, None, None, None, None)


class BatchShare(NamedTuple):
    """What an answer shared its target with, itself included: our bookings there, in the mean of its time."""

    requests: float
    context_tokens: float


class WorkerShare(NamedTuple):
    """One worker's bookings of a target, or those of several together."""

    requests: int = 0
    prefilling: int = 0
    prefill_tokens: int = 0
    prefill_attended: float = 0.0
    prompt_tokens: int = 0
    context_tokens: int = 0

    def plus(self, other: WorkerShare) -> WorkerShare:
        return WorkerShare(*map(add, self, other))

    def minus(self, other: WorkerShare) -> WorkerShare:
        return WorkerShare(*map(sub, self, other))


NO_SHARE = WorkerShare()


class Booking:
    """One request's share of a target's load: from the choice until `release`, which counts once."""

    __slots__ = (
        "_attended",
        "_began",
        "_books",
        "_ended",
        "_prompt_tokens",
        "_released",
        "_uncached_tokens",
        "alone",
    )

    def __init__(self, books: LoadBook, uncached_tokens: int, prompt_tokens: int, alone: bool) -> None:
        self._books = books
        self._uncached_tokens = uncached_tokens
        self._attended = attended_pairs(uncached_tokens, prompt_tokens - uncached_tokens)
        self._prompt_tokens = prompt_tokens
        self._began: tuple[int, int] | None = None  # requests and context tokens of the books at the first byte,
        self._ended: tuple[int, int] | None = None  # and just before the release
        self._released = False
        self.alone = alone  # nothing else was waiting for its first byte: its TTFT shows the engine's bare speed

    def on_first_byte(self) -> None:
        """The prefill is over. Later calls, and calls after `release`, change nothing."""
        if self._began is None:
            books = self._books
            self._began = (books.requests, books.context_tokens)
            books.on_change()
            books.prefilling -= 1
            books.prefill_tokens -= self._uncached_tokens
            books.prefill_attended -= self._attended

    def release(self) -> bool:
        """Give everything back. False, and counted, when it was given back before."""
        books = self._books
        if self._released:
            books.double_releases += 1
            return False
        if self._began is None:
            self.on_first_byte()
        else:
            self._ended = (books.requests, books.context_tokens)
        self._released = True
        books.on_change()
        books.requests -= 1
        books.prompt_tokens -= self._prompt_tokens
        books.context_tokens -= self._prompt_tokens
        return True

    @property
    def batch(self) -> BatchShare | None:
        """What its answer shared the target with, as the mean of its two ends; None before the release, and for one
        that never had a first byte.
        """
        if self._began is None or self._ended is None:
            return None
        return BatchShare((self._began[0] + self._ended[0]) / 2, (self._began[1] + self._ended[1]) / 2)


class LoadBook:
    """One target's bookings in flight, as running totals, and the engine's last gauges.

    The totals are of this router as a whole: where it is several processes, the others' part is in them, as they told
    it last (`siblings`).
    """

    __slots__ = (
        "_peak",
        "context_tokens",
        "double_releases",
        "elsewhere",
        "gauges",
        "gauges_at",
        "on_change",
        "output_tokens_per_s",
        "prefill_attended",
        "prefill_tokens",
        "prefilling",
        "prompt_tokens",
        "requests",
        "siblings",
    )

    def __init__(self, changed: Callable[[], object] = lambda: None) -> None:
        """`changed` is called when anything below changes, but by a poll: for whoever keeps a `load`."""
        self.on_change = changed
        self.requests = 0
        self.prefilling = 0  # of those, without a first byte yet
        self.prefill_tokens = 0  # uncached prompt tokens of those prefilling
        self.prefill_attended = 0.0  # (new x earlier token) pairs of those prefilling: the quadratic part of their work
        self.prompt_tokens = 0  # whole prompts of all
        self.context_tokens = 0  # that fill the cache: prompts, as answers are not counted while they grow
        self.siblings = NO_SHARE  # of all that, what other workers of this router have booked
        self.double_releases = 0  # a caller's mistake; tests hold it at 0
        self.gauges = NO_GAUGES
        self.gauges_at: float | None = None  # when the last answered poll was sent: its oldest possible truth
        self.elsewhere: int | None = None
        self.output_tokens_per_s: float | None = None  # by the engine's counter, everybody's, between two polls
        self._peak = 0

    def book(self, uncached_tokens: int, prompt_tokens: int) -> Booking:
        """At the choice, in the same loop turn. `uncached_tokens` is what the target has yet to compute."""
        booking = Booking(self, uncached_tokens, prompt_tokens, not self.prefilling and not self.gauges.waiting)
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

    @property
    def own(self) -> WorkerShare:
        """What this process has booked itself."""
        return self._booked().minus(self.siblings)

    def _booked(self) -> WorkerShare:
        """Of the router as a whole."""
        return WorkerShare(
            self.requests,
            self.prefilling,
            self.prefill_tokens,
            self.prefill_attended,
            self.prompt_tokens,
            self.context_tokens,
        )

    def set_siblings(self, siblings: WorkerShare) -> None:
        """All that the other workers have booked here now, in the place of what they had."""
        total = self.own.plus(siblings)
        self.siblings = siblings
        self.on_change()
        self.requests, self.prefilling, self.prefill_tokens = total.requests, total.prefilling, total.prefill_tokens
        self.prefill_attended = total.prefill_attended
        self.prompt_tokens, self.context_tokens = total.prompt_tokens, total.context_tokens
        self._peak = max(self._peak, self.requests)

    def begin_poll(self) -> None:
        """A poll is being sent: watch our own count until it is answered."""
        self._peak = self.requests

    @property
    def others_waiting(self) -> bool:
        """Requests of others wait in the engine."""
        return bool(self.elsewhere and self.gauges.waiting)

    def apply_gauges(self, gauges: Gauges, sent_at: float) -> None:
        """Whoever polls knows what else hangs on it: mostly nothing does."""
        self.output_tokens_per_s = self._rate(gauges, sent_at)
        self.gauges = gauges
        self.gauges_at = sent_at
        if gauges.running is None or gauges.waiting is None:
            self.elsewhere = None
        else:
            self.elsewhere = max(0, gauges.running + gauges.waiting - self._peak)

    def forget_gauges(self) -> None:
        """The process behind them is gone, or may be: unknown again."""
        self.on_change()
        self.gauges = NO_GAUGES
        self.gauges_at = self.elsewhere = self.output_tokens_per_s = None

    def _rate(self, gauges: Gauges, sent_at: float) -> float | None:
        """Answer tokens per second since the last poll. A counter that has fallen is another process's: unknown."""
        before, after = self.gauges.output_tokens, gauges.output_tokens
        if before is None or after is None or self.gauges_at is None or after < before or sent_at <= self.gauges_at:
            return None
        return round((after - before) / (sent_at - self.gauges_at), 3)

    def queued_ms(self, speed: Speed) -> float:
        """The prefill work booked here, priced request by request: base, linear and attention part are additive.

        What a booked prompt will load from a slower tier is context of this work, not a part of it: engines load beside
        their computing (vLLM parks the request meanwhile), so who comes after waits for what is computed only.
        """
        return (
            speed.base_ms * self.prefilling
            + (speed.us_per_token * self.prefill_tokens + speed.ns_per_token_context * self.prefill_attended / 1000)
            / 1000
        )

    def rounded_queued_ms(self, speed: Speed) -> float:
        """As in a `Load`: to the microsecond."""
        return (self.queued_ms(speed) * 1e3 + 0.5) // 1 / 1e3 if self.prefilling else 0.0  # a third of `round`

    def load(self, speed: Speed, now: float) -> Load:
        """Times to the microsecond, ages to the millisecond: decisions are logged, and finer digits do not compress."""
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
        )


def attended_pairs(new: int, context: int) -> float:
    """Token pairs that attention looks at to compute `new` tokens after `context`: as in `Speed.prefill_ms`."""
    return new * (context + new / 2)
