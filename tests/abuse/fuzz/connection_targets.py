"""Fuzz targets for both sides' connections: bytes in arbitrary pieces, over a transport that writes everything down."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httptools

from router.backends.feeds import zmtp
from router.config.sections.listeners import ListenConfig
from router.errors import RequestRefused
from router.proxy.call import ClientDisconnected
from router.proxy.client_connection import ClientConnection, ConnectionContext
from router.proxy.client_exchange import ClientExchange
from router.proxy.engine_connection import EngineConnection
from router.proxy.listener import configure_server
from tests.abuse.fuzz.pieces import split
from tests.router.proxy.connections import BareHandler

TURNS = 5  # of the loop after each piece
BODY_BYTES = 1 << 20

Request = tuple[str, bytes, bytes]


class RecordingTransport(asyncio.Transport):
    def __init__(self) -> None:
        extra = {"peername": ("192.0.2.1", 4711), "sockname": ("192.0.2.2", 80), "socket": 0}  # never polled
        super().__init__(extra)
        self.written = bytearray()
        self.closing = self.reading_paused = False

    def write(self, data: Any) -> None:
        self.written += data

    def writelines(self, data: Any) -> None:
        for piece in data:
            self.written += piece

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True

    def pause_reading(self) -> None:
        self.reading_paused = True

    def resume_reading(self) -> None:
        self.reading_paused = False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class _Echo(BareHandler):
    """Reads every body, and answers with its length; some paths answer early, in pieces or by breaking off."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Request] = []

    async def answer(self, call: ClientExchange) -> None:
        try:
            with call:
                if call.path == "/early":
                    call.answer(413, [], b"early")
                    return
                body = await call.body(BODY_BYTES, self)
                self.seen.append((call.method, call.target, body))
                if call.path == "/stream":
                    call.start(200, [])
                    call.write(b"x" * len(body))
                    call.finish(b"end")
                else:
                    call.answer(200, [], b"%d" % len(body))
        except ClientDisconnected:
            pass
        except RequestRefused as refusal:
            if not call.started:
                call.answer(refusal.status, [], refusal.message.encode())

    def hold(self, bytes_: int) -> None:
        pass


class _Alarm(logging.Handler):
    """Raises what the code under test only logs."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR:
            raise AssertionError(self.format(record))


class Loop:
    """An event loop, on which lost exceptions and logged errors fail the input."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.lost: list[Any] = []
        self.loop.set_exception_handler(lambda _, context: self.lost.append(context))

    def turn(self, times: int = TURNS) -> None:
        self.loop.run_until_complete(self.turns(times))

    async def turns(self, times: int = TURNS) -> None:
        """As `turn`, within the loop."""
        for _ in range(times):
            await asyncio.sleep(0)
        assert not self.lost, self.lost


@contextmanager
def running_loop() -> Iterator[Loop]:
    running, alarm, log = Loop(), _Alarm(), logging.getLogger("warmroute")
    log.addHandler(alarm)
    try:
        yield running
    finally:
        log.removeHandler(alarm)
        running.loop.close()


@contextmanager
def client_target() -> Iterator[Callable[[bytes], None]]:
    """Yield the target for bytes of a client."""
    with running_loop() as running:

        def target(data: bytes) -> None:
            """However the bytes are cut, the same requests are seen, and all answers are valid HTTP."""
            pieces = split(data)
            seen, answered = serve_pieces(running, pieces)
            _check_answers(answered)
            if len(pieces) > 1:
                whole, _ = serve_pieces(running, [b"".join(pieces)])
                shorter = min(len(seen), len(whole))
                assert seen[:shorter] == whole[:shorter], (seen, whole)

        yield target


def serve_pieces(running: Loop, pieces: list[bytes]) -> tuple[list[Request], bytes]:
    """Return the requests that a client's bytes are, and all that is sent back."""
    app, transport, lost = _Echo(), RecordingTransport(), list[ClientConnection]()
    server = configure_server(app, ListenConfig(host="127.0.0.1", port=0))
    context = ConnectionContext(app, server.limits, lost.append, server.proxies, running.loop)
    connection = ClientConnection(context, "192.0.2.1")
    connection.connection_made(transport)
    connection.task = running.loop.create_task(connection.serve())
    for piece in pieces:
        if transport.closing:
            break
        connection.data_received(piece)
        running.turn()
    if not transport.closing:
        connection.eof_received()
        running.turn()
    transport.closing = True
    connection.connection_lost(None)
    running.turn()
    assert lost == [connection]
    assert connection.task.done(), "the connection's task goes on"
    assert not connection.task.cancelled()
    connection.task.result()
    return app.seen, bytes(transport.written)


def _check_answers(written: bytes) -> None:
    while written:
        end = written.find(b"HTTP/1.1 ", 1)
        piece, written = (written, b"") if end < 0 else (written[:end], written[end:])
        httptools.HttpResponseParser(object()).feed_data(piece)


@contextmanager
def engine_target() -> Iterator[Callable[[bytes], None]]:
    """Yield the target for bytes of an engine."""
    with running_loop() as running:

        def target(data: bytes) -> None:
            """However the bytes are cut, the same answer is read."""
            method = "HEAD" if data[:1] == b"\xff" else "POST"
            pieces = split(data)
            received = _receive(running, method, pieces)
            if len(pieces) > 1:
                assert received == _receive(running, method, [b"".join(pieces)])

        yield target


def _receive(running: Loop, method: str, pieces: list[bytes]) -> tuple[int, bool, bytes]:
    """Return the status, whether the answer is whole, and the body that an engine's bytes are."""
    transport = RecordingTransport()
    connection = EngineConnection(running.loop, lambda lost: None)
    connection.connection_made(transport)
    connection.send(method, b"GET / HTTP/1.1\r\n\r\n", b"", 60.0, 60.0)
    for piece in pieces:
        if not transport.closing:
            connection.data_received(piece)
    body = bytearray()

    async def read() -> None:
        if await connection.wait_begin():
            while piece := await connection.read():
                body.extend(piece)

    reading = running.loop.create_task(read())
    running.turn()
    connection.connection_lost(None)
    running.turn()
    assert reading.done(), "the reader was not woken"
    reading.result()
    connection.release()
    return connection.status, connection.complete, bytes(body)


@contextmanager
def zmtp_target() -> Iterator[Callable[[bytes], None]]:
    """Yield the target for bytes of a publisher of events, after the handshake."""
    with running_loop() as running:

        def target(data: bytes) -> None:
            """However the bytes are cut, the same messages are read, and what was taken in is accounted for."""
            pieces = split(data)
            received = _subscribe(running, pieces)
            if len(pieces) > 1:
                assert received == _subscribe(running, [b"".join(pieces)])

        yield target


def _subscribe(running: Loop, pieces: list[bytes]) -> tuple[list[list[bytes]], bool]:
    """Return the messages that a publisher's bytes are, and whether it went beyond a bound."""
    messages: list[list[bytes]] = []
    excess: list[object] = []
    intake, transport = zmtp.Intake(), RecordingTransport()
    callbacks = zmtp.ZmtpCallbacks(lambda: None, lambda: None, excess.append)
    connection = zmtp._Connection(running.loop, "SUB", zmtp.subscription(""), intake, callbacks)
    connection.connection_made(transport)
    for piece in (zmtp.GREETING + zmtp._ready("SUB"), *pieces):
        connection.data_received(piece)
        while not transport.closing and (frames := connection.next_message()) is not None:
            if frames:
                messages.append(frames)
        if transport.closing:
            break
    connection.close()
    assert intake.held_bytes == 0
    return messages, bool(excess)
