"""Targets and instances: a data-parallel rank of an instance is the target of a choice, with all facts about it.

The parts (load book, breaker, overlap accuracy, latency model) are independent of each other; changes that concern
several of them at once are methods here, so that no caller can apply half of one.
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
from router.kvcache.events import Key, TargetId
from scorers.contract import Row, Speed

MAX_SIZES = 2  # of blocks in one instance; engines have one
NO_KEYS: Mapping[int, Sequence[Key]] = {}
DECODE_TOKENS = 8  # of shorter answers the first step, shared with the prefill's end, and the last weigh too much


class InstanceState(StrEnum):
    """State of an instance, as the admin API shows it."""

    JOINING = "joining"
    READY = "ready"
    DRAINING = "draining"
    DOWN = "down"


class ServedModel(NamedTuple):
    """A requested model name resolved: a base model, perhaps with a LoRA adapter on it."""

    base: str
    adapter: str | None


class FetchedKv(NamedTuple):
    """Part of a prompt's KV that an engine fetched over a link, neither found on its GPU nor computed."""

    link: Link
    tokens: int


class TargetObserver(Protocol):
    """Receives changes of targets. `router.fleet.rows.RowCache` drops the rows of targets that changed."""

    def on_change(self, target: Target) -> None:
        """Load, speed or capacity of `target` changed."""

    def on_gauges_change(self, target: Target) -> None:
        """Only facts that are part of a row, and of no column, changed."""

    def on_block_size_change(self) -> None:
        """A target has another block size."""

    def on_first_sample(self) -> None:
        """Something of an instance's speed was measured for the first time."""


class Target:
    """A data-parallel rank of an instance. `observer` receives its changes."""

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
        self.latency_model = speed  # the instance's: its ranks share hardware
        self.block_tokens: int | None = None
        self.capacity_tokens: int | None = None
        self.events: EventEndpoint | None = None  # where they are followed; None: they are not

    @property
    def requested_rank(self) -> int | None:
        """Rank that a request to the instance names; None: the instance has only one."""
        return self.rank if self.instance.has_ranks else None

    def build_row(self, now: float, count_held: Callable[[Target], int | None] | None = None) -> Row:
        """Return its facts for a decision, except the overlap. `count_held` returns all the tokens that it
        holds.
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
    def can_answer(self) -> bool:
        """It is not one that only computes prompts for others."""
        return self.instance.config.role != "prefill"

    def book(self, uncached_tokens: int, prompt_tokens: int, keys: Mapping[int, Sequence[Key]] = NO_KEYS) -> Booking:
        """Book a request that was placed here; `keys` of its prompt's full blocks, by block size."""
        size = self.block_tokens or 0
        return self.load_book.book(uncached_tokens, prompt_tokens, keys.get(size, ()), size)

    def set_block_tokens(self, tokens: int) -> None:
        """Set the block size that the event stream reports; it takes precedence over the metrics page."""
        if tokens != self.block_tokens:
            self.block_tokens = tokens
            self._observer.on_block_size_change()
            self._on_change()

    @property
    def live_share(self) -> float | None:
        """Share of the KV memory that is in use or booked, 1 at most; None while the capacity is unknown."""
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
        """Learn from an answer's TTFT and the tokens it computed and found cached; `fetched` is the part brought
        over a link. Ignored unless the request had the target's prefill for itself.
        """
        if not booking.alone:
            return
        new = prompt_tokens - cached_tokens
        if fetched is None:
            self.latency_model.observe_prefill(new, cached_tokens, ttft_ms, now)
        else:
            self.latency_model.observe_fetch(fetched.link, fetched.tokens, new, cached_tokens, ttft_ms, now)
        self.on_speed_change()

    def observe_decode(
        self, booking: Booking, output_tokens: int, ttft_ms: float, duration_ms: float, now: float
    ) -> None:
        """Learn from a complete streamed answer of one sequence whose `booking` was released. Both times count from
        the same moment. Answers under `DECODE_TOKENS` are ignored.
        """
        batch = booking.batch
        if batch is not None and output_tokens >= DECODE_TOKENS:
            step_ms = (duration_ms - ttft_ms) / (output_tokens - 1)
            self.latency_model.observe_decode_step(step_ms, batch.requests, batch.context_tokens, now)
            self.on_speed_change()

    def _observe_pool_loads(self, before: PoolTransferCounts, after: PoolTransferCounts, now: float) -> None:
        """Learn from the engine's pool counters between two polls, as one load of mean size. A counter that has
        fallen, or stood still while others rose, is another process's or invalid: no sample. (A model with several
        cache groups counts a block in each, and looks that many times as fast until answers correct it.)
        """
        operations, blocks, seconds = (new - old for old, new in zip(before, after, strict=True))
        if self.block_tokens is not None and operations > 0 and blocks > 0 and seconds > 0:
            self.latency_model.observe_pool_load(
                blocks * self.block_tokens / operations, seconds / operations * 1e3, now
            )
            self.on_speed_change()

    def detach(self) -> None:
        """Report no change any more: the target left the fleet, and requests that still end there do not matter.
        What is left of it is no cycle of references, so it is freed with the last of these.
        """
        self.breaker.detach()
        self._on_change = self.load_book.on_change = _do_nothing

    def assume(self, typical: Speed) -> None:
        """Take over how fast peers are, as far as nothing else was measured here."""
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
        """Forget what belonged to the engine's process: another one may answer now. Bookings and learned speed
        stay.
        """
        self.breaker.reset()
        self.overlap_accuracy.reset()
        self.load_book.forget_gauges()
        self.block_tokens = self.capacity_tokens = None
        self._observer.on_block_size_change()
        self._on_change()


