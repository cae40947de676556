"""One target: a data-parallel rank of an instance, the thing that is chosen, with all that is known of it.

The parts know nothing of each other (books, breaker, trust, speed); what must happen to several of them at once is
said here, so that nobody can do half of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import NamedTuple, Protocol

from router.config import schema
from router.fleet.breaker import CircuitBreaker
from router.fleet.engine_facts import Gauges, ModelCard, PoolTransferCounts
from router.fleet.latency_model import LatencyModel, Link
from router.fleet.load import Booking, LoadBook
from router.fleet.overlap_accuracy import OverlapAccuracy
from router.kvcache.events import TargetId
from scorers.contract import Row

DECODE_TOKENS = 8  # an answer must have: the first step shares its time with the prefill's end, the last with the end


class InstanceState(StrEnum):
    JOINING = "joining"
    READY = "ready"
    DRAINING = "draining"
    DOWN = "down"


class ServedModel(NamedTuple):
    """What a requested model name means: a base model, perhaps with a LoRA adapter on it."""

    base: str
    adapter: str | None


class FetchedKv(NamedTuple):
    """Part of a prompt's KV that an engine fetched, neither found on its GPU nor computed."""

    link: Link
    tokens: int


class TargetObserver(Protocol):
    """Is told when facts of a target change. `router.fleet.rows.Board` keeps rows and drops those that changed."""

    def on_change(self, target: Target) -> None:
        """Load, speed or capacity of `target` changed."""

    def on_gauges_change(self, target: Target) -> None:
        """Only facts that are part of a row, and of no column, changed."""

    def on_block_size_change(self) -> None:
        """A target has another block size."""


