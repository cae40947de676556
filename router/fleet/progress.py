"""Detects that a target has work and makes no progress: that it is stuck, however healthy its probes are.

Progress is a first byte, a piece of a stream, or a metrics page with more answer tokens or more KV memory in use than
the page before. While there is work, two times are kept:

    silent_s   since the last progress
    behind_s   that the answer tokens and prefills since then do not explain, even at a `SLOWDOWN`th of the engine's
               usual speed (before step changes); 0 while other clients' requests, of unknown cost, are there

The target is stuck once one of them exceeds `FLOOR_S` and `MARGIN` times the prefill work that is waiting; of that,
silence has one step only while streams are running, as they get a token in every step. A target of which too little
was learned has `UNLEARNED_S`. There is no verdict while nothing would show: an answer that is no stream shows nothing
before its end unless the metrics count tokens, and images are decoded before the engine's steps.

A check counts at most `MOST_S` since the last one: a router that was itself stopped does not blame its engines.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from router.fleet.engine_facts import Gauges
from router.fleet.load import LoadBook, attended_pairs, price_prefills
from scorers.contract import Speed

FLOOR_S = 3.0
UNLEARNED_S = 30.0
MARGIN = 3.0
SLOWDOWN = 6.0  # a slower engine is of no use beside others; up to here prices suffice
LEARNED = 3  # samples of the prefill curve, or of the decode step
MOST_S = 0.5
FRESH_S = 1.5  # age up to which a metrics page without more tokens is evidence


class OpenWork(NamedTuple):
    """The open requests of this process at a target."""

    prefills: int  # requests without a first byte, whose cost is known
    prefill_ms: float  # that cost, by the learned speed
    step_ms: float  # the most that one step of a prefill takes
    unknown: int  # requests without a first byte whose cost is unknown
    streams: int  # streams after their first byte whose clients read
    shows: bool  # whether the first token of a request would show, or the engine answers no probe


class Stall(NamedTuple):
    """Evidence that a target is stuck."""

    kind: Literal["silent", "slow"]
    seconds: float
    waiting: int  # requests without a first byte
    streams: int

    def __str__(self) -> str:
        """Return the evidence in words."""
        work = f"{self.waiting} requests without a first byte and {self.streams} streams"
        if self.kind == "silent":
            return f"no progress for {self.seconds:.1f} s with {work}"
        return f"more than {SLOWDOWN:g} times slower than usual, {self.seconds:.1f} s behind, with {work}"


class TargetProgress:
    """The progress of one target, as this process sees it. `pieces` counts the pieces of all answers: their
    observers add to it.
    """

    __slots__ = (
        *("_behind_s", "_checked_at", "_page", "_page_at", "_pieces_seen", "_silent_s"),
        *("_prefill_attended", "_prefill_tokens", "_prefills", "moves", "pieces", "stall"),
    )

    def __init__(self) -> None:
        self.pieces = 0
        self.moves = False  # whether the last check found progress, and nothing that it is behind
        self.stall: Stall | None = None  # the evidence when it was last found to be stuck; None: never
        self._pieces_seen = 0
        self._prefills = self._prefill_tokens = 0  # that have ended since the last page
        self._prefill_attended = 0.0
        self._checked_at: float | None = None  # None: there was no work
        self._silent_s = self._behind_s = 0.0
        self._page: Gauges | None = None  # of the time since there is work
        self._page_at: float | None = None

    def add_prefill(self, new: int, context: int) -> None:
        """Count a prefill of `new` tokens after `context` cached ones, which has ended."""
        self._prefills += 1
        self._prefill_tokens += new
        self._prefill_attended += attended_pairs(new, context)

    def _take_prefilled_ms(self, speed: Speed) -> float:
        """Return the cost of the prefills that have ended since the last call."""
        prefilled_ms = price_prefills(speed, self._prefills, self._prefill_tokens, self._prefill_attended)
        self._prefills = self._prefill_tokens = 0
        self._prefill_attended = 0.0
        return prefilled_ms

    def rest(self) -> None:
        """Note that there is no work: what was measured belongs to the work before."""
        self._checked_at = None

    def check(self, work: OpenWork, book: LoadBook, speed: Speed, slowdown: float, now: float) -> Stall | None:
        """Return the evidence that the target, which has work, is stuck now; None if there is none. `slowdown`: how
        many times slower than usual `speed` is.
        """
        self.moves = False
        if not (work.prefills or work.unknown or work.streams):  # all clients have paused
            self.rest()
            return None
        if self._checked_at is None:
            self._checked_at, self._pieces_seen = now, self.pieces
            self._take_prefilled_ms(speed)
            self._silent_s = self._behind_s = 0.0
            self._page, self._page_at = book.gauges, book.gauges_at
            return None
        self._silent_s += min(MOST_S, now - self._checked_at)
        self._checked_at = now
        if self._read_page(work, book, speed, SLOWDOWN / slowdown) or self.pieces != self._pieces_seen:
            self._pieces_seen = self.pieces
            if self._silent_s > FLOOR_S:  # it was stopped, which does not make it slow
                self._behind_s = 0.0
            self._silent_s = 0.0
            self.moves = not self._behind_s
        fresh = book.gauges.output_tokens is not None and now - (book.gauges_at or 0.0) < FRESH_S
        stall = self._judge(work, speed, shows=work.shows or fresh)
        self.stall = stall or self.stall
        return stall

    def _read_page(self, work: OpenWork, book: LoadBook, speed: Speed, patience: float) -> bool:
        """Read the metrics page if it is new, and return whether it shows progress. `patience`: how many times longer
        than by `speed` the work may take.
        """
        before, page, before_at = self._page, book.gauges, self._page_at
        if book.gauges_at is None or book.gauges_at == before_at:
            return False
        self._page, self._page_at = page, book.gauges_at
        prefilled_ms = self._take_prefilled_ms(speed)
        if before is None or before_at is None:
            return False
        tokens = 0
        if page.output_tokens is not None and before.output_tokens is not None:
            tokens = page.output_tokens - before.output_tokens
        decode, running = speed.decode, page.running
        learned = decode is not None and decode.samples >= LEARNED and speed.samples >= LEARNED
        if decode is None or not learned or not running or book.elsewhere != 0 or work.unknown:
            self._behind_s = 0.0
        elif tokens >= 0:
            worked_ms = prefilled_ms + tokens / running * decode.step_ms(running, book.context_tokens)
            passed_s = min(MOST_S, book.gauges_at - before_at)
            self._behind_s = max(0.0, self._behind_s + passed_s - patience * worked_ms / 1e3)
        filled = page.kv_usage is not None and before.kv_usage is not None and page.kv_usage > before.kv_usage
        return tokens > 0 or filled

    def _judge(self, work: OpenWork, speed: Speed, *, shows: bool) -> Stall | None:
        if not work.streams and (work.unknown or not shows):
            return None
        decoded = 0 if speed.decode is None else speed.decode.samples
        floor_s = FLOOR_S if max(speed.samples, decoded) >= LEARNED else UNLEARNED_S
        slow_s = silent_s = floor_s + MARGIN * work.prefill_ms / 1e3
        if work.streams:
            silent_s = floor_s + MARGIN * work.step_ms / 1e3
        waiting = work.prefills + work.unknown
        if self._silent_s > silent_s:
            return Stall("silent", self._silent_s, waiting, work.streams)
        if self._behind_s > slow_s and self._silent_s < self._behind_s / 2:  # otherwise it is silence
            return Stall("slow", self._behind_s, waiting, work.streams)
        return None
