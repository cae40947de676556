"""Targets and instances: a target is a data-parallel rank of an instance that a request can go to, with all its
facts.

The parts (load book, breaker, overlap accuracy, latency model) are independent of each other. Changes to several
parts at once are methods here, so that no caller can apply a change by half.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import NamedTuple, Protocol

from router.config import schema
from router.fleet.breaker import CircuitBreaker
from router.fleet.engine_facts import EventEndpoint, Gauges, ModelCard, PoolTransferCounts
from router.fleet.engine_limits import LimitBook
from router.fleet.latency_model import LatencyModel, Link
from router.fleet.load import Booking, LoadBook
from router.fleet.overlap_accuracy import OverlapAccuracy
from router.fleet.progress import Stall, TargetProgress
from router.kvcache.events import Key, TargetId
from scorers.contract import Overlap, Row, Speed

MAX_SIZES = 2  # block sizes in one instance; real engines have one
NO_KEYS: Mapping[int, Sequence[Key]] = {}
DECODE_TOKENS = 8  # in shorter answers, the last step and the first (shared with the prefill's end) weigh too much


class InstanceState(StrEnum):
    """State of an instance, as the admin API shows it."""

    JOINING = "joining"
    READY = "ready"
    DRAINING = "draining"
    DRAINED = "drained"
    DOWN = "down"


class ServedModel(NamedTuple):
    """The meaning of a requested model name: a base model, and a LoRA adapter if the name is an adapter's."""

    base: str
    adapter: str | None


class FetchedKv(NamedTuple):
    """Part of a prompt's KV that an engine fetched over a link: not found on the GPU, and not computed."""

    link: Link
    tokens: int


class TargetObserver(Protocol):
    """Receives changes of targets. `router.fleet.rows.RowCache` drops the rows of targets that changed."""

    def on_change(self, target: Target) -> None:
        """Handle a change of the load, speed or capacity of `target`."""

    def on_gauges_change(self, target: Target) -> None:
        """Handle a change of facts of `target` that are in its row but in no column."""

    def on_block_size_change(self) -> None:
        """Handle a change of a target's block size."""

    def on_first_sample(self) -> None:
        """Handle the first sample of a part of an instance's speed."""


