"""One router in virtual time: what `route.py`, the feeds and the health probes do with a `Scheduler`, without a
network.

Everything that decides is the live router's own: `Scheduler` with its fleet, books, index, streams, learned speeds and
desk. Here is only what stands around it: a request is opened, admitted and settled at the moments at which the line
would do it, batches of events are heard when they arrive, metrics pages when they are polled.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Literal, NamedTuple, cast

from router.clock import Clock
from router.config import schema
from router.fleet.engine_facts import EventEndpoint, Gauges, ModelCard
from router.fleet.fleet import Fleet
from router.fleet.instance import ServedModel, Target
from router.kvcache.events import EventBatch, Key, TargetId
from router.kvcache.index import BlockIndex
from router.kvcache.indexer import KvIndexer
from router.kvcache.speculative import ApproximateBlocks, SpeculativeBlocks
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Endpoint, Prompt, UnknownIds
from router.request.admission.controller import AdmissionController, Admitted, Queued
from router.request.admission.model_admission import ModelAdmission
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.policy import build_policy
from router.scheduling.policy.record import DEATHS_ALLOWED, PREFILLS_ALLOWED, AttemptEnd, Record, Stages
from router.scheduling.scheduler import Scheduler
from router.scheduling.selector import Selector
from router.scheduling.ticket import Ticket
from router.testbed.simulator.scenario import Scenario
from router.testbed.workloads.block_names import BlockNameKeyring, NamedTokens
from scorers.contract import PoolHit

MODEL = "simulated"
SERVED = ServedModel(MODEL, None)
CARDS = (ModelCard(MODEL, MODEL, None, None),)
NO_SOURCE = UnknownIds("simulated")
STORED_RESPONSES = 1  # stored responses: there are none
EngineFailure = Literal["connect", "busy", "died", "broken"]


class SimulatedTurn(NamedTuple):
    """A request as a router sees it."""

    session: str
    names: Sequence[int]  # of the prompt's full blocks
    prompt_tokens: int
    pooled_tokens: int | None  # leading ones that the pool holds; None: it did not say


class SimulatedRouter:
    """One of the scenario's: behind its door is its share of the fleet's memory."""

    def __init__(self, policy: schema.PolicyConfig, scenario: Scenario, clock: Clock, *, seed: int) -> None:
        told, shared_pool = schema.Config(), scenario.store is not None
        self.splits = scenario.prefills > 0
        self._clock = clock
        self._block_tokens = scenario.block_tokens
        self._probes = told.fleet.health.failures
        regime = PolicySet({"simulated": build_policy("simulated", policy)}, "simulated")
        knowledge = KvIndexer(
            BlockIndex(BlockNameKeyring(0), told.index.orphan_blocks),
            SpeculativeBlocks(told.index.expected_ttl_s),
            ApproximateBlocks(told.index.approximate_blocks, told.index.approximate_ttl_s),
            clock,
        )
        self.core = Scheduler(
            Fleet(told.fleet), knowledge, Selector(regime, seed=seed), clock, STORED_RESPONSES, shared_pool=shared_pool
        )
        self.gate: ModelAdmission | None = None
        if scenario.admission is not None and scenario.admission.enabled:
            self.gate = ModelAdmission(
                MODEL,
                AdmissionController(scenario.admission, pooled=shared_pool),
                self.core,
                clock,
                1 / scenario.routers,
            )
        self._names = [instance_name(number) for number in range(scenario.instances)]
        self._ids = [TargetId(f"{name}/0") for name in self._names]
        for number in range(scenario.instances):
            self.core.fleet.join(_instance(number, scenario.role(number)))
            self.meets(number)

    @property
    def booked(self) -> int:
        """Requests that its books hold, all instances together."""
        return sum(target.load_book.requests for target in self.core.fleet.targets_serving(None))

    # engines

    def meets(self, number: int) -> None:
        """An instance answers its probes: it is asked who it is."""
        name = self._names[number]
        self.core.fleet.record_probe_success(name, self._clock.now())
        self.core.add_instance(name, CARDS, (EventEndpoint(0, "tcp://simulated:1", "tcp://simulated:2", ""),))

    def misses(self, number: int) -> None:
        """An instance does not answer its probes."""
        for _ in range(self._probes):
            self.core.fleet.record_probe_failure(self._names[number], self._clock.now())

    def connected(self, number: int) -> int | None:
        """Its event stream is there. Like the next two it returns the number from which it wants a replay, if any."""
        return self.core.indexer.on_connected(self._ids[number])

    def heard(self, number: int, batch: EventBatch) -> int | None:
        return self.core.indexer.on_batch(self._ids[number], batch)

    def replayed(self, number: int, batches: Sequence[EventBatch]) -> int | None:
        """The answer to a question for a replay, all of it."""
        for batch in batches:
            self.core.indexer.on_replayed(self._ids[number], batch)
        return self.core.indexer.on_replay_end(self._ids[number], True)

    def in_flight(self, number: int) -> int:
        """Requests that this router has there."""
        member = self.core.fleet.get(self._names[number])
        return 0 if member is None else member.requests

    def polled(self, number: int, gauges: Gauges) -> None:
        name, now = self._names[number], self._clock.now()
        self.core.fleet.begin_poll(name)
        self.core.apply_metrics(name, {0: gauges}, now)

    # requests

    def opens(self, question: SimulatedTurn) -> SimulatedRequest:
        number = self.core.selector.next_number()
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
            prompt_tokens_counted=question.prompt_tokens,
            stages=Stages(),
        )
        self.core.assign_policy(record, None)
        size = self._block_tokens
        keys = question.names
        ids = NamedTokens(keys, size, question.prompt_tokens - len(keys) * size)
        known = TokenizedPrompt(cast("array[int]", ids), True, "given", {size: cast("Sequence[Key]", keys)}, 0.0, 0.0)
        prompt = Prompt(
            Endpoint.CHAT, Endpoint.CHAT.value, MODEL, b"", NO_SOURCE, stream=True, session=question.session
        )
        pooled = None if question.pooled_tokens is None else PoolHit(question.pooled_tokens, 0.0)
        return SimulatedRequest(self, record, prompt, known, pooled)


class SimulatedRequest:
    """One request on its way through a router: where it goes, and what becomes of it."""

    __slots__ = ("_failed", "_known", "_pooled", "_prompt", "_record", "_ticket", "router")

    def __init__(
        self, router: SimulatedRouter, record: Record, prompt: Prompt, known: TokenizedPrompt, pooled: PoolHit | None
    ) -> None:
        self.router = router
        self._record = record
        self._prompt = prompt
        self._known = known
        self._pooled = pooled
        self._failed: set[str] = set()
        self._ticket: Ticket | None = None

    def arrives(self, gate: ModelAdmission) -> Admitted | Queued:
        """At the door of its router."""
        session = self._prompt.session
        return gate.arrive(session.encode() if session else None, len(self._known.ids), self._known)

    def admit(self) -> Ticket | None:
        """Choose and book. None: nobody is left."""
        router = self.router
        self._ticket = router.core.admit(
            self._record,
            self._prompt,
            SERVED,
            self._known,
            self._pooled,
            excluding=self._failed,
            splits=router.splits and self._record.failed_prefills < PREFILLS_ALLOWED,
        )
        return self._ticket

    @property
    def has_killed(self) -> bool:
        """An engine died with it."""
        return self._record.deaths > 0

    @property
    def is_poison(self) -> bool:
        """Too many did."""
        return self._record.deaths > DEATHS_ALLOWED

    def prefilled(self) -> Target:
        """A pair's prompt is computed. Returns who answers."""
        assert self._ticket is not None
        self.router.core.settle_prefill(self._ticket, "ok", 200)
        return self._ticket.target

    def first_byte(self) -> None:
        assert self._ticket is not None
        self._ticket.status = 200
        self.router.core.on_first_byte(self._ticket)

    def done(self, cached_tokens: int, prompt_tokens: int, output_tokens: int) -> None:
        assert self._ticket is not None
        record = self._record
        record.status, record.done = 200, True
        record.prompt_tokens, record.cached_tokens, record.output_tokens = prompt_tokens, cached_tokens, output_tokens
        self._ticket.end = "ok"
        self.router.core.settle(self._ticket)
        self.router.core.complete(record)

    def failed_at(self, end: EngineFailure, status: int | None = None) -> None:
        """End this attempt without an answer. While the prefill half of a pair runs, it is that half that failed."""
        ticket, core = self._ticket, self.router.core
        assert ticket is not None
        culprit = ticket.target
        attempt_end: AttemptEnd = end
        if ticket.prefill is not None and ticket.prefill.leg.end == "running":
            assert end != "broken", "a pair answers only after its prefill half has ended"
            core.settle_prefill(ticket, end, status)
            culprit, attempt_end, status = ticket.prefill.target, "prefill", None
        ticket.end, ticket.status = attempt_end, status
        self._failed.add(culprit.id)
        core.settle(ticket)


def instance_name(number: int) -> str:
    return f"engine-{number}"


def instance_number(instance: str) -> int:
    return int(instance.rpartition("-")[2])


def _instance(number: int, role: str) -> schema.InstanceConfig:
    transfer = None if role == "both" else {"protocol": "nixl"}
    return schema.InstanceConfig.model_validate(
        {"url": f"http://127.0.0.1:{number + 1}", "name": instance_name(number), "role": role, "transfer": transfer}
    )
