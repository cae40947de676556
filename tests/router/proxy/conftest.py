"""Real sockets on both sides: an engine that follows a script, our listener with a small app around `relay`, a client
that writes and reads raw bytes. All on uvloop, as in production."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from router.backends.vllm.disaggregation import NIXL_PREFILL, decode_body, mooncake_params, prefill_body
from router.config.sections.listeners import LimitsConfig, ListenConfig, TlsConfig
from router.errors import RequestRefused
from router.prompt.broken_stream import end_broken_stream
from router.prompt.prompt import Endpoint
from router.proxy.call import ClientDisconnected, ClientRequest
from router.proxy.disaggregated import PrefillLeg, PrefillResult, relay_after, relay_beside
from router.proxy.engine_connection import ExchangeFailure
from router.proxy.headers import AnswerLabels, HeaderRules
from router.proxy.listener import HttpListener, configure_server
from router.proxy.relay import OutgoingRequest, RelayEnd, relay
from router.proxy.upstreams import UpstreamRequest, Upstreams, UpstreamTimeouts
from router.request.concurrency import ConcurrencyLimiter
from tests.router.proxy.connections import BareHandler

PATIENCE_S = 60.0


class Peer:
    """One end of a connection, spoken to in raw bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def until(self, mark: bytes) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.readuntil(mark)

    async def exactly(self, count: int) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.readexactly(count)

    async def rest(self) -> bytes:
        """Everything up to the end of the connection, however it ends."""
        got = b""
        async with asyncio.timeout(PATIENCE_S):
            with suppress(ConnectionError):
                while data := await self.reader.read(65536):
                    got += data
        return got

    async def message(self) -> tuple[bytes, bytes]:
        """Head and body of one message with a length, or chunked (then as it is on the wire)."""
        head = await self.until(b"\r\n\r\n")
        lower = head.lower()
        if b"transfer-encoding: chunked" in lower:
            return head, await self.until(b"0\r\n\r\n")
        length = int(lower.split(b"content-length:")[1].split(b"\r\n")[0]) if b"content-length:" in lower else 0
        return head, await self.exactly(length)

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        self.writer.transport.abort()


Script = Callable[[Peer], Awaitable[None]]


@dataclass
class Engine:
    """Each connection follows the next script; the last one is for all that come after."""

    scripts: list[Script]
    port: int = 0
    connections: int = 0
    failures: list[BaseException] = field(default_factory=list)
    peers: list[Peer] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self.scripts[min(self.connections, len(self.scripts) - 1)]
        self.connections += 1
        peer = Peer(reader, writer)
        self.peers.append(peer)
        try:
            await script(peer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except Exception as error:  # noqa: BLE001  shown at the end of the test
            self.failures.append(error)
        finally:
            peer.close()


@dataclass
class Watch:
    """Records what the relay reports, and hides `hide`."""

    statuses: list[int] = field(default_factory=list)
    seen: list[bytes] = field(default_factory=list)
    encodings: list[bytes] = field(default_factory=list)
    hide: bytes = b""
    stopped: bool = False
    halves: list[PrefillResult] = field(default_factory=list)

    def on_first_byte(self, status: int) -> None:
        self.statuses.append(status)

    def on_encoded(self, encoding: bytes) -> None:
        self.encodings.append(encoding)
        self.hide = b""

    def feed(self, data: bytes) -> bytes:
        self.seen.append(data)
        return data.replace(self.hide, b"") if self.hide else data

    def flush(self) -> bytes:
        return b""

    def can_continue(self) -> bool:
        return False

    def end_broken(self, failure: ExchangeFailure, last: bytes) -> bytes:
        return end_broken_stream(Endpoint.CHAT, "engine_failed", failure.value, last=last)

    def on_prefill_end(self, result: PrefillResult) -> None:
        self.halves.append(result)


class Front(BareHandler):
    """A listener with a request path of its own: limiter, body, one relay. Keeps how each request ended."""

    def __init__(self, limits: LimitsConfig, instance: str, hides: bytes) -> None:
        super().__init__()
        self.limits = limits
        self.timeouts = UpstreamTimeouts(limits.first_byte_timeout_s, limits.idle_timeout_s)
        self.instance = instance
        self.limiter = ConcurrencyLimiter(limits.concurrent, limits.body_budget_bytes)
        self.upstreams = Upstreams(connect_timeout_s=limits.connect_timeout_s, keepalive_s=limits.keepalive_s)
        self.rules = HeaderRules(["x-vllm-priority"])
        self.hides = hides
        self.ends: asyncio.Queue[RelayEnd | str] = asyncio.Queue()
        self.watches: list[Watch] = []
        self.bodies: list[bytes] = []
        self.port = 0
        self.running = 0

    async def answer(self, call: ClientRequest) -> None:
        self.running += 1
        try:
            with call:
                await self._route(call)
        except RequestRefused as refusal:
            self.ends.put_nowait(f"refused {refusal.status}")
            call.answer(refusal.status, [], refusal.message.encode())
        except ClientDisconnected:
            self.ends.put_nowait("gone")
        finally:
            self.running -= 1

    async def _route(self, call: ClientRequest) -> None:
        with self.limiter.open(call.sender) as slot:
            body = await call.body(self.limits.body_bytes, slot)
            slot.take()
            self.bodies.append(body)
            watch = Watch(hide=self.hides)
            self.watches.append(watch)
            end = await self.relay(call, self.outgoing(call, body), watch)
            self.ends.put_nowait(end)
            if not call.started:
                call.answer(502, [], type(end).__name__.encode())

    def outgoing(self, call: ClientRequest, body: bytes) -> OutgoingRequest:
        return OutgoingRequest(
            self.instance,
            UpstreamRequest(call.method, call.target, self.rules.forward(call.headers, "rec-1"), body),
            AnswerLabels(f"{self.instance}/0", "rec-1"),
            hides=bool(self.hides),
        )

    async def relay(self, call: ClientRequest, out: OutgoingRequest, watch: Watch) -> RelayEnd:
        return await relay(call, self.upstreams, out, self.timeouts, watch)

    async def end(self) -> RelayEnd | str:
        async with asyncio.timeout(PATIENCE_S):
            return await self.ends.get()


PAIR_PARAMS = mooncake_params("xfer-1", "http://p:8998", "engine-1")


class PairFront(Front):
    """Every request goes to two engines: `p` prefills, `e` answers."""

    protocol = "mooncake"

    async def relay(self, call: ClientRequest, out: OutgoingRequest, watch: Watch) -> RelayEnd:
        endpoint = Endpoint(call.path)
        if self.protocol == "mooncake":
            prefill = self.prefill(out.request, endpoint, PAIR_PARAMS.prefill)
            out = out.with_body(decode_body(out.request.body, PAIR_PARAMS.decode))
            return await relay_beside(call, self.upstreams, prefill, out, self.timeouts, watch)
        prefill = self.prefill(out.request, endpoint, NIXL_PREFILL)
        return await relay_after(call, self.upstreams, prefill, out, self.timeouts, watch)

    def prefill(self, answering: UpstreamRequest, endpoint: Endpoint, params: bytes) -> PrefillLeg:
        body = prefill_body(endpoint, answering.body, params)
        request = UpstreamRequest("POST", answering.target, answering.headers, body, 1)
        return PrefillLeg(
            OutgoingRequest("p", request, AnswerLabels("p/1", "rec-1")), endpoint, self.protocol == "mooncake"
        )


class NixlFront(PairFront):
    protocol = "nixl"


@dataclass
class Certificate:
    cert_file: str
    key_file: str

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.cert_file)

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert_file, self.key_file)
        return context


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    folder: Path = tmp_path_factory.mktemp("tls")
    found = Certificate(str(folder / "cert.pem"), str(folder / "key.pem"))
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-keyout",
            found.key_file,
            "-out",
            found.cert_file,
        ],
        check=True,
        capture_output=True,
    )
    return found


