"""The selector: applies the active policies to views, and keeps the history that decisions need.

The history is the number of the request, the turn, the seed, and each session's last target (which has the
session's cache), whichever arm chose that target. The whole history goes into the view, so a decision can be
replayed from its record. `decide` does not change the history; only a real choice (`picked`) does, so explaining a
choice has no effect. Prefill halves of pairs have a separate history, because they go to other targets. If a policy
fails, the fallback makes that decision and the fault is counted: a scorer's bug may cost cache hits, never
requests.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.experiments.shadow import Shadow
from router.scheduling.policy.decision import Decision, Part, ShadowChoice
from router.scheduling.policy.policy import Policy, PolicyFault, fallback_policy
from router.scheduling.policy.session_memory import SessionMemory
from router.scheduling.policy.session_progress import SessionProgress
from scorers.contract import Needs, Outcome, Scorer, View

log = logging.getLogger("warmroute.decide")

MAX_TURNS = 10_000  # engines load and unload adapters under new names; above this limit, all turns restart at 0


class DecisionHistory(NamedTuple):
    """The part of a view that the selector fills in."""

    seed: int
    turn: int
    last_target: str | None
    parent_target: str | None


class Selector:
    """Makes decisions by the active policies. Draws depend on `seed`; up to `sessions` sessions are remembered."""

    def __init__(self, policy_set: PolicySet, *, seed: int, sessions: int = 100_000) -> None:
        self.seed = seed
        self.faults: Counter[tuple[str, str]] = Counter()  # by (policy, plug-in), in decisions and in learning
        self.fallbacks = 0  # number of decisions made by the fallback
        self.shadows: list[Shadow] = []
        self._fallback = fallback_policy()
        self.request_count = 0  # of requests so far
        self.sessions = SessionMemory(sessions)
        self.progress = SessionProgress(sessions)  # updated only if a policy in use reads it
        self._turns: Counter[tuple[bool, str, str | None]] = Counter()  # by (is a prefill half, model, adapter)
        self.swap(policy_set)

    @property
    def needs(self) -> Needs:
        """The parts of a view that the active policies read; no other parts need to be gathered."""
        return self.policy_set.needs

    def swap(self, policy_set: PolicySet) -> None:
        """Make `policy_set` the active one. Sessions and the results of unchanged shadows are retained."""
        self.policy_set = policy_set
        current = {(shadow.policy.name, shadow.policy.digest): shadow for shadow in self.shadows}
        names = [] if policy_set.experiment is None else policy_set.experiment.shadows
        policies = [policy_set.policies[name] for name in names]
        self.shadows = [current.get((policy.name, policy.digest)) or Shadow(policy) for policy in policies]

    def next_number(self) -> int:
        """Return the number of a new request, for its view; retries keep the number."""
        number = self.request_count
        self.request_count += 1
        return number

    def history(
        self,
        model: str,
        adapter: str | None,
        session: str | None,
        parent: str | None = None,
        part: Part = "whole",
    ) -> DecisionHistory:
        """Return the history for a view of this model, adapter, session and parent."""
        turn = self._turns[part == "prefill", model, adapter]
        last_target = self.sessions.last_target_of(model, session, part)
        parent_target = None if parent is None else self.sessions.last_target_of(model, parent, part)
        return DecisionHistory(self.seed, turn, last_target, parent_target)

    def decide(self, view: View, policy: Policy, part: Part = "whole") -> Decision:
        """Fill in the history of a view with at least one row, and return the choice."""
        return self.choose(self._with_history(view, part), policy, part)

    def choose(self, view: View, policy: Policy, part: Part = "whole") -> Decision:
        """Return the choice for a view that has its history and at least one row."""
        try:
            return policy.decide(view, part)
        except PolicyFault as fault:
            self._record_fault(fault)
            self.fallbacks += 1
            return self._fallback.decide(view)._replace(part=part)

    def explain(self, view: View, policy: Policy) -> Decision:
        """Return the decision that `decide` would make, without counting faults."""
        view = self._with_history(view, "whole")
        try:
            return policy.decide(view)
        except PolicyFault:
            return self._fallback.decide(view)

    def _with_history(self, view: View, part: Part) -> View:
        return view._replace(**self.history(view.model, view.adapter, view.session, view.parent, part)._asdict())

    def picked(self, decision: Decision) -> None:
        """Record that the request goes to the target of `decision`. Call this once, when the request is booked."""
        view, part = decision.view, decision.part
        self._turns[part == "prefill", view.model, view.adapter] += 1
        if len(self._turns) > MAX_TURNS:
            self._turns.clear()
        self.sessions.record(view, part, decision.target)
        if decision.learners:
            self._notify_learners(decision, lambda scorer: scorer.picked(decision.seen, decision.row))

    def on_answer(self, view: View, tool_call: bool | None, now_s: float) -> None:
        """Count an answer of the view's session, if a policy in use reads the progress of sessions."""
        if view.session is not None and self.policy_set.needs_session:
            self.progress.on_answer((view.model, view.session), now_s, tool_call)

    def evaluate_shadows(self, decision: Decision) -> list[ShadowChoice]:
        """Return the choice of each shadow. Call this when the answer is complete, off the request's path."""
        choices = [shadow.evaluate(decision) for shadow in self.shadows]
        return [choice for choice in choices if choice is not None]

    def finished(self, decision: Decision, outcome: Outcome) -> None:
        """Report the end of a request to the learners. Call this once for every `picked`, also after a swap."""
        self._notify_learners(decision, lambda scorer: scorer.finished(decision.seen, decision.row, outcome))

    def _notify_learners(self, decision: Decision, notify: Callable[[Scorer], None]) -> None:
        for scorer in decision.learners:
            try:
                notify(scorer)
            except Exception as failure:  # noqa: BLE001  a plug-in may raise anything; the request must not fail
                self._record_fault(PolicyFault(decision.policy, type(scorer).__name__, failure))

    def _record_fault(self, fault: PolicyFault) -> None:
        """Count a fault; log a plug-in's 1st, 2nd, 4th, 8th, ... fault: a broken plug-in fails at every request."""
        self.faults[fault.policy, fault.plugin] += 1
        times = self.faults[fault.policy, fault.plugin]
        if times & (times - 1) == 0:
            log.error("%s (fault %d of this plug-in)", fault, times, exc_info=fault.failure)
