"""The fleet: the instances, their states and models, and the targets that may get a request now.

        join()                mark_ready()          record_probe_failure() x failures
          ----> joining -----------------------> ready ------------------------------> down
                  ^                                                                      |
                  +---------------------- record_probe_success() ------------------------+

                | models are queried | gets requests | finishes its requests | is probed |
    joining     |        yes         |       -       |          yes          |    yes    |
    ready       |         -          |      yes      |          yes          |    yes    |
    draining    |         -          |       -       |          yes          |    yes    |
    drained     |         -          |       -       |     it has none       |    yes    |
    down        |         -          |       -       |    if it still can    |    yes    |

A down instance that answers goes through joining again: it may be a new process with other models and an empty
cache. A ready instance whose probes time out may be busy, not dead. So a time-out does not count if the instance
has delivered part of an answer meanwhile. If no ready instance is left that can answer for a model, the instances
that are down only because of time-outs get requests as if they were ready (panic, as in Envoy). The operator's
`drain` persists across all of these states: a drained engine that restarts stays drained until it is undrained. An
instance whose source reports that it gets no new requests (a pod that is not ready, or terminates) is shown as
draining or drained, too, until its source reports otherwise. An instance that fails while joining is also down.

This module does no I/O: times are arguments, and `backends/feeds/health.py` does the probing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from router.config import schema
from router.fleet.answer_lengths import AnswerLengths
from router.fleet.breaker import CircuitBreaker
from router.fleet.columns import CandidateColumns
from router.fleet.engine_facts import Gauges, ModelCard
from router.fleet.engine_limits import MAX_RANKS
from router.fleet.instance import Instance, InstanceState, ServedModel, Target
from router.fleet.latency_model import LatencyModel
from router.fleet.median_speed import NominalSpeeds
from router.fleet.occupancy import Occupancy
from router.fleet.rows import RowCache
from router.fleet.served_models import read_cards
from router.kvcache.events import TargetId
from scorers.contract import Speed

MISSING_PAGES = 3  # number of consecutive metrics pages without a rank after which the rank is gone


class DuplicateInstance(NamedTuple):
    """An instance that did not join, because another instance has its id."""

    id: str
    url: str


class RankChanges(NamedTuple):
    """Targets that joined and left with a metrics page of their instance."""

    joined: Sequence[Target] = ()
    left: Sequence[Target] = ()


NO_CHANGES = RankChanges()


class _Tables(NamedTuple):
    """Lookup tables from names to targets, so that requests need no searches."""

    targets: dict[TargetId, Target]
    by_model: dict[str, list[Target]]
    served: dict[str, ServedModel]
    context_tokens: dict[str, int]


class Fleet:
    """All instances. Unknown instance ids are ignored: a late answer may arrive after its instance has left."""

    def __init__(self, config: schema.FleetConfig) -> None:
        self._config = config
        self._instances: dict[str, Instance] = {}
        self._tables: _Tables | None = None  # None when outdated
        self.occupancy = Occupancy()
        self._nominal = NominalSpeeds()
        self._ready: dict[str | None, CandidateColumns] = {}  # columns over the targets that get requests, by model
        self._all_columns: list[CandidateColumns] = []  # the distinct values of `_ready`
        self._not_closed: set[CircuitBreaker] = set()
        self.answer_lengths = AnswerLengths()
        self.row_cache = RowCache(self._nominal.clear)
        self.on_change: list[Callable[[], None]] = []  # called while the set of ready targets changes

    def join(self, config: schema.InstanceConfig) -> Instance | DuplicateInstance:
        """Add an instance in state joining, with rank 0 until it reports its ranks."""
        instance = Instance(config, LatencyModel(self._config.speed_prior))
        if instance.id in self._instances:
            return DuplicateInstance(instance.id, config.url)
        self._instances[instance.id] = instance
        self._set_ranks(instance, [0])
        return instance

    def leave(self, id: str) -> None:
        """Remove an instance. Bookings in flight on it can still be released."""
        if (instance := self._instances.pop(id, None)) is not None:
            for target in instance.targets.values():
                target.detach()
            instance.targets.clear()
            self._forget_tables()

    def drain(self, id: str, on: bool = True) -> bool:
        """Set or clear the operator's drain: a drained instance finishes its requests and gets no new ones. Returns
        False if there is no such instance.
        """
        instance = self._instances.get(id)
        if instance is not None:
            instance.drained = on
            self._forget_ready()
        return instance is not None

    def set_accepting(self, id: str, accepting: bool) -> None:
        """Set whether the instance may get new requests according to its source."""
        if (instance := self._instances.get(id)) is not None and instance.accepting != accepting:
            instance.accepting = accepting
            self._forget_ready()

    def mark_ready(self, id: str, cards: Sequence[ModelCard], ranks: Collection[int]) -> None:
        """Make a joining instance ready, with the reported models, and its ranks unless `ranks` is empty."""
        if (instance := self._instances.get(id)) is None:
            return
        instance.cards, instance.served = tuple(cards), read_cards(cards)
        self._set_ranks(instance, sorted(ranks) or list(instance.targets))
        instance.streamed_ranks = frozenset(ranks)
        instance.missing_pages.clear()
        instance.limits.begin()
        for target in instance.targets.values():
            target.reset()
        instance.lifecycle = InstanceState.READY
        instance.on_ready()
        instance.failures = 0
        self._forget_ready()

    def set_models(self, id: str, cards: Sequence[ModelCard]) -> None:
        """Replace the models of a running instance: an adapter was loaded or unloaded."""
        if (instance := self._instances.get(id)) is not None:
            instance.cards, instance.served = tuple(cards), read_cards(cards)
            self._forget_tables()

    def record_probe_success(self, id: str, now: float) -> bool:
        """Record a successful probe. Returns True if the instance is joining and its models must be queried."""
        if (instance := self._instances.get(id)) is None:
            return False
        instance.failures = 0
        if instance.lifecycle is InstanceState.DOWN:
            instance.lifecycle = InstanceState.JOINING
        return instance.lifecycle is InstanceState.JOINING

    def begin_probe(self, id: str) -> None:
        """Record that a probe of the instance is being sent."""
        if (instance := self._instances.get(id)) is not None:
            instance.delivered = False

    def record_probe_failure(self, id: str, now: float, *, late: bool = False) -> bool:
        """Record a failed probe. `late`: the instance was reached but did not answer in time, which is no failure
        if it has delivered part of an answer meanwhile. Returns True if this probe took the instance down.
        """
        if (instance := self._instances.get(id)) is None or (late and instance.delivered):
            return False
        was_slow = instance.is_slow
        instance.record_failure(late)
        falls = instance.lifecycle is not InstanceState.DOWN and instance.failures >= self._config.health.failures
        if falls:
            instance.lifecycle = InstanceState.DOWN
            for target in instance.targets.values():
                target.load_book.forget_gauges()
        if falls or instance.is_slow != was_slow:
            self._forget_ready()
        return falls

    def begin_poll(self, id: str) -> None:
        """Record that a poll of the instance's metrics is being sent."""
        if (instance := self._instances.get(id)) is not None:
            for target in instance.targets.values():
                target.load_book.begin_poll()

    def apply_metrics(self, id: str, page: Mapping[int, Gauges], sent_at: float) -> RankChanges:
        """Apply an instance's metrics page (gauges by rank), requested at `sent_at`. Returns the targets that
        joined and left with this page.
        """
        if (instance := self._instances.get(id)) is None or not page:
            return NO_CHANGES
        if instance.lifecycle is InstanceState.DOWN and not instance.is_slow:
            return NO_CHANGES
        if (started_wall_s := next(iter(page.values())).started_wall_s) is not None:
            instance.on_started(started_wall_s)
        if len(page) == 1 and len(instance.targets) == 1:
            # A single rank is the instance's only target, whatever its number (external data-parallel balancing).
            page = dict(zip(instance.targets, page.values(), strict=True))
        before = instance.targets
        if before.keys() != page.keys() or instance.missing_pages:
            self._follow_ranks(instance, page)
        for rank, gauges in page.items():
            if (target := instance.targets.get(rank)) is not None:
                target.apply_gauges(gauges, sent_at)
        if instance.targets is before:
            return NO_CHANGES
        joined = [target for rank, target in instance.targets.items() if rank not in before]
        return RankChanges(joined, [target for rank, target in before.items() if rank not in instance.targets])

    def _follow_ranks(self, instance: Instance, page: Collection[int]) -> None:
        """Add the ranks that are new in a metrics page. Drop those that have no event source and were missing in
        the last `MISSING_PAGES` pages.
        """
        missing = {rank for rank in instance.targets if rank not in page and rank not in instance.streamed_ranks}
        instance.missing_pages = Counter({rank: instance.missing_pages[rank] + 1 for rank in missing})
        stay = [rank for rank in instance.targets if instance.missing_pages[rank] < MISSING_PAGES]
        new = sorted(rank for rank in page if rank not in instance.targets)[: max(0, MAX_RANKS - len(stay))]
        if new or len(stay) < len(instance.targets):
            self._set_ranks(instance, sorted((*stay, *new)))

    def resolve(self, model: str) -> ServedModel | None:
        """Return the base model and adapter behind a model name; None if no instance of the fleet has served the
        name. A model whose instances are all down is still known, so a request for the model gets 503, not 404.
        """
        return (self._tables or self._build_tables()).served.get(model)

    def base_models(self) -> set[str]:
        """Return the base models that `resolve` knows."""
        return {served.base for served in (self._tables or self._build_tables()).served.values()}

    def context_tokens(self, model: str) -> int | None:
        """Return the largest context (prompt and answer, in tokens) of any instance of a base model; None if no
        instance reports it.
        """
        return (self._tables or self._build_tables()).context_tokens.get(model)

    def model_path(self, name: str) -> str | None:
        """Return the path of a model or adapter as engines report it; None if no engine does."""
        paths = (card.root for i in self._instances.values() for card in i.cards if card.id == name)
        return next((path for path in paths if path is not None), None)

    def targets_serving(self, model: str | None) -> list[Target]:
        """Return every target that serves the model, in any state; every target of the fleet if `model` is None."""
        tables = self._tables or self._build_tables()
        return list(tables.targets.values()) if model is None else tables.by_model.get(model, [])

    def candidates(
        self, model: str | None, excluding: Collection[str], now: float, client: str | None = None
    ) -> Sequence[Target]:
        """Return the targets that serve the model and may get a request of `client` now, in the order in which
        their instances joined. If breakers leave no target that can answer, breakers are ignored (panic mode, as in
        Envoy) for targets that could be reached, or for all targets if none could be reached.
        """
        ready = self._serving(model)
        if model is not None and (served := self.resolve(model)) is not None:
            self._nominal.get(served.base, self._serving(served.base), now)  # also for instances without samples
        if not excluding and not self._not_closed:
            return ready
        allowed = [target for target in ready if target.id not in excluding and target.breaker.allows(now, client)]
        if any(target.can_answer for target in allowed):
            return allowed
        shut = [target for target in ready if target.id not in excluding and target.can_answer]
        return allowed + ([target for target in shut if not target.breaker.unreachable] or shut)

    def has_other(self, model: str | None, target: Target, now: float) -> bool:
        """Return whether a ready target other than `target`, with a closed breaker, answers clients for the model."""
        others = (each for each in self._serving(model) if each is not target and each.can_answer)
        return any(each.breaker.state(now) == "closed" for each in others)

    def ready_target(self, model: str | None, id: TargetId) -> Target | None:
        """Return the target with this id in any breaker state, if it is ready or is down only because of slow
        probes: there is no alternative to this target. None if there is no such target that serves the model.
        """
        targets = self.targets_serving(model)
        return next((each for each in targets if each.id == id and each.instance.may_serve), None)

    def can_answer(self, model: str) -> bool:
        """Return whether a ready target that answers clients serves the model, in any breaker state."""
        return any(target.can_answer for target in self._serving(model))

    def in_panic(self, instance: Instance) -> bool:
        """Return whether a slow instance gets requests because no other instance of its model can answer."""
        return instance.is_slow and any(target.instance is instance for target in self._serving(instance.base))

    def answering(self, model: str) -> list[Target]:
        """Return the ready targets that serve the model and answer clients, in any breaker state."""
        return [target for target in self._serving(model) if target.can_answer]

    def columns(self, model: str | None, now: float) -> CandidateColumns:
        """Return up-to-date columns over the ready targets that serve the model, in any breaker state."""
        columns = self._ready.get(model) or self._find_ready(model)
        if self.row_cache.changed_targets:
            for each in self._all_columns:
                each.update(self.row_cache.changed_targets, now)
            self.row_cache.changed_targets.clear()
        columns.fill(now)
        return columns

    def _serving(self, model: str | None) -> tuple[Target, ...]:
        """Return the targets that get requests for the model, in any breaker state."""
        return (self._ready.get(model) or self._find_ready(model)).targets

    def _find_ready(self, model: str | None) -> CandidateColumns:
        """Return the columns over the model's ready targets, and in panic also the slow targets. Adapters share the
        columns of their base model if their targets are the same.
        """
        targets = self.targets_serving(model)
        ready = tuple([target for target in targets if target.instance.state is InstanceState.READY])
        if not any(target.can_answer for target in ready):  # panic
            ready = tuple([target for target in targets if target.instance.may_serve])
        columns = next((each for each in self._all_columns if each.targets == ready), None)
        if columns is None:
            columns = CandidateColumns(ready)
        if targets:  # unknown model names come from clients: storing them would leak memory
            self._ready[model] = columns
            if columns not in self._all_columns:
                self._all_columns.append(columns)
        return columns

    def _forget_ready(self) -> None:
        """Drop all columns and the pending changes: new columns are filled from every target."""
        self._ready = {}
        self._all_columns = []
        self.row_cache.changed_targets.clear()
        for on_change in self.on_change:
            on_change()

    def block_sizes(self, model: str | None) -> frozenset[int]:
        """Return the known block sizes of all targets that serve the model, at most two per instance: every size
        requires another chain of keys for every prompt.
        """
        sizes = self.row_cache.block_sizes.get(model)
        if sizes is None:
            targets = self.targets_serving(model)
            instances = {target.instance.id: target.instance for target in targets}.values()
            sizes = frozenset(size for instance in instances for size in instance.block_sizes)
            if targets:
                self.row_cache.block_sizes[model] = sizes
        return sizes

    def nominal_speed(self, model: str | None, now: float) -> Speed | None:
        """Return the speed of the typical ready instance that serves the model (any model if `model` is None); None
        if there is no instance. The value and its ages are up to a second old.
        """
        return self._nominal.get(model, self._serving(model), now)

    def models(self) -> list[ModelCard]:
        """Return the model cards of all instances that can get requests, each name once."""
        cards: dict[str, ModelCard] = {}
        for instance in self._instances.values():
            if instance.lifecycle is InstanceState.READY or instance.is_slow:
                for card in instance.cards:
                    cards.setdefault(card.id, card)
        return list(cards.values())

    def on_arrival(self, now: float) -> None:
        """Update `occupancy`, which is sampled when requests arrive."""
        if self.occupancy.is_due(now):
            instances = self._instances.values()
            ready = [instance for instance in instances if instance.lifecycle is InstanceState.READY]
            self.occupancy.sample(ready or [instance for instance in instances if instance.is_slow], now)

    def __len__(self) -> int:
        """Return the number of instances, in any state."""
        return len(self._instances)

    def __iter__(self) -> Iterator[Instance]:
        return iter(self._instances.values())

    def get(self, id: str) -> Instance | None:
        """Return the instance; None if there is no instance with this id."""
        return self._instances.get(id)

    def target(self, id: TargetId) -> Target | None:
        """Return the target; None if there is no target with this id."""
        return (self._tables or self._build_tables()).targets.get(id)

    def _set_ranks(self, instance: Instance, ranks: Sequence[int]) -> None:
        """Set an instance's targets. Targets that stay keep their bookings, as requests are in flight on them."""
        before = instance.targets
        instance.targets = {rank: before.get(rank) or self._build_target(instance, rank) for rank in ranks}
        for rank in before.keys() - instance.targets.keys():
            before[rank].detach()
        self._forget_tables()

    def _build_target(self, instance: Instance, rank: int) -> Target:
        config = self._config.breaker
        breaker = CircuitBreaker(config.failures, config.open_s, self._not_closed)
        return Target(instance, rank, breaker, instance.latency_model, self.row_cache)

    def _forget_tables(self) -> None:
        """Drop everything that depends on which target serves which model."""
        self._tables = None
        self._nominal.clear()
        self.row_cache.on_block_size_change()
        self._forget_ready()

    def _build_tables(self) -> _Tables:
        """Build the tables lazily, since changes come together: a thousand instances when the router starts."""
        targets = {target.id: target for i in self._instances.values() for target in i.targets.values()}
        self._tables = tables = _Tables(targets, {}, {}, {})
        for instance in self._instances.values():
            for name, served in instance.served.items():
                tables.served.setdefault(name, served)
                tables.by_model.setdefault(name, []).extend(instance.targets.values())
            for card in instance.cards:
                if card.max_model_len is not None:
                    base = instance.served[card.id].base
                    tables.context_tokens[base] = max(card.max_model_len, tables.context_tokens.get(base, 0))
        return tables
