"""Waiting in this loop, over a real core of one instance with 400 tokens: exactly once, whatever ends it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.config.sections import admission
from router.errors import TooBusy
from router.fleet.instance import ServedModel
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Endpoint, Prompt, Text, UnknownIds
from router.request.admission.waiting import AdmissionQueues, keeps_context, session_of
from router.scheduling.policy.record import Record
from tests.router.scheduling.test_scheduler import House

SERVED = ServedModel("m", None)


class Scene:
    def __init__(self, **told: Any) -> None:
        self.house = House(count=1)
        self.waits: list[tuple[str, str, str]] = []
        controller = admission.AdmissionConfig(**({"enabled": True} | told))
        self.waiting = AdmissionQueues(
            controller,
            self.house.core,
            self.house.clock,
            lambda model, queue, end, s: self.waits.append((model, queue, end)),
        )

    async def seat(self, session: str, tokens: int) -> Any:
        known = TokenizedPrompt([0] * tokens, True, "given", {}, 0.0, 0.0)
        return await self.waiting.seat(a_prompt(session), SERVED, known)

    @property
    def live(self) -> float:
        (gate,) = self.waiting
        return gate.state().live.context_tokens

    @property
    def standing(self) -> int:
        (gate,) = self.waiting
        return len(gate.state().waiting)

    def answered(self, seat: Any, tokens: int) -> None:
        record: Record = self.house.record()
        record.status, record.ttft_ms, record.prompt_tokens, record.output_tokens = 200, 1.0, tokens, 5
        seat.record = record


def a_prompt(session: str | None, endpoint: Endpoint = Endpoint.COMPLETIONS, **fields: Any) -> Prompt:
    return Prompt(endpoint, endpoint.value, "m", b'{"prompt": "x"}', Text("x", True), session=session, **fields)


async def test_the_end_of_one_lets_the_next_one_in() -> None:
    scene = Scene()
    first = await scene.seat("a", 300)
    second = asyncio.create_task(scene.seat("b", 300))
    await asyncio.sleep(0)
    assert (scene.standing, scene.live) == (1, 300)
    with first:
        pass  # nobody answered
    async with asyncio.timeout(2):
        with await second as seat:
            assert seat.waited_s is not None
            assert (scene.standing, scene.live) == (0, 300)
            scene.answered(seat, 310)
    assert scene.live == 315
    assert scene.waits == [("m", "new", "passed")]


async def test_whoever_goes_away_leaves_nothing_behind_even_if_it_was_just_let_in() -> None:
    scene = Scene()
    first = await scene.seat("a", 300)
    waiting = [asyncio.create_task(scene.seat(name, 300)) for name in "bcd"]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.wait([waiting[1]])
    assert scene.standing == 2
    with first:
        pass  # b is let in here, and goes away before it hears of it
    waiting[0].cancel()
    async with asyncio.timeout(2):
        with await waiting[2]:
            assert (scene.standing, scene.live) == (0, 300)
    assert scene.live == 0
    assert sorted(end for _, _, end in scene.waits) == ["client_gone", "client_gone", "passed"]


async def test_too_long_is_too_busy() -> None:
    scene = Scene(max_wait_s=0.02)
    with await scene.seat("a", 300):
        second = asyncio.create_task(scene.seat("b", 300))
        await asyncio.sleep(0)
        scene.house.clock.advance(0.03)
        with pytest.raises(TooBusy, match="place 1") as refused:
            await second
        assert refused.value.retry_after_s == 1
        assert scene.standing == 0
    assert scene.waits == [("m", "new", "refused")]


async def test_an_exception_gives_back_what_was_taken() -> None:
    scene = Scene()
    with pytest.raises(ValueError, match="broken"), await scene.seat("a", 300):
        raise ValueError("broken")
    assert scene.live == 0


async def test_off_nobody_keeps_count() -> None:
    scene = Scene(enabled=False)
    for number in range(5):
        with await scene.seat(str(number), 10**6) as seat:
            assert seat is None
    assert list(scene.waiting) == []


async def test_a_prompt_of_unknown_length_needs_the_mean() -> None:
    scene = Scene()
    first = await scene.seat("a", 300)
    second = asyncio.create_task(scene.waiting.seat(a_prompt("b"), SERVED, UnknownIds("media")))
    await asyncio.sleep(0)
    assert scene.standing == 1
    with first:
        pass
    with await second:
        pass


def test_whose_session_it_is() -> None:
    assert session_of(a_prompt("s")) == session_of(a_prompt("s", Endpoint.CHAT))
    assert session_of(a_prompt("s")) != session_of(a_prompt("t"))
    assert session_of(a_prompt(None)) is not None, "its beginning"
    assert session_of(a_prompt(None, Endpoint.OTHER)) is None


def test_only_what_leaves_a_context_is_counted() -> None:
    assert keeps_context(a_prompt(None))
    assert not keeps_context(a_prompt("s", Endpoint.OTHER))
    assert not keeps_context(a_prompt(None, Endpoint.RESPONSES, previous_response_id="r"))
    assert keeps_context(a_prompt("s", Endpoint.RESPONSES, previous_response_id="r"))
