"""Requests that wait for an instance, over a real fleet and a clock that the test moves: in order, bounded, once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.clock import ManualClock
from router.config import schema
from router.config.sections.autoscaling import WakeConfig
from router.errors import NoTarget
from router.features.autoscaling.model_waits import AHEAD, RELEASED_AT_ONCE, ModelWaits, WakePatterns
from router.fleet.fleet import Fleet
from tests.fakes.engines import eventually
from tests.router.fleet.test_fleet import M, fleet_of

WEBHOOK = {"webhook": {"url": "http://127.0.0.1:9/wake"}}


class Scene:
    """Waits over an empty fleet. `passed` are the requests that went on, in that order."""

    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock(100.0)
        self.fleet = Fleet(schema.FleetConfig())
        self.asks: list[tuple[str, int]] = []
        self.ends: list[tuple[str, str, float]] = []
        self.passed: list[int] = []
        config = WakeConfig.model_validate({"models": {"m": WEBHOOK, "big-*": WEBHOOK}, "wait_s": 60.0} | settings)
        self.waits = ModelWaits(
            config, self.fleet, {}, self.clock, lambda *ask: self.asks.append(ask), lambda *end: self.ends.append(end)
        )

    async def request(self, number: int, model: str = "m", sender: str = "one", body_bytes: int = 10) -> float:
        waited_s = await self.waits.wait(model, sender, body_bytes)
        self.passed.append(number)
        return waited_s

    def send(self, number: int, **how: Any) -> asyncio.Task[float]:
        return asyncio.create_task(self.request(number, **how))

    def join(self, name: str = "a") -> None:
        self.fleet.join(schema.InstanceConfig(url=f"http://{name}:8000", name=name))
        self.fleet.mark_ready(name, (M,), (0,))

    def waiting(self) -> int:
        return sum(self.waits.waiting().values())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_the_first_pattern_that_matches_counts() -> None:
    patterns = WakePatterns(["qwen-big", "qwen-*", "llama"])
    assert [patterns.find(name) for name in ("qwen-big", "qwen-small", "llama", "llama2")] == [
        "qwen-big", "qwen-*", "llama", None,
    ]  # fmt: skip


async def test_who_has_to_wait() -> None:
    scene = Scene()
    assert scene.waits.has_to_wait("m")
    assert scene.waits.has_to_wait("big-one")
    assert not scene.waits.has_to_wait("other")
    scene.join()
    assert not scene.waits.has_to_wait("m")
    scene.fleet.drain("a")
    assert scene.waits.has_to_wait("m")


async def test_an_instance_that_only_computes_prompts_answers_nobody() -> None:
    scene = Scene()
    prefill = {"url": "http://p:8000", "name": "p", "role": "prefill", "transfer": {"protocol": "nixl"}}
    scene.fleet.join(schema.InstanceConfig.model_validate(prefill))
    scene.fleet.mark_ready("p", (M,), (0,))
    assert scene.waits.has_to_wait("m")


async def test_all_go_on_in_order_when_an_instance_is_ready() -> None:
    scene = Scene()
    tasks = [scene.send(number) for number in range(RELEASED_AT_ONCE + 3)]
    await settle()
    assert (scene.waiting(), scene.asks) == (len(tasks), [("m", 1)])
    scene.clock.advance(30.0)
    scene.join()
    await settle()
    assert scene.passed == list(range(RELEASED_AT_ONCE))
    assert scene.waits.has_to_wait("m"), "newer requests stand behind those that wait"
    late = scene.send(99)
    await settle()
    scene.waits.tick()
    assert await asyncio.gather(*tasks) == [30.0] * len(tasks)
    await late
    assert scene.passed == [*range(len(tasks)), 99]
    assert (scene.waiting(), scene.waits.has_to_wait("m")) == (0, False)
    assert {end for _, end, _ in scene.ends} == {"passed"}


async def test_a_busy_instance_is_sent_no_more_so_that_the_next_one_gets_its_part() -> None:
    scene = Scene()
    tasks = [scene.send(number) for number in range(4)]
    await settle()
    scene.join()
    (a,) = scene.fleet.answering("m")
    a.load_book.prefilling = AHEAD - 1
    await settle()
    assert scene.passed == [0]
    a.load_book.prefilling = AHEAD
    scene.clock.advance(1000.0)  # there is an instance: they do not wait in vain
    scene.waits.tick()
    await settle()
    assert scene.passed == [0]
    scene.join("b")
    await asyncio.gather(*tasks)
    assert scene.passed == [0, 1, 2, 3]


async def test_after_the_longest_wait_they_are_refused_with_a_reason() -> None:
    scene = Scene()
    first = scene.send(1)
    await settle()
    scene.clock.advance(30.0)
    second = scene.send(2)
    await settle()
    scene.clock.advance(30.0)
    scene.waits.tick()
    with pytest.raises(NoTarget, match="was ready within 60 s: one was asked for and has not come") as refused:
        await first
    assert (refused.value.code, refused.value.retry_after_s, refused.value.param) == ("not_woken", 30, "model")
    assert not second.done()
    scene.waits.on_call_end("m", True)
    scene.clock.advance(30.0)
    scene.waits.tick()
    with pytest.raises(NoTarget, match="the last call that was to start one failed"):
        await second
    assert [end for _, end, _ in scene.ends] == ["timed_out", "timed_out"]
    assert scene.asks == [("m", 1), ("m", 1), ("m", 1)][: len(scene.asks)]
    assert scene.waiting() == 0


async def test_it_is_asked_again_while_requests_wait_and_not_after() -> None:
    scene = Scene()
    tasks = [scene.send(1), scene.send(2, model="big-one")]
    await settle()
    assert scene.asks == [("m", 1), ("big-one", 1)]
    scene.waits.tick()
    scene.clock.advance(0.5)
    scene.waits.tick()  # too soon
    scene.clock.advance(0.6)
    scene.waits.tick()
    assert scene.asks[2:] == [("m", 1), ("big-one", 1)] * 2
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    asked = len(scene.asks)
    scene.clock.advance(5.0)
    scene.waits.tick()
    assert len(scene.asks) == asked


async def test_there_is_room_for_so_many_and_their_bytes() -> None:
    scene = Scene(requests=2, body_bytes=100)
    tasks = [scene.send(1, sender="one"), scene.send(2, sender="two")]
    await settle()
    with pytest.raises(NoTarget, match=r"all of 2 \(`wake.requests`\)") as refused:
        await scene.request(3, sender="three")
    assert (refused.value.code, refused.value.retry_after_s) == ("wake_full", 30)
    tasks[0].cancel()
    await settle()
    with pytest.raises(NoTarget, match=r"all of 100 \(`wake.body_bytes`\)"):
        await scene.request(4, sender="three", body_bytes=95)
    tasks.append(scene.send(5, sender="three", body_bytes=90))
    await settle()
    assert scene.waiting() == 2
    assert [end for _, end, _ in scene.ends] == ["no_room", "client_gone", "no_room"]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert scene.waiting() == 0


async def test_one_client_does_not_take_all_the_room() -> None:
    scene = Scene(requests=10)
    tasks = [scene.send(number) for number in range(8)]
    await settle()
    with pytest.raises(NoTarget, match=r"your share of 10 \(`wake.requests`\)"):
        await scene.request(9)
    tasks.append(scene.send(10, sender="two"))
    await settle()
    assert scene.waiting() == 9
    scene.join()
    await asyncio.gather(*tasks)


async def test_a_client_that_leaves_as_it_is_let_go_takes_nobody_with_it() -> None:
    scene = Scene()
    tasks = [scene.send(number) for number in range(3)]
    await settle()
    tasks[1].cancel()
    scene.join()
    await eventually(lambda: tasks[0].done() and tasks[2].done())
    assert scene.passed == [0, 2]
    assert scene.waiting() == 0


async def test_an_instance_that_goes_before_all_have_gone_on_leaves_the_others_waiting() -> None:
    scene = Scene()
    tasks = [scene.send(number) for number in range(RELEASED_AT_ONCE + 1)]
    await settle()
    scene.join()
    await settle()
    scene.fleet.leave("a")
    scene.waits.tick()
    await settle()
    assert not tasks[-1].done()
    scene.join("b")
    await asyncio.gather(*tasks)


def test_the_fleet_of_these_tests_serves_m() -> None:
    assert fleet_of("a").can_answer("m")
