"""The router over pods of a real API server: what other routers' discovery got wrong, one test each.

While something happens to a pod, requests run all the time; `no_request_after` fails when one that began more than a
second after the API server had said so went to that pod. The engines are emulated ones on loopback addresses, and stay
alive, so that only discovery can keep requests away.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from router.fleet.instance import Instance, InstanceState
from tests.e2e.conftest import MODEL, Router
from tests.fakes.engines import FakeEngine, engine, eventually
from tests.gateway.cluster import MERGE, POOLS, Cluster, Gate
from tests.gateway.conftest import ENGINE_PORT

BODY = {"model": MODEL, "prompt": "Where do fleets live?", "max_tokens": 1, "stream": True}
LATE_S = 1.0
SOON_S = 10.0
A, B, C = "127.0.7.1", "127.0.7.2", "127.0.7.3"


class Sent(NamedTuple):
    at: float
    target: str
    status: int


class Traffic:
    """Requests one after the other, and where each went."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.sent: list[Sent] = []

    async def run(self) -> None:
        while True:
            at = asyncio.get_running_loop().time()
            answer = await self._router.post("/v1/completions", BODY)
            self.sent.append(Sent(at, answer.headers.get("x-warmroute-target", ""), answer.status_code))

    async def no_request_after(self, pod: str, said_at: float) -> None:
        """Wait until requests of two seconds after `said_at` were answered, and check that none of those that began
        more than a second after it went to the pod.
        """
        await eventually(lambda: self.sent and self.sent[-1].at > said_at + 2 * LATE_S, SOON_S)
        late = [sent for sent in self.sent if sent.at > said_at + LATE_S]
        assert not [sent for sent in late if sent.target.startswith(f"{pod}.")]
        assert {sent.status for sent in late} == {200}

    async def reaches(self, pod: str) -> None:
        begun = len(self.sent)
        await eventually(lambda: any(s.target.startswith(f"{pod}.") for s in self.sent[begun:]), SOON_S)


@asynccontextmanager
async def traffic(router: Router) -> AsyncIterator[Traffic]:
    running = Traffic(router)
    task = asyncio.create_task(running.run())
    try:
        yield running
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def engines() -> AsyncIterator[dict[str, FakeEngine]]:
    """An engine at each address, by address."""
    options = {"port": ENGINE_PORT, "events": True}
    async with (
        engine(host=A, **options) as a,
        engine(host=B, **options) as b,
        engine(host=C, decode_ms_per_token=50.0, answer_tokens=60, **options) as c,
    ):
        yield {A: a, B: b, C: c}


def find(router: Router, pod: str) -> Instance | None:
    return next((found for found in router.core.fleet if found.id.startswith(f"{pod}.")), None)


async def ready(router: Router, *pods: str) -> None:
    def states() -> list[bool]:
        return [(found := find(router, pod)) is not None and found.state is InstanceState.READY for pod in pods]

    await eventually(lambda: all(states()), SOON_S)


def now() -> float:
    return asyncio.get_running_loop().time()


Start = Callable[..., Any]
RANDOM = {"scorers": [{"name": "random"}]}


@pytest.fixture
def start(router_over_pods: Start, monkeypatch: pytest.MonkeyPatch) -> Start:
    """The router with a policy that spreads requests, so that each pod gets some all the time."""
    monkeypatch.setattr("tests.e2e.conftest.WARM", RANDOM)
    return router_over_pods


@asynccontextmanager
async def pods_under_traffic(cluster: Cluster, start: Start, **pods: str) -> AsyncIterator[tuple[Router, Traffic]]:
    """Make pods at addresses, and send requests to them as long as the block lasts."""
    for name, address in pods.items():
        await cluster.make_pod(name, address)
    async with start() as router, traffic(router) as requests:
        await ready(router, *pods)
        yield router, requests


async def test_pods_with_a_role_that_may_only_read(cluster: Cluster, start: Start, engines: dict[str, Any]) -> None:
    uid = await cluster.make_pod("a", A, {"app.kubernetes.io/version": "7"})
    async with start() as router:
        await ready(router, "a")
        (found,) = (await router.instances()).values()
        assert found["sources"] == [{"source": "kubernetes", "origin": "pod llm/a", "uid": uid, "accepting": True}]
        assert (found["id"], found["revision"]) == (f"a.{uid[:8]}", "7")
        assert await router.metric("warmroute_discovery_age_seconds", source="kubernetes") < SOON_S


