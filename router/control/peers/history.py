"""The sessions and stored responses that a peer needs when it starts, in slices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

from router.control.peers.messages import SessionAnswered, SessionMoved
from router.control.peers.parts import Message
from router.control.peers.scheduler import PeerScheduler

HISTORY_SLICE = 2_000  # messages without a pause: about a millisecond
PAUSE_S = 0.005


async def list_history(scheduler: PeerScheduler) -> AsyncIterator[Message]:
    """Yield the last targets and the progress of sessions, and the targets of stored responses, with pauses. Each
    entry has its values at the time it is sent: a later move is sent as news, and the entry must not undo it.
    """
    for n, message in enumerate(_list_messages(scheduler)):
        if n % HISTORY_SLICE == HISTORY_SLICE - 1:
            await asyncio.sleep(PAUSE_S)
        yield message


def _list_messages(scheduler: PeerScheduler) -> Iterator[Message]:
    sessions = scheduler.selector.sessions
    for key, _ in sessions.items():
        if (target := sessions.get(key)) is not None:
            yield SessionMoved(*key, target, scheduler.moved_at(key))
    progress = scheduler.selector.progress
    for session, _ in progress.items():
        if (now := progress.get(session)) is not None:
            yield SessionAnswered(*session, now.turn, now.answered_s, now.tool_call)
    yield from scheduler.stored_responses()
