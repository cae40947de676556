"""A fleet and its routers in virtual time: one scenario, one policy, one workload, one seed -> one `SimulationOutcome`.

    client      sends a turn ------> router: door, admit ------> plant: engines
                                        ^   ^                       |
    next turn,  <---- last token -------+   +--- events, gauges ----+
    after its pause                              as late as the lags say

Here is what becomes of each request; who sends them is `clients.py`, engines and what is told of them are `plant.py`,
time is `moments.py`. The routers are the live one's own core (`router.py`): nothing in here decides anything. Same
arguments, same outcome, to the last digit: there is no other source of chance than the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from router.config import schema
from router.request.admission.controller import Admission, Admitted
from router.request.admission.model_admission import ModelAdmission
from router.scheduling.ticket import Ticket
from router.testbed.rng import Rng
from router.testbed.simulator.clients import ClientTurn, SimulatedClients
from router.testbed.simulator.cluster import Cluster
from router.testbed.simulator.event_queue import EventQueue
from router.testbed.simulator.fast_engine import EngineJob
from router.testbed.simulator.outcome import RequestEnd, SimulationOutcome
from router.testbed.simulator.router import (
    EngineFailure,
    SimulatedRequest,
    SimulatedRouter,
    SimulatedTurn,
    instance_number,
)
from router.testbed.simulator.scenario import Scenario
from router.testbed.workloads import Session, Workload

TURNS = schema.PolicyConfig.model_validate({"scorers": [{"name": "round_robin"}]})  # before the router starts
SOON_S = 0.001  # the least time between two looks at a door by the clock
TOLD_EVERY = 256  # ended requests


def simulate(
    scenario: Scenario,
    policy: schema.PolicyConfig,
    workload: Workload,
    *,
    seed: int = 0,
    at_once: int | None = None,
    staggered: bool = False,
    until_s: float | None = None,
    stopwatch: Callable[[], float] | None = None,
    progress: Callable[[float, int], None] | None = None,
) -> SimulationOutcome:
    """Serves `workload` by `policy`. `at_once`: closed loop, so many sessions at a time, the next begins when one ends;
    None: each begins at its `start_s`. `staggered`: the first ones begin somewhere in their course, so that they do not
    all grow old together. `until_s`: virtual time at which nothing more is sent; what runs is finished. `stopwatch`
    times decisions. `progress` is told virtual seconds and ended requests now and then.
    """
    run = _Run(scenario, policy, workload.sessions, seed, until_s, stopwatch, progress)
    return run.serve(at_once, staggered)


class _Request:
    """From its sending to its end. `asked` is its way through the router that it came to, whichever come later."""

    __slots__ = ("admission", "asked", "first_s", "job", "prefill", "said", "sent_s", "waited_s")

    def __init__(self, said: ClientTurn, asked: SimulatedRequest, sent_s: float) -> None:
        self.said = said
        self.asked = asked
        self.sent_s = sent_s
        self.waited_s = 0.0
        self.first_s = 0.0
        self.admission: Admission | None = None  # its place in the door's books
        self._begin()

    def failed_at(self, end: EngineFailure, status: int | None = None) -> None:
        """This attempt is over, and has left nothing that a next one could use."""
        self.asked.failed_at(end, status)
        self._begin()

    def _begin(self) -> None:
        said = self.said
        self.job = EngineJob(said.names, said.prompt_tokens, said.output_tokens, self)  # that answers
        self.prefill: EngineJob | None = None  # that computes its prompt elsewhere


class _Run:
    def __init__(
        self,
        scenario: Scenario,
        policy: schema.PolicyConfig,
        sessions: Sequence[Session],
        seed: int,
        until_s: float | None,
        stopwatch: Callable[[], float] | None,
        progress: Callable[[float, int], None] | None,
    ) -> None:
        self._scenario = scenario
        self._policy = policy
        self._seed = seed
        self._stopwatch = stopwatch
        self._progress = progress
        self._chance = Rng(seed ^ 0x5EED)
        self._moments = EventQueue()
        self._retired: list[SimulatedRouter] = []
        self.routers: list[SimulatedRouter] = []
        self._admissions: dict[Admission, _Request] = {}  # all that are in the books of one
        self._looks_s: dict[ModelAdmission, float] = {}  # when doors must be looked at
        self.outcome = SimulationOutcome(scenario.instances)
        last_s = float("inf") if until_s is None else until_s
        self._clients = SimulatedClients(sessions, scenario.block_tokens, self._moments, self._send, last_s)
        self._plant = Cluster(scenario, self._moments, self._chance, self.outcome, self)

    def serve(self, at_once: int | None, staggered: bool) -> SimulationOutcome:
        starts_s = self._scenario.trouble.router_starts_s
        self.routers = self._built(TURNS if starts_s > 0 else self._policy)
        self._plant.start()
        if starts_s > 0:
            self._moments.at(starts_s, self._start_routers)
        self._plant.fail()
        self._clients.begin(at_once, staggered, self._chance)
        while self._clients.at_work and self._moments.step():
            pass
        self._plant.end()
        self.outcome.took_s = self._moments.now_s
        self.outcome.double_bookings = sum(router.booked for router in [*self._retired, *self.routers])
        return self.outcome

    def _built(self, policy: schema.PolicyConfig) -> list[SimulatedRouter]:
        scenario, clock, first = self._scenario, self._moments.clock, self._seed * 1000
        return [SimulatedRouter(policy, scenario, clock, seed=first + number) for number in range(scenario.routers)]

    def _start_routers(self) -> None:
        """Fresh ones take over from those that only took turns: what those began, they end."""
        self._retired, self.routers = self.routers, self._built(self._policy)
        for number in range(self._scenario.instances):
            self._plant.connect(number)

    # a request's way

    def _send(self, said: ClientTurn) -> None:
        """It reaches its router, which may let it wait."""
        session, names = said.session.number, self._prompt(said)
        router = self.routers[session % len(self.routers)]
        question = SimulatedTurn(str(session), names, said.prompt_tokens, self._plant.pooled_tokens(names))
        request = _Request(said, router.opens(question), self._moments.now_s)
        if router.gate is None:
            self._place(request)
            return
        verdict = request.asked.arrives(router.gate)
        request.admission = verdict.admission
        self._admissions[verdict.admission] = request
        if isinstance(verdict, Admitted):
            self._place(request)
        self._look_at(router.gate)

    def _prompt(self, said: ClientTurn) -> Sequence[int]:
        """The names of its full blocks."""
        return said.names[: said.prompt_tokens // self._scenario.block_tokens]

    def _place(self, request: _Request) -> None:
        """An engine takes it, or it ends here."""
        while (ticket := self._admit(request.asked)) is not None:
            job, target = request.job, ticket.target
            if ticket.prefill is not None:
                self._plant.poll_soon(instance_number(target.instance.id))  # it is booked already
                job = request.prefill = EngineJob(self._prompt(request.said), job.prompt_tokens, 1, request)
                target = ticket.prefill.target
            if self._submit(request, job, instance_number(target.instance.id)):
                return
        self._end(request, RequestEnd.FAILED if request.asked.has_killed else RequestEnd.SHED, -1)

    def _admit(self, asked: SimulatedRequest) -> Ticket | None:
        self.outcome.decisions += 1
        if self._stopwatch is None:
            return asked.admit()
        began_s = self._stopwatch()
        ticket = asked.admit()
        self.outcome.deciding_s += self._stopwatch() - began_s
        return ticket

    def _submit(self, request: _Request, job: EngineJob, number: int) -> bool:
        """False: this attempt has failed."""
        self._plant.poll_soon(number)
        if not self._plant.is_alive(number):
            request.asked.router.misses(number)  # who cannot reach it probes it at once
            request.failed_at("connect")
            return False
        if not self._plant.submit(job, number):
            request.failed_at("busy", 503)
            return False
        return True

    def first(self, job: EngineJob) -> None:
        """The plant: its first token. A prompt that is computed for another engine has none that counts."""
        request = _request(job)
        if job is not request.prefill:
            request.first_s = self._moments.now_s
            request.asked.first_byte()

    def done(self, job: EngineJob, number: int) -> None:
        """The plant: its last one."""
        request = _request(job)
        if job is request.prefill:
            self._hand_over(request)
            return
        source = request.prefill or job
        request.asked.done(source.cached_tokens, job.prompt_tokens, job.output_tokens)
        self._end(request, RequestEnd.OK, number, source)

    def _hand_over(self, request: _Request) -> None:
        """Its prompt is computed: the other half goes on with it."""
        job, target = request.job, request.asked.prefilled()
        job.external, job.local_tokens = job.prompt_tokens, 0
        if not self._submit(request, job, instance_number(target.instance.id)):
            self._place(request)

    def died(self, job: EngineJob, number: int) -> None:
        """The plant: its engine is gone. Before its first byte one more may try."""
        request = _request(job)
        request.asked.router.misses(number)
        begun = request.first_s > 0
        request.failed_at("broken" if begun else "died")
        if begun or request.asked.is_poison:
            self._end(request, RequestEnd.FAILED, -1)
        else:
            self._place(request)

    def _end(self, request: _Request, end: RequestEnd, number: int, source: EngineJob | None = None) -> None:
        now, outcome, said = self._moments.now_s, self.outcome, request.said
        outcome.arrived_s.append(request.sent_s)
        outcome.waited_s.append(request.waited_s)
        outcome.ttft_s.append(request.first_s - request.sent_s if end is RequestEnd.OK else float("nan"))
        outcome.duration_s.append(now - request.sent_s)
        outcome.session.append(said.session.number)
        outcome.instance.append(number)
        outcome.prompt_tokens.append(said.prompt_tokens)
        outcome.local_tokens.append((source.local_tokens or 0) if source is not None else 0)
        outcome.host_tokens.append(source.host_tokens if source is not None else 0)
        outcome.pool_tokens.append(source.pool_tokens if source is not None else 0)
        outcome.output_tokens.append(said.output_tokens)
        outcome.end.append(end)
        if self._progress is not None and len(outcome) % TOLD_EVERY == 0:
            self._progress(now, len(outcome))
        if request.admission is not None:
            self._leave_admission(request, request.admission, source)
        request.job.tag = None  # a circle less per request for the collector of garbage to find
        self._clients.ended(said, end is RequestEnd.OK)

    # doors

    def _leave_admission(self, request: _Request, turn: Admission, source: EngineJob | None) -> None:
        """It gives back what it took there. `source`: what computed its prompt; None: it has no answer."""
        gate, said = request.asked.router.gate, request.said
        assert gate is not None, "it came through one"
        self._admissions.pop(turn, None)
        if source is not None:
            context_tokens = said.prompt_tokens + said.output_tokens
            # Loads from the pool count as computed: KV memory is what the door is about.
            gate.on_answer(turn, said.prompt_tokens, context_tokens, source.local_tokens)
        else:
            gate.on_leave(turn)
        self._look_at(gate)

    def _look_at(self, gate: ModelAdmission) -> None:
        called = gate.release_waiting()
        for turn in called.admitted:
            request = self._admissions[turn]
            request.waited_s = self._moments.now_s - request.sent_s
            self._place(request)
        for hold in called.refused:
            self._end(self._admissions[hold.admission], RequestEnd.SHED, -1)
        next_s = gate.next_s
        if next_s is not None and self._looks_s.get(gate) != next_s:
            self._looks_s[gate] = next_s
            self._moments.at(max(next_s, self._moments.now_s + SOON_S), self._look_is_due, gate, next_s)

    def _look_is_due(self, gate: ModelAdmission, next_s: float) -> None:
        if self._looks_s.get(gate) == next_s:
            del self._looks_s[gate]
            self._look_at(gate)


def _request(job: EngineJob) -> _Request:
    assert isinstance(job.tag, _Request), "nobody else sends jobs"
    return job.tag
