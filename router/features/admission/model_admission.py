"""Admission control of one model over a fleet. It adds the clock, the fleet's capacity and the prompt's overlap to
`AdmissionController`.

    arrive -> Admitted | Queued          on_answer | on_leave          release_waiting -> Released

This module neither waits nor sends: the live router (`waiting.py`) and the simulator make the same calls at the
same moments. There is one `ModelAdmission` per base model, because a KV cache belongs to one base model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from math import inf
from sys import maxsize

from router.clock import Clock
from router.features.admission.controller import AdmissionController
from router.features.admission.pending_request import HeldPrefix, PendingRequest
from router.features.admission.shared_prefixes import PromptPrefix
from router.features.admission.verdicts import (
    AdmissionState,
    Admitted,
    Arrival,
    ComputedPrompt,
    KnownProgram,
    PrefillTimes,
    Queued,
    Released,
)
from router.fleet.instance import Target
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.scheduling.scheduler import Scheduler
from scorers.admission.contract import Admission, AdmissionRule, FleetMemory, TargetLoad, TargetMemory

HOLDS_AS_MUCH = 0.9  # of the longest prefix makes a target a holder too, as in filter `near_longest`
NEWEST_ANSWER = 0.05  # weight of the newest answer in their mean duration
MOST_HOLDERS = 4  # checked for room, at most: one of so many has room soon enough
MEASURE_INTERVAL_S = 1.0  # instances join, leave and report their sizes far less often


class ModelAdmission:
    """Admission of `model`. `share` is the part of the fleet's KV cache that this router, one of several, uses."""

    __slots__ = ("_clock", "_fleet", "_loads", "_measured_at", "_scheduler", "_share", "controller", "model")

    def __init__(
        self, model: str, controller: AdmissionController, scheduler: Scheduler, clock: Clock, share: float = 1.0
    ) -> None:
        self.model = model
        self.controller = controller
        self._fleet = FleetMemory()
        self._scheduler = scheduler
        self._clock = clock
        self._share = share
        self._loads = TargetLoads(clock, lambda: scheduler.fleet.answer_lengths.mean_tokens(model))
        self._measured_at = -inf

    def arrive(self, pending: PendingRequest) -> Admitted | Queued:
        """Admit or queue a request. Call `on_answer` or `on_leave` afterwards."""
        session, prompt_tokens, _, _, _, claim = pending
        held = self.find_held(pending)
        now = self._clock.now()
        self._update_capacity(now)
        local_tokens, holders = (None, ()) if held is None else held
        times = self._estimate_prefill(prompt_tokens, local_tokens or 0, now)
        return self.controller.arrive(Arrival(session, prompt_tokens, local_tokens, claim, holders, times), now)

    def find_held(self, pending: PendingRequest) -> HeldPrefix | None:
        """Return the longest prefix of a request's prompt that a target holds; None if it is unknown, or the rule
        does not need it.
        """
        tokens = pending.tokens
        if tokens is None or not self.needs_overlap(pending.session, pending.prompt_tokens):
            return pending.held
        return find_held(self._scheduler, self.model, tokens, self._clock.now())

    def _estimate_prefill(self, prompt_tokens: int | None, local_tokens: int, now: float) -> PrefillTimes | None:
        """Return how long a typical idle engine takes for a prompt; None if unknown."""
        speed = self._scheduler.fleet.nominal_speed(self.model, now)
        if speed is None or prompt_tokens is None:
            return None
        warm_ms = speed.prefill_ms(prompt_tokens - local_tokens, local_tokens)
        return PrefillTimes(warm_ms / 1e3, speed.prefill_ms(prompt_tokens, 0) / 1e3)

    def begin_elsewhere(self, pending: PendingRequest) -> Admission:
        """Count a request that another router has admitted."""
        now = self._clock.now()
        self._update_capacity(now)
        return self.controller.begin_elsewhere(pending.session, pending.prompt_tokens, now, pending.claim)

    def learn(self, known: KnownProgram) -> None:
        """Adopt another router's state of a program. Call `release_waiting` afterwards."""
        self.controller.learn(known, self._clock.now())

    def needs_overlap(self, session: bytes | None, prompt_tokens: int | None) -> bool:
        """Return whether admission of the prompt depends on the prefix that instances hold."""
        now = self._clock.now()
        self._update_capacity(now)
        return self.controller.needs_overlap(session, prompt_tokens, now)

    def switch(self, rule: AdmissionRule, max_wait_s: float, idle_s: float) -> None:
        """Let `rule` decide from now on. Call `release_waiting` afterwards."""
        self.controller.switch(rule, max_wait_s, idle_s, self._clock.now())

    def on_placed(
        self, admission: Admission, target: str, held_tokens: int | None, prefix: PromptPrefix | None = None
    ) -> None:
        """Record that the request was sent to `target`, which is expected to hold `held_tokens` of its prompt.
        `prefix` is the prompt's. None: unknown.
        """
        now = self._clock.now()
        self._loads.on_placed(target, now)
        self.controller.on_placed(admission, target, now, held_tokens, prefix)

    def on_first_token(self, admission: Admission) -> None:
        """Record that the answer has begun. Call `release_waiting` afterwards."""
        now = self._clock.now()
        self._loads.on_prefilled(admission.target, now)
        self.controller.on_first_token(admission, now)

    def on_answer(self, admission: Admission, computed: ComputedPrompt) -> None:
        """Record that the request was answered."""
        self._loads.on_answered(computed.decode_s)
        self.controller.on_answer(admission, computed, self._clock.now())

    def on_leave(self, admission: Admission) -> None:
        self.controller.on_leave(admission, self._clock.now())

    def release_waiting(self, at_most: int = maxsize) -> Released:
        """Return the requests whose wait ends now, at most `at_most` of each kind (admitted, late, past deadline).
        Call it after every arrival and every end, and at `next_s`.
        """
        now = self._clock.now()
        self._update_capacity(now)
        return self.controller.release_waiting(now, at_most)

    @property
    def next_s(self) -> float | None:
        """The time at which `release_waiting` is due unless something happens before; None while nothing waits."""
        return self.controller.next_s

    def state(self, listed: int = maxsize) -> AdmissionState:
        """Return the state as of now, with at most `listed` of the waiting requests."""
        return self.controller.state(self._clock.now(), listed)

    @property
    def targets(self) -> tuple[TargetMemory, ...]:
        return self._fleet.targets

    @property
    def capacity_tokens(self) -> int | None:
        """The KV tokens of all targets; None if no instance has reported its size."""
        return self._fleet.capacity_tokens

    def _update_capacity(self, now: float) -> None:
        if now - self._measured_at > MEASURE_INTERVAL_S:
            self._measured_at = now
            self._fleet = self._measure(now)
        self.controller.set_fleet(self._fleet._replace(busy=self._scheduler.fleet.occupancy.busy, loads=self._loads))

    def _measure(self, now: float) -> FleetMemory:
        """Return the KV memory of the healthy instances. An instance counts as having none until its first poll
        reports its size.
        """
        peers, candidates = self._scheduler.peers, self._scheduler.fleet.candidates(self.model, (), now)
        answering = [target for target in candidates if not peers.is_prefill_only(target)]
        sizes = [target.capacity_tokens for target in answering if target.capacity_tokens is not None]
        self._loads.set_targets([] if peers else answering)  # in pairs, other instances do the prefill
        targets = (TargetMemory(target.id, self._part(target.capacity_tokens)) for target in answering)
        return FleetMemory(self._part(sum(sizes)) if sizes else None, tuple(targets))

    def _part(self, tokens: int | None) -> int | None:
        """Return this router's share of `tokens`."""
        return None if tokens is None else int(tokens * self._share)


