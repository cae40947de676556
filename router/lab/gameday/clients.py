"""The clients of a game day: the load whose results are judged, and clients that are themselves the fault.

The load is a closed loop of chats (`router/lab/loadgen`). A flood is one prompt, sent by many clients at once.
Clients that hang up close their connection before the answer is complete, some before its first byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import NamedTuple

import httpx

from router.clock import Clock
from router.config.sections.gameday import GamedayFile
from router.lab.loadgen.calibration import find_first_model, measure_tokens_per_word
from router.lab.loadgen.client import LoadClient, bearer
from router.lab.loadgen.load import LoadJob, ReportRequest, SentRequest, load
from router.lab.rng import Rng
from router.lab.workloads.model import Session, Span, Turn

SYSTEM_SOURCE, FLOOD_SOURCE = 0, 1
FIRST_SOURCE = 10  # of the sessions' own messages
SESSIONS_PER_AGENT_S = 2.0  # more than an agent can begin
FLOOD_ANSWER_TOKENS = 8
HANG_UP_ANSWER_TOKENS = 64
CALIBRATION_SEED = 1
LONGEST_PATIENCE_S = 0.4  # of a client that hangs up


class LoadEndpoint(NamedTuple):
    """The endpoint that clients send to."""

    url: str
    model: str
    api_key: str | None = None
    tokens_per_word: float = 1.0


async def examine_endpoint(url: str, model: str | None, api_key: str | None, clock: Clock) -> LoadEndpoint:
    """Return the endpoint of the router at `url`; `model` None stands for the first model that it lists. Raises
    EndpointUnavailable.
    """
    base, found = url.rstrip("/").removesuffix("/v1"), model or await find_first_model(url, api_key)
    async with LoadClient(base, found, clock, api_key) as client:
        return LoadEndpoint(base, found, api_key, await measure_tokens_per_word(client, CALIBRATION_SEED))


class GamedayClients:
    """The clients of one game day at one endpoint. `start_s`: when the day begins, by `clock`."""

    def __init__(self, script: GamedayFile, endpoint: LoadEndpoint, clock: Clock, start_s: float) -> None:
        self._script = script
        self._endpoint = endpoint
        self._clock = clock
        self._start_s = start_s

    async def run_load(self, report: ReportRequest) -> None:
        """Run the load that is judged until `ends_s`, and return when all its requests have ended."""
        script = self._script
        job = self._job("gameday", script.load.agents, script.ends_s, tuple(make_sessions(script)))
        await load(job, self._clock, self._start_s, report)

    async def run_flood(self, clients: int, tokens: int, until_s: float) -> list[SentRequest]:
        """Send one prompt of `tokens` tokens from `clients` clients at once, again and again until `until_s`. Return
        all requests.
        """
        turn = Turn(0, (Span(FLOOD_SOURCE, tokens),), FLOOD_ANSWER_TOKENS, 0.0)
        sessions = tuple(Session(number, 0.0, (turn,)) for number in range(clients * 1000))
        sent: list[SentRequest] = []
        await load(self._job("flood", clients, until_s, sessions), self._clock, self._start_s, sent.append)
        return sent

    async def run_hang_ups(self, clients: int, until_s: float) -> int:
        """Let `clients` clients begin and abandon chats until `until_s`. Return the number of abandoned chats."""

        async def leave_often(number: int) -> int:
            rng, left = Rng(self._script.seed * 1_000_003 + number), 0
            while self._clock.now() - self._start_s < until_s:
                patience_s = _uniform(rng) * LONGEST_PATIENCE_S
                await _leave_one(self._endpoint, f"hang-up {number} {left}", patience_s)
                left += 1
            return left

        return sum(await asyncio.gather(*(leave_often(number) for number in range(clients))))

    def _job(self, name: str, agents: int, until_s: float, sessions: tuple[Session, ...]) -> LoadJob:
        endpoint, seed = self._endpoint, self._script.seed
        return LoadJob(
            url=endpoint.url,
            model=endpoint.model,
            api_key=endpoint.api_key,
            name=f"{name}-{seed}",
            text_seed=seed,
            tokens_per_word=endpoint.tokens_per_word,
            concurrency=agents,
            until_s=until_s,
            sessions=sessions,
        )


async def _leave_one(endpoint: LoadEndpoint, text: str, patience_s: float) -> None:
    """Begin a chat and close its connection after `patience_s`, whatever was received by then."""
    body = {
        "model": endpoint.model,
        "messages": [{"role": "user", "content": f"{text} and so on" * 20}],
        "max_tokens": HANG_UP_ANSWER_TOKENS,
        "stream": True,
        "ignore_eos": True,
    }
    has_tls = endpoint.url.startswith("https:")  # without TLS no context is made, which would cost 20 ms
    headers = bearer(endpoint.api_key)
    async with httpx.AsyncClient(base_url=endpoint.url, headers=headers, trust_env=False, verify=has_tls) as client:
        with suppress(TimeoutError, httpx.HTTPError):
            async with (
                asyncio.timeout(patience_s),
                client.stream("POST", "/v1/chat/completions", json=body) as answer,
            ):
                async for _ in answer.aiter_bytes():
                    pass


def make_sessions(script: GamedayFile) -> Iterator[Session]:
    """Yield more sessions than the agents can begin; all share the system prompt, and have turns of their own."""
    load, rng = script.load, Rng(script.seed)
    sources = count(FIRST_SOURCE)
    for number in range(int(script.ends_s * load.agents * SESSIONS_PER_AGENT_S)):
        turns, context = [], 0
        for turn in range(load.turns):
            first = (Span(SYSTEM_SOURCE, load.system_tokens), Span(next(sources), load.first_tokens))
            fresh = first if turn == 0 else (Span(next(sources), load.turn_tokens),)
            turns.append(Turn(context, fresh, load.answer_tokens, 2 * load.think_s * _uniform(rng)))
            context = turns[-1].prompt_tokens + load.answer_tokens
        yield Session(number, 0.0, tuple(turns))


def _uniform(rng: Rng) -> float:
    """Return a number from 0 to 1."""
    return rng.below(1 << 30) / (1 << 30)
