"""Admit by KV memory ("fit and park"): a session begins when its context and those of all live ones fit the fleet.

Once the contexts of the live sessions exceed the KV cache of the fleet, every request evicts tokens that another
one needs, and routing cannot help: running fewer sessions at a time is then faster for all. So

    a new session                        waits unless  contexts of all live sessions + its own <= KV tokens of the fleet
    a request whose context was evicted  waits likewise, ahead of new ones: its session is parked
    every other request                  is admitted at once

where a session's own context is the larger of its prompt and the mean context, since it will grow to the mean.
Tokens that a session shares with others at its target count once in the sum (`AgentProgram.own_tokens`), and so in
the mean. Silent sessions may lose their contexts to others, though, while replacing a lost context costs no scarce
resource: requests then begin beyond the capacity, but never beyond what running requests leave of it, here each
with its whole context,

    without a pool      requests begin while less than `idle_below` of the fleet prefills; at most that share of the
                        targets, or one, has such a request before its first token
    with a shared pool  lost contexts are loaded, not computed: requests wait only while most of the fleet prefills and
                        most of that had been computed before; and of those that waited at most one per target is before
                        its first token, so that no context is loaded only to be pushed out by the next one

Where clients have to identify themselves, tenants get fair shares: then requests wait for saturated engines as well
(`engine_room.py`), with the places that this rule has given them.

A request that needs more than the whole capacity begins when no other session is live. While the capacity is
unknown, everything is admitted. The rule comes from the search that found `warm` (figures: "Admission measured" in
the documentation).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import exp, inf
from typing import ClassVar, Literal

from scorers.admission.contract import (
    Admission,
    AdmissionRule,
    AgentProgram,
    Answer,
    ExpectedLoad,
    FleetMemory,
    QueueName,
    Queues,
    TargetLoad,
)
from scorers.admission.engine_room import wait_for_room
from scorers.admission.live_programs import LivePrograms
from scorers.parameters import check_shares

EVICTED_BELOW = 0.5  # a request that finds less than this share of its session's last prompt has lost its context
BUSY_ABOVE = 0.9  # share of instances with prefill pending (`FleetMemory.busy`)
RECOMPUTED_ABOVE = 0.5  # share of the prompt tokens computed or loaded that had been computed before
RECOMPUTED_OVER_S = 20.0  # averaged over as long as `FleetMemory.busy`


@dataclass(eq=False)
class Fit(AdmissionRule):
    """Contexts of live sessions against the fleet's capacity; without a known capacity everything begins."""

    shares: ClassVar[Literal["never", "tenants", "always"]] = "tenants"

    idle_below: float = 0.15  # 0: never beyond the capacity without a pool

    _live: LivePrograms = field(init=False, repr=False)
    _pooled: bool = field(init=False, default=False)
    _starting: set[Admission] = field(
        init=False, default_factory=set, repr=False
    )  # waited or new, before the first token
    _recomputed: float = field(init=False, default=0.0)  # prompt tokens, decaying
    _computed: float = field(init=False, default=0.0)
    _counted_at: float = field(init=False, default=0.0)

    def adopt(self, programs: Iterable[AgentProgram], now: float, *, idle_s: float, pooled: bool) -> None:
        self._live, self._pooled = LivePrograms(idle_s), pooled
        for program in programs:
            self._live.update(program)
            if program.silent_since_s is not None:
                self._live.on_idle(program, program.silent_since_s)

    def __post_init__(self) -> None:
        check_shares(idle_below=self.idle_below)

    # verdicts

    def needs_overlap(
        self, program: AgentProgram | None, prompt_tokens: int, queues: Queues, fleet: FleetMemory
    ) -> bool:
        if program is None or program.prompt_tokens is None or program.running:
            return False
        return bool(queues["parked"]) or not (self.fits(prompt_tokens, fleet) or self._may_exceed(prompt_tokens, fleet))

    def begins(self, admission: Admission, queues: Queues, fleet: FleetMemory, now: float) -> bool:
        if admission.program.running:
            return True
        if admission.queue == "parked" and not _is_evicted(admission):
            return True
        return not any(queues[queue] for queue in _up_to(admission.queue, queues)) and self._may_start(admission, fleet)

    def next_to_begin(self, queues: Queues, fleet: FleetMemory, now: float) -> Admission | None:
        first = next((queue.first for queue in queues.values() if queue.first is not None), None)
        return first if first is not None and self._may_start(first, fleet) else None

    def engine_wait(self, load: TargetLoad, new_tokens: int) -> float:
        return wait_for_room(load, new_tokens)

    def due_s(self) -> float | None:
        return self._live.next_s if self._live.next_s < inf else None

    def expected_load(self) -> ExpectedLoad:
        return self._live.expected_load()

    def fits(self, prompt_tokens: int, fleet: FleetMemory) -> bool:
        """Return whether a session with a prompt of `prompt_tokens` fits beside all live sessions."""
        live = self._live.expected_load()
        if fleet.capacity_tokens is None or live.context_tokens < 1:
            return True
        return live.context_tokens + max(prompt_tokens, live.mean_tokens) <= fleet.capacity_tokens

    def _may_start(self, admission: Admission, fleet: FleetMemory) -> bool:
        if admission.program.running or self.fits(admission.prompt_tokens, fleet):
            return True
        if not self._may_exceed(admission.prompt_tokens, fleet):
            return False
        if self._pooled:  # else all waiting ones would start once the fleet is a little less busy
            return not (admission.waited and len(self._starting) >= len(fleet.targets))
        return len(self._starting) < max(1.0, self.idle_below * len(fleet.targets))

    def _may_exceed(self, prompt_tokens: int, fleet: FleetMemory) -> bool:
        """Return whether sessions may begin beyond the capacity, at the cost of silent ones."""
        if self._live.running_tokens + prompt_tokens > (fleet.capacity_tokens or 0):
            return False
        if not self._pooled:
            return fleet.busy is not None and fleet.busy < self.idle_below
        return (fleet.busy or 0.0) <= BUSY_ABOVE or self._recomputed <= RECOMPUTED_ABOVE * self._computed

    # facts

    def advance(self, fleet: FleetMemory, now: float) -> None:
        self._live.advance(now)

    def arrived(self, program: AgentProgram, now: float) -> None:
        self._live.on_arrival(program)

    def began(self, admission: Admission, now: float) -> None:
        self._live.update(admission.program)
        if admission.queue in ("again", "new") or (admission.waited and admission.queue == "parked"):
            self._starting.add(admission)

    def placed(self, admission: Admission, now: float) -> None:
        self._live.recount(admission.program)

    def kept(self, program: AgentProgram) -> None:
        self._live.update(program)

    def shared(self, program: AgentProgram) -> None:
        self._live.recount(program)

    def first_token(self, admission: Admission, now: float) -> None:
        self._starting.discard(admission)

    def ended(self, admission: Admission, answer: Answer | None, now: float) -> None:
        self._live.update(admission.program)
        self._starting.discard(admission)
        if answer is not None and answer.local_tokens is not None:
            self._count(answer.last_prompt_tokens or 0, answer.prompt_tokens, answer.local_tokens, now)

    def idle(self, program: AgentProgram, now: float) -> None:
        self._live.on_idle(program, now)

    def forgotten(self, program: AgentProgram) -> None:
        self._live.forget(program)

    def _count(self, before: int, prompt_tokens: int, local_tokens: int, now: float) -> None:
        """Count the tokens that a prompt cost, and how many of them were already in the session's last prompt.
        Loaded tokens count too: loading delays the prompt.
        """
        decay = exp((self._counted_at - now) / RECOMPUTED_OVER_S)
        self._counted_at = now
        self._recomputed = self._recomputed * decay + max(0, min(before, prompt_tokens) - local_tokens)
        self._computed = self._computed * decay + max(0, prompt_tokens - local_tokens)


def _up_to(queue: QueueName, queues: Queues) -> tuple[QueueName, ...]:
    """Return `queue` and the queues served before it."""
    names = tuple(queues)
    return names[: names.index(queue) + 1]


def _is_evicted(admission: Admission) -> bool:
    """Return whether the session's context is lost. A prompt that was cut down or restarted is measured by its own
    length.
    """
    last, local_tokens = admission.program.prompt_tokens or 0, admission.local_tokens
    return local_tokens is not None and local_tokens < EVICTED_BELOW * (min(last, admission.prompt_tokens) or last)
