"""Progress-TTL (vllm-project/router, issue 285 and pull request 286): keep a program's memory while its return
pays.

A program that waits for its tool keeps its place at its target for d seconds, and is paused after that. With the
recovery cost C, which is the time to recompute x thousand tokens, and log-normal gaps T between an answer and the
next request,

    C    = (a + b x + c x^2) (2 - alpha)                    a = .066, b = .057, c = .00441, alpha = .15, seconds
    U(d) = C P(T < d) - E[T; T < d] - d P(T >= d)           d: the best of 0 and 33 log-spaced, .05 s to min(10 s, C)

A paused or new program with a request begins if its context fits a target beside the programs that hold a place
there, and

    g (R + sum over them of max(0, R - rounds))  fits, too           R = ceil(2 mean rounds until a pause), in 1..14
    or  mean decode time (thr(B + 1) / thr(B) - 1)  >=  C of its own + (before - after) / after  mean C of the others

with g the mean growth per round, thr(B) = B / (f + g' B + h contexts) with f = .010635, g' = .000419, h = 1.42e-7,
and before and after the rounds that the free memory lets each program grow. A target that is over its memory pauses
silent programs, the cheapest first. A request that has waited for 1,800 s begins anyway.

The constants are from the source, fitted to its machine. Where the source gives no formula, these are our reading:
`before` and `after`, the choice of the program that is paused under pressure, and strict order within a queue. The
limit on rounds without a pause is left out. Deviation: the router's policy chooses the target, so a place follows
that choice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil, erf, exp, inf, log, sqrt
from statistics import fmean, pstdev

from scorers.admission.bindings import Bindings
from scorers.admission.contract import (
    Admission,
    AdmissionRule,
    AgentProgram,
    Answer,
    ExpectedLoad,
    FleetMemory,
    Queues,
    TargetMemory,
)
from scorers.parameters import check_above_0

GAPS, STEPS, SHORTEST_S, MAX_ROUNDS = 100, 33, 0.05, 14


@dataclass(eq=False)
class ProgressTtl(AdmissionRule):
    """Targets whose engines have not reported a capacity take no part; without any capacity everything begins.
    Until two gaps are known a place is kept as long as it may be; until a round has ended nothing is reserved for
    growth.
    """

    base_s: float = 0.066
    s_per_ktoken: float = 0.057
    s_per_ktoken2: float = 0.00441
    alpha: float = 0.15
    longest_s: float = 10.0
    step_base_s: float = 0.010635
    step_s_per_request: float = 0.000419
    step_s_per_token: float = 1.42e-7
    forced_after_s: float = 1800.0

    _bound: Bindings = field(init=False, default_factory=Bindings, repr=False)
    _rounds: dict[AgentProgram, int] = field(init=False, default_factory=dict, repr=False)  # since placement
    _expiries: list[tuple[float, int, AgentProgram, float]] = field(init=False, default_factory=list, repr=False)
    _order: int = field(init=False, default=0)  # breaks ties of equal expiries
    _gaps: deque[float] = field(init=False, default_factory=lambda: deque(maxlen=GAPS), repr=False)  # logarithms
    _growths: deque[int] = field(init=False, default_factory=lambda: deque(maxlen=GAPS), repr=False)
    _decodes: deque[float] = field(init=False, default_factory=lambda: deque(maxlen=GAPS), repr=False)
    _ended_rounds: deque[int] = field(init=False, default_factory=lambda: deque(maxlen=GAPS), repr=False)

    def __post_init__(self) -> None:
        check_above_0(longest_s=self.longest_s, step_base_s=self.step_base_s, forced_after_s=self.forced_after_s)

    def adopt(self, programs: Iterable[AgentProgram], now: float, *, idle_s: float, pooled: bool) -> None:
        for program in programs:
            if program.target is not None and not program.waiting:
                self._take_place(program, program.target)
                if program.silent_since_s is not None:
                    self.idle(program, now)

    # verdicts

    def begins(self, admission: Admission, queues: Queues, fleet: FleetMemory, now: float) -> bool:
        program = admission.program
        if program in self._bound or program.running or fleet.capacity_tokens is None:
            return True
        return not any(queues.values()) and self._find_place(admission, fleet)

    def next_to_begin(self, queues: Queues, fleet: FleetMemory, now: float) -> Admission | None:
        firsts = [queue.first for queue in queues.values() if queue.first is not None]
        late = next((first for first in firsts if first.since_s + self.forced_after_s <= now), None)
        if late is not None or not firsts:
            return late
        free = firsts[0].program.running or fleet.capacity_tokens is None
        return firsts[0] if free or self._find_place(firsts[0], fleet) else None

    def due_s(self) -> float | None:
        return self._expiries[0][0] if self._expiries else None

    def expected_load(self) -> ExpectedLoad:
        return ExpectedLoad(len(self._bound), self._bound.tokens)

    def recovery_s(self, tokens: int) -> float:
        """Return C, the cost of recomputing `tokens`, in seconds."""
        x = tokens / 1000
        return (self.base_s + self.s_per_ktoken * x + self.s_per_ktoken2 * x * x) * (2 - self.alpha)

    def keep_s(self, tokens: int) -> float:
        """Return d, the seconds for which a silent program with a context of `tokens` keeps its place."""
        cost_s = self.recovery_s(tokens)
        longest_s = min(self.longest_s, cost_s)
        if len(self._gaps) < 2:
            return longest_s
        mu, sigma = fmean(self._gaps), pstdev(self._gaps)
        step = (longest_s / SHORTEST_S) ** (1 / (STEPS - 1))
        lengths_s = [SHORTEST_S * step**number for number in range(STEPS)] if longest_s > SHORTEST_S else [longest_s]
        best_s = max(lengths_s, key=lambda d: _utility(d, cost_s, mu, sigma))
        return best_s if _utility(best_s, cost_s, mu, sigma) > 0 else 0.0

    def _find_place(self, admission: Admission, fleet: FleetMemory) -> bool:
        """Bind the program to its last target if it may begin there, else to the target with most room if it may
        begin there. Return whether it was bound.
        """
        known = [memory for memory in fleet.targets if memory.capacity_tokens is not None]
        last = [memory for memory in known if memory.target == admission.program.target]
        most = max(known, key=lambda memory: (memory.capacity_tokens or 0) - self._bound.at(memory.target).tokens)
        for memory in [*last, most]:
            if self._fits(admission, memory):
                self._take_place(admission.program, memory.target)
                return True
        return False

    def _fits(self, admission: Admission, memory: TargetMemory) -> bool:
        programs, tokens = self._bound.at(memory.target), max(1, admission.prompt_tokens)
        if not programs:
            return True
        free = (memory.capacity_tokens or 0) - programs.tokens - tokens
        if free < 0:
            return False
        growth = fmean(self._growths) if self._growths else 0.0
        rounds = self._protected_rounds()
        if growth * rounds * (1 + len(programs)) <= free:
            return True  # without looking at each program
        left = rounds + sum(max(0, rounds - self._rounds.get(program, 0)) for program in programs)
        return growth * left <= free or self._gain_s(admission, memory) >= self._loss_s(admission, memory, growth)

    def _protected_rounds(self) -> int:
        """Return R, the rounds for which a program's growth is reserved."""
        mean = fmean(self._ended_rounds) if self._ended_rounds else 0.0
        return min(MAX_ROUNDS, max(1, ceil(2 * mean)))

    def _gain_s(self, admission: Admission, memory: TargetMemory) -> float:
        """Return the seconds per round that one more request in the batch gains."""
        programs = self._bound.at(memory.target)
        requests, contexts = sum(program.running > 0 for program in programs), programs.running_tokens
        if not requests:
            return inf
        if not self._decodes:
            return 0.0
        with_it = self._batch_rate(requests + 1, contexts + admission.prompt_tokens)
        return fmean(self._decodes) * max(0.0, with_it / self._batch_rate(requests, contexts) - 1)

    def _loss_s(self, admission: Admission, memory: TargetMemory, growth: float) -> float:
        """Return the seconds to recompute the candidate, plus the cost to the other programs, which reach a pause
        sooner.
        """
        programs, rounds = self._bound.at(memory.target), self._protected_rounds()
        tokens = max(1, admission.prompt_tokens)
        free = (memory.capacity_tokens or 0) - programs.tokens
        before = min(rounds, free / (growth * len(programs)))
        after = min(rounds, (free - tokens) / (growth * (len(programs) + 1)))
        if after <= 0:
            return inf
        others = fmean(self.recovery_s(program.context_tokens) for program in programs)
        own = self.recovery_s(tokens - min(tokens, admission.local_tokens or 0))
        return own + max(0.0, before - after) / after * others

    def _batch_rate(self, requests: int, contexts: int) -> float:
        """Return thr(B), tokens per second of a batch."""
        step_s = self.step_base_s + self.step_s_per_request * requests + self.step_s_per_token * contexts
        return requests / step_s

    # facts

    def advance(self, fleet: FleetMemory, now: float) -> None:
        while self._expiries and self._expiries[0][0] <= now:
            _, _, program, since_s = heappop(self._expiries)
            if program.silent_since_s == since_s:
                self._pause(program)
        self._bound.move_from_missing(fleet)
        for memory in fleet.targets:
            over = self._bound.at(memory.target).tokens - (memory.capacity_tokens or inf)
            if over > 0:
                self._relieve(memory.target, over)

    def arrived(self, program: AgentProgram, now: float) -> None:
        if program.silent_since_s is not None:
            self._gaps.append(log(max(1e-3, now - program.silent_since_s)))

    def began(self, admission: Admission, now: float) -> None:
        self._bound.update(admission.program)

    def placed(self, admission: Admission, now: float) -> None:
        program = admission.program
        if program.target is not None and self._bound.target_of(program) != program.target:
            self._take_place(program, program.target)

    def ended(self, admission: Admission, answer: Answer | None, now: float) -> None:
        program = admission.program
        self._bound.update(program)
        if answer is None:
            return
        if program in self._rounds:
            self._rounds[program] += 1
        if answer.last_prompt_tokens is not None:
            self._growths.append(max(0, answer.prompt_tokens - answer.last_prompt_tokens))
        if answer.decode_s is not None:
            self._decodes.append(answer.decode_s)

    def idle(self, program: AgentProgram, now: float) -> None:
        self._bound.update(program)
        if program in self._bound and program.silent_since_s is not None:
            expiry_s = now + self.keep_s(program.context_tokens)
            self._order += 1
            heappush(self._expiries, (expiry_s, self._order, program, program.silent_since_s))

    def forgotten(self, program: AgentProgram) -> None:
        self._bound.unbind(program)
        self._rounds.pop(program, None)

    def _take_place(self, program: AgentProgram, target: str) -> None:
        self._bound.bind(program, target)
        self._rounds.setdefault(program, 0)

    def _pause(self, program: AgentProgram) -> None:
        self._bound.unbind(program)
        if (rounds := self._rounds.pop(program, None)) is not None:
            self._ended_rounds.append(rounds)

    def _relieve(self, target: str, over: float) -> None:
        """Pause silent programs until the target is within its memory, or none is left."""
        silent: Sequence[AgentProgram] = [program for program in self._bound.at(target) if not program.running]
        for program in sorted(silent, key=lambda program: program.context_tokens):
            if over <= 0:
                return
            over -= program.context_tokens
            self._pause(program)


def _utility(d: float, cost_s: float, mu: float, sigma: float) -> float:
    """Return U(d), the utility of keeping a place for `d` seconds."""
    returned = _below(d, mu, sigma)
    until_s = exp(mu + sigma * sigma / 2) * _below(d, mu + sigma * sigma, sigma)
    return cost_s * returned - until_s - d * (1 - returned)


def _below(d: float, mu: float, sigma: float) -> float:
    """Return P(T < d) for log-normal T."""
    if sigma <= 0:
        return float(log(d) > mu)
    return (1 + erf((log(d) - mu) / (sigma * sqrt(2)))) / 2
