"""List and watch against an API server with bad manners."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from router.backends.discovery.kubernetes import reflector as module
from router.backends.discovery.kubernetes.api import KubernetesApi
from router.backends.discovery.kubernetes.objects import Pod
from router.backends.discovery.kubernetes.reflector import Reflector, WatchTiming
from router.backends.feeds.jitter import Jitter
from router.clock import SystemClock
from tests.fakes.engines import eventually
from tests.fakes.kubernetes import PODS, ApiServer, Refusal, encode_event


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with ApiServer(tmp_path) as running:
        yield running


@asynccontextmanager
async def following(server: ApiServer, **timing: float) -> AsyncIterator[Reflector[Pod]]:
    """A reflector of the pods with the label app=vllm that has listed and watches."""
    api = KubernetesApi(server.config)
    reflector = Reflector(
        api, PODS, {"labelSelector": "app=vllm"}, Pod, SystemClock(), Jitter(), lambda: None, WatchTiming(**timing)
    )
    task = asyncio.create_task(reflector.run())
    try:
        await eventually(lambda: server.watches)
        yield reflector
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def names(reflector: Reflector[Pod]) -> list[str]:
    return sorted(pod.metadata.name for pod in (reflector.objects or {}).values())


async def has(reflector: Reflector[Pod], *expected: str) -> None:
    await eventually(lambda: names(reflector) == list(expected))


async def test_it_lists_and_then_hears_of_changes(server: ApiServer) -> None:
    server.put("a")
    async with following(server) as reflector:
        assert names(reflector) == ["a"]
        server.put("b")
        await has(reflector, "a", "b")
        server.put("a", labels={"app": "other"})
        await has(reflector, "b")
        server.put("a")
        await has(reflector, "a", "b")
        server.delete("b")
        await has(reflector, "a")
    assert server.lists() == 1


async def test_a_long_list_comes_in_pages(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_OBJECTS", 2)
    for name in "abcde":
        server.put(name)
    async with following(server) as reflector:
        assert names(reflector) == list("abcde")
    assert [request.query.get("continue") for request in server.requests[:3]] == [None, "2", "4"]


async def test_lines_count_and_not_chunks(server: ApiServer) -> None:
    async with following(server) as reflector:
        server.silent = True
        lines = b""
        for name in ("a", "b"):
            server.put(name)
            lines += encode_event("ADDED", server.objects[PODS][name])
        for at in range(0, len(lines), 100):
            server.send(lines[at : at + 100])
        await has(reflector, "a", "b")
    assert server.lists() == 1


async def test_the_end_of_a_watch_is_followed_by_the_next_without_a_list(server: ApiServer) -> None:
    async with following(server) as reflector:
        server.put("a")
        await has(reflector, "a")
        server.end_watches()
        await eventually(lambda: len([r for r in server.requests if "watch" in r.query]) == 2 and server.watches)
        assert server.requests[-1].query["resourceVersion"] == str(server.version)
        server.put("b")
        await has(reflector, "a", "b")
    assert server.lists() == 1


async def test_a_bookmark_moves_the_version_on(server: ApiServer) -> None:
    async with following(server):
        server.send(encode_event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "4711"}}))
        server.end_watches()
        await eventually(lambda: server.requests[-1].query.get("resourceVersion") == "4711")


@pytest.mark.parametrize("as_status", [False, True], ids=["event", "status"])
async def test_a_version_that_is_too_old_leads_to_a_new_list_at_once(server: ApiServer, as_status: bool) -> None:
    server.put("a")
    async with following(server) as reflector:
        server.put("b")
        await has(reflector, "a", "b")
        server.delete("a", lost=True)
        if as_status:
            server.refusals.append(Refusal(410))
        else:
            server.expire()
        server.end_watches()
        await has(reflector, "b")
        assert reflector.trouble is None
    assert server.lists() == 2


async def test_410_again_and_again_is_asked_with_pauses(server: ApiServer) -> None:
    async with following(server):
        before = len(server.requests)
        server.oldest = 10**9
        server.end_watches()
        await eventually(lambda: len(server.requests) >= before + 6)
        assert len(server.requests) < before + 12, "it asks without a pause"


async def test_a_lost_deletion_matters_until_the_next_list(server: ApiServer) -> None:
    server.put("a")
    server.put("b")
    async with following(server, relist_s=0.1, watch_s=1.0) as reflector:
        server.delete("a", lost=True)
        server.end_watches()
        await has(reflector, "b")


async def test_a_silent_watch_is_left_and_the_list_asked_again(server: ApiServer) -> None:
    server.silent = True
    server.put("a")
    async with following(server, watch_s=0.2, grace_s=0.1) as reflector:
        server.delete("a")
        await has(reflector)
        assert reflector.trouble is None
    assert server.lists() >= 2


async def test_a_broken_connection_is_opened_again_from_the_last_version(server: ApiServer) -> None:
    async with following(server) as reflector:
        server.put("a")
        await has(reflector, "a")
        server.hang_up()
        server.put("b")
        await has(reflector, "a", "b")
    assert server.lists() == 1


async def test_a_new_token_is_read_when_the_old_one_is_refused(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="warmroute.discovery"):
        async with following(server) as reflector:
            server.token = "second"
            server.end_watches()
            await eventually(lambda: "401" in (reflector.trouble or ""))
            refused = len(server.requests)
            await eventually(lambda: len(server.requests) > refused)
            server.token_file.write_text("second")
            await eventually(lambda: reflector.trouble is None)
            server.put("a")
            await has(reflector, "a")
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert server.lists() == 1


@pytest.mark.parametrize("status", [403, 429, 500, 503])
async def test_a_refusal_leaves_the_list_and_is_asked_again(server: ApiServer, status: int) -> None:
    server.put("a")
    async with following(server) as reflector:
        server.refusals += [Refusal(status)] * 2
        server.end_watches()
        await eventually(lambda: str(status) in (reflector.trouble or ""))
        assert names(reflector) == ["a"]
        server.put("b")
        await has(reflector, "a", "b")
    assert server.lists() == 1


async def test_retry_after_is_waited_for(server: ApiServer) -> None:
    async with following(server):
        server.refusals.append(Refusal(429, retry_after=1))
        at = asyncio.get_running_loop().time()
        server.end_watches()
        await eventually(lambda: not server.refusals)
        asked = len(server.requests)
        await eventually(lambda: len(server.requests) > asked)
        assert asyncio.get_running_loop().time() - at >= 1.0


async def test_an_event_that_cannot_be_read_leads_to_a_new_list(server: ApiServer) -> None:
    server.put("a")
    async with following(server) as reflector:
        server.delete("a", lost=True)
        server.send(b'{"type": "DELETED", "object"\n')
        await has(reflector)
    assert server.lists() == 2


async def test_an_outage_is_logged_once_and_the_age_of_the_list_grows(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.put("a")
    with caplog.at_level(logging.WARNING, logger="warmroute.discovery"):
        async with following(server) as reflector:
            server.refusals += [Refusal(503)] * 4
            server.end_watches()
            await eventually(lambda: reflector.trouble)
            confirmed_at = reflector.confirmed_at
            await eventually(lambda: len(server.refusals) == 1)
            assert (names(reflector), reflector.confirmed_at) == (["a"], confirmed_at)
    assert len(caplog.records) == 1


async def test_a_server_that_cannot_be_reached_leaves_the_list(server: ApiServer) -> None:
    server.put("a")
    async with following(server) as reflector:
        server._server.close()
        server.hang_up()
        await eventually(lambda: "connection" in (reflector.trouble or ""))
        assert names(reflector) == ["a"]
