"""The picker's listeners over real gRPC: health, TLS and ports."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from router.clock import SystemClock
from router.config.schema import Config
from router.errors import ConfigError
from router.picker.answer_log import AnswerLog, LoggedEnd
from router.picker.credentials import make_self_signed
from router.picker.exchange import PickerExchange
from router.picker.health import PickerHealth
from router.picker.names import EXT_PROC
from router.picker.server import PickerServer
from router.proxy.call import Headers
from router.proxy.listening_sockets import ListeningSockets, SocketShare
from tests.paths import ROOT
from tests.patience import PATIENCE_S

TLS = ROOT / "tests/fakes/tls"
POLICIES = {"random": {"scorers": [{"name": "random"}]}}
LOCAL: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "health_port": 0}
NOW_S = time.time()  # gRPC's client checks the dates


class Readiness:
    """Says whether a picker is ready."""

    reason: str | None = None
    stopping = False


class NoRequests:
    """A handler that is never called."""

    async def answer(self, exchange: PickerExchange) -> None:
        raise AssertionError("there is no request")

    def on_crash(self, exchange: PickerExchange) -> tuple[int, Headers, bytes]:
        raise AssertionError("there is no request")


def build(
    ready: Readiness | None = None,
    sockets: ListeningSockets | None = None,
    processes: int = 1,
    number: int = 0,
    log: AnswerLog | None = None,
    **settings: Any,
) -> PickerServer:
    ready = ready or Readiness()
    config = Config.model_validate({"policies": POLICIES, "picker": LOCAL | settings})
    health = PickerHealth(lambda: ready.reason, lambda: ready.stopping)
    log = AnswerLog(time.monotonic) if log is None else log
    share = SocketShare(sockets or ListeningSockets(), processes, number)
    return PickerServer(config, NoRequests(), log, health, SystemClock(), share)


@asynccontextmanager
async def picker(ready: Readiness | None = None, **settings: Any) -> AsyncIterator[PickerServer]:
    server = build(ready, **settings)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0.1)


async def check(channel: grpc.aio.Channel, service: str) -> Any:
    """The status of a service by its name, or the code of the failure."""
    async with channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(
                HealthCheckRequest(service=service), timeout=PATIENCE_S
            )
        except grpc.aio.AioRpcError as error:
            return error.code()
    return HealthCheckResponse.ServingStatus.Name(answer.status)


def plain(port: int) -> grpc.aio.Channel:
    """A channel with a connection of its own."""
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)])


def secure(port: int, certificate: str) -> grpc.aio.Channel:
    """A channel that trusts exactly this certificate."""
    options = [("grpc.ssl_target_name_override", "localhost")]
    return grpc.aio.secure_channel(
        f"127.0.0.1:{port}", grpc.ssl_channel_credentials(certificate.encode()), options=options
    )


async def certificate_of(port: int) -> str:
    """The certificate that a new connection gets."""
    return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))


async def test_health_says_serving_from_the_first_ready_engine_to_the_stop() -> None:
    ready = Readiness()
    ready.reason = "no instance is ready"
    async with picker(ready, tls="off") as server:
        assert await check(plain(server.port), EXT_PROC) == "NOT_SERVING"
        ready.reason = None
        for port in (server.port, server.health_port):
            for service in ("", "readiness", "liveness", EXT_PROC, "inference-extension"):
                assert await check(plain(port), service) == "SERVING"
            assert await check(plain(port), "unknown") == grpc.StatusCode.NOT_FOUND
        ready.reason = "no instance is ready"
        assert await check(plain(server.port), EXT_PROC) == "SERVING", "its requests are refused one by one"
        ready.stopping = True
        assert await check(plain(server.port), EXT_PROC) == "NOT_SERVING"
        assert await check(plain(server.health_port), "readiness") == "NOT_SERVING"
        assert await check(plain(server.health_port), "liveness") == "SERVING"


async def test_another_picker_takes_over_without_a_failed_call() -> None:
    """A gateway that never stops asking over its one connection gets the next picker's answers when it is told to."""
    sockets = ListeningSockets()
    old = build(sockets=sockets, tls="off")
    await old.start()
    copies = [one.dup() for one in sockets.all]  # as another process gets them
    unready = Readiness()
    unready.reason = "no instance is ready"  # by which the new one is known
    new = build(unready, ListeningSockets(copies), tls="off", port=old.port, health_port=old.health_port)
    await new.bind()
    said: list[str] = []
    async with plain(old.port) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        async def ask() -> str:
            answer = await stub.Check(HealthCheckRequest(service=EXT_PROC), timeout=PATIENCE_S)
            said.append(HealthCheckResponse.ServingStatus.Name(answer.status))
            return said[-1]

        assert await ask() == "SERVING"
        asking = asyncio.gather(*(_ask_until(ask, "NOT_SERVING") for _ in range(8)))
        await new.start()
        old.stop_accepting()
        old.retire(0.0)
        async with asyncio.timeout(PATIENCE_S):
            await asking
        await old.stop(0.1)
        assert await ask() == "NOT_SERVING"
    await new.stop(0.1)


