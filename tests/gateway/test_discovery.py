"""The router over pods of a real API server: what other routers' discovery got wrong, one test each.

While something happens to a pod, requests run all the time; `no_request_after` fails when one that began more than a
second after the API server had said so went to that pod. Where the router could not hear it at the time, the API server
says so with the next list that the router reads.
"""

from __future__ import annotations

import asyncio

from router.kvcache.events import TargetId
from tests.e2e.conftest import Router
from tests.fakes.engines import FakeEngine, eventually
from tests.gateway.cluster import Cluster, Gate
from tests.gateway.traffic import BODY, SOON_S, A, B, C, Start, find, now, pods_of, pods_under_traffic, ready, traffic

Engines = dict[str, FakeEngine]


async def test_a_missed_deletion_is_found_by_the_next_list(
    cluster: Cluster, start: Start, gate: Gate, engines: Engines
) -> None:
    """The pod is deleted while the router cannot reach the API server, which restarts then and has forgotten it."""
    async with pods_under_traffic(cluster, start, a=A, b=B) as (router, requests):
        gate.closed = True
        gate.hang_up()
        await cluster.delete_pod("b", at_once=True)
        await asyncio.to_thread(cluster.stop_api_server)
        await asyncio.to_thread(cluster.start_api_server)
        await requests.reaches("b")  # nobody told the router
        lists = pods_of(router).lists
        gate.closed = False
        await eventually(lambda: pods_of(router).lists > lists, 4 * SOON_S)
        await requests.no_request_after("b", now())
        assert find(router, "b") is None


async def test_a_version_that_is_too_old_leads_to_a_list(cluster: Cluster, start: Start, engines: Engines) -> None:
    async with pods_under_traffic(cluster, start, a=A, b=B) as (router, requests):
        await requests.reaches("b")
        pods = pods_of(router)
        await asyncio.to_thread(cluster.stop_api_server)  # its watch cache begins anew
        lists, pods._version = pods.lists, "1"  # before a new watch can begin at the true version
        await asyncio.to_thread(cluster.start_api_server)
        await cluster.delete_pod("b", at_once=True)
        await cluster.make_pod("c", C)
        await eventually(lambda: pods.lists > lists, 4 * SOON_S)  # the answer to 410
        await requests.no_request_after("b", now())
        assert find(router, "b") is None
        await requests.reaches("c")


async def test_a_watch_that_falls_silent_is_left(cluster: Cluster, start: Start, gate: Gate, engines: Engines) -> None:
    async with pods_under_traffic(cluster, start, a=A, b=B) as (router, requests):
        pods, opened = pods_of(router), gate.opened
        await eventually(lambda: gate.opened > opened, SOON_S)
        opened_at = router.app.core.clock.now()
        await eventually(lambda: (pods.confirmed_at or 0.0) > opened_at, SOON_S)  # a new watch, of two seconds
        gate.silence()
        lists = pods.lists
        await cluster.delete_pod("b", at_once=True)
        await requests.reaches("b")  # nobody told the router
        await eventually(lambda: pods.lists > lists, SOON_S)
        await requests.no_request_after("b", now())
        assert find(router, "b") is None


async def test_a_terminating_pod_gets_nothing_new_and_finishes(
    cluster: Cluster, start: Start, engines: Engines
) -> None:
    await cluster.make_pod("c", C)
    async with start() as router:
        await ready(router, "c")
        instance = find(router, "c")
        assert instance is not None
        tokens = engines[C].server.options.answer_tokens
        long = asyncio.create_task(router.post("/v1/completions", BODY | {"max_tokens": tokens}))
        await eventually(lambda: engines[C].gauges().running == 1)
        await cluster.make_pod("a", A)
        await ready(router, "a")
        async with traffic(router) as requests:
            await requests.reaches("c")
            await cluster.delete_pod("c")
            await requests.no_request_after("c", now())
            assert not long.done()
            assert find(router, "c") is instance
            answer = await long
            assert (answer.status_code, answer.text.count('"text"')) == (200, tokens)
            assert answer.text.rstrip().endswith("[DONE]")
            await cluster.delete_pod("c", at_once=True)
            await eventually(lambda: find(router, "c") is None, SOON_S)
            assert _indexed_blocks(router, instance.id) is None


async def test_a_pod_that_is_not_ready_gets_nothing_and_comes_back_as_it_was(
    cluster: Cluster, start: Start, engines: Engines
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
    cluster: Cluster, start: Start, engines: Engines
) -> None:
    async with pods_under_traffic(cluster, start, a=A, b=B) as (router, requests):
        await requests.reaches("b")
        await cluster.set_labels("b", app="other")
        await requests.no_request_after("b", now())
        assert find(router, "b") is None
        await cluster.set_labels("b", app="vllm")
        await requests.reaches("b")


async def test_a_reused_name_and_address_inherit_nothing(cluster: Cluster, start: Start, engines: Engines) -> None:
    async with pods_under_traffic(cluster, start, a=A, b=B) as (router, requests):
        await requests.reaches("b")
        before = find(router, "b")
        assert before is not None
        breaker = before.targets[0].breaker
        await eventually(lambda: before.latency_model.speed(router.app.core.clock.now()).samples > 0, SOON_S)
        await eventually(lambda: _indexed_blocks(router, before.id), SOON_S)
        engines[B].faults(error_rate=1.0)
        await eventually(lambda: breaker.times_opened > 0, SOON_S)
        engines[B].faults(error_rate=0.0)
        engines[B].restart()
        await cluster.delete_pod("b", at_once=True)
        said_at = now()
        await cluster.make_pod("b", B)
        await eventually(lambda: (found := find(router, "b")) is not None and found is not before, SOON_S)
        after = find(router, "b")
        assert after is not None
        assert after.id != before.id
        assert after.latency_model.speed(router.app.core.clock.now()).samples == 0
        assert after.targets[0].breaker.times_opened == 0
        assert not _indexed_blocks(router, after.id)
        assert _indexed_blocks(router, before.id) is None
        await requests.reaches(after.id)
        await requests.no_request_after(before.id, said_at)


async def test_a_pod_at_the_address_of_one_that_terminates(cluster: Cluster, start: Start, engines: Engines) -> None:
    """Requests to the new pod are not those of the old one, whose object is still there."""
    async with pods_under_traffic(cluster, start, a=A, b=B) as (router, requests):
        await requests.reaches("b")
        await cluster.delete_pod("b")
        said_at = now()
        await cluster.make_pod("d", B)
        await requests.reaches("d")
        await requests.no_request_after("b", said_at)
        assert find(router, "b") is None


def _indexed_blocks(router: Router, instance: str) -> int | None:
    """Return how many blocks the index holds for the instance; None if it does not know it."""
    stream = router.core.indexer.describe_stream(TargetId(f"{instance}/0"))
    return None if stream is None else sum(stream.stats.blocks)
