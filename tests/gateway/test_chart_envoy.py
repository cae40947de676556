"""The chart's picker modes as a whole: the router of a release on the real API server, behind an Envoy, over engines in
pods.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from router.lab.local_stack.guard import ProcessGuard
from tests.e2e.conftest import MODEL
from tests.fakes.engines import engine, eventually
from tests.gateway.chart import CHART, Helm, merge
from tests.gateway.cluster import Cluster, free_port
from tests.gateway.configurations import configuration
from tests.gateway.envoy import Envoy
from tests.gateway.releases import (
    ENGINES_PORT,
    NAME,
    NAMESPACE,
    RELEASE,
    ROOT_ONLY,
    SOON_S,
    A,
    B,
    RunningRouter,
    make_token,
    values,
)

LONG_S = 8.0  # of an answer: longer than the hook waits at least
BODY = {"model": MODEL, "prompt": "Where do the bytes of an answer go?"}


class Pod(NamedTuple):
    """A pod of a release in mode `envoy`: its two containers as processes, and a client of its Service."""

    router: RunningRouter
    envoy: Envoy
    http: httpx.AsyncClient


Start = Callable[[str], AbstractAsyncContextManager[Pod]]


@pytest.fixture
def start_pod(
    release_in: Callable[[str], Helm],
    cluster: Cluster,
    envoy: Callable[[str], AbstractAsyncContextManager[Envoy]],
    open_folder: Path,
    guard: ProcessGuard,
) -> Start:
    """`start_pod(profile)`: a ready pod, whose engine is in the pod `a` at address `A`."""

    @asynccontextmanager
    async def start(profile: str) -> AsyncIterator[Pod]:
        release, front = release_in(NAMESPACE), free_port()
        picker = {"port": free_port(), "health_port": free_port()}
        wanted = {"mode": "envoy", "envoy": {"port": front, "profile": profile}, "config": {"picker": picker}}
        file = release.write(merge(values(cluster, open_folder), wanted))
        release.done("install", RELEASE, str(CHART), "--values", file)
        (open_folder / "token").write_text(await make_token(cluster))
        await cluster.make_pod("a", A)
        async with RunningRouter.run(release, open_folder, guard) as router:
            configuration_of = router.rendered.find("ConfigMap", f"{NAME}-envoy")["data"]
            url = f"http://127.0.0.1:{front}"
            async with (
                envoy(configuration_of["envoy.yaml"]) as proxy,
                httpx.AsyncClient(base_url=url, timeout=30.0, trust_env=False) as http,
            ):
                await router.until_ready()
                await proxy.until_healthy("picker")
                yield Pod(router, proxy, http)

    return start


@ROOT_ONLY
@pytest.mark.parametrize("profile", ["thin", "conforming"])
async def test_requests_through_the_envoy_of_a_release(profile: str, start_pod: Start) -> None:
    options = {"port": ENGINES_PORT, "events": True}
    async with engine(host=A, **options), engine(host=B, **options) as stranger, start_pod(profile) as pod:
        assert (await pod.http.get("/ready")).status_code == 200
        elsewhere = {"x-gateway-destination-endpoint": f"{B}:{ENGINES_PORT}"}
        whole = await pod.http.post("/v1/completions", json=BODY, headers=elsewhere)
        assert (whole.status_code, stranger.seen("/v1/completions")) == (200, [])
        stream = await pod.http.post("/v1/completions", json=BODY | {"stream": True})
        assert stream.text.rstrip().endswith("data: [DONE]")
        refused = await pod.http.post("/v1/completions", json=BODY | {"model": "unknown"})
        assert (refused.status_code, json.loads(refused.text)["error"]["code"]) == (404, "model_not_found")
        assert (await pod.http.get("/metrics")).status_code == 404


@ROOT_ONLY
@pytest.mark.parametrize("profile", ["thin", "conforming"])
async def test_a_pod_that_terminates_finishes_its_answers(profile: str, start_pod: Start, tmp_path: Path) -> None:
    """As the kubelet ends it: the hooks of both containers at once, and SIGTERM to each whose hook has returned."""
    options = {"port": ENGINES_PORT, "events": True, "decode_ms_per_token": LONG_S * 10, "answer_tokens": 100}
    async with engine(host=A, **options) as slow, start_pod(profile) as pod:
        body = BODY | {"stream": True, "max_tokens": 100}
        answer = asyncio.create_task(pod.http.post("/v1/completions", json=body))
        await eventually(lambda: slow.seen("/v1/completions"), SOON_S)
        rendered, admin = pod.router.rendered, str(pod.envoy.admin.base_url.port)
        script = rendered.find("ConfigMap", f"{NAME}-envoy")["data"]["drain.sh"].replace("9901", admin)
        command = rendered.container()["lifecycle"]["preStop"]["exec"]["command"]
        of_router = [sys.executable, *(argument.replace("9901", admin) for argument in command[1:])]
        of_envoy_hook = await asyncio.create_subprocess_exec("bash", "-c", script)
        of_router_hook = await asyncio.create_subprocess_exec(*of_router)
        late = await pod.http.post("/v1/completions", json=BODY | {"max_tokens": 1})
        assert late.status_code == 200
        assert not answer.done()
        assert await asyncio.wait_for(of_envoy_hook.wait(), SOON_S) == 0
        whole = await asyncio.wait_for(answer, 1.0)
        assert whole.text.rstrip().endswith("data: [DONE]")
        assert of_router_hook.returncode is None
        pod.envoy.stop()
        assert await asyncio.wait_for(of_router_hook.wait(), SOON_S) == 0
        assert await asyncio.to_thread(pod.router.child.stop) == 0


@ROOT_ONLY
async def test_requests_through_a_gateway_to_the_picker_of_a_release(
    release_in: Callable[[str], Helm],
    cluster: Cluster,
    envoy: Callable[[str], Any],
    open_folder: Path,
    guard: ProcessGuard,
) -> None:
    """The gateway is an Envoy that is none of the chart's: it reaches the picker by TLS, as the pool says."""
    release = release_in("llm")
    picker = {"port": free_port(), "health_port": free_port()}
    wanted = {"mode": "gateway", "engines": {"namespace": ""}, "config": {"picker": picker}}
    release.done("install", RELEASE, str(CHART), "--values", release.write(merge(values(cluster, open_folder), wanted)))
    (open_folder / "token").write_text(await make_token(cluster, "llm"))
    await cluster.make_pod("a", A)
    async with (
        engine(host=A, port=ENGINES_PORT, events=True),
        RunningRouter.run(release, open_folder, guard) as running,
        envoy(configuration(picker["port"], tls=True)) as gateway,
        httpx.AsyncClient(base_url=gateway.url("inference"), timeout=30.0) as http,
    ):
        await running.until_ready()
        await gateway.until_healthy("picker")
        answer = await http.post("/v1/completions", json=BODY | {"stream": True})
        assert answer.text.rstrip().endswith("data: [DONE]")
