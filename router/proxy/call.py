"""One exchange with the client, over raw ASGI: what came, its body within bounds, and the answer piece by piece.

`with call:` is the watch on the client: when it goes away, whatever the block is waiting for is cancelled and the block
ends with `ClientGone`, so nothing is computed for nobody. uvicorn itself never cancels an application, and `send` after
a disconnect returns in silence. Our own listener tells of the loss through an ASGI extension, which costs nothing per
request; behind any other server a task waits on `receive()`. Knows nothing of engines, prompts or policies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Protocol

from router.errors import TooLarge
from router.tasks import Tasks

Headers = list[tuple[bytes, bytes]]
Message = dict[str, Any]

EXTENSION = "warmroute.wire"


class ClientGone(Exception):
    """The client went away, so the `with call:` block was cut short."""


class Wire(Protocol):
    """What our listener offers of the client's connection, as `scope["extensions"][EXTENSION]`."""

    def when_gone(self, callback: Callable[[], None] | None) -> None:
        """`callback` is called once when the client is lost before its answer is complete."""

    def cut(self) -> None:
        """Closes the connection so that the client can tell the answer is not whole."""


class Budget(Protocol):
    """Where the bytes of bodies in memory are counted."""

    def hold(self, bytes_: int) -> None:
        """Counts `bytes_` more for this request. Raises `TooBusy` when the house is full."""


class Call:
    """`headers` are as they came, names in lower case; `target` is the path with its query, undecoded."""

    def __init__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: bytes = scope["query_string"]
        self.headers: Headers = scope["headers"]
        self.client: str | None = None  # the name of its API key, set by the door where keys are asked
        self.started = False
        self.gone = False
        self.recorded = False  # set by the line once a record tells of this exchange; the door counts all others
        self._raw_path: bytes | None = scope.get("raw_path")
        self._receive = receive
        self._send = send
        self._wire: Wire | None = (scope.get("extensions") or {}).get(EXTENSION)
        self._line: asyncio.Task[Any] | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def target(self) -> bytes:
        path = self._raw_path or self.path.encode()
        return path + b"?" + self.query if self.query else path

    def header(self, name: bytes) -> bytes | None:
        """The first value of header `name` (lower case)."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def text(self, name: bytes) -> str | None:
        """The same as text; None: missing or empty."""
        value = self.header(name)
        return value.decode("latin-1") if value else None

    # The watch on the client

    def __enter__(self) -> Call:
        self._line = asyncio.current_task()
        if self._wire is not None:
            self._wire.when_gone(self._client_gone)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        line, self._line = self._line, None
        if self._wire is not None:
            self._wire.when_gone(None)
        if self._watch is not None:
            self._watch.cancel()
        if self.gone and line is not None and line.uncancel() == 0 and kind is asyncio.CancelledError:
            raise ClientGone from None

    def _client_gone(self) -> None:
        if self._line is not None and not self.gone:
            self.gone = True
            self._line.cancel()

    async def _wait_for_loss(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._client_gone()

    # What came

    async def body(self, limit_bytes: int, budget: Budget) -> bytes:
        """The whole body, counted in `budget` before it is read where its length is known.

        Raises `TooLarge` beyond `limit_bytes`, and what `budget.hold` raises. To be called inside `with call:`.
        """
        length = self.header(b"content-length")
        declared = None if length is None else int(length)
        if declared is not None:
            _check_size(declared, limit_bytes)
            budget.hold(declared)
        pieces: list[bytes] = []
        size = 0
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._client_gone()
                await asyncio.sleep(0)  # where that cancellation arrives
            if piece := message.get("body"):
                size += len(piece)
                _check_size(size, limit_bytes)
                if declared is None:
                    budget.hold(len(piece))
                pieces.append(piece)
            more = message.get("more_body", False)
        if self._wire is None:
            self._watch = Tasks("call").spawn("client watch", self._wait_for_loss())
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    # The answer

    async def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def chunk(self, data: bytes) -> None:
        """Sends `data` at once; waits while the client has not taken what was sent before."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, last: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": last, "more_body": False})

    async def answer(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """A whole answer; `content-length` is set here."""
        await self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self.finish(body)

    def cut(self) -> None:
        """Ends a started answer so that the client sees it is not whole. No more may be sent."""
        if self._wire is not None:
            self._wire.cut()


def _check_size(size: int, limit_bytes: int) -> None:
    if size > limit_bytes:
        raise TooLarge(f"the request body is larger than the limit of {limit_bytes} bytes")