class Target:
    """A data-parallel rank of an instance. `observer` is notified of the target's changes."""

    __slots__ = (
        "_observer",
        "_on_change",
        "block_tokens",
        "breaker",
        "capacity_tokens",
        "events",
        "id",
        "instance",
        "latency_model",
        "load_book",
        "overlap_accuracy",
        "progress",
        "rank",
    )

    def __init__(
        self, instance: Instance, rank: int, breaker: CircuitBreaker, speed: LatencyModel, observer: TargetObserver
    ) -> None:
        self._observer = observer
        self._on_change: Callable[[], None] = partial(observer.on_change, self)
        self.id = TargetId(f"{instance.id}/{rank}")
        self.instance = instance
        self.rank = rank
        self.load_book = LoadBook(self._on_change)
        self.breaker = breaker
        self.overlap_accuracy = OverlapAccuracy()
        self.progress = TargetProgress()
        self.latency_model = speed  # shared by the instance's ranks, which share hardware
        self.block_tokens: int | None = None
        self.capacity_tokens: int | None = None
        self.events: EventEndpoint | None = None  # the endpoint whose events are followed; None: no events

    @property
    def requested_rank(self) -> int | None:
        """Rank that a request to the instance must name; None if the instance has only one rank."""
        return self.rank if self.instance.has_ranks else None

    def build_row(self, now: float, count_held: Callable[[Target], int | None] | None = None) -> Row:
        """Return the target's facts for a decision, except the overlap. `count_held` returns the total number of
        tokens that the target holds.
        """
        speed = self.latency_model.speed(now)
        return Row(
            self.id,
            self.instance.id,
            self.rank,
            self.block_tokens,
            self.capacity_tokens,
            None,
            self.load_book.load(speed, now),
            speed,
            None if count_held is None else count_held(self),
        )

    @property
    def stall(self) -> Stall | None:
        """The evidence that the target is stuck; None if it is not."""
        return self.progress.stall if self.breaker.stuck else None

    @property
    def can_answer(self) -> bool:
        """Whether the target answers clients, rather than only prefilling for others."""
        return self.instance.config.role != "prefill"

    def book(self, uncached_tokens: int, prompt_tokens: int, keys: Mapping[int, Sequence[Key]] = NO_KEYS) -> Booking:
        """Book a request that goes to this target. `keys`: keys of the prompt's full blocks, by block size."""
        size = self.block_tokens or 0
        return self.load_book.book(uncached_tokens, prompt_tokens, keys.get(size, ()), size)

    def expect_kept(self, overlap: Overlap, keys: Mapping[int, Sequence[Key]]) -> Overlap:
        """Return the overlap of a prompt with this target, of which it expects no more than the target can still hold
        when the prompt begins: the blocks that live requests use, and as much else as these leave free. Where memory
        is full, a prompt waits, and what no request uses is evicted meanwhile. `keys` are as in `book`.
        """
        if self.capacity_tokens is None:
            return overlap
        free_tokens = self.capacity_tokens - self.load_book.live_tokens
        if overlap.expected_tokens <= free_tokens:
            return overlap
        size = self.block_tokens or 0
        live = self.load_book.count_live(keys.get(size, ()))
        kept = None if live is None else live * size + max(0, free_tokens)
        return overlap if kept is None or kept >= overlap.expected_tokens else overlap._replace(expected_tokens=kept)

    def set_block_tokens(self, tokens: int) -> None:
        """Set the block size that the event stream reports, which takes precedence over the metrics page."""
        if tokens != self.block_tokens:
            self.block_tokens = tokens
            self._observer.on_block_size_change()
            self._on_change()

    @property
    def live_share(self) -> float | None:
        """Share of the KV memory that is in use or booked, at most 1; None while the capacity is unknown."""
        return min(1.0, self.load_book.live_tokens / self.capacity_tokens) if self.capacity_tokens else None

    def apply_gauges(self, gauges: Gauges, sent_at: float) -> None:
        """Apply the gauges of a poll that was sent at `sent_at`."""
        load_book = self.load_book
        before, others_waiting = load_book.gauges.pool_loads, load_book.others_waiting
        unbooked_tokens = load_book.unbooked_tokens
        capacity_tokens = self.capacity_tokens
        load_book.apply_gauges(gauges, sent_at)
        if self.block_tokens is None and gauges.block_tokens is not None:
            self.block_tokens = gauges.block_tokens
            self._observer.on_block_size_change()
        if gauges.capacity_tokens is not None:
            self.capacity_tokens = gauges.capacity_tokens
        if before is not None and gauges.pool_loads is not None:
            self._observe_pool_loads(before, gauges.pool_loads, sent_at)
        if (others_waiting, unbooked_tokens, capacity_tokens) == (
            load_book.others_waiting,
            load_book.unbooked_tokens,
            self.capacity_tokens,
        ):
            self._observer.on_gauges_change(self)
        else:
            self._on_change()

    def observe_prefill(
        self,
        booking: Booking,
        prompt_tokens: int,
        cached_tokens: int,
        ttft_ms: float,
        now: float,
        fetched: FetchedKv | None = None,
    ) -> None:
        """Learn from an answer's TTFT and its numbers of computed and cached tokens; `fetched` is the part fetched
        over a link. Ignored unless no other request was prefilling at the target.
        """
        if not booking.alone:
            return
        new = prompt_tokens - cached_tokens
        if fetched is None:
            self.latency_model.observe_prefill(new, cached_tokens, ttft_ms, now, steps=booking.has_room)
        else:
            self.latency_model.observe_fetch(fetched.link, fetched.tokens, new, cached_tokens, ttft_ms, now)
        self.on_speed_change()

    def observe_decode(
        self, booking: Booking, output_tokens: int, ttft_ms: float, duration_ms: float, now: float
    ) -> None:
        """Learn from a complete streamed answer of one sequence whose `booking` was released. Both times start at
        the same moment. Answers shorter than `DECODE_TOKENS` are ignored.
        """
        batch = booking.batch
        if batch is not None and output_tokens >= DECODE_TOKENS:
            steps = output_tokens - 1
            self.latency_model.observe_decode_step(
                (duration_ms - ttft_ms) / steps,
                batch.requests,
                batch.context_tokens,
                now,
                booking.prefilled_per_step(steps),
            )
            self.on_speed_change()

    def _observe_pool_loads(self, before: PoolTransferCounts, after: PoolTransferCounts, now: float) -> None:
        """Learn from the engine's pool counters between two polls, as one load of mean size. If a counter has
        fallen (a new process), or has not risen while others have (invalid), there is no sample. (A model with
        several cache groups counts a block in each group, so its loads look that many times as fast until answers
        correct this.)
        """
        operations, blocks, seconds = (new - old for old, new in zip(before, after, strict=True))
        if self.block_tokens is not None and operations > 0 and blocks > 0 and seconds > 0:
            self.latency_model.observe_pool_load(
                blocks * self.block_tokens / operations, seconds / operations * 1e3, now
            )
            self.on_speed_change()

    def detach(self) -> None:
        """Stop notifying the observer: the target left the fleet, and the ends of its last requests do not matter.
        This also breaks reference cycles, so the target is freed with the last of these requests.
        """
        self.breaker.detach()
        self._on_change = self.load_book.on_change = _do_nothing

    def assume(self, typical: Speed) -> None:
        """Assume the speed of peers where this instance has no measurements to the contrary."""
        if self.latency_model.assume(typical):
            self.on_speed_change()

    def on_speed_change(self) -> None:
        """Notify the observer for every rank: the instance's speed has changed."""
        for target in self.instance.targets.values():
            target._on_change()
        if self.latency_model.has_news:
            self.latency_model.has_news = False
            self._observer.on_first_sample()

    def reset(self) -> None:
        """Forget the facts of the engine's process, since a new process may answer now. Bookings and learned speed
        are retained, as it was before the process became slower.
        """
        self.breaker.reset()
        self.overlap_accuracy.reset()
        self.latency_model.on_new_process()
        self.load_book.forget_gauges()
        self.block_tokens = self.capacity_tokens = None
        self._observer.on_block_size_change()
        self._on_change()


