"""The client's side of one request as the request path sees it: headers, a bounded body, and the answer piece by
piece.

`with call:` watches the client: when it disconnects, whatever the block waits for is cancelled and the block ends
with `ClientDisconnected`, so that nothing is computed in vain. Writes to a disconnected client are dropped. The
listener's exchange (`proxy/client_exchange.py`) is a `ClientRequest`. This module does not depend on engines,
prompts or policies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Protocol, Self

from mypy_extensions import mypyc_attr

from router.tenants.tenant import Tenant

Headers = list[tuple[bytes, bytes]]


class ClientDisconnected(Exception):
    """The client disconnected, so the `with call:` block was cut short."""


class BodyBudget(Protocol):
    """Counts the memory that request bodies take."""

    def hold(self, bytes_: int) -> None:
        """Count `bytes_` more for this request. Raises `TooBusy` when the budget, or the client's share of the
        budget, is used up.
        """


@mypyc_attr(allow_interpreted_subclasses=True)
class ClientRequest(ABC):
    """A request of a client. `headers` are as received, names in lower case; `target` is path and query,
    undecoded.
    """

    __slots__ = (
        *("cross_origin", "expired", "fields", "headers", "last_events", "method", "own_lines", "path", "recorded"),
        *("started", "target", "tenant"),
    )

    method: str
    path: str
    target: bytes
    headers: Headers
    fields: Mapping[bytes, bytes]  # the headers by name; of several values the first one
    tenant: Tenant | None  # that sent it; set by the public API where clients must authenticate
    own_lines: bytes  # headers of the router, added to every answer: whole lines
    cross_origin: bool  # `own_lines` say which pages may read the answer (CORS), in place of an engine's headers
    recorded: bool  # set once a record counts this exchange; the public API counts all others
    started: bool  # an answer has begun: no other can be sent
    expired: bool  # the server is stopping and no longer waits for the answer: see `last_events`
    last_events: Callable[[], bytes] | None  # returns the events that end a begun stream; None: it is cut off

    @property
    @abstractmethod
    def sender(self) -> str:
        """The party that the request is counted for: its tenant by name, else the client by its address."""

    @property
    def client(self) -> str | None:
        """The name of its tenant."""
        return None if self.tenant is None else self.tenant.name

    @property
    @abstractmethod
    def proxied(self) -> bool:
        """True if a trusted proxy sent the request."""

    @abstractmethod
    def header(self, name: bytes) -> bytes | None:
        """Return the first value of header `name` (lower case)."""

    @abstractmethod
    def text(self, name: bytes) -> str | None:
        """Return the first value of header `name` as text; None when missing or empty."""

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @abstractmethod
    async def body(self, limit_bytes: int, budget: BodyBudget) -> bytes:
        """Return the whole body, counted in `budget` as it arrives. Call it inside `with call:`. Raises `TooLarge`
        beyond `limit_bytes`, at once where the length is known, and whatever `budget.hold` raises.
        """

    @abstractmethod
    def start(self, status: int, headers: Headers) -> None:
        """Begin the answer. Its head is sent with the first piece of the body, to save a system call."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Send `data` at once, whether or not the client is reading: see `write_paused`."""

    @abstractmethod
    def finish(self, last: bytes = b"") -> None:
        """Send `last` and complete the answer."""

    @abstractmethod
    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer; `content-length` is added here."""

    @property
    @abstractmethod
    def write_paused(self) -> bool:
        """True while the client has not read what was sent: write nothing more before `drain`."""

    @abstractmethod
    async def drain(self) -> None:
        """Wait until the client has read enough, or has disconnected."""

    @abstractmethod
    def abort(self) -> None:
        """End a started answer so that the client notices that it is incomplete. Nothing more may be sent."""
