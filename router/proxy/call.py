"""One exchange with the client, as the line sees it: what came, its body within bounds, and the answer piece by piece.

`with call:` is the watch on the client: when it goes away, whatever the block is waiting for is cancelled and the block
ends with `ClientDisconnected`, so nothing is computed for nobody. What is said to a client that is gone is dropped in
silence. The listener's exchange (`proxy/client_exchange.py`) is a `ClientRequest`; nothing here knows of engines,
prompts or policies.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Protocol

Headers = list[tuple[bytes, bytes]]


class ClientDisconnected(Exception):
    """The client went away, so the `with call:` block was cut short."""


class BodyBudget(Protocol):
    """Where the bytes of bodies in memory are counted."""

    def hold(self, bytes_: int) -> None:
        """Counts `bytes_` more for this request. Raises `TooBusy` when the house is full."""


class ClientRequest(Protocol):
    """`headers` are as they came, names in lower case; `target` is the path with its query, undecoded."""

    method: str
    path: str
    target: bytes
    headers: Headers
    fields: Mapping[bytes, bytes]  # the same by name; of several values the first one
    client: str | None  # the name of its API key, set by the door where keys are asked
    recorded: bool  # set by the line once a record tells of this exchange; the door counts all others

    def header(self, name: bytes) -> bytes | None:
        """The first value of header `name` (lower case)."""

    def text(self, name: bytes) -> str | None:
        """The same as text; None: missing or empty."""

    def __enter__(self) -> ClientRequest: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def body(self, limit_bytes: int, budget: BodyBudget) -> bytes:
        """The whole body, counted in `budget` before it is read where its length is known.

        Raises `TooLarge` beyond `limit_bytes`, and what `budget.hold` raises. To be called inside `with call:`.
        """

    @property
    def started(self) -> bool:
        """An answer has begun: there can be no other."""

    def start(self, status: int, headers: Headers) -> None:
        """Begins the answer. Its head goes out with the first of the body: a write is a system call."""

    def chunk(self, data: bytes) -> None:
        """Sends `data` at once, whether the client takes it or not: see `behind`."""

    def finish(self, last: bytes = b"") -> None:
        """Sends `last`, and the answer is whole."""

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole answer; `content-length` is set here."""

    @property
    def behind(self) -> bool:
        """The client has not taken what was sent: nothing more should be, until `caught_up`."""

    async def caught_up(self) -> None:
        """Waits until the client is not `behind` any more, or gone."""

    def cut(self) -> None:
        """Ends a started answer so that the client sees it is not whole. No more may be sent."""
