"""The load of one client process: it runs sessions in a closed or an open loop, and reports each request at its
end.

Closed: there is a fixed number of agents. An agent that has ended its session begins the next, and a turn waits for
the previous answer and a pause, so a slow endpoint gets fewer requests. Open: each session begins at its `start_s`
whatever happens to the others, so an endpoint that cannot keep up visibly falls behind. Each request is reported
with the client's own delay: how long after it was due the client sent it. A failure ends its session. Each session
has an `X-Session-ID`, by which a router can distinguish sessions. Sub-agents begin when the answer that starts them
has arrived. They also send the id of the session that started them as `X-Parent-Session-ID`; the next turn of
this session waits for all of them.

Jobs and reports travel between processes as msgpack, in frames of four bytes of length and that many bytes. Moments
are seconds since the load's common start: every process receives the start as wall-clock time, converts it once to
its own monotonic clock, and measures from it, so the rows of all processes share one time axis.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import msgspec

from router.clock import Clock
from router.lab.loadgen.client import ClientAnswer, ClientFailure, LoadClient, SessionName
from router.lab.loadgen.conversations import (
    Conversation,
    Prompts,
    TextConversation,
    TextGenerator,
    TokenConversation,
)
from router.lab.workloads.model import Session


class LoadJob(msgspec.Struct, frozen=True, kw_only=True):
    """One process's share of the sessions."""

    url: str
    model: str
    api_key: str | None = None
    ca_file: str | None = None  # certificates to trust; None: the system's CAs
    name: str = "load"  # name of the whole load, prefix of session ids
    text_seed: int = 1
    prompts: Prompts = "text"
    tokens_per_word: float = 1.0
    concurrency: int | None = None  # agents of a closed loop; `None`: open, each session begins at its `start_s`
    until_s: float | None = None  # no request is sent after it; `None`: until all are sent
    sessions: tuple[Session, ...] = ()