async def _ask_until(ask: Callable[[], Awaitable[str]], answer: str) -> None:
    while await ask() != answer:
        pass


async def test_processes_share_the_ports_and_one_accepts_for_another_that_does_not() -> None:
    sockets = ListeningSockets()
    first = build(sockets=sockets, processes=2, tls="off")
    await first.bind()
    copies, unready = [one.dup() for one in sockets.all], Readiness()  # as another process gets them
    unready.reason = "no instance is ready"  # by which the second one is known
    ports = {"port": first.port, "health_port": first.health_port}
    second = build(unready, ListeningSockets(copies), processes=2, number=1, tls="off", **ports)
    await first.start()
    await second.start()
    for port in ports.values():
        async with asyncio.timeout(PATIENCE_S):
            await _ask_until(lambda port=port: check(plain(port), EXT_PROC), "SERVING")
            await _ask_until(lambda port=port: check(plain(port), EXT_PROC), "NOT_SERVING")
    await second.stop(0.1)
    first.serve_for(1, True)
    for port in ports.values():
        assert {await check(plain(port), EXT_PROC) for _ in range(20)} == {"SERVING"}
    await first.stop(0.1)


class Worker:
    """Another worker of the host, which stops too."""

    answers = True

    def pass_on(self, key: str, end: LoggedEnd) -> None: ...

    def on_follow(self) -> None: ...

    def on_open(self) -> None: ...

    def wait_here(self) -> bool:
        return self.answers


async def test_log_streams_outlive_the_answers_of_other_workers() -> None:
    log = AnswerLog(time.monotonic)
    log.others = other = Worker()
    log.on_stream_begin("gw")
    server = build(log=log, tls="off")
    await server.start()
    stopping = asyncio.ensure_future(server.stop(PATIENCE_S))
    assert await check(plain(server.port), "liveness") == "SERVING"
    assert not stopping.done()
    other.answers = False
    async with asyncio.timeout(PATIENCE_S / 2):
        await stopping


async def test_a_watch_is_told_of_changes() -> None:
    ready = Readiness()
    async with picker(ready, tls="off") as server, plain(server.health_port) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(HealthCheckRequest(service=EXT_PROC))
        assert (await watch.read()).status == HealthCheckResponse.SERVING
        ready.stopping = True
        assert (await watch.read()).status == HealthCheckResponse.NOT_SERVING
        watch.cancel()


async def test_tls_is_self_signed_by_default_and_probes_need_none() -> None:
    async with picker() as server:
        certificate = await certificate_of(server.port)
        assert await check(secure(server.port, certificate), EXT_PROC) == "SERVING"
        assert await check(plain(server.health_port), EXT_PROC) == "SERVING"
        assert await check(plain(server.port), EXT_PROC) == grpc.StatusCode.UNAVAILABLE


async def test_a_renewed_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    tls = {"cert_file": str(tmp_path / "cert.pem"), "key_file": str(tmp_path / "key.pem")}
    for name in ("cert.pem", "key.pem"):
        shutil.copy(TLS / name, tmp_path / name)
    async with picker(tls=tls) as server, picker() as other:
        assert await certificate_of(server.port) == (TLS / "cert.pem").read_text()
        key, certificate = make_self_signed(NOW_S)
        for name, content in (("key.pem", key), ("cert.pem", certificate)):
            (tmp_path / f"{name}.new").write_bytes(content)
            (tmp_path / f"{name}.new").rename(tmp_path / name)
        assert await certificate_of(server.port) == certificate.decode()
        assert other.port != server.port


def test_files_that_cannot_be_used_are_found_at_the_start(tmp_path: Path) -> None:
    tls = {"cert_file": str(tmp_path / "none.pem"), "key_file": str(tmp_path / "none.pem")}
    with pytest.raises(ConfigError, match="tls"):
        build(tls=tls)


async def test_a_port_in_use_is_said() -> None:
    async with picker(tls="off") as first:
        second = build(port=first.port, tls="off")
        with pytest.raises(ConfigError, match=f"picker.port: port {first.port} is in use on 127.0.0.1"):
            await second.start()
        await second.stop(0)
