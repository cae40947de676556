"""Preloaded prefixes over the processes of one host, because any process may get the first request for a prefix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from router.control.peers.parts import Message, Peers
from router.features.preload.book import PreloadBook, Reason
from router.kvcache.events import Key, TargetId
from router.tasks import Tasks


class PrefixPreloaded(Message, frozen=True):
    """A prefix was loaded into a target ahead of the requests for it; see `PreloadBook.expect`."""

    target: str
    reason: Reason
    keys: tuple[int, ...]
    tokens: int
    loaded_tokens: int


class PreloadSettled(Message, frozen=True):
    """A request was the first at a target with preloaded prefixes. `found`: whether it hit them, by key."""

    target: str
    found: dict[int, bool]


class SharedPreloads:
    """Publishes the loads and outcomes in `book`, and adds those that other workers of this host publish to it."""

    messages: ClassVar[Sequence[type[Message]]] = (PrefixPreloaded, PreloadSettled)

    def __init__(self, book: PreloadBook, peers: Peers) -> None:
        self._book = book
        book.on_loaded = lambda *prefix: peers.share_near(PrefixPreloaded(*prefix))
        book.on_settled = lambda *found: peers.share_near(PreloadSettled(*found))

    def start(self, tasks: Tasks) -> None:
        """Do nothing: there are no tasks."""

    def state(self) -> Sequence[Message]:
        """Return nothing: a new process counts only prefixes that are loaded after its start."""
        return ()

    def apply(self, message: Any, run: str) -> None:
        match message:
            case PrefixPreloaded(target, reason, keys, tokens, loaded_tokens):
                self._book.expect(TargetId(target), reason, tuple(map(Key, keys)), tokens, loaded_tokens)
            case PreloadSettled(target, found):
                self._book.settle(TargetId(target), {Key(key): hit for key, hit in found.items()})

    def forget(self, run: str) -> None:
        """Do nothing: engines still hold the prefixes that the process loaded."""
