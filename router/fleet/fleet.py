"""Who is there: the instances, what state each is in, what it serves, and which targets may get a request now.

        join()                 learned()                  probe_failed() x failures
          ----> joining -----------------------> ready ------------------------------> down
                  ^                                                                      |
                  +--------------------------- probe_ok() -------------------------------+

                | asked who it is | gets requests | finishes what it has | is probed |
    joining     |       yes       |       -       |          yes         |    yes    |
    ready       |        -        |      yes      |          yes         |    yes    |
    draining    |        -        |       -       |          yes         |    yes    |
    down        |        -        |       -       |   if it still can    |    yes    |

A down instance that answers goes through joining again: it may be a new process with other models and an empty cache.
`drain` is the operator's word and outlives all of that: a drained engine that restarts comes back drained, until
`undrain`. An instance that fails while joining is down as well.

Pure: times come in, nothing is asked or sent here. `backends/feeds/health.py` does the asking.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import exp
from typing import NamedTuple

from router.config import schema
from router.fleet.answer_lengths import AnswerLengths
from router.fleet.breaker import CircuitBreaker
from router.fleet.columns import CandidateColumns
from router.fleet.engine_facts import Gauges, ModelCard
from router.fleet.instance import Instance, InstanceState, ServedModel, Target
from router.fleet.latency_model import LatencyModel
from router.fleet.median_speed import median_speed
from router.fleet.rows import RowCache
from router.kvcache.events import TargetId
from scorers.contract import Speed

BUSY_AVERAGING_S = 20.0  # warm's averaging time; 10 to 20 s is flat (policies of existing routers, `warm`)
BUSY_INTERVAL_S = 0.05  # how often it is looked at: a 20 s average cannot tell the difference
NOMINAL_MAX_AGE_S = 1.0  # who is ready and how fast they are is looked at anew that often: 0.1 ms for 64 instances


class DuplicateInstance(NamedTuple):
    """Two instances with one id: the second did not join."""

    id: str
    url: str


class _Tables(NamedTuple):
    """Who serves what, so that a request only looks up."""

    targets: dict[TargetId, Target]
    by_model: dict[str, list[Target]]
    served: dict[str, ServedModel]


class Fleet:
    """All instances. Unknown ids are ignored: a late answer may arrive after its instance has left."""

    def __init__(self, config: schema.FleetConfig) -> None:
        self._config = config
        self._instances: dict[str, Instance] = {}
        self._tables: _Tables | None = None  # None: to be made anew
        self.busy: float | None = None  # share of ready instances with prefill pending, over about 20 s, to 4 digits
        self._busy = 0.0  # the same, exactly
        self._busy_at = 0.0
        self._nominal: dict[str | None, tuple[float, Speed | None]] = {}  # by model name: made when, what
        self._well: dict[str | None, CandidateColumns] = {}  # by model name: whatever their breakers say
        self._lineups: list[CandidateColumns] = []  # each of them once
        self._not_closed: set[CircuitBreaker] = set()
        self.answer_lengths = AnswerLengths()
        self.row_cache = RowCache()

    # who is there

    def join(self, config: schema.InstanceConfig) -> Instance | DuplicateInstance:
        instance = Instance(config, LatencyModel(self._config.speed_prior))
        if instance.id in self._instances:
            return DuplicateInstance(instance.id, config.url)
        self._instances[instance.id] = instance
        self._set_ranks(instance, [0])
        return instance

    def leave(self, id: str) -> None:
        """Its bookings in flight can still be released; nothing else remembers it."""
        if (instance := self._instances.pop(id, None)) is not None:
            for target in instance.targets.values():
                target.breaker.detach()
            self._forget_tables()

    def drain(self, id: str) -> bool:
        """It finishes what it has and gets nothing new. False: nobody of that id."""
        return self._set_drained(id, True)

    def undrain(self, id: str) -> bool:
        return self._set_drained(id, False)

    def _set_drained(self, id: str, drained: bool) -> bool:
        instance = self._instances.get(id)
        if instance is not None:
            instance.drained = drained
            self._forget_well()
        return instance is not None

    # what became known of it

    def mark_ready(self, id: str, cards: Sequence[ModelCard], ranks: Collection[int]) -> None:
        """A joining instance told what it serves: it is ready. No ranks: nothing said of them, what is known stays."""
        if (instance := self._instances.get(id)) is None:
            return
        self._set_cards(instance, cards)
        self._set_ranks(instance, sorted(ranks) or list(instance.targets))
        for target in instance.targets.values():
            target.reset()
        instance.lifecycle = InstanceState.READY
        instance.failures = 0
        self._forget_well()

    def set_models(self, id: str, cards: Sequence[ModelCard]) -> None:
        """Its models changed while it ran: an adapter was loaded or unloaded."""
        if (instance := self._instances.get(id)) is not None:
            self._set_cards(instance, cards)
            self._forget_tables()

    def record_probe_success(self, id: str, now: float) -> bool:
        """It answered. True: it is joining and must be asked who it is."""
        if (instance := self._instances.get(id)) is None:
            return False
        instance.failures = 0
        if instance.lifecycle is InstanceState.DOWN:
            instance.lifecycle = InstanceState.JOINING
        return instance.lifecycle is InstanceState.JOINING

    def record_probe_failure(self, id: str, now: float) -> bool:
        """It did not answer, or not well. True: that was one too many, and it has just gone down."""
        if (instance := self._instances.get(id)) is None:
            return False
        instance.failures += 1
        if instance.lifecycle is InstanceState.DOWN or instance.failures < self._config.health.failures:
            return False
        instance.lifecycle = InstanceState.DOWN
        self._forget_well()
        for target in instance.targets.values():
            target.load_book.forget_gauges()
        return True

    def begin_poll(self, id: str) -> None:
        """A poll of its metrics is being sent."""
        if (instance := self._instances.get(id)) is not None:
            for target in instance.targets.values():
                target.load_book.begin_poll()

    def apply_metrics(self, id: str, page: Mapping[int, Gauges], sent_at: float) -> list[Target]:
        """Its metrics page, by rank, sent for at `sent_at`. Returns targets that only the page made known."""
        if (instance := self._instances.get(id)) is None or instance.lifecycle is InstanceState.DOWN:
            return []
        if len(page) == 1 and len(instance.targets) == 1:
            # One engine behind one door is that engine, however it is numbered (external data-parallel balancing).
            page = dict(zip(instance.targets, page.values(), strict=True))
        fresh = [rank for rank in page if rank not in instance.targets]
        if fresh:
            self._set_ranks(instance, sorted({*instance.targets, *fresh}))
        for rank, gauges in page.items():
            instance.targets[rank].apply_gauges(gauges, sent_at)
        return [instance.targets[rank] for rank in fresh]

    # who may get a request

    def resolve(self, model: str) -> ServedModel | None:
        """What a model name means; None: no instance ever named it. One whose instances are all down is still known:
        asking for it is a 503, not a 404.
        """
        return (self._tables or self._arrange()).served.get(model)

    def model_path(self, name: str) -> str | None:
        """Where engines say that a model or adapter lies; None: nobody said."""
        paths = (card.root for i in self._instances.values() for card in i.cards if card.id == name)
        return next((path for path in paths if path is not None), None)

    def targets_serving(self, model: str | None) -> list[Target]:
        """Every target that serves the model, well or not; None: every target."""
        tables = self._tables or self._arrange()
        return list(tables.targets.values()) if model is None else tables.by_model.get(model, [])

    def candidates(self, model: str | None, excluding: Collection[str], now: float) -> Sequence[Target]:
        """Of those, the ones that may get a request now, in the order their instances joined."""
        well = (self._well.get(model) or self._find_well(model)).targets
        if not excluding and not self._not_closed:
            return well
        return [target for target in well if target.id not in excluding and target.breaker.allows(now)]

    def columns(self, model: str | None, now: float) -> CandidateColumns:
        """The same whatever their breakers say, to be compared all at once."""
        lineup = self._well.get(model) or self._find_well(model)
        if self.row_cache.changed_targets:
            for each in self._lineups:
                each.update(self.row_cache.changed_targets, now)
            self.row_cache.changed_targets.clear()
        lineup.fill(now)
        return lineup

    def _find_well(self, model: str | None) -> CandidateColumns:
        targets = self.targets_serving(model)
        well = tuple([target for target in targets if target.instance.state is InstanceState.READY])
        # Adapters are on the same targets as their base.
        lineup = next((known for known in self._lineups if known.targets == well), None)
        if lineup is None:
            lineup = CandidateColumns(well)
        if targets:  # names that nobody serves come from clients, without end
            self._well[model] = lineup
            if lineup not in self._lineups:
                self._lineups.append(lineup)
        return lineup

    def _forget_well(self) -> None:
        """What stirred does not matter either: new lineups begin with a look at everybody."""
        self._well = {}
        self._lineups = []
        self.row_cache.changed_targets.clear()

    def block_sizes(self, model: str | None) -> frozenset[int]:
        """Of everybody who serves the model, as far as they told."""
        sizes = self.row_cache.block_sizes.get(model)
        if sizes is None:
            targets = self.targets_serving(model)
            sizes = frozenset(target.block_tokens for target in targets if target.block_tokens)
            if targets:
                self.row_cache.block_sizes[model] = sizes
        return sizes

    def nominal_speed(self, model: str | None, now: float) -> Speed | None:
        """The typical instance of those that are ready to serve the model (None: any); None: there is none. As old as
        `NOMINAL_KEPT_S`, and so are its ages.
        """
        kept = self._nominal.get(model)
        if kept is not None and now - kept[0] <= NOMINAL_MAX_AGE_S:
            return kept[1]
        targets = self.targets_serving(model)
        instances = {target.instance.id: target.instance for target in targets}.values()
        speed = median_speed([i.latency_model.speed(now) for i in instances if i.state is InstanceState.READY])
        if targets:  # names that nobody serves come from clients, without end
            self._nominal[model] = now, speed
        return speed

    def models(self) -> list[ModelCard]:
        """The union of the cards of all instances that could answer, each name once."""
        cards: dict[str, ModelCard] = {}
        for instance in self._instances.values():
            if instance.lifecycle is InstanceState.READY:
                for card in instance.cards:
                    cards.setdefault(card.id, card)
        return list(cards.values())

    def on_arrival(self, now: float) -> None:
        """A request arrived: the moment at which `busy` looks at the fleet."""
        elapsed_s = now - self._busy_at
        if self.busy is not None and elapsed_s < BUSY_INTERVAL_S:
            return
        ready = [instance for instance in self._instances.values() if instance.lifecycle is InstanceState.READY]
        if not ready:
            return
        share = sum(instance.prefilling for instance in ready) / len(ready)
        old = share if self.busy is None else self._busy
        self._busy = share + (old - share) * exp(-elapsed_s / BUSY_AVERAGING_S)
        self.busy = round(self._busy, 4)
        self._busy_at = now

    # looking around

    def __iter__(self) -> Iterator[Instance]:
        return iter(self._instances.values())

    def get(self, id: str) -> Instance | None:
        return self._instances.get(id)

    def target(self, id: TargetId) -> Target | None:
        return (self._tables or self._arrange()).targets.get(id)

    # keeping order

    def _set_cards(self, instance: Instance, cards: Sequence[ModelCard]) -> None:
        instance.cards = tuple(cards)
        instance.served = read_cards(cards)

    def _set_ranks(self, instance: Instance, ranks: Sequence[int]) -> None:
        """Targets that stay keep their books: requests are in flight on them."""
        before = instance.targets
        instance.targets = {rank: before.get(rank) or self._target(instance, rank) for rank in ranks}
        for rank in before.keys() - instance.targets.keys():
            before[rank].breaker.detach()
        self._forget_tables()

    def _target(self, instance: Instance, rank: int) -> Target:
        told = self._config.breaker
        breaker = CircuitBreaker(told.failures, told.open_s, self._not_closed)
        return Target(instance, rank, breaker, instance.latency_model, self.row_cache)

    def _forget_tables(self) -> None:
        """After every change of who serves what."""
        self._tables = None
        self._nominal = {}
        self.row_cache.on_block_size_change()
        self._forget_well()

    def _arrange(self) -> _Tables:
        """Changes are rare and come together, a thousand instances when the router starts."""
        self._tables = tables = _Tables({t.id: t for i in self._instances.values() for t in i.targets.values()}, {}, {})
        for instance in self._instances.values():
            for name, served in instance.served.items():
                tables.served.setdefault(name, served)
                tables.by_model.setdefault(name, []).extend(instance.targets.values())
        return tables


def read_cards(cards: Sequence[ModelCard]) -> dict[str, ServedModel]:
    """What each name on an instance means. Base cards with the same root are aliases: the first is the base's name.
    An adapter whose parent is not on the list belongs to the first base.
    """
    base_of_root: dict[str | None, str] = {}
    served: dict[str, ServedModel] = {}
    for card in cards:
        if card.parent is None:
            base = card.id if card.root is None else base_of_root.setdefault(card.root, card.id)
            served[card.id] = ServedModel(base, None)
    first = next(iter(served.values()), None)
    for card in cards:
        if card.parent is not None and card.id not in served:
            parent = served.get(card.parent, first)
            served[card.id] = ServedModel(parent.base if parent else card.parent, card.id)
    return served
