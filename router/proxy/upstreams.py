"""The engines as the data path sees them: addresses, credentials, and a pool of connections to each.

Idle connections are reused last in, first out, so that few stay warm and the rest age out before the engine closes
them (vLLM's uvicorn does so after 5 s). A busy router may not have read such a close yet, so an idle connection
with unread bytes is not used. An engine that closes a connection just as a request is sent has not failed: when a
*reused* connection ends at once and without a single byte of answer, the request is sent once more on a fresh
connection, as every HTTP client does (RFC 9112 9.3.1). An engine that closes the connection later had been working
on the request and may have died of it. This failure, like every other, is returned as a value to the caller, which
decides what may be retried.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Coroutine
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Protocol
from urllib.parse import urlsplit

from router.backends.failure import describe_failure
from router.backends.fetch import ANSWER_BYTES, HttpAnswer, NoAnswer
from router.config.pem_files import PemFault, load_trust
from router.config.sections.base import split_base_url
from router.errors import ConfigError
from router.proxy.engine_connection import EngineConnection, ExchangeFailure, Sink
from router.proxy.headers import NO_HEADERS, ForwardedHeaders

LOOKS: Final = 10  # checks of the clock within a time-out
CROSSED_WITHIN_S: Final = 0.1  # a close that crossed the request on its way arrives within a round trip
JSON = ForwardedHeaders(b"content-type: application/json\r\n", b"")


class UpstreamTimeouts:
    """The longest silences of an engine, in seconds: before the first byte of its answer, and after it."""

    def __init__(self, first_byte_s: float, idle_s: float) -> None:
        self.first_byte_s = first_byte_s
        self.idle_s = idle_s


class ExchangeHandle:
    """The exchange that carries a request now, for whoever may abandon it."""

    __slots__ = ("_connection", "_number")

    def __init__(self) -> None:
        self._connection: EngineConnection | None = None
        self._number = 0

    def set(self, connection: EngineConnection) -> None:
        """Note the connection, on which the request was just sent."""
        self._connection, self._number = connection, connection.exchanges

    def abandon(self) -> None:
        """End the exchange as `ExchangeFailure.STUCK`; no effect before the request is sent and after its end."""
        if self._connection is not None:
            self._connection.abandon(self._number)


class UpstreamRequest:
    """A request to an engine; `target` is path and query. `sent`: it was written to a connection. `handle`: of the
    exchange; None if nobody abandons it.
    """

    def __init__(
        self,
        method: str,
        target: bytes,
        headers: ForwardedHeaders,
        body: bytes,
        rank: int | None = None,
        handle: ExchangeHandle | None = None,
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.body = body
        self.rank = rank
        self.handle = handle
        self.sent = False

    def with_body(self, body: bytes) -> UpstreamRequest:
        """Return the same request with another body."""
        return UpstreamRequest(self.method, self.target, self.headers, body, self.rank, self.handle)

    def render_head(self, host: bytes, credentials: bytes) -> bytes:
        """Return the head for the engine at `host`, ready to be written. `credentials`: a header line, or nothing."""
        rank_line = b"" if self.rank is None else b"x-data-parallel-rank: %d\r\n" % self.rank
        has_length = self.body or self.method != "GET"
        length_line = b"content-length: %d\r\n" % len(self.body) if has_length else b""
        fields = (self.method.encode(), self.target, host, credentials, rank_line, self.headers.lines, length_line)
        return b"%b %b HTTP/1.1\r\nhost: %b\r\n%b%b%b%b\r\n" % fields


class UpstreamUnanswered(NamedTuple):
    """No answer began. `connect`: the engine was not reached; `died`: the engine received the request; `late`: the
    engine stayed silent; `stuck`: the exchange was abandoned.
    """

    reason: Literal["connect", "died", "late", "stuck"]
    detail: str


class Upstream(Protocol):
    """Sends requests to engines."""

    async def send(
        self, instance: str, request: UpstreamRequest, *, first_byte_s: float, idle_s: float
    ) -> UpstreamExchange | UpstreamUnanswered:
        """Send `request`, like `Upstreams.send`."""


class Upstreams:
    """All engines. An idle connection is kept for `keepalive_s`. Belongs to the running event loop."""

    def __init__(self, *, connect_timeout_s: float, keepalive_s: float) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._keepalive_s = keepalive_s
        self._engines: dict[str, _Engine] = {}
        self._tls = TlsContexts()

    def add(self, instance: str, url: str, *, api_key: str | None = None, ca_file: str | None = None) -> None:
        """Register `instance` at `url` (http or https, no path). Raises `ConfigError` for a bad `ca_file`."""
        self.remove(instance)
        tls = self._tls.get(ca_file) if urlsplit(url).scheme == "https" else None
        self._engines[instance] = _Engine(url, api_key, tls, self._connect_timeout_s, self._keepalive_s)

    def remove(self, instance: str) -> None:
        """Remove `instance`; its running exchanges end undisturbed."""
        engine = self._engines.pop(instance, None)
        if engine is not None:
            engine.close()

    def close(self) -> None:
        for instance in list(self._engines):
            self.remove(instance)

    def idle(self, instance: str) -> int:
        """Return the number of idle connections to `instance`."""
        engine = self._engines.get(instance)
        return len(engine.idle) if engine is not None else 0

    def credentials(self, instance: str) -> bytes | None:
        """Return the `authorization` value for requests to `instance`; None if the client's own is forwarded."""
        engine = self._engines.get(instance)
        return None if engine is None or engine.api_key is None else b"Bearer " + engine.api_key.encode()

    def send(
        self, instance: str, request: UpstreamRequest, *, first_byte_s: float, idle_s: float
    ) -> Coroutine[Any, Any, UpstreamExchange | UpstreamUnanswered]:
        """Send `request` and wait until its answer has begun: its head and the first byte of its body, or its end.

        An engine sends the head of a stream before it has computed anything, so until a byte of the body has
        arrived the request may still be sent to another engine. Close the exchange when done with it.
        """
        engine = self._engines.get(instance)
        return _report_removed() if engine is None else engine.send(request, first_byte_s, idle_s)

    async def fetch(
        self,
        instance: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout_s: float,
        limit_bytes: int = ANSWER_BYTES,
        rank: int | None = None,
    ) -> HttpAnswer | None:
        """Fetch `path`: see `router/backends/fetch.py:Fetch`."""
        if body is None:
            request = UpstreamRequest("GET", path.encode(), NO_HEADERS, b"", rank)
        else:
            request = UpstreamRequest("POST", path.encode(), JSON, body, rank)
        answer = await self._fetch(instance, request, timeout_s, limit_bytes)
        return answer if isinstance(answer, HttpAnswer) else None

    async def probe(self, instance: str, path: str, *, timeout_s: float) -> HttpAnswer | NoAnswer:
        """Fetch `path`: see `router/backends/fetch.py:ProbeFetch`."""
        request = UpstreamRequest("GET", path.encode(), NO_HEADERS, b"")
        return await self._fetch(instance, request, timeout_s, ANSWER_BYTES)

    async def _fetch(
        self, instance: str, request: UpstreamRequest, timeout_s: float, limit_bytes: int
    ) -> HttpAnswer | NoAnswer:
        late = NoAnswer(f"no answer within {timeout_s:g} s", late=True)
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self.send(instance, request, first_byte_s=timeout_s, idle_s=timeout_s)
                if isinstance(answer, UpstreamUnanswered):
                    return late if answer.reason == "late" else NoAnswer(answer.detail)
                with answer:
                    content = await answer.read_all(limit_bytes)
                    if content is not None:
                        return HttpAnswer(answer.status, content)
                    if answer.failure is not None:
                        return late if answer.failure is ExchangeFailure.LATE else NoAnswer(answer.failure.value)
                    return HttpAnswer(answer.status, b"", oversized=True)
        except TimeoutError:
            return late if request.sent else NoAnswer(f"no connection within {timeout_s:g} s")


