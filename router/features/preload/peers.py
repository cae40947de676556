"""Preloaded prefixes over the processes of one host: any of them may get the first request for one."""

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
    """A request at a target was the first with prefixes that were loaded ahead; by key, whether it hit them."""

    target: str
    found: dict[int, bool]


class SharedPreloads:
    """Publishes what `book` of this process gets, and adds what other workers of this host publish."""

    messages: ClassVar[Sequence[type[Message]]] = (PrefixPreloaded, PreloadSettled)

    def __init__(self, book: PreloadBook, peers: Peers) -> None:
        self._book = book
        book.on_loaded = lambda *prefix: peers.share_near(PrefixPreloaded(*prefix))
        book.on_settled = lambda *found: peers.share_near(PreloadSettled(*found))

    def start(self, tasks: Tasks) -> None:
        """It has no tasks."""

    def state(self) -> Sequence[Message]:
        """A process that starts counts what is loaded from then on."""
        return ()

    def apply(self, message: Any, run: str) -> None:
        match message:
            case PrefixPreloaded(target, reason, keys, tokens, loaded_tokens):
                self._book.expect(TargetId(target), reason, tuple(map(Key, keys)), tokens, loaded_tokens)
            case PreloadSettled(target, found):
                self._book.settle(TargetId(target), {Key(key): hit for key, hit in found.items()})

    def forget(self, run: str) -> None:
        """Do nothing: engines still hold what it loaded."""
