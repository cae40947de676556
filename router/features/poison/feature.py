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
from router.proxy.relay import RelayEnd, RelayNotStarted
from router.request.request import Held, Request
from router.request.services import Services
from router.request.stages import FeaturePath
from router.scheduling.policy.record import DEATHS_ALLOWED, Record
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


class Suspect(Held):
    """A request with a suspected prompt."""

    def __init__(self, book: PoisonBook, digest: bytes) -> None:
        self._book = book
        self._digest = digest

    def release(self, request: Request) -> None:
        """Suspect the prompt no longer if it was answered."""
        record = request.record
        if record is not None and record.status == 200 and record.error is None:
            self._book.acquit(self._digest)


class PoisonFeature(Feature):
    """Refuses the prompts in its book, to which every request that ends as poison adds its own."""

    def __init__(self, core: Core) -> None:
        self._clock = core.clock
        self.book = PoisonBook()
        self.path = FeaturePath(tokenized=self.check, recovery=self.blame)
        self._peers: SharedPoison | None = None
        if core.peers is not None:
            self._peers = SharedPoison(self.book, core.peers, core.clock)
            self.shared = (self._peers,)

    def check(self, request: Request, services: Services) -> None:
        """Raises `PoisonRefused` for a prompt in the book. A suspected prompt is followed to its end; a 5xx to one on
        which two engines failed before is not retried.
        """
        if self.book.is_empty:
            return
        digest, now = self._name(request), self._clock.now()
        if (found := self.book.find(digest, now)) is not None:
            left_s = ceil(found.until_s - now)
            raise PoisonRefused(
                f"engines died on this prompt, so it is refused for another {left_s} s", code="poison_prompt"
            )
        request.repeats = not self.book.has_failed(digest, now)
        if self.book.suspects(digest):
            request.hold(Suspect(self.book, digest))

    async def blame(
        self, request: Request, record: Record, end: RelayEnd | None, services: Services
    ) -> RelayEnd | None:
        """Remember the prompt if too many engines died on it."""
        if not isinstance(end, RelayNotStarted) or record.failures <= DEATHS_ALLOWED:
            return end
        if end.reason == "failed":
            self.book.add_failed(self._name(request), self._clock.now() + KEPT_S)
        if end.reason != "died" or record.deaths <= DEATHS_ALLOWED:
            return end
        targets = tuple(attempt.decision.target for attempt in record.attempts if attempt.end == "died")
        digest, until_s = self._name(request), self._clock.now() + KEPT_S
        prompt = PoisonPrompt(digest, until_s, self._clock.wall(), record.model, record.sender, targets)
        for other in self.book.blame(prompt):
            if self._peers is not None:
                self._peers.on_lifted(other.digest)
        if self.book.find(digest, self._clock.now()) is None:
            log.warning("record %s: engines died on this request and others at once; each is a suspect", record.id)
            return end
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
        return end

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
