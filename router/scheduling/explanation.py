"""Explains which target a scheduler would choose now, without booking it."""

from __future__ import annotations

from router.kvcache.events import TargetId
from router.scheduling.policy.decision import Decision
from router.scheduling.scheduler import Scheduler
from router.scheduling.scheduling_request import SchedulingRequest


def explain(
    scheduler: Scheduler, request: SchedulingRequest, now: float, only: TargetId | None = None
) -> Decision | None:
    """Return the choice that `Scheduler.admit` would make at `now`, for a whole request; None if no target could
    serve it. Books, counts and learns nothing.
    """
    record, prompt, known = request.record, request.prompt, request.known
    views = scheduler.view_builder
    candidates = views.candidates(record, prompt.model, (), only, now)
    answering = [target for target in candidates if not scheduler.peers.is_prefill_only(target)]
    if not answering:
        return None
    last = None if known is not None and known.complete else scheduler.conversations.last_answer(prompt, now)
    overlaps = {target: estimate.overlap for target, estimate in views.estimates(known, answering, last).items()}
    rows = scheduler.fleet.row_cache.rows(answering, overlaps, now, views.held_tokens)
    view = views.build(request, rows, now)
    return scheduler.selector.explain(view, record.policy or scheduler.selector.policy_set.policy)
