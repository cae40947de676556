"""Poison prompts over several processes: what one has found is refused by all, and lifted for all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from router.clock import Clock
from router.control.peers.parts import Message, Peers
from router.features.poison.book import PoisonBook, PoisonPrompt
from router.tasks import Tasks


class PoisonFound(Message, frozen=True):
    """Two engines died on a prompt, which is refused for `left_s`."""

    digest: bytes
    left_s: float
    found_wall_s: float
    model: str
    sender: str | None
    targets: list[str]


class PoisonLifted(Message, frozen=True):
    """A prompt is accepted again: an operator lifted its refusal, or it is only suspected now."""

    digest: bytes


class SharedPoison:
    """Connects the `book` of this process with those of its peers."""

    messages: ClassVar[Sequence[type[Message]]] = (PoisonFound, PoisonLifted)

    def __init__(self, book: PoisonBook, peers: Peers, clock: Clock) -> None:
        self._book = book
        self._peers = peers
        self._clock = clock

    def start(self, tasks: Tasks) -> None:
        pass  # it has no tasks

    def on_found(self, prompt: PoisonPrompt) -> None:
        """Publish a prompt that this process has found."""
        self._peers.share(self._message(prompt))

    def on_lifted(self, digest: bytes) -> None:
        """Publish that a prompt is accepted again."""
        self._peers.share(PoisonLifted(digest))

    def state(self) -> Iterator[Message]:
        for prompt in self._book.list(self._clock.now()):
            yield self._message(prompt)

    def apply(self, message: Any, run: str) -> None:
        match message:
            case PoisonFound(digest, left_s, found_wall_s, model, sender, targets):
                until_s = self._clock.now() + left_s
                self._book.add(PoisonPrompt(digest, until_s, found_wall_s, model, sender, tuple(targets)))
            case PoisonLifted(digest):
                self._book.lift(digest)

    def forget(self, run: str) -> None:
        pass  # what an ended process has found stays poison

    def _message(self, prompt: PoisonPrompt) -> PoisonFound:
        left_s = max(0.0, prompt.until_s - self._clock.now())
        return PoisonFound(
            prompt.digest, left_s, prompt.found_wall_s, prompt.model, prompt.sender, list(prompt.targets)
        )