class OthersTimeout:
    """An `asyncio.timeout` for work of another process: it does not count the time by which this process's event
    loop was late. Otherwise a router that is short of CPU time would take its engines for dead.
    """

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout = asyncio.timeout(seconds)
        self._look_s = seconds / LOOKS
        self._look = self._loop.call_later(self._look_s, self._extend)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._look.cancel()
        await self._timeout.__aexit__(kind, error, trace)

    def _extend(self) -> None:
        late_s = self._loop.time() - self._look.when()
        until_s = self._timeout.when()
        if until_s is not None and not self._timeout.expired():
            self._timeout.reschedule(until_s + late_s)
            self._look = self._loop.call_later(self._look_s, self._extend)


class TlsContexts:
    """TLS contexts for verifying servers, by CA file. Each context is made once, because loading the system's CAs
    takes tens of ms.
    """

    def __init__(self) -> None:
        self._contexts: dict[str | None, ssl.SSLContext] = {}

    def get(self, ca_file: str | None) -> ssl.SSLContext:
        """Return the context for a CA file; None: the system's CAs. Raises `ConfigError` for an unusable file."""
        if ca_file not in self._contexts:
            loaded = load_trust(ca_file)
            if isinstance(loaded, PemFault):
                raise ConfigError(f"{loaded.key}: {loaded.text}")
            self._contexts[ca_file] = loaded
        return self._contexts[ca_file]


async def _report_removed() -> UpstreamUnanswered:
    return UpstreamUnanswered("connect", "the instance was removed")