def _do_nothing() -> None:
    pass


class Instance:
    """One engine server. `lifecycle` is joining, ready or down; `state` adds that it gets no new requests, because
    the operator drains it (`drained`) or its source says so (not `accepting`).
    """

    __slots__ = (
        *("_all_late", "accepting", "cards", "config", "delivered", "drained", "failures", "id", "joins"),
        *("latency_model", "lifecycle", "limits", "missing_pages", "served", "streamed_ranks", "targets"),
    )

    def __init__(self, config: schema.InstanceConfig, speed: LatencyModel) -> None:
        self.id = config.id
        self.config = config
        self.lifecycle = InstanceState.JOINING
        self.drained = False
        self.accepting = True
        self.failures = 0  # failed probes in a row
        self._all_late = False  # all of them since it was ready last were answers that did not come in time
        self.delivered = False  # part of an answer, since its last probe began
        self.joins = 0  # how often it has become ready: it rises with each new process that was noticed
        self.cards: tuple[ModelCard, ...] = ()
        self.served: Mapping[str, ServedModel] = {}
        self.latency_model = speed
        self.targets: dict[int, Target] = {}
        self.streamed_ranks: frozenset[int] = frozenset()  # with a source of events
        self.missing_pages: Counter[int] = Counter()  # metrics pages in a row without a rank, by rank
        self.limits = LimitBook()

    @property
    def state(self) -> InstanceState:
        """The state, with a ready instance that gets no new requests shown as draining."""
        drains = (self.drained or not self.accepting) and self.lifecycle is InstanceState.READY
        return InstanceState.DRAINING if drains else self.lifecycle

    @property
    def is_slow(self) -> bool:
        """It is down, or joining again, by nothing but probes without an answer in time; and nobody drains it."""
        return self._all_late and self.lifecycle is not InstanceState.READY and self.accepting and not self.drained

    @property
    def may_serve(self) -> bool:
        """It is ready, or slow: then it gets requests where there is no other."""
        return self.is_slow or self.state is InstanceState.READY

    def record_failure(self, late: bool) -> None:
        """Count a failed probe, `late` if the answer did not come in time."""
        begins = self.failures == 0 and self.lifecycle is InstanceState.READY
        self._all_late = late and (begins or self._all_late)
        self.failures += 1

    @property
    def base(self) -> str | None:
        """The model its cache holds; None until it is reported."""
        return next((served.base for served in self.served.values()), None)

    @property
    def block_sizes(self) -> list[int]:
        """The block sizes of most of its ranks, two at most."""
        sizes = [target.block_tokens for target in self.targets.values() if target.block_tokens]
        if len(sizes) <= 1:  # most instances, of which there may be a thousand
            return sizes
        return [size for size, _ in Counter(sizes).most_common(MAX_SIZES)]

    @property
    def has_ranks(self) -> bool:
        """Requests must name their rank, or the engine's own balancer would ignore the choice."""
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
        """Any request waits for its first byte."""
        return any(target.load_book.prefilling for target in self.targets.values())
