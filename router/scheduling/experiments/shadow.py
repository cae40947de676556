"""Shadows: policies that decide on the views of live requests, without booking or learning anything.

A shadow remembers to which target it would have sent a session, so that a policy that keeps sessions together is
judged by its own history. A shadow that fails is disabled: it would fail at every request, and no request needs it.
"""

from __future__ import annotations

import logging

from router.scheduling.experiments.regret import RegretSummary
from router.scheduling.policy.decision import Decision, Part, ShadowChoice
from router.scheduling.policy.policy import Policy, PolicyFault
from router.scheduling.policy.session_memory import SessionMemory
from scorers.contract import View

log = logging.getLogger("warmroute.decide")

SESSIONS = 20_000


class ShadowPolicy:
    """Decides on recorded views with a session memory of its own, for shadows, dry runs and replays. The memory
    contains only sessions that the policy would have sent to another target. If both choices agree, later events
    (such as retries) apply to both.
    """

    def __init__(self, sessions: int = SESSIONS) -> None:
        self._sessions = SessionMemory(sessions)

    def decide(self, policy: Policy, view: View, part: Part, actual: str) -> Decision:
        """Return the choice of `policy`; `actual` is the target that was really chosen. Raises PolicyFault if a
        plug-in fails.
        """
        if (own := self._sessions.last_target(view, part)) is not None and own != view.last_target:
            view = view._replace(last_target=own)
        if (
            view.parent is not None
            and (own := self._sessions.last_target_of(view.model, view.parent, part)) is not None
        ):
            view = view._replace(parent_target=own)
        decision = policy.decide(view, part)
        if decision.target == actual:
            self._sessions.forget(view, part)
        else:
            self._sessions.record(view, part, decision.target)
        return decision


class Shadow:
    """One shadow and its regret so far."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.regret = RegretSummary()
        self.fault: str | None = None  # why the shadow is disabled; None: it is not
        self._policy_with_memory = ShadowPolicy()

    def evaluate(self, actual: Decision) -> ShadowChoice | None:
        """Return the shadow's own choice; None if it is disabled."""
        if self.fault is not None:
            return None
        try:
            own = self._policy_with_memory.decide(self.policy, actual.view, actual.part, actual.target)
        except PolicyFault as fault:
            self.fault = str(fault)
            self.regret.failed += 1
            log.error("shadow %s is disabled: %s", self.policy.name, fault, exc_info=fault.failure)
            return None
        return ShadowChoice(self.policy.name, own.target, self.regret.add(actual.view, actual.row, own.row))
