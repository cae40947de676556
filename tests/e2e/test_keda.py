"""The router as an external scaler of KEDA, which is played by a real gRPC client."""

from __future__ import annotations

import asyncio
import struct

import grpc
import pytest

from router.app import App
from router.clock import SystemClock
from router.config import schema
from router.errors import ConfigError
from router.features.autoscaling import scaling
from router.features.autoscaling.keda.external_scaler_pb2 import (
    Activity,
    MetricSpec,
    MetricSpecs,
    MetricsQuestion,
    MetricValue,
    MetricValues,
)
from router.lab.local_stack.preflight import free_ports
from tests.e2e.chats import PATH
from tests.e2e.conftest import LOCAL, MODEL, Json, Router, config_of
from tests.e2e.test_replicas import SECRET, all_heard
from tests.e2e.test_wake import a_body, fleet_file
from tests.e2e.workers import Clients, all_up
from tests.fakes.engines import engine, eventually
from tests.fakes.keda import METRIC, Keda
from tests.paths import TLS

BY_KEDA = {"models": {"warm-*": {}}}
NOT_FOUND, UNAVAILABLE = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE
INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT


class SkippingClock(SystemClock):
    """The system's clock, of which the test skips seconds."""

    def __init__(self) -> None:
        self.skipped_s = 0.0

    def now(self) -> float:  # type: ignore[override]
        return SystemClock.now() + self.skipped_s

    def pass_over(self, r: Router, seconds: int) -> None:
        """Let time pass in which the fleet is read every second."""
        for _ in range(seconds):
            self.skipped_s += 1.0
            r.app.features["autoscaling"].scaling.read()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SkippingClock:
    """One by which alone the fleet is read."""
    monkeypatch.setattr(scaling, "READ_EVERY_S", 3600.0)
    return SkippingClock()


def port_of(r: Router) -> int:
    assert r.app.features["autoscaling"].listener is not None
    return r.app.features["autoscaling"].listener.port


async def test_without_the_section_nobody_listens(router) -> None:
    async with engine() as a, router([a]) as r:
        assert r.app.features["autoscaling"].listener is None


async def test_what_is_wanted_and_what_is_unknown(router, clock) -> None:
    async with (
        engine() as a,
        engine() as b,
        router([a, b], keda=LOCAL, clock=clock) as r,
        Keda.connect(port_of(r)) as keda,
    ):
        assert await keda.target(model=MODEL) == {METRIC: 1.0}, "the HPA is made before anything is known"
        assert await keda.desired(model=MODEL) is await keda.is_active(model=MODEL) is UNAVAILABLE
        assert keda.why == f"{MODEL}, both: not seen long enough yet"
        stream = keda.watch(model=MODEL)
        clock.pass_over(r, 20)
        assert await keda.desired(model=MODEL) == await keda.desired(model=MODEL, role="both") == 1
        assert await keda.is_active(model=MODEL) is True
        assert await stream.read() is True
        assert await r.metric(METRIC, model=MODEL, role="both") == 1
        for target in next(iter(r.core.fleet)).targets.values():
            target.load_book.book(400_000, 400_000)  # 40 s of prefill and more, by the prior
        clock.pass_over(r, 30)
        wanted = (await r.admin.get("/admin/scaling")).json()["models"][0]["desired"]
        assert await keda.desired(model=MODEL) == wanted > 10
        for ask in (keda.desired, keda.is_active):
            assert await ask(model=MODEL, role="decode") is await ask(model="other") is NOT_FOUND
        assert keda.why == "other, both: there is no instance"
        for call in (keda.target, keda.desired, keda.is_active):
            assert await call() is await call(model=MODEL, role="encode") is INVALID_ARGUMENT
        assert await keda.watch(role="both").read() is INVALID_ARGUMENT
        assert await keda.ask("IsActive", b"\xff", Activity) is INVALID_ARGUMENT
        assert await keda.ask("StreamMetricSpec", b"", Activity) is grpc.StatusCode.UNIMPLEMENTED


