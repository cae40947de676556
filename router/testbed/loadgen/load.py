"""The load of one client process: sessions talk to an endpoint in a closed or an open loop, and each request is told.

Closed: so many agents at once; one that has ended its session begins the next, and a turn waits for the answer before
it and a pause, so a slow endpoint is asked less. Open: each session begins at its `start_s`, whatever has become of
the others, so that an endpoint that cannot keep up falls behind visibly. How late requests left, measured against the
moment they were due, is what the client itself adds, and is told with each.

A failure ends its session. Each session names itself in `X-Session-ID`, so a router can tell them apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import msgspec

from router.clock import Clock
from router.testbed.loadgen.client import ClientAnswer, ClientFailure, LoadClient
from router.testbed.loadgen.conversations import Conversation, TextConversation, TokenConversation
from router.testbed.loadgen.job import LoadJob, SentRequest
from router.testbed.loadgen.text import TextGenerator
from router.testbed.workloads import Session, Turn

Tell = Callable[[SentRequest], None]


async def load(job: LoadJob, clock: Clock, began_s: float, tell: Tell) -> None:
    """Returns when every session has ended, or `until_s` is over and what was sent is answered.

    `began_s` is the common beginning by `clock`; `tell` hears of each request at its end.
    """
    async with LoadClient(job.url, job.model, clock, job.api_key) as client:
        one = _Load(job, client, clock, began_s, tell)
        await (one.open() if job.concurrency is None else one.closed(job.concurrency))


class _Load:
    def __init__(self, job: LoadJob, client: LoadClient, clock: Clock, began_s: float, tell: Tell) -> None:
        self._job = job
        self._client = client
        self._clock = clock
        self._began_s = began_s
        self._tell = tell
        self._texts = TextGenerator(job.text_seed, job.tokens_per_word)

    async def closed(self, concurrency: int) -> None:
        waiting = iter(self._job.sessions)
        await self._comes(0.0)
        async with asyncio.TaskGroup() as agents:
            for number in range(concurrency):
                agents.create_task(self._agent(waiting), name=f"agent {number}")

    async def open(self) -> None:
        async with asyncio.TaskGroup() as talking:
            for session in sorted(self._job.sessions, key=_first_due_s):
                talk = self._talk()
                talk.prepare(session.turns[0])  # while there is time
                if not await self._comes(_first_due_s(session)):
                    return
                talking.create_task(self._converse(session, talk, session.start_s), name=f"session {session.number}")

    async def _agent(self, waiting: Iterator[Session]) -> None:
        for session in waiting:
            talk = self._talk()
            talk.prepare(session.turns[0])
            if not await self._converse(session, talk, self._now()):
                return

    async def _converse(self, session: Session, talk: Conversation, since_s: float) -> bool:
        """From its first turn, which is prepared, to its end or first failure. False: the load is over."""
        for number, (turn, following) in enumerate(zip(session.turns, [*session.turns[1:], None], strict=True)):
            due_s = since_s + turn.think_s
            if not await self._comes(due_s):
                return False
            sent_s = self._now()
            answer = await talk.ask(self._client, f"{self._job.name}-{session.number}")
            since_s = self._now()
            self._tell(_sent(session.number, number, turn, sent_s, sent_s - due_s, since_s - sent_s, answer))
            if isinstance(answer, ClientFailure):
                break
            if following is not None:
                talk.prepare(following)
        return True

    def _talk(self) -> Conversation:
        return TextConversation(self._texts) if self._job.prompts == "text" else TokenConversation(self._job.text_seed)

    def _now(self) -> float:
        return self._clock.now() - self._began_s

    async def _comes(self, due_s: float) -> bool:
        """Returns at that moment; False, and at once, where nothing may be sent then any more."""
        if self._job.until_s is not None and max(due_s, self._now()) >= self._job.until_s:
            return False
        while True:
            await asyncio.sleep(due_s - self._now())
            if self._now() >= due_s:  # uvloop's timers are up to a millisecond early
                return True


def _first_due_s(session: Session) -> float:
    return session.start_s + session.turns[0].think_s


def _sent(
    session: int,
    number: int,
    turn: Turn,
    sent_s: float,
    late_s: float,
    duration_s: float,
    answer: ClientAnswer | ClientFailure,
) -> SentRequest:
    asked = SentRequest(
        session=session,
        turn=number,
        sent_s=sent_s,
        late_s=max(0.0, late_s),
        duration_s=duration_s,
        planned_tokens=turn.prompt_tokens,
        planned_output_tokens=turn.output_tokens,
    )
    if isinstance(answer, ClientFailure):
        return msgspec.structs.replace(asked, status=answer.status, failure=answer.reason)
    return msgspec.structs.replace(
        asked,
        ttft_s=answer.ttft_ms / 1e3,
        duration_s=answer.total_ms / 1e3,
        prompt_tokens=answer.prompt_tokens,
        output_tokens=answer.output_tokens,
        cached_tokens=answer.cached_tokens,
        target=answer.target,
    )
