"""A model's door where it stands in front of a fleet: what it must know of instances and prompts is read from the core.

    arrives -> Pass | Hold          answered | left          look -> whose waiting is over

Still nothing waits here and nothing is sent: the live router (`request/admission/waiting.py`) and the simulator make
the same calls at the same moments. There is one gate per base model, since that is what a KV cache is of.
"""

from __future__ import annotations

from math import inf

from router.clock import Clock
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.request.admission.controller import (
    Admission,
    AdmissionController,
    AdmissionState,
    Admitted,
    Arrival,
    Queued,
    Released,
)
from router.scheduling.scheduler import Scheduler

MEASURED_EVERY_S = 1.0  # instances join, leave and tell their sizes far less often


class ModelAdmission:
    """`share`: of the fleet's memory, where several doors lead to it (one per worker)."""

    __slots__ = ("_clock", "_core", "_measured_at", "_share", "capacity_tokens", "controller", "model", "targets")

    def __init__(
        self, model: str, controller: AdmissionController, core: Scheduler, clock: Clock, share: float = 1.0
    ) -> None:
        self.model = model
        self.controller = controller
        self.capacity_tokens: int | None = None  # None: no instance has told
        self.targets = 0
        self._core = core
        self._clock = clock
        self._share = share
        self._measured_at = -inf

    def arrives(
        self, session: bytes | None, prompt_tokens: int | None, known: TokenizedPrompt | None
    ) -> Admitted | Queued:
        """To be followed by `answered` or `left`. `known`: what is known of the prompt, if anything is."""
        now = self._clock.now()
        self._tell(now)
        local_tokens = None
        if known is not None and self.controller.looks(session, prompt_tokens):
            local_tokens = self._held_tokens(known, now)
        return self.controller.arrives(Arrival(session, prompt_tokens, local_tokens), now)

    def answered(
        self, turn: Admission, prompt_tokens: int, context_tokens: int, local_tokens: int | None = None
    ) -> None:
        self.controller.answered(turn, prompt_tokens, context_tokens, self._clock.now(), local_tokens)

    def left(self, turn: Admission) -> None:
        self.controller.left(turn, self._clock.now())

    def look(self) -> Released:
        """To be called after every arrival and every end, and at `next_s`."""
        now = self._clock.now()
        self._tell(now)
        return self.controller.room(now)

    @property
    def next_s(self) -> float | None:
        """When to look again if nothing happens before; None: nobody waits."""
        return self.controller.next_s

    def state(self) -> AdmissionState:
        return self.controller.state(self._clock.now())

    def _tell(self, now: float) -> None:
        """How much memory there is, and how busy."""
        if now - self._measured_at > MEASURED_EVERY_S:
            self._measured_at = now
            self._measure(now)
        self.controller.behind(self.capacity_tokens, self._core.fleet.busy, self.targets)

    def _measure(self, now: float) -> None:
        """Of those that are well. Who has not told its size yet holds nothing: that is over with its first poll."""
        peers, candidates = self._core.peers, self._core.fleet.candidates(self.model, (), now)
        answering = [target for target in candidates if not peers.prefills(target)]
        told = [target.capacity_tokens for target in answering if target.capacity_tokens is not None]
        self.targets = len(answering)
        self.capacity_tokens = int(sum(told) * self._share) if told else None

    def _held_tokens(self, known: TokenizedPrompt, now: float) -> int | None:
        """The longest beginning of a prompt that any instance holds, in whatever tier of its own, or will soon. None:
        there may be more, some do not tell.
        """
        best = 0
        candidates = self._core.fleet.candidates(self.model, (), now)
        beliefs = self._core.sight.beliefs(known, candidates)
        for target in candidates:
            belief = beliefs.get(target.id)
            if belief is None or belief.overlap is None:
                return None
            best = max(best, belief.overlap.expected_tokens, belief.overlap.disk_tokens)
        return best
