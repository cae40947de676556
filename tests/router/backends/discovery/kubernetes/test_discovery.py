"""Kubernetes discovery as the router uses it: lists of instances, and an InferencePool that is followed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from router.backends.discovery.discovery import DiscoveredInstance
from router.backends.discovery.kubernetes.discovery import KubernetesDiscovery, find_api_server, read_own_namespace
from router.backends.feeds.jitter import Jitter
from router.clock import SystemClock
from router.config.sections.discovery import KubernetesConfig
from router.errors import ConfigError
from tests.fakes.engines import eventually
from tests.fakes.kubernetes import POOLS, ApiServer, pool
from tests.suites.discovery import DEADLINE_S, watching

Lists = asyncio.Queue[list[DiscoveredInstance]]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with ApiServer(tmp_path) as running:
        yield running


def discovery_of(server: ApiServer, **config: Any) -> KubernetesDiscovery:
    settings = {"namespace": "llm", "api": server.config.model_dump()} | config
    return KubernetesDiscovery(KubernetesConfig.model_validate(settings), SystemClock(), Jitter())


async def next_urls(lists: Lists) -> list[str]:
    found = await asyncio.wait_for(lists.get(), DEADLINE_S)
    return sorted(at.config.url.removeprefix("http://") + ("" if at.accepting else " drains") for at in found)


async def test_pods_come_drain_and_go(server: ApiServer) -> None:
    server.put("a", ip="10.0.0.1")
    discovery = discovery_of(server, selector="app=vllm")
    async with watching(discovery) as lists:
        assert await next_urls(lists) == ["10.0.0.1:8000"]
        server.put("b", ip="10.0.0.2")
        assert await next_urls(lists) == ["10.0.0.1:8000", "10.0.0.2:8000"]
        server.put("a", ip="10.0.0.1", deletionTimestamp="2026-11-22T00:00:00Z")
        assert await next_urls(lists) == ["10.0.0.1:8000 drains", "10.0.0.2:8000"]
        server.delete("a")
        assert await next_urls(lists) == ["10.0.0.2:8000"]
    assert discovery.trouble is None
    assert discovery.confirmed_at is not None


async def test_no_pods_are_a_list(server: ApiServer) -> None:
    async with watching(discovery_of(server, selector="app=vllm")) as lists:
        assert await next_urls(lists) == []


async def test_changes_that_matter_to_nobody_are_no_news(server: ApiServer) -> None:
    server.put("a")
    async with watching(discovery_of(server, selector="app=vllm")) as lists:
        await next_urls(lists)
        for note in "123":
            server.put("a", annotations={"note": note})
        server.put("b", ip="10.0.0.2")
        assert await next_urls(lists) == ["10.0.0.1:8000", "10.0.0.2:8000"]


async def test_a_burst_of_changes_comes_together(server: ApiServer) -> None:
    async with watching(discovery_of(server, selector="app=vllm")) as lists:
        await next_urls(lists)
        for number in range(50):
            server.put(f"p{number}", ip=f"10.0.0.{number}")
        came = 0
        while len(await next_urls(lists)) < 50:
            came += 1
        assert came < 10


async def test_a_pool_says_which_pods_and_ports(server: ApiServer) -> None:
    server.put("a", ip="10.0.0.1")
    server.put("b", ip="10.0.0.2", labels={"app": "other", "model": "m"})
    server.store(POOLS, pool("qwen", {"app": "vllm"}, [8000, 8001]))
    discovery = discovery_of(server, inference_pool="qwen")
    async with watching(discovery) as lists:
        assert await next_urls(lists) == ["10.0.0.1:8000", "10.0.0.1:8001"]
        server.store(POOLS, pool("qwen", {"app": "vllm"}, [8000]))
        assert await next_urls(lists) == ["10.0.0.1:8000"]
        server.store(POOLS, pool("qwen", {"app": "other", "model": "m"}, [8000]))
        assert await next_urls(lists) == ["10.0.0.2:8000"]
        server.delete("qwen", path=POOLS)
        await eventually(lambda: "no InferencePool qwen" in (discovery.trouble or ""))
        assert lists.empty()


async def test_a_pool_that_is_made_later_is_waited_for(server: ApiServer) -> None:
    server.put("a", ip="10.0.0.1")
    discovery = discovery_of(server, inference_pool="qwen")
    async with watching(discovery) as lists:
        await eventually(lambda: server.watches)
        server.store(POOLS, pool("qwen", {"app": "vllm"}, [9000]))
        assert await next_urls(lists) == ["10.0.0.1:9000"]
    assert discovery.trouble is None


async def test_what_is_watched_ends_with_the_watcher(server: ApiServer) -> None:
    discovery = discovery_of(server, selector="app=vllm")
    async with watching(discovery) as lists:
        await next_urls(lists)
        await eventually(lambda: server.watches)
    server.put("a")  # what is written to a closed connection ends its watch
    server.put("a", ready=False)
    await eventually(lambda: not server._writers)


def test_the_api_server_of_a_pod() -> None:
    assert find_api_server({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}).url == "https://10.96.0.1:443"
    found = find_api_server({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"})
    assert found.url == "https://[fd00::1]:6443"
    with pytest.raises(ConfigError, match=r"fleet\.kubernetes\.api"):
        find_api_server({})


def test_the_namespace_of_a_pod(tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("llm\n")
    assert read_own_namespace(tmp_path) == "llm"
    with pytest.raises(ConfigError, match="namespace: give it"):
        read_own_namespace(tmp_path / "nowhere")
