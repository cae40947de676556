"""Fixtures of the gateway tests: one API server per session, and a router whose engines are its pods.

Every test is marked `gateway`: `make test-gateway` builds what they need and runs them.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import uvloop

from router.app import App
from router.backends.discovery.kubernetes.reflector import WatchTiming
from router.clock import Clock
from router.config import schema
from router.lab.local_stack.guard import ProcessGuard
from tests.e2e.conftest import Router, config_of
from tests.fakes.engines import FakeEngine, engine
from tests.gateway.chart import Helm
from tests.gateway.cluster import NAMESPACE, Cluster, Gate
from tests.gateway.envoy import Envoy
from tests.gateway.install import program, why_missing
from tests.gateway.releases import RELEASE, connect, prepare
from tests.gateway.traffic import A, B, C, Start

ENGINE_PORT = 18_000
QUICK = WatchTiming(watch_s=2.0, grace_s=1.0, relist_s=60.0)


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Any]:
    """Everything here runs on uvloop, as production does."""
    return {"uvloop": uvloop.new_event_loop}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/gateway/test_" in item.nodeid:
            item.add_marker(pytest.mark.gateway)


def need(*names: str) -> None:
    """Skip the test where a program is missing."""
    if (reason := why_missing(*names)) is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def guard() -> Iterator[ProcessGuard]:
    """Ends every program of these tests, also when they are killed."""
    with closing(ProcessGuard()) as running:
        yield running


@pytest.fixture
def envoy(tmp_path: Path, guard: ProcessGuard) -> Callable[[str], AbstractAsyncContextManager[Envoy]]:
    """`envoy(configuration)`: a running Envoy with this YAML; see `tests/gateway/envoy.py`."""
    need("envoy")
    return lambda configuration: Envoy.run(configuration, tmp_path, guard)


@pytest.fixture(scope="session")
def helm() -> Path:
    """The program `helm`."""
    need("helm")
    return program("helm")


@pytest.fixture(scope="session")
def kubectl() -> Path:
    """The program `kubectl`."""
    need("kubectl")
    return program("kubectl")


@pytest.fixture(scope="session")
def running_cluster(tmp_path_factory: pytest.TempPathFactory, guard: ProcessGuard) -> Iterator[Cluster]:
    need("kube-apiserver", "etcd")
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), guard)
    try:
        cluster.start()
        asyncio.run(cluster.prepare())
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="session")
def cluster_for_releases(running_cluster: Cluster) -> Cluster:
    asyncio.run(prepare(running_cluster))
    return running_cluster


@pytest.fixture
def release_in(
    cluster_for_releases: Cluster, cluster: Cluster, helm: Path, tmp_path: Path
) -> Iterator[Callable[[str], Helm]]:
    """`release_in(NAMESPACE)`: Helm as an administrator of the cluster; what it installed goes with the test."""
    used: list[Helm] = []

    def make(namespace: str) -> Helm:
        used.append(connect(cluster, helm, tmp_path, namespace))
        return used[-1]

    yield make
    for running in used:
        for name in ("warmroute", RELEASE):
            running.run("uninstall", name, "--ignore-not-found")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another user can read, unlike those of pytest."""
    with tempfile.TemporaryDirectory(prefix="warmroute-pod-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
async def cluster(running_cluster: Cluster) -> AsyncIterator[Cluster]:
    """The cluster without any pods. A test that failed may have left it without its API server."""
    if not running_cluster.has_api_server():
        await asyncio.to_thread(running_cluster.start_api_server)
    await running_cluster.delete_all()
    yield running_cluster
    running_cluster.token_file.write_text("reader")


@pytest.fixture
async def gate(cluster: Cluster) -> AsyncIterator[Gate]:
    async with Gate(cluster.port) as running:
        yield running


@pytest.fixture
def router_over_pods(cluster: Cluster, gate: Gate) -> Callable[..., Any]:
    """`router_over_pods(clock=None, **kubernetes)`: a router whose fleet the API server tells it, through the gate."""

    @asynccontextmanager
    async def start(clock: Clock | None = None, **kubernetes: Any) -> AsyncIterator[Router]:
        api = cluster.config(gate.port).model_dump()
        source = {"namespace": NAMESPACE, "selector": "app=vllm", "ports": [ENGINE_PORT], "api": api} | kubernetes
        app = App(schema.Config.model_validate(config_of([], fleet={"kubernetes": source})), clock)
        app.core.discoveries["kubernetes"]._timing = QUICK  # type: ignore[attr-defined]
        await app.start()
        running = Router(app, [], "http")
        try:
            yield running
        finally:
            await running.close()
            await app.stop()

    return start


@pytest.fixture
def start(router_over_pods: Start, monkeypatch: pytest.MonkeyPatch) -> Start:
    """The same with a policy that spreads requests, so that each pod gets some all the time."""
    monkeypatch.setattr("tests.e2e.conftest.WARM", {"scorers": [{"name": "random"}]})
    return router_over_pods


@pytest.fixture
async def engines() -> AsyncIterator[dict[str, FakeEngine]]:
    """An engine at each address, by address. The one at C is slow: its answers have 120 tokens at 20 per second."""
    options = {"port": ENGINE_PORT, "events": True}
    async with (
        engine(host=A, **options) as a,
        engine(host=B, **options) as b,
        engine(host=C, decode_ms_per_token=50.0, answer_tokens=120, **options) as c,
    ):
        yield {A: a, B: b, C: c}
