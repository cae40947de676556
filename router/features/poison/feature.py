"""Poison prompts: a prompt on which two engines died is refused for some minutes instead of killing two more."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from math import ceil
from typing import Any

from fastapi import FastAPI
from prometheus_client.core import Metric

from router.control.api.admin import NOT_THERE
from router.control.api.shapes import OpenShape
from router.control.core import Core
from router.control.feature import Feature
from router.errors import NotFound, PoisonRefused, quote_name
from router.features.poison.book import KEPT_S, PoisonBook, PoisonPrompt, name_prompt
from router.features.poison.peers import SharedPoison
from router.request.request import Held, Request
from router.request.services import Services
from router.request.stages import FeaturePath
from router.telemetry.metrics.family import build_family

log = logging.getLogger("warmroute.request")


class PoisonShape(OpenShape):
    """A prompt that is refused. `id`: a digest of its model and tokens."""

    id: str
    model: str
    sender: str | None
    targets: list[str]
    found_at: float
    left_s: float


class PoisonList(OpenShape):
    prompts: list[PoisonShape]


class PoisonFeature(Feature, Held):
    """Refuses the prompts in its book, to which every request that ended as poison adds its own."""

    def __init__(self, core: Core) -> None:
        self._clock = core.clock
        self.book = PoisonBook()
        self.path = FeaturePath(tokenized=self.check)
        self._peers: SharedPoison | None = None
        if core.peers is not None:
            self._peers = SharedPoison(self.book, core.peers, core.clock)
            self.shared = (self._peers,)

    def check(self, request: Request, services: Services) -> None:
        """Raises `PoisonRefused` for a prompt in the book. Otherwise follow the request to its end."""
        if len(self.book):
            now = self._clock.now()
            found = self.book.find(self._name(request), now)
            if found is not None:
                left_s = ceil(found.until_s - now)
                raise PoisonRefused(
                    f"engines died on this prompt, so it is refused for another {left_s} s", code="poison_prompt"
                )
        request.hold(self)

    def release(self, request: Request) -> None:
        """Remember the prompt if engines died on it."""
        record = request.record
        if record is None:
            return
        if not record.poison:
            if self.book.has_suspects and record.status == 200 and record.error is None:
                self.book.acquit(self._name(request))
            return
        targets = tuple(attempt.decision.target for attempt in record.attempts if attempt.end == "died")
        digest, until_s = self._name(request), self._clock.now() + KEPT_S
        prompt = PoisonPrompt(digest, until_s, self._clock.wall(), record.model, record.sender, targets)
        for other in self.book.blame(prompt):
            if self._peers is not None:
                self._peers.on_lifted(other.digest)
        if self.book.find(digest, self._clock.now()) is None:
            log.warning("record %s: engines died on this request and others at once; each is a suspect", record.id)
            return
        log.error(
            "record %s: %s died on a prompt of %s: refused for %g minutes, unless DELETE /admin/poison/%s lifts that",
            record.id,
            " and ".join(targets),
            "an unknown sender" if record.sender is None else quote_name(record.sender),
            KEPT_S / 60,
            digest.hex(),
        )
        if self._peers is not None:
            self._peers.on_found(prompt)

    def _name(self, request: Request) -> bytes:
        model = "" if request.served is None else request.served.base
        return name_prompt(model, request.known, request.prompt.body)

    def families(self) -> Iterator[Metric]:
        now = self._clock.now()
        refused = float(sum(1 for _ in self.book.list(now)))
        meaning = "prompts that are refused now, because engines died on them"
        yield build_family("poison_prompts", meaning, (), [((), refused)])

    def add_routes(self, app: FastAPI, read: list[Any], write: list[Any]) -> None:
        @app.get("/admin/poison", dependencies=read)
        async def poison() -> PoisonList:
            """Return the prompts that are refused because engines died on them: who sent them, where they were tried,
            and for how long they are refused.
            """
            now = self._clock.now()
            return PoisonList(prompts=[_describe(prompt, now) for prompt in self.book.list(now)])

        @app.delete("/admin/poison/{id}", dependencies=write, responses=NOT_THERE, status_code=204)
        async def lift(id: str) -> None:
            """Accept a prompt again, at all processes."""
            digest = next(
                (prompt.digest for prompt in self.book.list(self._clock.now()) if prompt.digest.hex() == id), b""
            )
            if not self.book.lift(digest):
                raise NotFound(f"no refused prompt has the id {quote_name(id)}", param="id")
            if self._peers is not None:
                self._peers.on_lifted(digest)


def _describe(prompt: PoisonPrompt, now: float) -> PoisonShape:
    return PoisonShape(
        id=prompt.digest.hex(),
        model=prompt.model,
        sender=prompt.sender,
        targets=list(prompt.targets),
        found_at=prompt.found_wall_s,
        left_s=round(prompt.until_s - now, 1),
    )