def _do_nothing() -> None:
    pass


class Instance:
    """One engine server. `lifecycle` is joining, ready or down; `state` may also be draining or drained, if the
    operator drains the instance (`drained`) or its source reports that it gets no new requests (not `accepting`).
    """

    __slots__ = (
        *("_all_late", "accepting", "cards", "config", "delivered", "drained", "failures", "id", "joins"),
        *("latency_model", "lifecycle", "limits", "missing_pages", "restarts", "served", "started_wall_s"),
        *("streamed_ranks", "targets"),
    )

    def __init__(self, config: schema.InstanceConfig, speed: LatencyModel) -> None:
        self.id = config.id
        self.config = config
        self.lifecycle = InstanceState.JOINING
        self.drained = False
        self.accepting = True
        self.failures = 0  # failed probes in a row
        self._all_late = False  # whether all failed probes since it was last ready were time-outs
        self.delivered = False  # whether it has delivered part of an answer since its last probe began
        self.joins = 0  # how often it has become ready
        self.restarts = 0  # processes that took the place of an earlier one, since it joined the fleet
        self.started_wall_s: float | None = None  # start of its process; None: it does not report that
        self.cards: tuple[ModelCard, ...] = ()
        self.served: Mapping[str, ServedModel] = {}
        self.latency_model = speed
        self.targets: dict[int, Target] = {}
        self.streamed_ranks: frozenset[int] = frozenset()  # ranks with an event source
        self.missing_pages: Counter[int] = Counter()  # metrics pages in a row without a rank, by rank
        self.limits = LimitBook()

    @property
    def state(self) -> InstanceState:
        """The lifecycle state, except that a ready instance that gets no new requests is draining, and drained when it
        has none left.
        """
        if self.lifecycle is not InstanceState.READY or (self.accepting and not self.drained):
            return self.lifecycle
        return InstanceState.DRAINING if self.requests else InstanceState.DRAINED

    @property
    def is_slow(self) -> bool:
        """Whether it is down, or joining again, only because probes timed out, and is not drained."""
        return self._all_late and self.lifecycle is not InstanceState.READY and self.accepting and not self.drained

    @property
    def may_serve(self) -> bool:
        """Whether it is ready, or slow. A slow instance gets requests only if no other can answer."""
        return self.is_slow or self.state is InstanceState.READY

    def on_ready(self) -> None:
        """Count that it became ready. Again, it is another process, unless its metrics page shows which one it is."""
        if self.joins and self.started_wall_s is None:
            self.restarts += 1
        self.joins += 1

    def on_started(self, started_wall_s: float) -> None:
        """Note when the process started that answers now."""
        if self.started_wall_s not in (None, started_wall_s):
            self.restarts += 1
        self.started_wall_s = started_wall_s

    def record_failure(self, late: bool) -> None:
        """Count a failed probe; `late` is whether it timed out."""
        begins = self.failures == 0 and self.lifecycle is InstanceState.READY
        self._all_late = late and (begins or self._all_late)
        self.failures += 1

    @property
    def base(self) -> str | None:
        """The base model, whose KV is in the cache; None until it is reported."""
        return next((served.base for served in self.served.values()), None)

    @property
    def block_sizes(self) -> list[int]:
        """The most common block sizes of its ranks, at most two."""
        sizes = [target.block_tokens for target in self.targets.values() if target.block_tokens]
        if len(sizes) <= 1:  # most instances, of which there may be a thousand
            return sizes
        return [size for size, _ in Counter(sizes).most_common(MAX_SIZES)]

    @property
    def has_ranks(self) -> bool:
        """Whether requests must name their rank; otherwise the engine's own balancer would ignore the choice."""
        return len(self.targets) > 1

    @property
    def requests(self) -> int:
        """Number of this router's requests in flight."""
        requests = 0
        for target in self.targets.values():
            requests += target.load_book.requests
        return requests

    @property
    def prefilling(self) -> bool:
        """Whether any request waits for its first byte."""
        return any(target.load_book.prefilling for target in self.targets.values())