@dataclass
class House:
    """What a test starts; everything is stopped with it."""

    stack: AsyncExitStack
    engines: list[Engine] = field(default_factory=list)

    async def engine(self, *scripts: Script, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> Engine:
        engine = Engine(list(scripts))
        server = await asyncio.start_server(engine.serve, host, 0, ssl=tls)
        engine.port = server.sockets[0].getsockname()[1]
        self.engines.append(engine)

        async def stop() -> None:
            server.close()
            for peer in engine.peers:
                peer.reset()
            await server.wait_closed()

        self.stack.push_async_callback(stop)
        return engine

    async def front(
        self,
        engine: Engine | None = None,
        *,
        url: str = "",
        ca_file: str | None = None,
        api_key: str | None = None,
        hides: bytes = b"",
        listen: dict[str, Any] | None = None,
        stall_timeout_s: float = 120.0,
        certificate: Certificate | None = None,
        kind: type[Front] = Front,
        **limits: Any,
    ) -> Front:
        front = kind(LimitsConfig(**limits), "e", hides)
        if engine is not None or url:
            front.upstreams.add("e", url or f"http://127.0.0.1:{engine.port}", api_key=api_key, ca_file=ca_file)
        tls = TlsConfig(cert_file=certificate.cert_file, key_file=certificate.key_file) if certificate else None
        where = ListenConfig(host="127.0.0.1", port=0, tls=tls, **(listen or {}))
        listener = HttpListener(configure_server(front, where, stall_timeout_s=stall_timeout_s))
        await listener.start()
        front.port = listener.port

        async def stop() -> None:
            await listener.stop(0)
            front.upstreams.close()
            await asyncio.sleep(0)

        self.stack.push_async_callback(stop)
        return front

    async def pair(self, protocol: str, prefill: Engine | str, decode: Engine | str, **limits: Any) -> Front:
        """Engines, or urls of some that cannot be reached."""
        kind = {"mooncake": PairFront, "nixl": NixlFront}[protocol]
        front = await self.front(kind=kind, **limits)
        for name, engine in (("p", prefill), ("e", decode)):
            front.upstreams.add(name, engine if isinstance(engine, str) else f"http://127.0.0.1:{engine.port}")
        return front

    async def client(self, port: int, **options: Any) -> Peer:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", port, **options))
        self.stack.callback(peer.reset)
        return peer


@asynccontextmanager
async def _house() -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        house = House(stack)
        yield house
    for engine in house.engines:
        assert engine.failures == []


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with _house() as house:
        yield house


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    async def wait(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110  any condition, not an event
                await asyncio.sleep(0.005)

    return wait
