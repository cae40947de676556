"""llhttp for the requests of one connection.

An offer to switch to another protocol is ignored, as RFC 9110 (7.8) allows: Java's HttpClient makes one (h2c) with
its first request. llhttp would treat the body of such a request as the other protocol, so the head is parsed a
second time, without the offer.
"""

from __future__ import annotations

import httptools

from router.proxy.call import Headers
from router.proxy.request_head import RequestHead, UnfitRequest, find_fault, read_head, render_without_upgrade


class RequestParser:
    """Calls the methods of `callbacks` (`on_url`, `on_header`, ...: see `httptools`), and keeps a reference to
    it.
    """

    def __init__(self, callbacks: object) -> None:
        self._callbacks = callbacks
        self._plain_head: bytes | None = None  # of a request whose head is to be parsed again
        self._restart()

    def feed(self, data: bytes | memoryview) -> None:
        """Parse `data`. Raises `HttpParserError`, also where a callback raised an exception."""
        while True:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as stop:
                (end,) = stop.args
                head, self._plain_head = self._plain_head, None
                assert head is not None
                self._restart()
                self._parser.feed_data(head)
                data = data[end:]

    def read_head(self, target: bytes, headers: Headers) -> RequestHead | None:
        """Return the head that has just been completed; None if it will be parsed again. Raises `UnfitRequest`."""
        parser = self._parser
        if parser.should_upgrade() and parser.get_method() != b"CONNECT":
            self._plain_head = render_without_upgrade(parser, target, headers)
            return None
        return read_head(parser, target, headers)

    @property
    def repeats(self) -> bool:
        """True if the head just parsed will be parsed again: the end of its message is to be ignored."""
        return self._plain_head is not None

    def find_fault(self, error: Exception) -> UnfitRequest:
        """Return why the request is refused for which `feed` failed with `error`."""
        return find_fault(error, self._parser)

    def _restart(self) -> None:
        self._parser = httptools.HttpRequestParser(self._callbacks)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # data after a close is discarded