class TargetLoads:
    """The loads of the targets that can answer, computed anew on every iteration. `mean_answer` returns the mean
    length of answers in tokens; None: unknown.
    """

    def __init__(self, clock: Clock, mean_answer: Callable[[], float | None]) -> None:
        self._clock = clock
        self._mean_answer = mean_answer
        self._targets: dict[str, Target] = {}
        self._since_s: dict[str, float] = {}  # when the engine began its present prefill
        self._answer_s: float | None = None  # mean, from the first token to the last

    def set_targets(self, targets: list[Target]) -> None:
        self._targets = {target.id: target for target in targets}
        self._since_s = {id: since_s for id, since_s in self._since_s.items() if id in self._targets}

    def on_placed(self, id: str, now: float) -> None:
        """Record that a request was sent to a target, in whose load book it is already entered."""
        target = self._targets.get(id)
        if target is not None and target.load_book.prefilling <= 1:
            self._since_s[id] = now

    def on_prefilled(self, id: str | None, now: float) -> None:
        """Record that an engine has finished a prefill."""
        if id in self._since_s:
            self._since_s[id] = now

    def on_answered(self, decode_s: float | None) -> None:
        """Record that an answer has ended, `decode_s` seconds after its first token; None: unknown."""
        if decode_s is not None:
            mean_s = decode_s if self._answer_s is None else self._answer_s
            self._answer_s = mean_s + NEWEST_ANSWER * (decode_s - mean_s)

    def __iter__(self) -> Iterator[TargetLoad]:
        now, answer_tokens = self._clock.now(), self._mean_answer() or 0.0
        for id, target in self._targets.items():
            book, gauges = target.load_book, target.load_book.gauges
            speed = target.latency_model.speed(now)
            left_ms = 0.0
            if book.prefilling:
                left_ms = max(0.0, book.queued_ms(speed) - (now - self._since_s.get(id, now)) * 1e3)
            yield TargetLoad(
                id,
                book.prefilling,
                left_ms,
                max(0.0, speed.base_ms),
                book.live_tokens + round(answer_tokens * (book.requests + book.prefilling) / 2),
                target.capacity_tokens,
                gauges.waiting,
                gauges.kv_usage,
                book.others_waiting,
                book.live_tokens / self._answer_s if self._answer_s else None,
            )


def find_held(scheduler: Scheduler, model: str, tokens: TokenizedPrompt, now: float) -> HeldPrefix | None:
    """Return the longest prefix of a prompt that a target holds, and its holders; None if the overlap of some
    target is unknown.
    """
    held: dict[str, int] = {}
    candidates = scheduler.fleet.candidates(model, (), now)
    estimates = scheduler.view_builder.estimates(tokens, candidates)
    for target in candidates:
        estimate = estimates.get(target.id)
        if estimate is None or estimate.overlap is None:
            return None
        held[target.id] = max(estimate.overlap.expected_tokens, estimate.overlap.disk_tokens)
    best = max(held.values(), default=0)
    holders = (id for id, held_tokens in held.items() if best and held_tokens >= HOLDS_AS_MUCH * best)
    return HeldPrefix(best, tuple(islice(holders, MOST_HOLDERS)))
