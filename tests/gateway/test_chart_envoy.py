"""The chart's picker modes as a whole: the router of a release on the real API server, behind an Envoy, over engines in
pods.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.testbed.local_stack.guard import ProcessGuard
from tests.e2e.conftest import MODEL
from tests.fakes.engines import engine
from tests.gateway.chart import CHART, Helm, merge
from tests.gateway.cluster import Cluster, free_port
from tests.gateway.configurations import configuration
from tests.gateway.releases import (
    ENGINES_PORT,
    NAMESPACE,
    RELEASE,
    ROOT_ONLY,
    A,
    B,
    RunningRouter,
    make_token,
    values,
)

BODY = {"model": MODEL, "prompt": "Where do the bytes of an answer go?"}


@ROOT_ONLY
@pytest.mark.parametrize("profile", ["thin", "conforming"])
async def test_requests_through_the_envoy_of_a_release(
    profile: str,
    release_in: Callable[[str], Helm],
    cluster: Cluster,
    envoy: Callable[[str], Any],
    open_folder: Path,
    guard: ProcessGuard,
) -> None:
    release, front = release_in(NAMESPACE), free_port()
    picker = {"port": free_port(), "health_port": free_port()}
    wanted = {"mode": "envoy", "envoy": {"port": front, "profile": profile}, "config": {"picker": picker}}
    release.done("install", RELEASE, str(CHART), "--values", release.write(merge(values(cluster, open_folder), wanted)))
    (open_folder / "token").write_text(await make_token(cluster))
    await cluster.make_pod("a", A)
    async with (
        engine(host=A, port=ENGINES_PORT, events=True),
        engine(host=B, port=ENGINES_PORT, events=True) as stranger,
        RunningRouter.run(release, open_folder, guard) as running,
    ):
        text = running.rendered.find("ConfigMap", "front-warmroute-envoy")["data"]["envoy.yaml"]
        async with envoy(text) as proxy, httpx.AsyncClient(base_url=f"http://127.0.0.1:{front}", timeout=30.0) as http:
            await running.until_ready()
            await proxy.until_healthy("picker")
            assert (await http.get("/ready")).status_code == 200
            elsewhere = {"x-gateway-destination-endpoint": f"{B}:{ENGINES_PORT}"}
            whole = await http.post("/v1/completions", json=BODY, headers=elsewhere)
            assert (whole.status_code, stranger.seen("/v1/completions")) == (200, [])
            stream = await http.post("/v1/completions", json=BODY | {"stream": True})
            assert stream.text.rstrip().endswith("data: [DONE]")
            refused = await http.post("/v1/completions", json=BODY | {"model": "unknown"})
            assert (refused.status_code, json.loads(refused.text)["error"]["code"]) == (404, "model_not_found")
            assert (await http.get("/metrics")).status_code == 404


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
