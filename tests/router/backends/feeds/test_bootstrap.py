"""When bootstrap servers are asked, with the clock held in hand and the real registry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from router.backends.feeds.bootstrap import BootstrapClient
from router.backends.fetch import HttpAnswer
from router.clock import ManualClock
from router.config import schema
from router.scheduling.prefill_peers import PrefillPeers
from router.tasks import Tasks

NAMED = HttpAnswer(200, b'{"0": {"engine_id": "e0", "worker_addr": {}}, "1": {"engine_id": "e1", "worker_addr": {}}}')


def an_instance(name: str, role: str = "prefill", url: str | None = "http://p:8998") -> schema.InstanceConfig:
    transfer = {"protocol": "mooncake", "bootstrap_url": url}
    return schema.InstanceConfig.model_validate(
        {"url": f"http://{name}:8000", "name": name, "role": role, "transfer": transfer}
    )


class Scene:
    def __init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.tasks = Tasks("test")
        self.peers = PrefillPeers()
        self.asked: list[str] = []
        self.answer: HttpAnswer | None = NAMED
        self.gate = asyncio.Event()
        self.gate.set()
        self.feed = BootstrapClient(self.peers, self.fetch, self.tasks, self.clock)

    async def fetch(
        self, instance: str, path: str, body: bytes | None = None, *, timeout_s: float, limit_bytes: int = 0
    ) -> HttpAnswer | None:
        assert (path, body) == ("/query", None)
        self.asked.append(instance)
        answer = self.answer
        await self.gate.wait()
        return answer

    async def look(self) -> None:
        self.feed.poll()
        await turns()


async def turns() -> None:
    """Let the event loop take a few turns."""
    for _ in range(8):
        await asyncio.sleep(0)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    yield scene
    await scene.tasks.close()


async def test_who_joined_is_asked_once(scene: Scene) -> None:
    scene.peers.add(an_instance("p"))
    for _ in range(3):
        await scene.look()
        scene.clock.advance(60.0)
    assert scene.asked == ["p bootstrap"]
    assert scene.peers.without_engine_ids() == []


async def test_only_those_are_asked_that_prefill_and_have_a_server(scene: Scene) -> None:
    scene.peers.add(an_instance("d", role="decode"))
    scene.peers.add(an_instance("p", url=None))
    scene.peers.add(
        schema.InstanceConfig.model_validate(
            {"url": "http://n:1", "name": "n", "role": "prefill", "transfer": {"protocol": "nixl"}}
        )
    )
    await scene.look()
    assert scene.asked == []


@pytest.mark.parametrize(
    "answer",
    [None, HttpAnswer(503, b""), HttpAnswer(200, b"{}"), HttpAnswer(200, b"<html>"), HttpAnswer(404, NAMED.body)],
)
async def test_silence_and_nonsense_are_asked_again_with_growing_pauses(
    scene: Scene, answer: HttpAnswer | None
) -> None:
    scene.answer = answer
    scene.peers.add(an_instance("p"))
    asked_at = []
    for _ in range(300):  # 15 s
        before = len(scene.asked)
        await scene.look()
        if len(scene.asked) > before:
            asked_at.append(round(scene.clock.now() - 100.0, 2))
        scene.clock.advance(0.05)
    assert asked_at[:4] == pytest.approx([0.0, 0.1, 0.3, 0.7], abs=0.11)  # pauses 0.1, 0.2, 0.4, ... 5
    assert 7 <= len(asked_at) <= 9
    scene.answer = NAMED
    scene.clock.advance(5.0)
    await scene.look()
    assert scene.peers.without_engine_ids() == []


async def test_who_is_in_doubt_is_asked_again_at_once(scene: Scene) -> None:
    scene.peers.add(an_instance("p"))
    await scene.look()
    scene.peers.forget_engine_ids("p")
    await scene.look()
    assert len(scene.asked) == 2
    scene.peers.add(an_instance("p"))  # it restarted
    await scene.look()
    assert len(scene.asked) == 3


async def test_ids_that_become_unknown_end_the_pause(scene: Scene) -> None:
    scene.feed.start()
    await turns()
    assert scene.asked == [], "the feed waits for ids to become unknown"
    scene.peers.add(an_instance("p"))
    await turns()
    assert scene.peers.without_engine_ids() == []
    scene.peers.forget_engine_ids("p")  # a prefill half failed
    await turns()
    assert scene.asked == ["p bootstrap"] * 2


async def test_an_answer_that_comes_after_its_instance_left_is_dropped(scene: Scene) -> None:
    scene.gate.clear()
    scene.peers.add(an_instance("p"))
    await scene.look()
    await scene.look()
    assert len(scene.asked) == 1, "one question at a time"
    scene.peers.remove("p")
    scene.gate.set()
    await scene.look()
    assert scene.peers.without_engine_ids() == []
    assert not scene.peers
