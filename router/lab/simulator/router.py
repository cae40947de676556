"""A router in virtual time: drives the live `Scheduler` as `route.py`, the feeds and the health probes do.

Everything that decides is the live router's own: `Scheduler` with its fleet, load books, index, event streams,
latency models and selector. This module replaces only its surroundings: requests are opened, admitted and settled
at the times at which the request path does it, event batches are applied when they arrive, metrics when they are
polled.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, cast

from router.clock import Clock
from router.config import schema
from router.features.admission.controller import AdmissionController
from router.features.admission.model_admission import ModelAdmission
from router.features.admission.pending_request import PendingRequest
from router.features.admission.shared_prefixes import sample_prefix
from router.features.admission.verdicts import Admitted, Queued
from router.fleet.engine_facts import EventEndpoint, Gauges, ModelCard
from router.fleet.fleet import Fleet
from router.fleet.instance import ServedModel, Target
from router.kvcache.events import EventBatch, Key, TargetId
from router.kvcache.index import BlockIndex
from router.kvcache.indexer import KvIndexer
from router.kvcache.speculative import ApproximateBlocks, SpeculativeBlocks
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.lab.simulator.exchange import SimulatedExchange
from router.lab.simulator.scenario import Scenario
from router.lab.workloads.block_names import BlockNameKeyring, NamedTokens
from router.prompt.prompt import Endpoint, Prompt, UnknownIds
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.admission_rules import build_rule
from router.scheduling.policy.policy import Policy, build_policy
from router.scheduling.policy.record import DEATHS_ALLOWED, PREFILLS_ALLOWED, AttemptEnd, Record, Stages
from router.scheduling.scheduler import Scheduler
from router.scheduling.scheduling_request import SchedulingRequest
from router.scheduling.selector import Selector
from router.scheduling.ticket import Ticket
from scorers.admission.contract import NO_CLAIM, Admission, Claim
from scorers.contract import PoolHit

MODEL = "simulated"
SERVED = ServedModel(MODEL, None)
CARDS = (ModelCard(MODEL, MODEL, None, None),)
NO_SOURCE = UnknownIds("simulated")
STORED_RESPONSES = 1  # capacity for stored responses, of which there are none
EngineFailure = Literal["connect", "busy", "died", "broken"]


class SimulatedTurn(NamedTuple):
    """A request as a router sees it."""

    session: str
    names: Sequence[int]  # of the prompt's full blocks
    prompt_tokens: int
    pooled_tokens: int | None  # leading tokens that the pool holds; None: it did not answer
    parent: str | None = None  # the session that started this one


class SimulatedRouter:
    """One router of a scenario; its admission control covers its share of the fleet's memory. `exchange` reports
    what the other routers do; None: nothing does. `tenants`: requests name their tenant.
    """

    def __init__(
        self,
        policy: schema.PolicyConfig | Policy,
        scenario: Scenario,
        clock: Clock,
        *,
        seed: int,
        exchange: SimulatedExchange | None = None,
        tenants: bool = False,
    ) -> None:
        config, shared_pool = schema.Config(), scenario.store is not None
        self.splits = scenario.prefills > 0
        self.on_record: Callable[[Record], object] | None = None  # called with each record whose answer is complete
        self._clock = clock
        self._block_tokens = scenario.block_tokens
        self._probes = config.fleet.health.failures
        built = policy if isinstance(policy, Policy) else build_policy("simulated", policy)
        policies = PolicySet({"simulated": built}, "simulated")
        indexer = KvIndexer(
            BlockIndex(BlockNameKeyring(0), config.index.orphan_blocks),
            SpeculativeBlocks(config.index.expected_ttl_s),
            ApproximateBlocks(config.index.approximate_blocks, config.index.approximate_ttl_s),
            clock,
        )
        fleet = Fleet(config.fleet.model_copy(update={"speed_prior": scenario.speed_prior}))
        build = Scheduler if exchange is None else exchange.build_scheduler
        self.scheduler: Scheduler = build(
            fleet, indexer, Selector(policies, seed=seed), clock, STORED_RESPONSES, shared_pool=shared_pool
        )
        self.admission = self._build_admission(scenario, clock, tenants)
        self._names = [instance_name(number) for number in range(scenario.instances)]
        self._ids = [TargetId(f"{name}/0") for name in self._names]
        self._roles = [scenario.role(number) for number in range(scenario.instances)]
        for number in range(scenario.instances):
            if scenario.is_present(number, clock.now()):
                self.on_join(number)

    def _build_admission(self, scenario: Scenario, clock: Clock, tenants: bool) -> ModelAdmission | None:
        """Return the admission control; None if the scenario has none."""
        admission = scenario.admission
        if admission is None or not admission.enabled:
            return None
        controller = AdmissionController(
            build_rule(admission),
            admission.max_wait_s,
            admission.idle_s,
            pooled=scenario.store is not None,
            tenants=tenants,
            now=clock.now(),
        )
        return ModelAdmission(MODEL, controller, self.scheduler, clock, 1 / scenario.routers)

    @property
    def booked_requests(self) -> int:
        """Number of its own requests in its load books, over all instances."""
        return sum(target.load_book.own.requests for target in self.scheduler.fleet.targets_serving(None))

    # engines

    def on_join(self, number: int) -> None:
        """Add instance `number`, which answers its probes."""
        self.scheduler.fleet.join(_instance(number, self._roles[number]))
        self.on_probe_success(number)

    def on_leave(self, number: int) -> None:
        """Remove instance `number`, as when discovery no longer lists it; requests that it has are finished."""
        self.scheduler.remove_instance(self._names[number])

    def on_drain(self, number: int) -> None:
        """Send instance `number` no new requests."""
        self.scheduler.drain(self._names[number], True)

    def on_probe_success(self, number: int) -> None:
        """Record that instance `number` answers its probes, and add it with its model and event endpoint."""
        name = self._names[number]
        self.scheduler.fleet.record_probe_success(name, self._clock.now())
        self.scheduler.add_instance(name, CARDS, (EventEndpoint(0, "tcp://simulated:1", "tcp://simulated:2", ""),))

    def on_probe_failure(self, number: int) -> None:
        """Record as many failed probes of instance `number` as make it unhealthy."""
        for _ in range(self._probes):
            self.scheduler.fleet.record_probe_failure(self._names[number], self._clock.now())

    def on_stream(self, number: int) -> int | None:
        """Connect the event stream of instance `number`. This method and the next two return the number of the
        batch from which to replay; None: no replay.
        """
        return self.scheduler.indexer.on_connected(self._ids[number])

    def on_events(self, number: int, batch: EventBatch) -> int | None:
        replay_from = self.scheduler.indexer.on_batch(self._ids[number], batch)
        self._finish(number)
        return replay_from

    def on_replay(self, number: int, batches: Sequence[EventBatch]) -> int | None:
        """Apply a complete replay."""
        for batch in batches:
            if (replay_from := self.scheduler.indexer.on_replayed(self._ids[number], batch)) is not None:
                return replay_from
            self._finish(number)
        replay_from = self.scheduler.indexer.on_replay_end(self._ids[number], True)
        self._finish(number)
        return replay_from

    def _finish(self, number: int) -> None:
        """Apply all received events; virtual time stands still meanwhile."""
        while self.scheduler.indexer.resume(self._ids[number]):
            pass

    def in_flight(self, number: int) -> int:
        """Return the number of requests that this router has at instance `number`."""
        member = self.scheduler.fleet.get(self._names[number])
        return 0 if member is None else member.requests

    def on_metrics(self, number: int, gauges: Gauges) -> None:
        """Apply the metrics of instance `number`."""
        name, now = self._names[number], self._clock.now()
        self.scheduler.fleet.begin_poll(name)
        self.scheduler.apply_metrics(name, {0: gauges}, now)

    # requests

    def on_first_byte(self, ticket: Ticket) -> None:
        """Record the first byte of an answer."""
        ticket.status = 200
        self.scheduler.on_first_byte(ticket)

    def open(self, turn: SimulatedTurn) -> SimulatedRequest:
        """Open the record of a request that has arrived."""
        number = self.scheduler.selector.next_number()
        now = self._clock.now()
        record = Record(
            id=str(number),
            number=number,
            arrived_s=now,
            at_wall_s=now,
            endpoint=Endpoint.CHAT.value,
            model=MODEL,
            stream=True,
            tokens_from="given",
            prompt_tokens_counted=turn.prompt_tokens,
            stages=Stages(),
        )
        self.scheduler.assign_policy(record, None)
        size = self._block_tokens
        keys = turn.names
        ids = NamedTokens(keys, size, turn.prompt_tokens - len(keys) * size)
        known = TokenizedPrompt(cast("array[int]", ids), True, "given", {size: cast("Sequence[Key]", keys)}, 0.0, 0.0)
        prompt = Prompt(
            Endpoint.CHAT,
            Endpoint.CHAT.value,
            MODEL,
            b"",
            NO_SOURCE,
            stream=True,
            session=turn.session,
            parent=turn.parent,
            program=turn.parent or turn.session,
        )
        pool_hit = None if turn.pooled_tokens is None else PoolHit(turn.pooled_tokens, 0.0)
        return SimulatedRequest(self, SchedulingRequest(record, prompt, SERVED, known, pool_hit))


class SimulatedRequest:
    """A request in a router: its choices of targets and their ends."""

    __slots__ = ("_failed", "_known", "_record", "_request", "_ticket", "router")

    def __init__(self, router: SimulatedRouter, request: SchedulingRequest) -> None:
        self.router = router
        assert request.known is not None, "a simulated prompt's tokens are given"
        self._known = request.known
        self._request = request
        self._record = request.record
        self._failed: set[str] = set()
        self._ticket: Ticket | None = None

    def arrive(self, admission: ModelAdmission, claim: Claim = NO_CLAIM) -> Admitted | Queued:
        """Pass the request to the admission control of its router."""
        session = self._request.prompt.session
        name = session.encode() if session else None
        return admission.arrive(PendingRequest(name, len(self._known.ids), self._known, claim=claim))

    def on_placed(self, admission: ModelAdmission, place: Admission, target: str) -> None:
        """Report to admission control where the request was sent."""
        admission.on_placed(place, target, self._record.attempts[-1].expected_tokens, sample_prefix(self._known))

    def admit(self, full: frozenset[str] = frozenset()) -> Ticket | None:
        """Choose and book a target, one of `full` only if no other is left. Return None if no target is left."""
        router = self.router
        self._ticket = router.scheduler.admit(
            self._request,
            excluding=self._failed | full,
            splits=router.splits and self._record.failed_prefills < PREFILLS_ALLOWED,
        )
        return self.admit() if self._ticket is None and full else self._ticket

    @property
    def engine_died(self) -> bool:
        """Return whether an engine died with the request."""
        return self._record.deaths > 0

    @property
    def is_poison(self) -> bool:
        """Return whether too many engines died with the request for another attempt."""
        return self._record.deaths > DEATHS_ALLOWED

    def on_prefilled(self) -> Target:
        """Record that a pair's prompt is computed, and return the target that answers."""
        assert self._ticket is not None
        self.router.scheduler.settle_prefill(self._ticket, "ok", 200)
        return self._ticket.target

    def on_first_byte(self) -> None:
        """Record the first byte of the answer."""
        assert self._ticket is not None
        self.router.on_first_byte(self._ticket)

    def on_done(
        self, cached_tokens: int, prompt_tokens: int, output_tokens: int, *, tool_call: bool | None = None
    ) -> None:
        """Record the end of the answer, with the token counts that the engine reports."""
        assert self._ticket is not None
        record = self._record
        record.status, record.done = 200, True
        record.prompt_tokens, record.cached_tokens, record.output_tokens = prompt_tokens, cached_tokens, output_tokens
        record.tool_call = tool_call
        self._ticket.end = "ok"
        self.router.scheduler.settle(self._ticket)
        self.router.scheduler.complete(record)
        if self.router.on_record is not None:
            self.router.on_record(record)

    def on_failure(self, end: EngineFailure, status: int | None = None) -> None:
        """End this attempt without an answer. If the prefill half of a pair is running, that half has failed."""
        ticket, scheduler = self._ticket, self.router.scheduler
        assert ticket is not None
        culprit = ticket.target
        attempt_end: AttemptEnd = end
        if ticket.prefill is not None and ticket.prefill.leg.end == "running":
            assert end != "broken", "a pair answers only after its prefill half has ended"
            scheduler.settle_prefill(ticket, end, status)
            culprit, attempt_end, status = ticket.prefill.target, "prefill", None
        ticket.end, ticket.status = attempt_end, status
        self._failed.add(culprit.id)
        scheduler.settle(ticket)


def instance_name(number: int) -> str:
    """Return the name of instance `number`."""
    return f"engine-{number}"


def instance_number(name: str) -> int:
    """Return the number in an instance's name."""
    return int(name.rpartition("-")[2])


def _instance(number: int, role: str) -> schema.InstanceConfig:
    transfer = None if role == "both" else {"protocol": "nixl"}
    return schema.InstanceConfig.model_validate(
        {"url": f"http://127.0.0.1:{number + 1}", "name": instance_name(number), "role": role, "transfer": transfer}
    )
