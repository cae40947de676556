"""What a worker or a router that starts is told of sessions and stored responses, in slices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from router.control.workers.messages import Message, ResponseStored, SessionAnswered, SessionMoved
from router.control.workers.scheduler import SyncedScheduler

HISTORY_SLICE = 2_000  # messages without a pause: about a millisecond
PAUSE_S = 0.005


async def list_history(scheduler: SyncedScheduler) -> AsyncIterator[Message]:
    """Yield the last targets and the progress of sessions, and the targets of stored responses, with pauses. Each entry
    is as it is when it is sent: a later move is sent as news, and must not be undone by this.
    """
    sessions = scheduler.selector.sessions
    for n, (key, _) in enumerate(sessions.items()):
        if n % HISTORY_SLICE == HISTORY_SLICE - 1:
            await asyncio.sleep(PAUSE_S)
        if (target := sessions.get(key)) is not None:
            yield SessionMoved(*key, target)
    progress = scheduler.selector.progress
    for n, (whose, _) in enumerate(progress.items()):
        if n % HISTORY_SLICE == HISTORY_SLICE - 1:
            await asyncio.sleep(PAUSE_S)
        if (now := progress.get(whose)) is not None:
            yield SessionAnswered(*whose, now.turn, now.answered_s, now.tool_call)
    for n, stored in enumerate(list_responses(scheduler)):
        if n % HISTORY_SLICE == HISTORY_SLICE - 1:
            await asyncio.sleep(PAUSE_S)
        yield stored


def list_responses(scheduler: SyncedScheduler) -> list[ResponseStored]:
    """Return the targets of stored responses, the oldest first."""
    return [ResponseStored(*stored) for stored in scheduler.responses()]
