"""The router and the API server itself: rights, an absence, tokens, a pool; and what labels mean for pairs."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from router.fleet.instance import InstanceState
from tests.fakes.engines import FakeEngine, engine, eventually
from tests.gateway.cluster import MERGE, POOLS, Cluster
from tests.gateway.conftest import ENGINE_PORT
from tests.gateway.traffic import BODY, SOON_S, A, B, C, CompressedClock, Start, find, pods_under_traffic, ready

Engines = dict[str, FakeEngine]
AWAY_S = 600.0
SPEED_UP = 60.0
ROLE, REVISION = "llm-d.ai/role", "app.kubernetes.io/version"
PAIRS = {
    "scorers": [{"name": "random"}],
    "prefill": {"scorers": [{"name": "random"}]},
    "prefill_from_tokens": 16,
}


async def test_pods_with_a_role_that_may_only_read(cluster: Cluster, start: Start, engines: Engines) -> None:
    uid = await cluster.make_pod("a", A, {REVISION: "7"})
    async with start() as router:
        await ready(router, "a")
        (found,) = (await router.instances()).values()
        assert found["sources"] == [{"source": "kubernetes", "origin": "pod llm/a", "uid": uid, "accepting": True}]
        assert (found["id"], found["revision"]) == (f"a.{uid[:8]}", "7")
        assert await router.metric("warmroute_discovery_age_seconds", source="kubernetes") < SOON_S


async def test_while_the_api_server_is_away_for_ten_minutes_nothing_fails(
    cluster: Cluster, start: Start, engines: Engines, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten minutes by the router's clock, which runs 60 times as fast meanwhile."""
    clock = CompressedClock()
    async with pods_under_traffic(cluster, start, clock, a=A, b=B) as (router, requests):
        await asyncio.to_thread(cluster.stop_api_server)
        discovery = router.app.core.discoveries["kubernetes"]
        await eventually(lambda: discovery.trouble is not None, SOON_S)
        clock.run_at(SPEED_UP)
        until = clock.now() + AWAY_S
        await eventually(lambda: clock.now() > until, 2 * AWAY_S / SPEED_UP)
        clock.run_at(1.0)
        assert await router.metric("warmroute_discovery_age_seconds", source="kubernetes") > AWAY_S
        assert await router.metric("warmroute_discovery_trouble", source="kubernetes") == 1
        sent = len(requests.sent)
        await eventually(lambda: len(requests.sent) > sent + 50, SOON_S)
        assert {sent.status for sent in requests.sent} == {200}
        assert {sent.target.partition(".")[0] for sent in requests.sent[-40:]} == {"a", "b"}
        engines[B].faults(unhealthy=True)  # health checks go on deciding
        await eventually(lambda: (found := find(router, "b")) is not None and found.state is InstanceState.DOWN, SOON_S)
        engines[B].faults(unhealthy=False)
        await asyncio.to_thread(cluster.start_api_server)
        await eventually(lambda: discovery.trouble is None, 4 * SOON_S)
        await cluster.make_pod("c", C)
        await ready(router, "c")
        assert await router.metric("warmroute_discovery_age_seconds", source="kubernetes") < SOON_S
    said = [r for r in caplog.records if r.name == "warmroute.discovery" and r.levelname == "WARNING"]
    assert len(said) == 1


async def test_a_token_that_was_replaced(cluster: Cluster, start: Start, engines: Engines) -> None:
    await cluster.make_pod("a", A)
    async with start() as router:
        await ready(router, "a")
        discovery = router.app.core.discoveries["kubernetes"]
        cluster.token_file.write_text("stranger")
        await eventually(lambda: "forbidden" in (discovery.trouble or ""), SOON_S)
        cluster.token_file.write_text("nobody")
        await eventually(lambda: "401" in (discovery.trouble or ""), SOON_S)
        cluster.token_file.write_text("reader")
        await eventually(lambda: discovery.trouble is None, SOON_S)
        await cluster.make_pod("b", B)
        await ready(router, "a", "b")


async def test_a_pool_is_followed(cluster: Cluster, start: Start, engines: Engines) -> None:
    await cluster.make_pod("a", A)
    await cluster.make_pod("b", B, {"app": "other"})
    spec = {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": ENGINE_PORT}]}
    kind = {"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool"}
    await cluster.call("POST", POOLS, kind | {"metadata": {"name": "qwen"}, "spec": spec})
    try:
        async with start(selector=None, inference_pool="qwen") as router:
            await ready(router, "a")
            change: dict[str, Any] = {"selector": {"matchLabels": {"app": "other"}}}
            await cluster.call("PATCH", f"{POOLS}/qwen", {"spec": change}, MERGE)
            await ready(router, "b")
            await eventually(lambda: find(router, "a") is None, SOON_S)
            change = {"targetPorts": [{"number": ENGINE_PORT}, {"number": ENGINE_PORT + 1}]}
            await cluster.call("PATCH", f"{POOLS}/qwen", {"spec": change}, MERGE)
            ports = lambda: sorted(found.config.url.rpartition(":")[2] for found in router.core.fleet)  # noqa: E731
            await eventually(lambda: ports() == [str(ENGINE_PORT), str(ENGINE_PORT + 1)], SOON_S)
    finally:
        await cluster.call("DELETE", f"{POOLS}/qwen")


async def test_a_rollout_never_pairs_revisions(cluster: Cluster, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """While both revisions run, each decode pod gets the KV of its own; without prefill pods it works alone."""
    monkeypatch.setattr("tests.e2e.conftest.WARM", PAIRS)
    pods = [(role, revision) for role in ("prefill", "decode") for revision in ("old", "new")]
    async with AsyncExitStack() as stack:
        for number, (role, revision) in enumerate(pods, 1):
            host, labels = f"127.0.7.{number}", {ROLE: role, REVISION: revision}
            await stack.enter_async_context(engine(host=host, port=ENGINE_PORT, role=role, transfer="nixl"))
            await cluster.make_pod(f"{role}-{revision}", host, labels)
        router = await stack.enter_async_context(start())
        await ready(router, *("-".join(pod) for pod in pods))
        await eventually(lambda: router.core.peers.without_engine_ids() == [], SOON_S)

        async def answer(number: int) -> tuple[str, str | None]:
            """Return the pods that decoded and prefilled a request."""
            response = await router.post("/v1/completions", BODY | {"prompt": f"{number} " + BODY["prompt"]})
            assert response.status_code == 200
            (attempt,) = (await router.record(response))["attempts"]
            half = attempt["prefill"]
            return attempt["target"].partition(".")[0], half and half["target"].partition(".")[0]

        assert {await answer(n) for n in range(40)} == {("decode-old", "prefill-old"), ("decode-new", "prefill-new")}
        await cluster.delete_pod("prefill-old", at_once=True)
        await eventually(lambda: find(router, "prefill-old") is None, SOON_S)
        assert {await answer(n) for n in range(40, 80)} == {("decode-old", None), ("decode-new", "prefill-new")}
        assert await router.metric("warmroute_unpaired_requests_total", reason="revision") > 0
