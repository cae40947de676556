"""A fleet and its routers in virtual time: one scenario, one policy, one workload, one seed -> one
`SimulationOutcome`.

    client      sends a turn ------> router: admission, choice -> cluster: engines
                                        ^   ^                        |
    next turn,  <---- last token -------+   +--- events, metrics ----+
    after its pause                              after the lags

This module carries each request from its sending to its end. `clients.py` sends requests, `cluster.py` has the
engines and their events, `event_queue.py` is time, and the routers are the live scheduler (`router.py`); this
module makes no decision. The same arguments give the same outcome, to the last digit: the seed is the only source
of randomness.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from router.config import schema
from router.features.admission.model_admission import ModelAdmission
from router.features.admission.verdicts import NOTHING_RELEASED, Admitted, ComputedPrompt
from router.lab.rng import Rng
from router.lab.simulator.autoscaler import Autoscaler, Autoscaling
from router.lab.simulator.clients import ClientTurn, SimulatedClients
from router.lab.simulator.cluster import Cluster
from router.lab.simulator.event_queue import EventQueue
from router.lab.simulator.exchange import SimulatedExchange, connect_exchanges
from router.lab.simulator.fast_engine import EngineJob
from router.lab.simulator.outcome import RequestEnd, SimulationOutcome
from router.lab.simulator.router import (
    EngineFailure,
    SimulatedRequest,
    SimulatedRouter,
    SimulatedTurn,
    instance_number,
)
from router.lab.simulator.scenario import Scenario
from router.lab.simulator.tenants import TenantLoad, number_sessions
from router.lab.workloads.model import Session, Workload
from router.scheduling.policy.policy import Policy
from router.scheduling.ticket import Ticket
from scorers.admission.contract import NO_CLAIM, Admission, Claim

ROUND_ROBIN = schema.PolicyConfig.model_validate({"scorers": [{"name": "round_robin"}]})  # before the router starts
SOON_S = 0.001  # least time between two timed releases of an admission queue
PROGRESS_EVERY = 256  # ended requests
RouterBuilder = Callable[..., SimulatedRouter]  # with the arguments of `SimulatedRouter`


def simulate(
    scenario: Scenario,
    policy: schema.PolicyConfig | Policy,
    workload: Workload,
    *,
    seed: int = 0,
    at_once: int | None = None,
    staggered: bool = False,
    until_s: float | None = None,
    stopwatch: Callable[[], float] | None = None,
    progress: Callable[[float, int], None] | None = None,
    autoscaling: Autoscaling | None = None,
    router: RouterBuilder = SimulatedRouter,
) -> SimulationOutcome:
    """Serve `workload` by `policy` and return the outcome. A built policy must not have been used before.

    `at_once`: concurrent sessions of a closed loop, in which the next begins when one ends; None: each session
    begins at its `start_s`. `staggered`: the first sessions begin at a random turn, so that they do not all grow
    long at the same time. `until_s`: virtual time from which nothing is sent; requests under way are finished.
    `stopwatch` times decisions. `progress` gets virtual seconds and the number of ended requests now and then.
    `autoscaling`: the fleet's size follows a rule, and `scenario.instances` is its largest. `router` builds each
    router.
    """
    if autoscaling is not None:
        scenario = autoscaling.shrink(scenario)
    run = _Run(scenario, policy, [workload.sessions], seed, until_s, stopwatch, progress, build_router=router)
    if autoscaling is not None:
        run.autoscale(autoscaling)
    return run.serve([at_once], staggered)


def simulate_tenants(
    scenario: Scenario,
    policy: schema.PolicyConfig,
    tenants: Sequence[TenantLoad],
    *,
    seed: int = 0,
    until_s: float | None = None,
) -> SimulationOutcome:
    """Serve the workloads of several tenants side by side. In the outcome a session of the n-th of T tenants has a
    number that is n modulo T. The first sessions of a closed loop begin at a random turn.
    """
    sessions = [number_sessions(load.workload.sessions, n, len(tenants)) for n, load in enumerate(tenants)]
    run = _Run(scenario, policy, sessions, seed, until_s, None, None, tenants)
    return run.serve([load.at_once for load in tenants], True)


class _Request:
    """A request from its sending to its end, in the router to which it came, even if others replace that router."""

    __slots__ = ("admission", "first_s", "job", "prefill", "routed", "sent_s", "turn", "waited_s")

    def __init__(self, turn: ClientTurn, routed: SimulatedRequest, sent_s: float) -> None:
        self.turn = turn
        self.routed = routed
        self.sent_s = sent_s
        self.waited_s = 0.0
        self.first_s = 0.0
        self.admission: Admission | None = None  # None: without admission control
        self._begin()

    def on_failure(self, end: EngineFailure, status: int | None = None) -> None:
        """End this attempt; a next one begins from the start."""
        self.routed.on_failure(end, status)
        self._begin()

    def _begin(self) -> None:
        turn = self.turn
        self.job = EngineJob(turn.names, turn.prompt_tokens, turn.output_tokens, self)  # makes the answer
        self.prefill: EngineJob | None = None  # computes its prompt at another instance


class _Run:
    def __init__(
        self,
        scenario: Scenario,
        policy: schema.PolicyConfig | Policy,
        sessions: Sequence[Sequence[Session]],
        seed: int,
        until_s: float | None,
        stopwatch: Callable[[], float] | None,
        progress: Callable[[float, int], None] | None,
        tenants: Sequence[TenantLoad] = (),
        build_router: RouterBuilder = SimulatedRouter,
    ) -> None:
        self._tenants = tenants
        self._build_router = build_router
        self._scenario = scenario
        self._policy = policy
        self._seed = seed
        self._stopwatch = stopwatch
        self._progress = progress
        self._rng = Rng(seed ^ 0x5EED)
        self._router_rng = Rng(seed ^ 0x0FF1CE)  # of its own: the workload does not depend on the number of routers
        self._event_queue = EventQueue()
        self._retired: list[SimulatedRouter] = []
        self.routers: list[SimulatedRouter] = []
        self._admissions: dict[Admission, _Request] = {}  # requests under admission control
        self._releases_s: dict[ModelAdmission, float] = {}  # next timed release
        self.outcome = SimulationOutcome(scenario.instances)
        end_s = float("inf") if until_s is None else until_s
        self._clients = [
            SimulatedClients(some, scenario.block_tokens, self._event_queue, self._send, end_s) for some in sessions
        ]
        self._cluster = Cluster(scenario, self._event_queue, self._rng, self.outcome, self)
        self._autoscaler: Autoscaler | None = None

    def autoscale(self, autoscaling: Autoscaling) -> None:
        """Let the fleet's size follow a rule from the start on."""
        self._autoscaler = Autoscaler(autoscaling, self._scenario, self._cluster, self._event_queue, self.outcome)

    def serve(self, at_once: Sequence[int | None], staggered: bool) -> SimulationOutcome:
        """Run until every request has ended."""
        trouble = self._scenario.trouble
        self.routers = self._build_routers(ROUND_ROBIN if trouble.router_starts_s > 0 else self._policy)
        self._cluster.start()
        for at_s in (trouble.router_starts_s, trouble.router_restarts_s):
            if at_s:
                self._event_queue.at(at_s, self._start_routers)
        self._cluster.schedule_changes()
        if self._autoscaler is not None:
            self._autoscaler.begin(self.routers[0])
        for clients, number in zip(self._clients, at_once, strict=True):
            clients.begin(number, staggered, self._rng)
        while any(clients.at_work for clients in self._clients) and self._event_queue.step():
            pass
        self._cluster.end()
        self.outcome.took_s = self._event_queue.now_s
        self.outcome.double_bookings = sum(router.booked_requests for router in [*self._retired, *self.routers])
        return self.outcome

    def _build_routers(self, policy: schema.PolicyConfig | Policy) -> list[SimulatedRouter]:
        scenario, clock, first = self._scenario, self._event_queue.clock, self._seed * 1000
        exchanges: Sequence[SimulatedExchange | None] = [None] * scenario.routers
        if scenario.exchange is not None and scenario.routers > 1:
            exchanges = connect_exchanges(scenario.routers, scenario.exchange, self._event_queue, self._router_rng)
        return [
            self._build_router(
                policy, scenario, clock, seed=first + number, exchange=exchange, tenants=bool(self._tenants)
            )
            for number, exchange in enumerate(exchanges)
        ]

    def _start_routers(self) -> None:
        """Replace the routers by new ones; requests in flight end in the replaced routers."""
        self._retired += self.routers
        self.routers = self._build_routers(self._policy)
        for number in range(self._scenario.instances):
            if self._scenario.is_present(number, self._event_queue.now_s):
                self._cluster.connect(number)

    # one request

    def _send(self, turn: ClientTurn) -> None:
        """Give a turn to its router, which may queue it."""
        session, names = turn.session.number, self._prompt(turn)
        routers = len(self.routers)
        router = self.routers[session % routers if self._scenario.sticky else self._router_rng.below(routers)]
        parent = None if turn.started_by is None else str(turn.started_by.number)
        arrival = SimulatedTurn(str(session), names, turn.prompt_tokens, self._cluster.pooled_tokens(names), parent)
        request = _Request(turn, router.open(arrival), self._event_queue.now_s)
        if router.admission is None:
            self._place(request)
            return
        verdict = request.routed.arrive(router.admission, self._claim(session))
        request.admission = verdict.admission
        self._admissions[verdict.admission] = request
        if isinstance(verdict, Admitted):
            self._place(request)
        self._release(router.admission)

    def _claim(self, session: int) -> Claim:
        """Return the tenant of a session's request, with the time when the first token is due."""
        if not self._tenants:
            return NO_CLAIM
        load = self._tenants[session % len(self._tenants)]
        ttft_ms = load.ttft_ms[session // len(self._tenants) % len(load.ttft_ms)] if load.ttft_ms else None
        deadline_s = None if ttft_ms is None else self._event_queue.now_s + ttft_ms / 1e3
        return Claim(load.name, load.weight, load.priority, deadline_s)

    def _prompt(self, turn: ClientTurn) -> Sequence[int]:
        """Return the names of the full blocks of the turn's prompt."""
        return turn.names[: turn.prompt_tokens // self._scenario.block_tokens]

    def _place(self, request: _Request) -> None:
        """Send the request to targets until an engine accepts it; end the request if none does."""
        full = frozenset[str]() if request.admission is None else request.admission.full
        while (ticket := self._admit(request.routed, full)) is not None:
            full = frozenset()
            job, target = request.job, ticket.target
            if request.admission is not None and request.routed.router.admission is not None:
                request.routed.on_placed(request.routed.router.admission, request.admission, target.id)
            if ticket.prefill is not None:
                self._cluster.poll_soon(instance_number(target.instance.id))  # the decode half is booked already
                job = request.prefill = EngineJob(self._prompt(request.turn), job.prompt_tokens, 1, request)
                target = ticket.prefill.target
            if self._submit(request, job, instance_number(target.instance.id)):
                return
        self._end(request, RequestEnd.FAILED if request.routed.engine_died else RequestEnd.SHED, -1)

    def _admit(self, routed: SimulatedRequest, full: frozenset[str]) -> Ticket | None:
        self.outcome.decisions += 1
        if self._stopwatch is None:
            return routed.admit(full)
        began_s = self._stopwatch()
        ticket = routed.admit(full)
        self.outcome.deciding_s += self._stopwatch() - began_s
        return ticket

    def _submit(self, request: _Request, job: EngineJob, number: int) -> bool:
        """Submit `job` to instance `number`. Return False when this attempt has failed."""
        self._cluster.poll_soon(number)
        if not self._cluster.is_alive(number):
            request.routed.router.on_probe_failure(number)  # a failed connect triggers a probe at once
            request.on_failure("connect")
            return False
        if not self._cluster.submit(job, number):
            request.on_failure("busy", 503)
            return False
        return True

    def on_first_token(self, job: EngineJob) -> None:
        """Note the first token; that of a prompt computed for another engine does not count."""
        request = _request(job)
        if job is not request.prefill:
            request.first_s = self._event_queue.now_s
            request.routed.on_first_byte()
            if request.admission is not None and (admission := request.routed.router.admission) is not None:
                admission.on_first_token(request.admission)
                self._release(admission)

    def on_done(self, job: EngineJob, number: int) -> None:
        """End the request, or hand a computed prompt over to the instance that answers."""
        request = _request(job)
        if job is request.prefill:
            self._hand_over(request)
            return
        source = request.prefill or job
        counts = source.cached_tokens, job.prompt_tokens, job.output_tokens
        request.routed.on_done(*counts, tool_call=request.turn.tool_call)
        self._end(request, RequestEnd.OK, number, source)

    def _hand_over(self, request: _Request) -> None:
        """Submit the other half of a pair, whose prompt is computed."""
        job, target = request.job, request.routed.on_prefilled()
        job.external, job.local_tokens = job.prompt_tokens, 0
        if not self._submit(request, job, instance_number(target.instance.id)):
            self._place(request)

    def on_death(self, job: EngineJob, number: int) -> None:
        """End the attempt; a request without its first byte may be retried elsewhere."""
        request = _request(job)
        request.routed.router.on_probe_failure(number)
        begun = request.first_s > 0
        request.on_failure("broken" if begun else "died")
        if begun or request.routed.is_poison:
            self._end(request, RequestEnd.FAILED, -1)
        else:
            self._place(request)

    def _end(self, request: _Request, end: RequestEnd, number: int, source: EngineJob | None = None) -> None:
        now, outcome, turn = self._event_queue.now_s, self.outcome, request.turn
        outcome.arrived_s.append(request.sent_s)
        outcome.waited_s.append(request.waited_s)
        outcome.ttft_s.append(request.first_s - request.sent_s if end is RequestEnd.OK else float("nan"))
        outcome.duration_s.append(now - request.sent_s)
        outcome.session.append(turn.session.number)
        outcome.instance.append(number)
        outcome.prompt_tokens.append(turn.prompt_tokens)
        outcome.local_tokens.append((source.local_tokens or 0) if source is not None else 0)
        outcome.host_tokens.append(source.host_tokens if source is not None else 0)
        outcome.pool_tokens.append(source.pool_tokens if source is not None else 0)
        outcome.output_tokens.append(turn.output_tokens)
        outcome.end.append(end)
        if self._progress is not None and len(outcome) % PROGRESS_EVERY == 0:
            self._progress(now, len(outcome))
        if request.admission is not None:
            self._leave_admission(request, request.admission, source)
        request.job.tag = None  # one reference cycle less per request for the garbage collector
        self._clients[turn.session.number % len(self._clients)].on_end(turn, end is RequestEnd.OK)

    # admission control

    def _leave_admission(self, request: _Request, place: Admission, source: EngineJob | None) -> None:
        """Release the request's share of KV memory. `source`: the job that computed its prompt; None: no answer."""
        admission, turn = request.routed.router.admission, request.turn
        assert admission is not None, "it was admitted"
        self._admissions.pop(place, None)
        if source is not None:
            context_tokens = turn.prompt_tokens + turn.output_tokens
            # Loads from the pool count as computed: admission control is about KV memory.
            decode_s = self._event_queue.now_s - request.first_s
            counted = turn.prompt_tokens, context_tokens, source.local_tokens, decode_s, source.cached_tokens
            admission.on_answer(place, ComputedPrompt(*counted))
        else:
            admission.on_leave(place)
        self._release(admission)

    def _release(self, admission: ModelAdmission) -> None:
        """Place or end the requests that admission control releases, and schedule its next timed release."""
        while (released := admission.release_waiting()) != NOTHING_RELEASED:  # again after each booking
            for place in released.admitted:
                request = self._admissions[place]
                request.waited_s = self._event_queue.now_s - request.sent_s
                self._place(request)
            for refused in released.refused:
                self._end(self._admissions[refused.admission], RequestEnd.SHED, -1)
        next_s = admission.next_s
        if next_s is not None and self._releases_s.get(admission) != next_s:
            self._releases_s[admission] = next_s
            self._event_queue.at(max(next_s, self._event_queue.now_s + SOON_S), self._on_release_due, admission, next_s)

    def _on_release_due(self, admission: ModelAdmission, next_s: float) -> None:
        if self._releases_s.get(admission) == next_s:
            del self._releases_s[admission]
            self._release(admission)


def _request(job: EngineJob) -> _Request:
    assert isinstance(job.tag, _Request), "every job is sent here"
    return job.tag
