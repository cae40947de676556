"""Fuzz target for what a gateway sends a picker: HTTP/2, gRPC and ext_proc messages, in arbitrary pieces."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from router.errors import RequestRefused
from router.picker.answer_log import AnswerLog
from router.picker.calls import AccessLogCall, ExchangeContext, ExtProcCall, PickerBounds
from router.picker.exchange import PickerExchange
from router.picker.grpc_stream import GrpcHandler, GrpcStream
from router.picker.http2 import GrpcConnection
from router.picker.messages import Choice
from router.picker.names import ACCESS_LOG, EXT_PROC
from router.picker.peers import GATEWAYS, PeerBounds, PeerConnections
from router.proxy.call import ClientDisconnected, Headers
from router.proxy.client_address import TrustedProxies
from router.tasks import Tasks
from tests.abuse.fuzz.connection_targets import BODY_BYTES, Loop, RecordingTransport, running_loop
from tests.abuse.fuzz.pieces import split

ENDPOINT = "192.0.2.7:8000"
BOUNDS = PickerBounds(BODY_BYTES, 4 * BODY_BYTES, 60.0, 60.0, 60.0)


class _Watch:
    """Sees an answer and changes nothing."""

    def on_first_byte(self, status: int) -> None:
        pass

    def on_encoded(self, encoding: bytes) -> None:
        pass

    def feed(self, data: bytes) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


class _Picker:
    """Reads every body and names one endpoint; a path answers by itself."""

    async def answer(self, call: PickerExchange) -> None:
        with contextlib.suppress(ClientDisconnected, RequestRefused), call:
            body = await call.body(BODY_BYTES, self)
            if call.path == "/early":
                call.answer(429, [], b"early")
                return
            await call.choose(Choice(ENDPOINT, "key", [], [], body), [], _Watch())

    def on_crash(self, call: PickerExchange) -> tuple[int, Headers, bytes]:
        return 500, [], b"crashed"

    def hold(self, bytes_: int) -> None:
        pass


@contextmanager
def gateway_target() -> Iterator[Callable[[bytes], None]]:
    """Yield the target for bytes of a gateway."""
    with running_loop() as running:

        def target(data: bytes) -> None:
            """Whatever comes, every call ends with its connection, and so does what answers it."""
            _serve(running, split(data))

        yield target


def _serve(running: Loop, pieces: list[bytes]) -> bytes:
    """Return what a gateway's bytes are answered with."""
    calls, tasks = set[ExtProcCall](), Tasks("gateway")
    log = AnswerLog(running.loop.time)
    context = ExchangeContext(_Picker(), TrustedProxies([]), tasks, calls, BOUNDS)
    services: dict[bytes, Callable[[GrpcStream], GrpcHandler]] = {
        f"/{EXT_PROC}/Process".encode(): lambda stream: ExtProcCall(context, stream),
        f"/{ACCESS_LOG}/StreamAccessLogs".encode(): lambda stream: AccessLogCall(log, stream),
    }

    async def serve() -> bytes:
        transport = RecordingTransport()
        peers = PeerConnections(PeerBounds(BODY_BYTES, BOUNDS.budget_bytes, 10, 100, GATEWAYS), running.loop.time)
        connection = GrpcConnection(services, peers)
        connection.connection_made(transport)
        for piece in pieces:
            if transport.closing:
                break
            connection.data_received(piece)
            await running.turns()
        transport.closing = True
        connection.connection_lost(None)
        await running.turns()
        assert not calls, "a call outlives its connection"
        assert not peers.connections
        left = [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith(tasks.owner)]
        assert not left, "an exchange outlives its connection"
        return bytes(transport.written)

    return running.loop.run_until_complete(serve())