class UpstreamExchange:
    """An answer that has begun. Use it with `with`: leaving the block returns the connection to the pool, or closes
    it, which aborts the engine's work.
    """

    __slots__ = ("_connection", "_engine", "headers", "status")

    def __init__(self, engine: _Engine, connection: EngineConnection) -> None:
        self._engine = engine
        self._connection = connection
        self.status = connection.status
        self.headers = connection.headers

    @property
    def connect_s(self) -> float:
        return self._connection.connect_s

    @property
    def failure(self) -> ExchangeFailure | None:
        return self._connection.failure

    @property
    def drained(self) -> bool:
        """True if the answer is whole and all of it was read."""
        return self._connection.drained

    def read(self) -> Awaitable[bytes]:
        """Return the bytes that have arrived since the last call, never empty; `b""` at the end, where either
        `drained` is True or `failure` has the reason.
        """
        return self._connection.read()

    def pipe(self, sink: Sink) -> Awaitable[bool]:
        """Pass everything on to `sink`, each piece as it arrives. Return True when `sink` has had enough: call this
        again when it can take more. Return False at the end, where either `drained` is True or `failure` has the
        reason.
        """
        return self._connection.pipe(sink)

    async def hold(self, limit_bytes: int) -> bytes:
        """Return the whole body, or the beginning of one that is larger than `limit_bytes`. Afterwards `drained` is
        True, or `failure` has the reason why the body broke off.
        """
        pieces: list[bytes] = []
        size = 0
        while size <= limit_bytes and not self.drained and (piece := await self.read()):
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)

    async def read_all(self, limit_bytes: int) -> bytes | None:
        """Return the whole body; None when it is larger than `limit_bytes` or breaks off."""
        pieces: list[bytes] = []
        size = 0
        while piece := await self.read():
            size += len(piece)
            if size > limit_bytes:
                return None
            pieces.append(piece)
        return b"".join(pieces) if self.drained else None

    def __enter__(self) -> UpstreamExchange:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.take_back(self._connection)


class _Engine:
    """One instance's address and connection pool."""

    def __init__(
        self, url: str, api_key: str | None, tls: ssl.SSLContext | None, connect_timeout_s: float, keepalive_s: float
    ) -> None:
        self._host, self._port = split_base_url(url)
        self._host_header = urlsplit(url).netloc.encode()
        self.api_key = api_key
        self._credentials = None if api_key is None else b"authorization: Bearer %b\r\n" % api_key.encode()
        self._tls = tls
        self._connect_timeout_s = connect_timeout_s
        self._keepalive_s = keepalive_s
        self._removed = False
        self.idle: list[EngineConnection] = []

    async def send(
        self, request: UpstreamRequest, first_byte_s: float, idle_s: float
    ) -> UpstreamExchange | UpstreamUnanswered:
        credentials = request.headers.credentials if self._credentials is None else self._credentials
        head = request.render_head(self._host_header, credentials)
        answer = None
        if (connection := self._take_idle()) is not None:
            answer = await self._exchange(connection, request, head, first_byte_s, idle_s)
            if not connection.stale or connection.sent_since_s() > CROSSED_WITHIN_S:
                return answer
        request.sent = False
        fresh = await self._connect()
        if isinstance(fresh, UpstreamUnanswered):
            return answer or fresh  # the engine took the request and is gone now: the request may have killed it
        return await self._exchange(fresh, request, head, first_byte_s, idle_s)

    def _take_idle(self) -> EngineConnection | None:
        """Return the idle connection that was used last; None if there is none."""
        while self.idle:
            connection = self.idle.pop()
            if not connection.readable():
                return connection
            connection.close()
        return None

    async def _exchange(
        self, connection: EngineConnection, request: UpstreamRequest, head: bytes, first_byte_s: float, idle_s: float
    ) -> UpstreamExchange | UpstreamUnanswered:
        connection.send(request.method, head, request.body, first_byte_s, idle_s)
        request.sent = True
        if request.handle is not None:
            request.handle.set(connection)
        try:
            begun = await connection.wait_begin()
        except asyncio.CancelledError:
            self.take_back(connection)
            raise
        if begun:
            return UpstreamExchange(self, connection)
        self.take_back(connection)
        failure = connection.failure or ExchangeFailure.CLOSED
        if failure is ExchangeFailure.STUCK:
            return UpstreamUnanswered("stuck", failure.value)
        return UpstreamUnanswered("late" if failure is ExchangeFailure.LATE else "died", failure.value)

    async def _connect(self) -> EngineConnection | UpstreamUnanswered:
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with OthersTimeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: EngineConnection(loop, self._on_lost), self._host, self._port, ssl=self._tls
                )
        except TimeoutError:
            return UpstreamUnanswered("connect", f"no connection within {self._connect_timeout_s:g} s")
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that cannot be one
            return UpstreamUnanswered("connect", describe_failure(error))
        connection.connect_s = loop.time() - started
        return connection

    def take_back(self, connection: EngineConnection) -> None:
        """End the exchange; keep the connection if it is clean."""
        if connection.release() and not self._removed:
            connection.go_idle(self._keepalive_s)
            self.idle.append(connection)
        else:
            connection.close()

    def _on_lost(self, connection: EngineConnection) -> None:
        if connection in self.idle:
            self.idle.remove(connection)

    def close(self) -> None:
        self._removed = True
        for connection in self.idle:
            connection.close()
        self.idle.clear()
