"""Simulated clients: sessions of chats that share beginnings, streamed or whole, some of which hang up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from router.lab.rng import Rng
from router.tasks import Tasks
from tests.simulation.http_client import HttpReply, post
from tests.simulation.oracle import Oracle
from tests.simulation.routers import PORT

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MODEL = "warm-tiny"
WORDS = ("sea", "wind", "salt", "harbour", "keel", "rope", "sail", "tide", "gull", "storm", "deck", "mast")
SYSTEM_PROMPTS = 4
TURNS = 6
THINK_S = 20.0
LONGEST_ANSWER = 40
LEAVES = 0.08  # of the requests: the client hangs up
LEAVES_WITHIN_S = 3.0
TENANT_HEADER = "x-tenant"
TENANTS = ("free", "limited", "few")
PATIENCE_S = 300.0  # a router that lost its power closes no connection


class PlayedRequest(NamedTuple):
    """One request and what the client knows about it at the end."""

    router: str
    path: str
    body: dict[str, Any]
    sent_s: float
    ended_s: float
    reply: HttpReply
    left: bool  # the client hung up before the end


class Clients:
    """All clients of a run. `sent` are the requests that have ended, `open` the number of those that have not."""

    def __init__(self, routers: Sequence[str], oracle: Oracle, rng: Rng) -> None:
        self.sent: list[PlayedRequest] = []
        self.open = 0
        self._routers = routers
        self._oracle = oracle
        self._rng = rng
        self._tasks = Tasks("clients")
        self._stopping = False

    def start(self, sessions: int) -> None:
        """Keep this many sessions busy until `finish`."""
        for _ in range(sessions):
            self._tasks.spawn("session", self._chat_on())

    async def finish(self, within_s: float) -> None:
        """Send nothing more, and wait until all answers have ended, `within_s` at most."""
        self._stopping = True
        await self._tasks.finish(within_s)

    async def _chat_on(self) -> None:
        while not self._stopping:
            await self._converse()

    async def _converse(self) -> None:
        """Play one session: a system prompt that others have, and some turns that repeat what was said before."""
        tenant = TENANTS[self._rng.below(len(TENANTS))]
        messages = [{"role": "system", "content": self._text(self._rng.below(SYSTEM_PROMPTS), 300)}]
        for _ in range(1 + self._rng.below(TURNS)):
            await asyncio.sleep(THINK_S * self._rng.below(1000) / 1000)
            if self._stopping:
                return
            messages.append({"role": "user", "content": self._text(self._rng.bits(), 5 + self._rng.below(60))})
            if self._rng.happens(0.1):
                await self._send(tenant, COMPLETIONS, {"prompt": " ".join(one["content"] for one in messages)})
                messages.pop()
                continue
            sent = await self._send(tenant, CHAT, {"messages": list(messages)})
            if not sent.reply.finished:
                return
            answer = self._oracle.answer(CHAT, sent.body).text
            messages.append({"role": "assistant", "content": answer})

    async def _send(self, tenant: str, path: str, prompt: dict[str, Any]) -> PlayedRequest:
        rng, loop = self._rng, asyncio.get_running_loop()
        body = {"model": MODEL, "temperature": 0, "max_tokens": 1 + rng.below(LONGEST_ANSWER), **prompt}
        if rng.happens(0.7):
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        router = self._routers[rng.below(len(self._routers))]
        leaves = rng.happens(LEAVES)
        leave_after_s = LEAVES_WITHIN_S * rng.below(1000) / 1000 if leaves else PATIENCE_S
        sent_s = loop.time()
        self.open += 1
        headers = {TENANT_HEADER: tenant}
        reply = await post(router, PORT, path, msgspec.json.encode(body), headers, leave_after_s=leave_after_s)
        self.open -= 1
        left = leaves and not reply.whole
        sent = PlayedRequest(router, path, body, sent_s, loop.time(), reply, left)
        self.sent.append(sent)
        return sent

    def _text(self, seed: int, words: int) -> str:
        rng = Rng(seed)
        return " ".join(WORDS[rng.below(len(WORDS))] for _ in range(words))
