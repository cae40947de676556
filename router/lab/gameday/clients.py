"""The clients of a game day: the load whose results are judged, and clients that are themselves the fault.

The load is a closed loop of chats (`router/lab/loadgen`), by agents that the tenants share. A flood is one prompt,
sent by many clients at once. Clients that hang up close their connection before the answer is complete, some before
its first byte. Single requests are small and not streamed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import count, cycle, islice
from typing import Any, NamedTuple

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
FLOOD_ANSWER_TOKENS = 8
HANG_UP_ANSWER_TOKENS = 64
CALIBRATION_SEED = 1
LONGEST_PATIENCE_S = 0.4  # of a client that hangs up
SINGLE_SESSION = -1  # number of the session of single requests, which have none
SINGLE_ANSWER_TOKENS = 4
LONGEST_SINGLE_S = 300.0  # without any byte
SINGLES_SEED = 3_000_017  # apart from the seeds of clients that hang up


class LoadEndpoint(NamedTuple):
    """The endpoint that clients send to."""

    url: str
    model: str
    api_keys: tuple[str | None, ...] = (None,)  # of the tenants; None: no key
    tokens_per_word: float = 1.0


async def examine_endpoint(url: str, model: str | None, api_key: str | None, clock: Clock) -> LoadEndpoint:
    """Return the endpoint of the router at `url`; `model` None stands for the first model that it lists. Raises
    EndpointUnavailable.
    """
    base, found = url.rstrip("/").removesuffix("/v1"), model or await find_first_model(url, api_key)
    async with LoadClient(base, found, clock, api_key) as client:
        return LoadEndpoint(base, found, (api_key,), await measure_tokens_per_word(client, CALIBRATION_SEED))


class GamedayClients:
    """The clients of one game day at one endpoint. `start_s`: when the day begins, by `clock`."""

    def __init__(self, script: GamedayFile, endpoint: LoadEndpoint, clock: Clock, start_s: float) -> None:
        self._script = script
        self._endpoint = endpoint
        self._clock = clock
        self._start_s = start_s
        self._sessions = make_sessions(script)

    async def run_load(self, until_s: float, report: ReportRequest) -> None:
        """Run the load that is judged until `until_s`, and return when all its requests have ended."""
        keys, agents = self._endpoint.api_keys, self._script.load.agents
        async with asyncio.TaskGroup() as tenants:
            for number, key in enumerate(keys):
                job = self._job("gameday", key, len(range(number, agents, len(keys))), until_s)
                work = load(job, self._clock, self._start_s, report, self._sessions)
                tenants.create_task(work, name=f"load {number}")

    async def run_singles(self, until_s: float, report: ReportRequest) -> None:
        """Send small requests without streaming until `until_s`, and return when all have ended."""
        singles = self._script.load.singles
        await asyncio.gather(*(self._send_singles(number, until_s, report) for number in range(singles)))

    async def run_flood(self, clients: int, tokens: int, until_s: float) -> list[SentRequest]:
        """Send one prompt of `tokens` tokens from `clients` clients at once, again and again until `until_s`. Return
        all requests.
        """
        turn = Turn(0, (Span(FLOOD_SOURCE, tokens),), FLOOD_ANSWER_TOKENS, 0.0)
        sessions = (Session(number, 0.0, (turn,)) for number in count())
        sent: list[SentRequest] = []
        job = self._job("flood", self._endpoint.api_keys[0], clients, until_s)
        await load(job, self._clock, self._start_s, sent.append, sessions)
        return sent

    async def run_hang_ups(self, clients: int, until_s: float) -> int:
        """Let `clients` clients begin and abandon chats until `until_s`. Return the number of abandoned chats."""

        async def leave_often(number: int) -> int:
            rng, left = Rng(self._script.seed * 1_000_003 + number), 0
            while self._clock.now() - self._start_s < until_s:
                patience_s = _uniform(rng) * LONGEST_PATIENCE_S
                await _leave_one(self._endpoint, f"hang-up {number} {self._recur(left)}", patience_s)
                left += 1
            return left

        return sum(await asyncio.gather(*(leave_often(number) for number in range(clients))))

    async def _send_singles(self, number: int, until_s: float, report: ReportRequest) -> None:
        """Send small requests one after the other, each after a pause."""
        rng, sent = Rng(self._script.seed * SINGLES_SEED + number), 0
        async with _open_http(self._endpoint) as http:
            while (now_s := self._now()) < until_s:
                text = f"{self._script.seed} {number} {self._recur(sent)}"
                body = {"prompt": text, "max_tokens": SINGLE_ANSWER_TOKENS}
                report(await self._send_single(http, body | {"model": self._endpoint.model, "ignore_eos": True}))
                sent += 1
                await asyncio.sleep(max(0.0, now_s - self._now() + 2 * self._script.load.think_s * _uniform(rng)))

    async def _send_single(self, http: httpx.AsyncClient, body: Mapping[str, Any]) -> SentRequest:
        sent_s, status, usage, failure = self._now(), None, dict[str, Any](), None
        try:
            answer = await http.post("/v1/completions", json=body)
            status, usage = answer.status_code, answer.json().get("usage", {})
            failure = None if status == 200 else answer.text[:200]
        except (httpx.HTTPError, ValueError) as error:
            failure = f"{type(error).__name__}: {error}"
        return SentRequest(
            session=SINGLE_SESSION,
            turn=0,
            sent_s=sent_s,
            late_s=0.0,
            duration_s=self._now() - sent_s,
            planned_tokens=0,
            planned_output_tokens=SINGLE_ANSWER_TOKENS,
            prompt_tokens=usage.get("prompt_tokens"),
            output_tokens=usage.get("completion_tokens"),
            status=status if failure else None,
            failure=failure,
        )

    def _recur(self, number: int) -> int:
        """Return the number of the prompt that is the `number`th of a client."""
        prompts = self._script.load.sessions
        return number if prompts is None else number % prompts

    def _now(self) -> float:
        return self._clock.now() - self._start_s

    def _job(self, name: str, api_key: str | None, agents: int, until_s: float) -> LoadJob:
        endpoint, seed = self._endpoint, self._script.seed
        return LoadJob(
            url=endpoint.url,
            model=endpoint.model,
            api_key=api_key,
            name=f"{name}-{seed}",
            text_seed=seed,
            tokens_per_word=endpoint.tokens_per_word,
            concurrency=agents,
            until_s=until_s,
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
    async with _open_http(endpoint) as client:
        with suppress(TimeoutError, httpx.HTTPError):
            async with (
                asyncio.timeout(patience_s),
                client.stream("POST", "/v1/chat/completions", json=body) as answer,
            ):
                async for _ in answer.aiter_bytes():
                    pass


def _open_http(endpoint: LoadEndpoint) -> httpx.AsyncClient:
    """Return a client of the endpoint, with the key of the first tenant."""
    has_tls = endpoint.url.startswith("https:")  # without TLS no context is made, which would cost 20 ms
    headers, timeout = bearer(endpoint.api_keys[0]), LONGEST_SINGLE_S
    return httpx.AsyncClient(base_url=endpoint.url, headers=headers, trust_env=False, verify=has_tls, timeout=timeout)


def make_sessions(script: GamedayFile) -> Iterator[Session]:
    """Yield sessions without end, again and again the same if the load has a number of them."""
    sessions = _make_new_sessions(script)
    return sessions if script.load.sessions is None else cycle(islice(sessions, script.load.sessions))


def _make_new_sessions(script: GamedayFile) -> Iterator[Session]:
    """Yield sessions that share the system prompt, and have turns of their own."""
    load, rng = script.load, Rng(script.seed)
    sources = count(FIRST_SOURCE)
    for number in count():
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
