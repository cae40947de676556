"""A fleet and its routers in virtual time: one scenario, one policy, one workload, one seed -> one `Outcome`.

    client      sends a turn ------> router: door, admit ------> plant: engines
                                        ^   ^                       |
    next turn,  <---- last token -------+   +--- events, gauges ----+
    after its pause                              as late as the lags say

Here are the clients, and what becomes of each of their requests; engines and what is told of them are `plant.py`, time
is `moments.py`. The routers are the live one's own core (`router.py`): nothing in here decides anything. Same
arguments, same outcome, to the last digit: there is no other source of chance than the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from router.config import schema
from router.decide.door import Pass
from router.decide.door import Turn as Inside
from router.sim.dice import Dice
from router.sim.moments import Moments
from router.sim.outcome import End, Outcome
from router.sim.plant import Plant
from router.sim.prompts import Context
from router.sim.router import Asked, Question, Router, number_of
from router.sim.scenario import Scenario
from router.sim.strides import Job
from router.sim.workloads import Session, Span, Workload

ANSWER = -1  # sources of answers are negative; those of prompts are not
DEATHS_ALLOWED = 1  # of engines that took a request, as on the live line
SOON_S = 0.001  # the least time between two looks at a door by the clock
AGAIN_S = 1.0  # after which a client that was turned away comes again
TOLD_EVERY = 256  # ended requests


def simulate(
    scenario: Scenario,
    policy: schema.Policy,
    workload: Workload,
    *,
    seed: int = 0,
    at_once: int | None = None,
    staggered: bool = False,
    until_s: float | None = None,
    stopwatch: Callable[[], float] | None = None,
    progress: Callable[[float, int], None] | None = None,
) -> Outcome:
    """Serves `workload` by `policy`. `at_once`: closed loop, so many sessions at a time, the next begins when one ends;
    None: each begins at its `start_s`. `staggered`: the first ones begin somewhere in their course, so that they do not
    all grow old together. `until_s`: virtual time at which nothing more is sent; what runs is finished. `stopwatch`
    times decisions. `progress` is told virtual seconds and ended requests now and then.
    """
    run = _Run(scenario, policy, seed, until_s, stopwatch, progress)
    return run.serve(workload.sessions, at_once, staggered)


class _Turn:
    """One request of a client, from its sending to its end."""

    __slots__ = (
        "asked",
        "context",
        "deaths",
        "first_s",
        "inside",
        "job",
        "number",
        "prefill",
        "router",
        "sent_s",
        "session",
        "waited_s",
    )

    def __init__(self, session: Session, number: int, context: Context, router: int, sent_s: float) -> None:
        self.session = session
        self.number = number
        self.context = context
        self.router = router
        self.sent_s = sent_s
        self.waited_s = 0.0
        self.first_s = 0.0
        self.deaths = 0
        self.inside: Inside | None = None  # its place in the books of its router's door
        self.asked: Asked | None = None
        self.job: Job | None = None  # that answers
        self.prefill: Job | None = None  # that computes its prompt elsewhere


class _Run:
    def __init__(
        self,
        scenario: Scenario,
        policy: schema.Policy,
        seed: int,
        until_s: float | None,
        stopwatch: Callable[[], float] | None,
        progress: Callable[[float, int], None] | None,
    ) -> None:
        self._scenario = scenario
        self._policy = policy
        self._seed = seed
        self._until_s = float("inf") if until_s is None else until_s
        self._stopwatch = stopwatch
        self._progress = progress
        self._chance = Dice(seed ^ 0x5EED)
        self._moments = Moments()
        self.routers: list[Router] = []
        self._waiting: dict[Inside, _Turn] = {}  # all that are in the books of a door
        self._doors_s: list[float | None] = [None] * scenario.routers  # when they must be looked at
        self._closed = False
        self._sending = 0  # requests under way, and turns that are yet to be sent
        self.outcome = Outcome(scenario.instances)
        self._plant = Plant(scenario, self._moments, self._chance, self.outcome, self)

    # building

    def _router(self, number: int, policy: schema.Policy) -> Router:
        scenario = self._scenario
        return Router(
            policy,
            scenario.instances,
            scenario.prefills,
            scenario.block_tokens,
            self._moments.clock,
            seed=self._seed * 1000 + number,
            shared_pool=scenario.store is not None,
            door=scenario.door,
            share=1 / scenario.routers,
        )

    def serve(self, sessions: Sequence[Session], at_once: int | None, staggered: bool) -> Outcome:
        scenario, starts_s = self._scenario, self._scenario.trouble.router_starts_s
        first = TURNS if starts_s > 0 else self._policy
        self.routers = [self._router(number, first) for number in range(scenario.routers)]
        self._plant.start()
        if starts_s > 0:
            self._moments.at(starts_s, self._start_routers)
        self._plant.fail()
        self._begin(sessions, at_once, staggered)
        while self._sending and self._moments.step():
            pass
        self._plant.end()
        self.outcome.took_s = self._moments.now_s
        self.outcome.double_bookings = sum(
            target.books.requests for router in self.routers for target in router.core.fleet.serving(None)
        )
        return self.outcome

    # clients

    def _begin(self, sessions: Sequence[Session], at_once: int | None, staggered: bool) -> None:
        rest = iter(sessions)
        if at_once is None:
            self._open(rest)
            return
        self._rest, self._closed = rest, True
        for _ in range(at_once):
            if (session := next(rest, None)) is None:
                break
            self._sending += 1
            start = self._chance.below(len(session.turns)) if staggered else 0
            self._session(session, start)

    def _open(self, rest: Iterator[Session]) -> None:
        """The next session of an open loop begins when its time has come."""
        session = next(rest, None)
        self._rest = iter(())
        if session is None or session.start_s >= self._until_s:
            return
        self._sending += 1
        self._moments.at(max(session.start_s, self._moments.now_s), self._opens, session, rest)

    def _opens(self, session: Session, rest: Iterator[Session]) -> None:
        self._open(rest)
        self._session(session, 0)

    def _session(self, session: Session, start: int) -> None:
        context = Context(self._scenario.block_tokens)
        for number in range(start):  # what was said before the simulation began
            self._says(context, session, number)
        self._moments.at(self._moments.now_s + session.turns[start].think_s, self._send, session, start, context)

    def _says(self, context: Context, session: Session, number: int) -> int:
        """A turn's prompt and answer are added to what was said. Returns the prompt's length."""
        turn = session.turns[number]
        context.keep(turn.kept_tokens)
        for span in turn.fresh:
            context.add(span)
        prompt_tokens = context.tokens
        context.add(Span(ANSWER - (session.number << 20 | number), turn.output_tokens))
        return prompt_tokens

    def _send(self, session: Session, number: int, context: Context) -> None:
        now = self._moments.now_s
        if now >= self._until_s:
            self._sending -= 1
            return
        turn = _Turn(session, number, context, session.number % len(self.routers), now)
        prompt_tokens = self._says(context, session, number)
        # The names are the session's, which goes on: the job gets its own copy.
        turn.job = Job(context.names[:], prompt_tokens, session.turns[number].output_tokens, turn)
        self._ask(turn)

    def _send_again(self, before: _Turn) -> None:
        now, old = self._moments.now_s, _job(before)
        if now >= self._until_s:
            self._sending -= 1
            return
        turn = _Turn(before.session, before.number, before.context, before.router, now)
        turn.job = Job(old.names, old.prompt_tokens, old.output_tokens, turn)
        self._ask(turn)

    def _ask(self, turn: _Turn) -> None:
        """A request reaches its router, which may let it wait."""
        router, names = self.routers[turn.router], self._prompt(turn)
        question = Question(str(turn.session.number), names, _job(turn).prompt_tokens, self._plant.pooled_tokens(names))
        turn.asked = router.opens(question)
        if router.gate is None:
            self._place(turn)
            return
        verdict = turn.asked.arrives(router.gate)
        turn.inside = verdict.turn
        self._waiting[verdict.turn] = turn
        if isinstance(verdict, Pass):
            self._place(turn)
        self._look_at_door(turn.router)

    def _place(self, turn: _Turn) -> None:
        asked, job = _asked(turn), _job(turn)
        began_s = self._stopwatch() if self._stopwatch is not None else 0.0
        ticket = asked.admit()
        if self._stopwatch is not None:
            self.outcome.deciding_s += self._stopwatch() - began_s
        self.outcome.decisions += 1
        if ticket is None:
            self._end(turn, End.FAILED if turn.deaths else End.SHED, -1)
        elif ticket.half is not None:
            self._plant.poll_soon(number_of(ticket.target.instance.id))  # it is booked already
            turn.prefill = Job(self._prompt(turn), job.prompt_tokens, 1, turn)
            self._submit(turn, turn.prefill, number_of(ticket.half.target.instance.id))
        else:
            self._submit(turn, job, number_of(ticket.target.instance.id))

    def _prompt(self, turn: _Turn) -> Sequence[int]:
        """The names of its prompt's full blocks."""
        job = _job(turn)
        return job.names[: job.prompt_tokens // self._scenario.block_tokens]

    def _submit(self, turn: _Turn, job: Job, number: int) -> None:
        asked = _asked(turn)
        self._plant.poll_soon(number)
        if not self._plant.is_alive(number):
            self._suspect(turn.router, number)
            asked.failed_at("connect")
            self._place(turn)
        elif not self._plant.submit(job, number):
            asked.failed_at("busy", 503)
            self._place(turn)

    def first(self, job: Job) -> None:
        """The plant: its first token. A prompt that is computed for another engine has none that counts."""
        turn = _turn(job)
        if job is not turn.prefill:
            turn.first_s = self._moments.now_s
            _asked(turn).first_byte()

    def done(self, job: Job, number: int) -> None:
        """The plant: its last one."""
        turn = _turn(job)
        if job is turn.prefill:  # its other half goes on
            ticket, answering = _asked(turn).ticket, _job(turn)
            assert ticket is not None
            self.routers[turn.router].core.prefilled(ticket, "ok", 200)
            answering.external, answering.local_tokens = job.prompt_tokens, 0
            self._submit(turn, answering, number_of(ticket.target.instance.id))
            return
        source = turn.prefill or job
        _asked(turn).done(source.cached_tokens, job.prompt_tokens, job.output_tokens)
        self._end(turn, End.OK, number, source)

    def _end(self, turn: _Turn, end: End, number: int, source: Job | None = None) -> None:
        now, outcome, job = self._moments.now_s, self.outcome, _job(turn)
        outcome.arrived_s.append(turn.sent_s)
        outcome.waited_s.append(turn.waited_s)
        outcome.ttft_s.append(turn.first_s - turn.sent_s if end is End.OK else float("nan"))
        outcome.duration_s.append(now - turn.sent_s)
        outcome.session.append(turn.session.number)
        outcome.instance.append(number)
        outcome.prompt_tokens.append(job.prompt_tokens)
        outcome.local_tokens.append((source.local_tokens or 0) if source is not None else 0)
        outcome.host_tokens.append(source.host_tokens if source is not None else 0)
        outcome.pool_tokens.append(source.pool_tokens if source is not None else 0)
        outcome.output_tokens.append(job.output_tokens)
        outcome.end.append(end)
        if self._progress is not None and len(outcome) % TOLD_EVERY == 0:
            self._progress(now, len(outcome))
        if turn.inside is not None:
            self._leaves(turn, turn.inside, end, source)
        job.tag = None  # a circle less per request for the collector of garbage to find
        self._go_on(turn, end)

    def _leaves(self, turn: _Turn, inside: Inside, end: End, source: Job | None) -> None:
        """It gives back what it took at the door."""
        router, job = self.routers[turn.router], _job(turn)
        self._waiting.pop(inside, None)
        assert router.gate is not None
        if end is End.OK and source is not None:
            context_tokens = job.prompt_tokens + job.output_tokens
            # Loads from the pool count as computed: KV memory is what the door is about.
            router.gate.answered(inside, job.prompt_tokens, context_tokens, source.local_tokens)
        else:
            router.gate.left(inside)
        self._look_at_door(turn.router)

    def _look_at_door(self, number: int) -> None:
        gate = self.routers[number].gate
        if gate is None:
            return
        called = gate.look()
        for inside in called.passed:
            turn = self._waiting[inside]
            turn.waited_s = self._moments.now_s - turn.sent_s
            self._place(turn)
        for hold in called.refused:
            self._end(self._waiting[hold.turn], End.SHED, -1)
        next_s = gate.next_s
        if next_s is not None and self._doors_s[number] != next_s:
            self._doors_s[number] = next_s
            self._moments.at(max(next_s, self._moments.now_s + SOON_S), self._door_is_due, number, next_s)

    def _door_is_due(self, number: int, next_s: float) -> None:
        if self._doors_s[number] == next_s:
            self._doors_s[number] = None
            self._look_at_door(number)

    def _go_on(self, turn: _Turn, end: End) -> None:
        """The session's next turn comes after its pause; or in its place the next session begins. Who was turned away
        in a closed loop comes again with the same.
        """
        session, following = turn.session, turn.number + 1
        if end is not End.OK and self._closed:
            self._moments.at(self._moments.now_s + AGAIN_S, self._send_again, turn)
            return
        if following < len(session.turns):
            comes_s = self._moments.now_s + session.turns[following].think_s
            self._moments.at(comes_s, self._send, session, following, turn.context)
        elif (another := next(self._rest, None)) is not None:
            self._session(another, 0)
        else:
            self._sending -= 1

    # trouble

    def _start_routers(self) -> None:
        """Fresh ones take over from those that only took turns: what those began, they end."""
        self.routers = [self._router(number, self._policy) for number in range(self._scenario.routers)]
        for number in range(self._scenario.instances):
            self._plant.connect(number)

    def died(self, job: Job, number: int) -> None:
        """The plant: its engine is gone. Before its first byte one more may try."""
        turn = _turn(job)
        turn.deaths += 1
        self._suspect(turn.router, number)
        begun = turn.first_s > 0
        _asked(turn).failed_at("broken" if begun else "died")
        if begun or turn.deaths > DEATHS_ALLOWED:
            self._end(turn, End.FAILED, -1)
            return
        old = _job(turn)
        turn.job, turn.prefill = Job(old.names, old.prompt_tokens, old.output_tokens, turn), None
        self._place(turn)

    def _suspect(self, router: int, number: int) -> None:
        """Somebody could not reach it, so it is probed at once."""
        self.routers[router].misses(number)


def _turn(job: Job) -> _Turn:
    assert isinstance(job.tag, _Turn), "nobody else sends jobs"
    return job.tag


def _job(turn: _Turn) -> Job:
    assert turn.job is not None, "it was sent"
    return turn.job


def _asked(turn: _Turn) -> Asked:
    assert turn.asked is not None, "a router has seen it"
    return turn.asked


TURNS = schema.Policy.model_validate({"scorers": [{"name": "round_robin"}]})