async def test_a_terminating_pod_gets_nothing_new_and_finishes(
    cluster: Cluster, start: Start, engines: dict[str, FakeEngine]
) -> None:
    async with pods_under_traffic(cluster, start, a=A, c=C) as (router, requests):
        await requests.reaches("c")
        body = BODY | {"max_tokens": 60, "prompt": "a long answer"}
        target = f"{find(router, 'c').id}/0"  # type: ignore[union-attr]
        long = asyncio.create_task(router.post("/v1/completions", body))
        await eventually(lambda: any(e.seen("/v1/completions") for e in engines.values()))
        await cluster.delete_pod("c")
        said_at = now()
        await requests.no_request_after("c", said_at)
        assert find(router, "c") is not None
        answer = await long
        assert answer.text.rstrip().endswith("[DONE]")
        await cluster.delete_pod("c", at_once=True)
        await eventually(lambda: find(router, "c") is None, SOON_S)
        assert router.core.indexer.describe_stream(target) is None


async def test_a_pod_that_is_not_ready_gets_nothing_and_comes_back_as_it_was(
    cluster: Cluster, start: Start, engines: dict[str, FakeEngine]
) -> None:
    async with pods_under_traffic(cluster, start, a=A, b=B) as (router, requests):
        before = find(router, "b")
        await requests.reaches("b")
        await cluster.set_ready("b", False)
        await requests.no_request_after("b", now())
        await cluster.set_ready("b", True)
        await requests.reaches("b")
        assert find(router, "b") is before


async def test_a_label_that_leaves_the_selector_takes_the_pod_out(
    cluster: Cluster, start: Start, engines: dict[str, FakeEngine]
) -> None:
    async with pods_under_traffic(cluster, start, a=A, b=B) as (router, requests):
        await requests.reaches("b")
        await cluster.set_labels("b", app="other")
        await requests.no_request_after("b", now())
        assert find(router, "b") is None
        await cluster.set_labels("b", app="vllm")
        await requests.reaches("b")


async def test_a_reused_address_inherits_nothing(
    cluster: Cluster, start: Start, engines: dict[str, FakeEngine]
) -> None:
    async with pods_under_traffic(cluster, start, a=A, b=B) as (router, requests):
        await requests.reaches("b")
        before = find(router, "b")
        assert before is not None
        blocks = lambda id: router.core.indexer.describe_stream(f"{id}/0")  # noqa: E731
        await eventually(lambda: before.latency_model.speed(router.app._clock.now()).samples > 0, SOON_S)
        await cluster.delete_pod("b", at_once=True)
        said_at = now()
        await cluster.make_pod("b", B)
        await eventually(lambda: (found := find(router, "b")) is not None and found is not before, SOON_S)
        after = find(router, "b")
        assert after is not None
        assert after.id != before.id
        assert after.latency_model is not before.latency_model
        assert after.targets[0].breaker is not before.targets.get(0)
        assert blocks(before.id) is None
        late = [sent for sent in requests.sent if sent.at > said_at + LATE_S]
        assert not [sent for sent in late if sent.target.startswith(before.id)]


async def test_a_deletion_that_nobody_heard_of_is_found_by_the_next_list(
    cluster: Cluster, start: Start, gate: Gate, engines: dict[str, FakeEngine]
) -> None:
    """The pod is deleted while the router cannot reach the API server, which then restarts and has forgotten the event:
    the watch from the old version ends with 410.
    """
    async with pods_under_traffic(cluster, start, a=A, b=B) as (router, requests):
        await requests.reaches("b")
        gate.closed = True
        gate.hang_up()
        await cluster.delete_pod("b", at_once=True)
        await asyncio.to_thread(cluster.stop_api_server)
        await asyncio.to_thread(cluster.start_api_server)
        gate.closed = False
        await eventually(lambda: find(router, "b") is None, 4 * SOON_S)
        await requests.no_request_after("b", now())


async def test_a_version_that_is_too_old_leads_to_a_list(
    cluster: Cluster, start: Start, engines: dict[str, FakeEngine]
) -> None:
    await cluster.make_pod("a", A)
    async with start() as router:
        await ready(router, "a")
        pods = router.app._discoveries["kubernetes"]._pods  # type: ignore[attr-defined]
        await asyncio.to_thread(cluster.stop_api_server)  # its watch cache begins anew
        lists, pods._version = pods.lists, "1"  # before a new watch can begin at the true version
        await asyncio.to_thread(cluster.start_api_server)
        await cluster.make_pod("b", B)
        await ready(router, "b")
        await eventually(lambda: pods.lists > lists, 4 * SOON_S)
        assert find(router, "a") is not None


