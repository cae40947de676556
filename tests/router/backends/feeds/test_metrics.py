"""When which instance is polled, with the clock held in hand."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping

import pytest

from router.backends.feeds.metrics import POLLS_PER_TURN, MetricsPoller
from router.backends.fetch import HttpAnswer
from router.clock import ManualClock
from router.config import schema
from router.fleet.engine_facts import Gauges
from router.tasks import Tasks
from tests.patience import PATIENCE_S

PAGE = b'vllm:num_requests_running{engine="0"} 2\nvllm:num_requests_waiting{engine="0"} 1\n'


class Scene:
    """The poll with everything around it written by hand; `answer` None: no answer in time."""

    def __init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.tasks = Tasks("test")
        self.asked: Counter[str] = Counter()
        self.told: list[tuple[str, Mapping[int, Gauges], float, float]] = []
        self.marked: list[str] = []
        self.busy: set[str] = set()
        self.answer: HttpAnswer | None = HttpAnswer(200, PAGE)
        self.heard = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.poll = MetricsPoller(self, self.fetch, self.tasks, self.clock, schema.MetricsPollConfig())

    def in_flight(self, instance: str) -> int:
        return int(instance in self.busy)

    def polling(self, instance: str) -> None:
        self.marked.append(instance)

    def gauges(self, instance: str, page: Mapping[int, Gauges], sent_at: float, now: float) -> None:
        self.told.append((instance, page, sent_at, now))
        self.heard.set()

    async def fetch(
        self, instance: str, path: str, body: bytes | None = None, *, timeout_s: float, limit_bytes: int = 0
    ) -> HttpAnswer | None:
        assert (path, body) == ("/metrics", None)
        assert self.marked[-1] == instance, "the books are marked before the question goes out"
        self.asked[instance] += 1
        answer = self.answer
        await self.gate.wait()
        return answer

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def run_for(self, seconds: float, step_s: float = 0.0625) -> None:
        for _ in range(round(seconds / step_s)):
            await self.poll.poll()
            await self.settle()
            self.clock.advance(step_s)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    yield scene
    await scene.tasks.close()


async def test_a_newcomer_is_polled_soon_and_told_with_its_times(scene: Scene) -> None:
    scene.poll.watch("a")
    await scene.run_for(1.0)
    assert scene.asked == {"a": 1}
    instance, page, sent_at, now = scene.told[0]
    assert (instance, page[0].running, page[0].waiting) == ("a", 2, 1)
    assert 100.0 <= sent_at == now <= 101.0


async def test_idle_seldom_busy_often(scene: Scene) -> None:
    scene.poll.watch("idle")
    scene.poll.watch("busy")
    scene.busy.add("busy")
    await scene.run_for(60.0)
    assert 5 <= scene.asked["idle"] <= 8
    assert 180 <= scene.asked["busy"] <= 270


async def test_an_idle_one_that_gets_a_request_is_polled_at_the_next_look(scene: Scene) -> None:
    scene.poll.watch("a")
    await scene.run_for(2.0)
    assert scene.asked["a"] == 1
    scene.busy.add("a")
    await scene.run_for(0.0625)
    assert scene.asked["a"] == 2
    scene.busy.clear()
    await scene.run_for(5.0)
    assert scene.asked["a"] == 2


async def test_polls_of_many_are_spread(scene: Scene) -> None:
    for i in range(200):
        scene.poll.watch(f"i{i}")
    most = 0
    for _ in range(16 * 30):
        before = scene.asked.total()
        await scene.poll.poll()
        await scene.settle()
        scene.clock.advance(0.0625)
        most = max(most, scene.asked.total() - before)
    assert scene.asked.total() >= 600
    assert most <= 20
    assert set(scene.asked) == {f"i{i}" for i in range(200)}


async def test_many_polls_that_are_due_at_once_begin_over_several_turns_of_the_loop(scene: Scene) -> None:
    for number in range(4 * POLLS_PER_TURN):
        scene.poll.watch(f"i{number}")
    scene.clock.advance(1.0)
    polling, begun = asyncio.ensure_future(scene.poll.poll()), [0]
    while not polling.done():
        before = scene.asked.total()
        await asyncio.sleep(0)
        begun.append(scene.asked.total() - before)
    assert max(begun) == POLLS_PER_TURN
    await scene.settle()
    assert scene.asked.total() == 4 * POLLS_PER_TURN


async def test_never_two_polls_of_one_at_once(scene: Scene) -> None:
    scene.poll.watch("a")
    scene.busy.add("a")
    scene.gate.clear()
    await scene.run_for(5.0)
    assert scene.asked["a"] == 1
    assert scene.told == []
    scene.gate.set()
    await scene.settle()
    _, _, sent_at, now = scene.told[0]
    assert now == 105.0
    assert sent_at <= 101.0
    await scene.run_for(0.0625)
    assert scene.asked["a"] == 2


@pytest.mark.parametrize("answer", [None, HttpAnswer(500, PAGE), HttpAnswer(404, b"")])
async def test_no_page_is_told_as_nothing_and_asked_for_again_later(scene: Scene, answer: HttpAnswer | None) -> None:
    scene.answer = answer
    scene.poll.watch("a")
    scene.busy.add("a")
    await scene.run_for(8.0)
    assert scene.asked["a"] == 1
    assert scene.told == []
    assert scene.poll.unanswered == 1
    scene.answer = HttpAnswer(200, PAGE)
    await scene.run_for(5.0)
    assert len(scene.told) >= 1


async def test_one_that_left_while_we_waited_is_not_told_of(scene: Scene) -> None:
    scene.poll.watch("a")
    scene.gate.clear()
    await scene.run_for(2.0)
    scene.poll.unwatch("a")
    scene.poll.watch("a")  # another came under its name
    scene.gate.set()
    await scene.settle()
    assert scene.told == []
    scene.poll.unwatch("b")


async def test_started_it_runs_by_itself(scene: Scene) -> None:
    scene.poll.watch("a")
    scene.clock.advance(1.0)
    scene.poll.start()
    async with asyncio.timeout(PATIENCE_S):
        await scene.heard.wait()
    assert scene.told[0][0] == "a"
