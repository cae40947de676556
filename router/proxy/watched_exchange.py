"""The common part of an exchange over a connection and through a gateway: headers by name, the watch on the client,
and the bounds of a body.

`with exchange:` watches the client (`proxy/call.py`): when it disconnects, the task that answers is cancelled, and
the block ends with `ClientDisconnected`. A server that stops cancels the task as well. A cancellation by anybody
else passes through unchanged.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Final, Self

from mypy_extensions import mypyc_attr

from router.errors import NoTarget, TooLarge
from router.proxy.call import ClientDisconnected, ClientRequest

PIECE_BYTES: Final = 41  # of memory, beside its content: a bytes object and its place in a list


@mypyc_attr(allow_interpreted_subclasses=True)
class WatchedExchange(ClientRequest):
    """The part of a `ClientRequest` that does not depend on how the request arrived."""

    __slots__ = ("_cancelled", "_watched", "gone")

    def __init__(self) -> None:
        self.gone = False  # the client disconnected
        self.tenant = None
        self.own_lines = b""
        self.cross_origin = False
        self.expired = False
        self.last_events = None
        self._watched: asyncio.Task[Any] | None = None
        self._cancelled = False

    def header(self, name: bytes) -> bytes | None:
        return self.fields.get(name)

    def text(self, name: bytes) -> str | None:
        value = self.fields.get(name)
        return value.decode("latin-1") if value else None

    def _find_task(self) -> asyncio.Task[Any] | None:
        """Return the task that answers the request."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._watched = self._find_task()
        if self.gone:
            self._cancel()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise `ClientDisconnected` in place of a cancellation that a disconnect caused, and `NoTarget` in place
        of the cancellation of a request that has no answer when the server stops.
        """
        task, self._watched = self._watched, None
        if self._cancelled and task is not None and task.uncancel() == 0 and kind is asyncio.CancelledError:
            if self.expired and not self.started and not self.gone:
                raise NoTarget("the router is stopping; try again", retry_after_s=1) from None
            raise ClientDisconnected from None

    def _cancel(self) -> None:
        if self._watched is not None and not self._cancelled:
            self._cancelled = True
            self._watched.cancel()


def check_body_size(size: int, limit_bytes: int) -> None:
    """Raise `TooLarge` for a body of more than `limit_bytes`."""
    if size > limit_bytes:
        raise TooLarge(f"the request body is larger than the limit of {limit_bytes} bytes (`limits.body_bytes`)")