async def test_a_request_for_a_model_that_sleeps_wakes_it_and_it_sleeps_again(router, clock, tmp_path) -> None:
    fleet = fleet_file(tmp_path)
    async with (
        engine() as first,
        router([], fleet=fleet, wake=BY_KEDA, keda=LOCAL, clock=clock, wait=False) as r,
        Keda.connect(port_of(r)) as keda,
    ):
        assert await keda.is_active(model=MODEL) is UNAVAILABLE, "its engines may not be discovered yet"
        clock.pass_over(r, 20)
        stream = keda.watch(model=MODEL)
        assert await stream.read() is False
        assert (await keda.desired(model=MODEL), await keda.is_active(model=MODEL)) == (0, False)
        request = asyncio.create_task(r.post(PATH, a_body(1), timeout=60.0))
        assert await stream.read() is True, "without a reading: there is none here but by `pass_over`"
        assert (await keda.desired(model=MODEL), await keda.is_active(model=MODEL)) == (1, True)
        fleet_file(tmp_path, first.url)
        assert (await request).status_code == 200
        assert await r.metric("warmroute_wake_calls_total") == 0
        await eventually(r.idle)
        clock.pass_over(r, 400)
        assert await stream.read() is False
        assert (await keda.desired(model=MODEL), await keda.is_active(model=MODEL)) == (0, False)
        fleet_file(tmp_path)
        await eventually(lambda: not list(r.core.fleet))
        clock.pass_over(r, 1)
        assert (await keda.desired(model=MODEL), await keda.is_active(model=MODEL)) == (0, False)
        (described,) = (await r.admin.get("/admin/scaling")).json()["models"]
        assert (described["model"], described["instances"], described["desired"]) == (MODEL, 0, 0)
        stream.leave()
        await eventually(lambda: not r.app.features["autoscaling"].scaling.on_change[0].__self__._streams)


async def test_requests_that_wait_at_a_follower_are_seen_by_the_leader_which_alone_listens(
    router_process, fleet_config
) -> None:
    (port,) = free_ports(1)
    keda_at = {"host": "127.0.0.1", "port": port}
    async with engine() as awake:
        config = fleet_config([awake], wake={"models": {"sleepy": {}}, "wait_s": 2.0}, workers=2, keda=keda_at)
        async with router_process(config) as r, Keda.connect(port) as keda:
            _, follower = await all_up(r)
            stream = keda.watch(model="sleepy")
            async with Clients(r) as clients:
                request = asyncio.create_task(clients.by_run[follower["run"]].post(PATH, json=a_body(1, "sleepy")))
                assert await stream.read() is True
                assert await keda.desired(model="sleepy") == 1
                assert (await request).json()["error"]["code"] == "not_woken"


async def test_requests_that_wait_at_another_replica_count(router, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv(SECRET, "0123456789abcdef" * 2)
    ports = free_ports(2)
    peers = [f"127.0.0.1:{port}" for port in ports]
    mine, theirs = ({"peers": peers, "secret_env": SECRET, "host": "127.0.0.1", "port": port} for port in ports)
    asleep: Json = {"fleet": fleet_file(tmp_path), "wake": BY_KEDA, "wait": False}
    async with (
        engine() as first,
        router([], replicas=mine, keda=LOCAL, **asleep) as one,
        router([], replicas=theirs, **asleep) as other,
        Keda.connect(port_of(one)) as keda,
    ):
        await eventually(lambda: all_heard(one, other))
        stream = keda.watch(model=MODEL)
        request = asyncio.create_task(other.post(PATH, a_body(1), timeout=60.0))
        assert await stream.read() is True
        assert not one.app.features["autoscaling"].wake.waits.waiting()["warm-*"]
        fleet_file(tmp_path, first.url)
        assert (await request).status_code == 200


async def test_with_tls_and_a_port_that_is_taken(router) -> None:
    files = {"cert_file": str(TLS / "cert.pem"), "key_file": str(TLS / "key.pem")}
    async with engine() as a, router([a], keda=LOCAL | {"tls": files}) as r:
        async with Keda.connect(port_of(r), (TLS / "cert.pem").read_bytes()) as keda:
            assert await keda.target(model=MODEL) == {METRIC: 1.0}
        config = schema.Config.model_validate(config_of([a], keda={"host": "127.0.0.1", "port": port_of(r)}))
        second = App(config)
        with pytest.raises(ConfigError, match=r"keda\.port: .*in use"):
            await second.start()
        await second.stop()  # it has two other ports


def test_the_bytes_are_those_of_externalscaler_proto() -> None:
    """By the field numbers and types of KEDA's file: its names are not ours."""
    asked = (
        b"\x0a\x1d"
        + b"\x0a\x01o\x12\x01n"
        + b"\x1a\x0a\x0a\x05model\x12\x01m"
        + b"\x1a\x09\x0a\x04role\x12\x01b"
        + b"\x12\x01x"
    )
    question = MetricsQuestion.FromString(asked)
    assert (question.scaled_object.name, question.scaled_object.namespace, question.name) == ("o", "n", "x")
    assert dict(question.scaled_object.metadata) == {"model": "m", "role": "b"}
    assert Activity(active=True).SerializeToString() == b"\x08\x01"
    two = b"\x0a\x0e\x0a\x01x\x10\x02\x19" + struct.pack("<d", 2.0)
    assert MetricSpecs(specs=[MetricSpec(name="x", whole_target=2, target=2.0)]).SerializeToString() == two
    assert MetricValues(values=[MetricValue(name="x", whole_value=2, value=2.0)]).SerializeToString() == two