async def test_a_watch_that_falls_silent_is_left(
    cluster: Cluster, start: Start, gate: Gate, engines: dict[str, FakeEngine]
) -> None:
    async with pods_under_traffic(cluster, start, a=A, b=B) as (router, requests):
        gate.silent = True
        await cluster.delete_pod("b", at_once=True)
        await eventually(lambda: gate.swallowed > 0, SOON_S)
        gate.silent = False
        await eventually(lambda: find(router, "b") is None, 2 * SOON_S)
        await requests.no_request_after("b", now())


async def test_while_the_api_server_is_away_nothing_fails(
    cluster: Cluster, start: Start, engines: dict[str, FakeEngine], caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.make_pod("a", A)
    await cluster.make_pod("b", B)
    async with start() as router, traffic(router) as requests:
        await ready(router, "a", "b")
        begun = len(requests.sent)
        await asyncio.to_thread(cluster.stop_api_server)
        discovery = router.app._discoveries["kubernetes"]
        await eventually(lambda: discovery.trouble is not None, SOON_S)
        age = await router.metric("warmroute_discovery_age_seconds", source="kubernetes")
        sent = len(requests.sent)
        await eventually(lambda: len(requests.sent) > sent + 50, SOON_S)
        assert await router.metric("warmroute_discovery_age_seconds", source="kubernetes") > age
        assert {sent.status for sent in requests.sent[begun:]} == {200}
        assert {sent.target.partition(".")[0] for sent in requests.sent[-40:]} == {"a", "b"}
        engines[B].faults(unhealthy=True)  # health checks go on deciding
        await eventually(lambda: (found := find(router, "b")) is not None and found.state is InstanceState.DOWN, SOON_S)
        engines[B].faults(unhealthy=False)
        await asyncio.to_thread(cluster.start_api_server)
        await eventually(lambda: discovery.trouble is None, 4 * SOON_S)
        await cluster.make_pod("c", C)
        await ready(router, "c")
    said = [r for r in caplog.records if r.name == "warmroute.discovery" and r.levelname == "WARNING"]
    assert len(said) == 1


async def test_a_token_that_was_replaced(cluster: Cluster, start: Start, engines: dict[str, FakeEngine]) -> None:
    await cluster.make_pod("a", A)
    async with start() as router:
        await ready(router, "a")
        discovery = router.app._discoveries["kubernetes"]
        cluster.token_file.write_text("stranger")
        await eventually(lambda: "forbidden" in (discovery.trouble or ""), SOON_S)
        cluster.token_file.write_text("nobody")
        await eventually(lambda: "401" in (discovery.trouble or ""), SOON_S)
        cluster.token_file.write_text("reader")
        await eventually(lambda: discovery.trouble is None, SOON_S)
        assert find(router, "a") is not None


async def test_a_pool_is_followed(cluster: Cluster, start: Start, engines: dict[str, FakeEngine]) -> None:
    await cluster.make_pod("a", A)
    await cluster.make_pod("b", B, {"app": "other"})
    spec = {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": ENGINE_PORT}]}
    kind = {"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool"}
    await cluster.call("POST", POOLS, kind | {"metadata": {"name": "qwen"}, "spec": spec})
    async with start(selector=None, inference_pool="qwen") as router:
        await ready(router, "a")
        change = {"spec": {"selector": {"matchLabels": {"app": "other"}}}}
        await cluster.call("PATCH", f"{POOLS}/qwen", change, MERGE)
        await ready(router, "b")
        await eventually(lambda: find(router, "a") is None, SOON_S)
    await cluster.call("DELETE", f"{POOLS}/qwen")


async def test_a_rollout_never_pairs_versions(cluster: Cluster, start: Start, engines: dict[str, FakeEngine]) -> None:
    await cluster.make_pod("prefill-old", A, {"llm-d.ai/role": "prefill", "app.kubernetes.io/version": "1"})
    await cluster.make_pod("decode-new", B, {"llm-d.ai/role": "decode", "app.kubernetes.io/version": "2"})
    async with start() as router:
        await ready(router, "prefill-old", "decode-new")
        prompt = "word " * 2000
        answer = await router.post("/v1/completions", BODY | {"prompt": prompt})
        assert answer.status_code == 200
        record = await router.record(answer)
        assert record["attempts"][0]["prefill"] is None
        assert router.core.peers.unpaired["revision"] > 0