class SentRequest(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One request and its outcome. `late_s`: delay of sending after it was due, because the client was busy."""

    session: int
    turn: int
    sent_s: float
    late_s: float
    duration_s: float  # to the last token, or to the failure
    planned_tokens: int  # of the prompt
    planned_output_tokens: int
    ttft_s: float | None = None  # this and the next four: `None` for a failure
    pause_s: float | None = None  # the longest between two chunks
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None  # `None` also when the endpoint does not report it
    target: str | None = None  # `None` when no router reports it
    status: int | None = None  # of a failure; `None`: there was no answer
    failure: str | None = None  # its reason; `None`: the request was answered


ReportRequest = Callable[[SentRequest], None]


def encode_frame(message: bytes) -> bytes:
    """Return the message with its length in front."""
    return len(message).to_bytes(4, "big") + message


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """Return the next message. None if the other side has closed the pipe, even inside a message."""
    try:
        length = int.from_bytes(await reader.readexactly(4), "big")
        return await reader.readexactly(length)
    except asyncio.IncompleteReadError:
        return None


async def load(
    job: LoadJob, clock: Clock, start_s: float, report: ReportRequest, sessions: Iterator[Session] | None = None
) -> None:
    """Run all sessions to their end. After `until_s` send nothing more, and return once all requests have ended.

    `start_s` is the common start by `clock`; `report` is called for each request at its end. `sessions`: those of a
    closed loop, in place of the job's, for a load that lasts too long to list them.
    """
    async with LoadClient(job.url, job.model, clock, job.api_key, job.ca_file) as client:
        run = _LoadRun(job, client, clock, start_s, report)
        if job.concurrency is None:
            await run.run_open()
        else:
            await run.run_closed(job.concurrency, iter(job.sessions) if sessions is None else sessions)


class _LoadRun:
    def __init__(self, job: LoadJob, client: LoadClient, clock: Clock, start_s: float, report: ReportRequest) -> None:
        self._job = job
        self._client = client
        self._clock = clock
        self._start_s = start_s
        self._report = report
        self._texts = TextGenerator(job.text_seed, job.tokens_per_word)

    async def run_closed(self, concurrency: int, waiting: Iterator[Session]) -> None:
        await self._wait_until(0.0)
        async with asyncio.TaskGroup() as agents:
            for number in range(concurrency):
                agents.create_task(self._run_agent(waiting), name=f"agent {number}")

    async def run_open(self) -> None:
        async with asyncio.TaskGroup() as running:
            for session in sorted(self._job.sessions, key=_first_due_s):
                conversation = self._begin(session)  # prepared before it is due
                if not await self._wait_until(_first_due_s(session)):
                    return
                talk = self._run_session(session, conversation, session.start_s)
                running.create_task(talk, name=f"session {session.number}")

    async def _run_agent(self, waiting: Iterator[Session]) -> None:
        for session in waiting:
            if not await self._run_session(session, self._begin(session), self._now()):
                return

    async def _run_session(
        self, session: Session, conversation: Conversation, since_s: float, parent: str | None = None
    ) -> bool:
        """Send all turns of a begun session and of its sub-agents, up to its first failure. Return False if the
        load is over.
        """
        name = SessionName(f"{self._job.name}-{session.number}", parent)
        for number, (turn, following) in enumerate(zip(session.turns, [*session.turns[1:], None], strict=True)):
            due_s = since_s + turn.think_s
            if not await self._wait_until(due_s):
                return False
            sent_s = self._now()
            answer = await conversation.send(self._client, name)
            since_s = self._now()
            self._report(_describe(session, number, due_s, sent_s, since_s, answer))
            if isinstance(answer, ClientFailure):
                break
            if sub_agents := session.started_by(number):
                runs = [self._run_session(one, self._begin(one), since_s, name.session) for one in sub_agents]
                if not all(await asyncio.gather(*runs)):
                    return False
                since_s = self._now()
            if following is not None:
                conversation.prepare(following)
        return True

    def _begin(self, session: Session) -> Conversation:
        """Return the session's conversation with its first turn prepared."""
        text, seed = self._job.prompts == "text", self._job.text_seed
        conversation = TextConversation(self._texts) if text else TokenConversation(seed)
        conversation.prepare(session.turns[0])
        return conversation

    def _now(self) -> float:
        return self._clock.now() - self._start_s

    async def _wait_until(self, due_s: float) -> bool:
        """Wait until `due_s`. Return False at once if no request may be sent at that time."""
        if self._job.until_s is not None and max(due_s, self._now()) >= self._job.until_s:
            return False
        while True:
            await asyncio.sleep(due_s - self._now())
            if self._now() >= due_s:  # uvloop's timers are up to a millisecond early
                return True


def _first_due_s(session: Session) -> float:
    return session.start_s + session.turns[0].think_s


def _describe(
    session: Session, number: int, due_s: float, sent_s: float, ended_s: float, answer: ClientAnswer | ClientFailure
) -> SentRequest:
    turn = session.turns[number]
    answered = answer if isinstance(answer, ClientAnswer) else None
    failed = answer if isinstance(answer, ClientFailure) else None
    return SentRequest(
        session=session.number,
        turn=number,
        sent_s=sent_s,
        late_s=max(0.0, sent_s - due_s),
        duration_s=ended_s - sent_s if answered is None else answered.total_ms / 1e3,
        planned_tokens=turn.prompt_tokens,
        planned_output_tokens=turn.output_tokens,
        ttft_s=answered and answered.ttft_ms / 1e3,
        pause_s=answered and answered.pause_ms / 1e3,
        prompt_tokens=answered and answered.prompt_tokens,
        output_tokens=answered and answered.output_tokens,
        cached_tokens=answered and answered.cached_tokens,
        target=answered and answered.target,
        status=failed and failed.status,
        failure=failed and failed.reason,
    )
