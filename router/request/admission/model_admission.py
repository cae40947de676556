"""Admission control of one model over a fleet: adds the clock, the fleet's capacity and the prompt's overlap.

    arrive -> Admitted | Queued          on_answer | on_leave          release_waiting -> Released

Nothing waits and nothing is sent here: the live router (`request/admission/waiting.py`) and the simulator make the same
calls at the same moments. There is one per base model, since that is what a KV cache belongs to.
"""

from __future__ import annotations

from math import inf
from sys import maxsize

from router.clock import Clock
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.request.admission.controller import (
    AdmissionController,
    AdmissionState,
    Admitted,
    Arrival,
    KnownProgram,
    Queued,
    Released,
)
from router.request.admission.shared_prefixes import PromptPrefix
from router.scheduling.scheduler import Scheduler
from scorers.admission.contract import Admission, AdmissionRule, FleetMemory, TargetMemory

MEASURE_INTERVAL_S = 1.0  # instances join, leave and report their sizes far less often


class ModelAdmission:
    """Admission of `model`; `share` of the fleet's KV cache is this router's (one of several)."""

    __slots__ = ("_clock", "_fleet", "_measured_at", "_scheduler", "_share", "controller", "model")

    def __init__(
        self, model: str, controller: AdmissionController, scheduler: Scheduler, clock: Clock, share: float = 1.0
    ) -> None:
        self.model = model
        self.controller = controller
        self._fleet = FleetMemory()
        self._scheduler = scheduler
        self._clock = clock
        self._share = share
        self._measured_at = -inf

    def arrive(
        self,
        session: bytes | None,
        prompt_tokens: int | None,
        tokens: TokenizedPrompt | None,
        local_tokens: int | None = None,
    ) -> Admitted | Queued:
        """Admit or queue a request. Call `on_answer` or `on_leave` afterwards. `tokens` is `None` when unknown, or when
        what instances hold of them was found before (`local_tokens`; `None`: unknown).
        """
        if tokens is not None and self.needs_overlap(session, prompt_tokens):
            local_tokens = find_local_tokens(self._scheduler, self.model, tokens, self._clock.now())
        now = self._clock.now()
        self._update_capacity(now)
        return self.controller.arrive(Arrival(session, prompt_tokens, local_tokens), now)

    def begin_elsewhere(self, session: bytes | None, prompt_tokens: int | None) -> Admission:
        """Count a request that another router has admitted."""
        now = self._clock.now()
        self._update_capacity(now)
        return self.controller.begin_elsewhere(session, prompt_tokens, now)

    def learn(self, known: KnownProgram) -> None:
        """Take over what another router knows of a program. Call `release_waiting` afterwards."""
        self.controller.learn(known, self._clock.now())

    def needs_overlap(self, session: bytes | None, prompt_tokens: int | None) -> bool:
        """Return whether it matters what instances hold of a prompt."""
        self._update_capacity(self._clock.now())
        return self.controller.needs_overlap(session, prompt_tokens)

    def switch(self, rule: AdmissionRule, max_wait_s: float, idle_s: float) -> None:
        """Let `rule` decide from now on. Call `release_waiting` afterwards."""
        self.controller.switch(rule, max_wait_s, idle_s, self._clock.now())

    def on_placed(self, admission: Admission, target: str, prefix: PromptPrefix | None = None) -> None:
        """The request was sent to `target`. `prefix`: of its prompt; `None`: unknown."""
        self.controller.on_placed(admission, target, self._clock.now(), prefix)

    def on_first_token(self, admission: Admission) -> None:
        """The answer has begun. Call `release_waiting` afterwards."""
        self.controller.on_first_token(admission, self._clock.now())

    def on_answer(
        self,
        admission: Admission,
        prompt_tokens: int,
        context_tokens: int,
        local_tokens: int | None = None,
        decode_s: float | None = None,
    ) -> None:
        now = self._clock.now()
        self.controller.on_answer(admission, prompt_tokens, context_tokens, now, local_tokens, decode_s)

    def on_leave(self, admission: Admission) -> None:
        self.controller.on_leave(admission, self._clock.now())

    def release_waiting(self, at_most: int = maxsize) -> Released:
        """Return the requests whose wait ends now, `at_most` so many of either kind. Call it after every arrival and
        every end, and at `next_s`.
        """
        now = self._clock.now()
        self._update_capacity(now)
        return self.controller.release_waiting(now, at_most)

    @property
    def next_s(self) -> float | None:
        """The time at which `release_waiting` is due if nothing happens before; `None` while nothing waits."""
        return self.controller.next_s

    def state(self, listed: int = maxsize) -> AdmissionState:
        """Return the state as of now, with at most `listed` of the waiting requests."""
        return self.controller.state(self._clock.now(), listed)

    @property
    def targets(self) -> tuple[TargetMemory, ...]:
        return self._fleet.targets

    @property
    def capacity_tokens(self) -> int | None:
        """The KV tokens of all targets; `None`: no instance has reported its size."""
        return self._fleet.capacity_tokens

    def _update_capacity(self, now: float) -> None:
        if now - self._measured_at > MEASURE_INTERVAL_S:
            self._measured_at = now
            self._fleet = self._measure(now)
        self.controller.set_fleet(self._fleet._replace(busy=self._scheduler.fleet.busy))

    def _measure(self, now: float) -> FleetMemory:
        """Add up the healthy instances. One that has not reported its size counts as empty until its first poll."""
        peers, candidates = self._scheduler.peers, self._scheduler.fleet.candidates(self.model, (), now)
        answering = [target for target in candidates if not peers.is_prefill_only(target)]
        sizes = [target.capacity_tokens for target in answering if target.capacity_tokens is not None]
        targets = (TargetMemory(target.id, self._part(target.capacity_tokens)) for target in answering)
        return FleetMemory(self._part(sum(sizes)) if sizes else None, tuple(targets))

    def _part(self, tokens: int | None) -> int | None:
        """Return this router's share of `tokens`."""
        return None if tokens is None else int(tokens * self._share)


def find_local_tokens(scheduler: Scheduler, model: str, tokens: TokenizedPrompt, now: float) -> int | None:
    """Return the longest prefix that any instance holds in a tier of its own, or soon will; `None` where some do not
    report, since there may be more.
    """
    best = 0
    candidates = scheduler.fleet.candidates(model, (), now)
    estimates = scheduler.view_builder.estimates(tokens, candidates)
    for target in candidates:
        estimate = estimates.get(target.id)
        if estimate is None or estimate.overlap is None:
            return None
        best = max(best, estimate.overlap.expected_tokens, estimate.overlap.disk_tokens)
    return best