class Target:
    __slots__ = (
        "_board",
        "_changed",
        "block_tokens",
        "breaker",
        "capacity_tokens",
        "id",
        "instance",
        "latency_model",
        "load_book",
        "overlap_accuracy",
        "rank",
    )

    """`board` is told when something of it changes."""

    def __init__(
        self, instance: Instance, rank: int, breaker: CircuitBreaker, speed: LatencyModel, board: TargetObserver
    ) -> None:
        self._board = board
        self._changed = partial(board.on_change, self)
        self.id = TargetId(f"{instance.id}/{rank}")
        self.instance = instance
        self.rank = rank
        self.load_book = LoadBook(self._changed)
        self.breaker = breaker
        self.overlap_accuracy = OverlapAccuracy()
        self.latency_model = speed  # the instance's: its ranks run on the same hardware
        self.block_tokens: int | None = None
        self.capacity_tokens: int | None = None

    def build_row(self, now: float, held: Callable[[Target], int | None] | None = None) -> Row:
        """Its facts for a decision, but for the overlap. `held` counts all that it holds."""
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
            None if held is None else held(self),
        )

    def book(self, uncached_tokens: int, prompt_tokens: int) -> Booking:
        """The target was chosen: its load and its breaker know at once."""
        self.breaker.on_request_sent()
        return self.load_book.book(uncached_tokens, prompt_tokens)

    def set_block_tokens(self, tokens: int) -> None:
        """The event stream's word, which wins over the metrics page's."""
        if tokens != self.block_tokens:
            self.block_tokens = tokens
            self._board.on_block_size_change()
            self._changed()

    def apply_gauges(self, gauges: Gauges, sent_at: float) -> None:
        books = self.load_book
        before, crowded, capacity_tokens = books.gauges.pool_loads, books.others_waiting, self.capacity_tokens
        books.apply_gauges(gauges, sent_at)
        if self.block_tokens is None and gauges.block_tokens is not None:
            self.block_tokens = gauges.block_tokens
            self._board.on_block_size_change()
        if gauges.capacity_tokens is not None:
            self.capacity_tokens = gauges.capacity_tokens
        if before is not None and gauges.pool_loads is not None:
            self._counted(before, gauges.pool_loads, sent_at)
        if crowded is books.others_waiting and capacity_tokens == self.capacity_tokens:  # as a rule, and polls are many
            self._board.on_gauges_change(self)
        else:
            self._changed()

    def observe_prefill(
        self,
        booking: Booking,
        prompt_tokens: int,
        cached_tokens: int,
        ttft_ms: float,
        now: float,
        loaded: FetchedKv | None = None,
    ) -> None:
        """An answer told how much it had to compute, how much was `loaded` for it, and when its first byte came."""
        if not booking.alone:
            return
        new = prompt_tokens - cached_tokens
        if loaded is None:
            self.latency_model.observe_prefill(new, cached_tokens, ttft_ms, now)
        else:
            self.latency_model.observe_fetch(loaded.link, loaded.tokens, new, cached_tokens, ttft_ms, now)
        self._sped()

    def observe_decode(
        self, booking: Booking, output_tokens: int, ttft_ms: float, duration_ms: float, now: float
    ) -> None:
        """A streamed answer of one sequence has come whole, and its `booking` was released. Both times count from the
        same moment. Short answers are ignored.
        """
        batch = booking.batch
        if batch is not None and output_tokens >= DECODE_TOKENS:
            step_ms = (duration_ms - ttft_ms) / (output_tokens - 1)
            self.latency_model.observe_decode_step(step_ms, batch.requests, batch.context_tokens, now)
            self._sped()

    def _counted(self, before: PoolTransferCounts, after: PoolTransferCounts, now: float) -> None:
        """What the engine loaded from the pool between two polls, as one load of mean size. A counter that has fallen
        or stood still while others rose is another process's, or nonsense: no sample. (A model with several cache
        groups counts a block in each, and looks so many times as fast until answers tell.)
        """
        operations, blocks, seconds = (new - old for old, new in zip(before, after, strict=True))
        if self.block_tokens is not None and operations > 0 and blocks > 0 and seconds > 0:
            self.latency_model.observe_pool_load(
                blocks * self.block_tokens / operations, seconds / operations * 1e3, now
            )
            self._sped()

    def _sped(self) -> None:
        """What is known of the instance's speed has changed."""
        for target in self.instance.targets.values():
            target._changed()

    def reset(self) -> None:
        """Perhaps another process answers there now. What is in flight stays booked, its speed is the hardware's."""
        self.breaker.reset()
        self.overlap_accuracy.reset()
        self.load_book.forget_gauges()
        self.block_tokens = self.capacity_tokens = None
        self._board.on_block_size_change()
        self._changed()


class Instance:
    """One engine server. Its life is `joining`, `ready` or `down`; `state` is that with the operator's word."""

    __slots__ = ("cards", "config", "drained", "failures", "id", "latency_model", "lifecycle", "served", "targets")

    def __init__(self, config: schema.InstanceConfig, speed: LatencyModel) -> None:
        self.id = config.id
        self.config = config
        self.lifecycle = InstanceState.JOINING
        self.drained = False
        self.failures = 0  # probes in a row
        self.cards: tuple[ModelCard, ...] = ()
        self.served: Mapping[str, ServedModel] = {}
        self.latency_model = speed
        self.targets: dict[int, Target] = {}

    @property
    def state(self) -> InstanceState:
        return InstanceState.DRAINING if self.drained and self.lifecycle is InstanceState.READY else self.lifecycle

    @property
    def base(self) -> str | None:
        """The model its cache holds; None until it told."""
        return next((served.base for served in self.served.values()), None)

    @property
    def has_ranks(self) -> bool:
        """A request must name its rank, else the engine's own balancer ignores our choice."""
        return len(self.targets) > 1

    @property
    def requests(self) -> int:
        """Ours, in flight."""
        return sum(target.load_book.requests for target in self.targets.values())

    @property
    def prefilling(self) -> bool:
        return any(target.load_book.prefilling for target in self.targets.values())
