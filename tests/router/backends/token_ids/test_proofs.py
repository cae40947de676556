"""When proofs run: as instances join, until they answer, and again after a wrong count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from router.backends.token_ids import proofs
from router.backends.token_ids.proofs import TokenizerProofs
from router.clock import ManualClock
from router.tasks import Tasks
from tests.fakes.engines import eventually


class Verifier:
    """Finds what it is told to, in turn; the last for ever."""

    def __init__(self) -> None:
        self.found: list[bool | None] = [True]
        self.lasting: list[float] = []
        self.began: list[tuple[str, str]] = []
        self.verified: list[tuple[str, str]] = []
        self.forgotten: list[str] = []
        self.held = asyncio.Event()
        self.held.set()

    def begin(self, instance: str, model: str) -> None:
        self.began.append((instance, model))

    async def verify(self, instance: str, model: str) -> bool | None:
        self.verified.append((instance, model))
        found = self.found.pop(0) if len(self.found) > 1 else self.found[0]
        await self.held.wait()
        return found

    def proof_lasts_s(self, model: str) -> float | None:
        return self.lasting.pop(0) if self.lasting else None

    def forget(self, instance: str) -> None:
        self.forgotten.append(instance)


class Scene:
    def __init__(self) -> None:
        self.verifier = Verifier()
        self.tasks = Tasks("test")
        self.clock = ManualClock()
        self.proofs = TokenizerProofs(self.verifier, self.tasks, self.clock)
        self.paused: list[float] = []

    async def runs(self, number: int) -> None:
        await eventually(lambda: len(self.verifier.verified) >= number)
        assert len(self.verifier.verified) == number

    async def done(self) -> None:
        await eventually(lambda: not any(one.scheduled for one in self.proofs._proofs.values()))


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    """Pauses take no time and are noted."""
    made = Scene()
    sleep = asyncio.sleep

    async def pause(seconds: float) -> None:
        made.paused.append(seconds)
        await sleep(0)

    monkeypatch.setattr(proofs, "sleep", pause)
    yield made
    await made.tasks.close()


async def test_one_proof_when_an_instance_joins(scene: Scene) -> None:
    scene.proofs.on_joined("a", "m")
    assert scene.verifier.began == [("a", "m")]
    await scene.done()
    assert scene.verifier.verified == [("a", "m")]


async def test_one_that_does_not_answer_is_tried_ever_more_rarely(scene: Scene) -> None:
    scene.verifier.found = [None] * 6 + [True]
    scene.proofs.on_joined("a", "m")
    await scene.done()
    assert scene.paused == [5.0, 30.0, 120.0, 600.0, 600.0, 600.0]
    assert len(scene.verifier.verified) == 7


async def test_one_that_differs_is_tried_again_each_hour(scene: Scene) -> None:
    scene.verifier.found = [False, False, True]
    scene.proofs.on_joined("a", "m")
    await scene.done()
    assert scene.paused == [3600.0, 3600.0]


async def test_a_proof_is_renewed_when_it_is_void(scene: Scene) -> None:
    scene.verifier.lasting = [3600.0, 86400.0]
    scene.proofs.on_joined("a", "m")
    await scene.runs(3)
    await scene.done()
    assert scene.paused == [3605.0, 86405.0]


async def test_who_was_proved_since_is_not_proved_again_by_an_older_renewal(scene: Scene) -> None:
    scene.verifier.lasting = [3600.0]
    scene.verifier.held.clear()
    scene.proofs.on_joined("a", "m")
    await scene.runs(1)
    scene.proofs.forget("a")
    scene.verifier.held.set()
    await scene.tasks.close()
    assert len(scene.verifier.verified) == 1


async def test_a_wrong_count_is_followed_by_a_proof_that_holds_ever_longer(scene: Scene) -> None:
    scene.proofs.on_joined("a", "m")
    await scene.done()
    for number, held_s in enumerate([60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0], 2):
        assert scene.proofs.on_miscount("a", "m")
        assert scene.proofs.on_miscount("a", "m"), "of a request that was under way"
        await scene.done()
        assert len(scene.verifier.verified) == number
        scene.clock.advance(held_s - 0.1)
        assert not scene.proofs.on_miscount("a", "m")
        scene.clock.advance(0.1)
    scene.proofs.on_joined("a", "m")
    await scene.done()
    assert scene.proofs.on_miscount("a", "m"), "another process begins anew"
    await scene.done()
    scene.clock.advance(60.0)
    assert scene.proofs.on_miscount("a", "m")


async def test_who_left_or_serves_another_model_is_not_proved(scene: Scene) -> None:
    scene.verifier.found = [None]
    scene.verifier.held.clear()
    scene.proofs.on_joined("a", "m")
    await scene.runs(1)
    scene.proofs.on_miscount("a", "other")
    scene.proofs.on_miscount("b", "m")
    scene.proofs.forget("a")
    scene.verifier.held.set()
    await scene.tasks.close()
    assert (scene.verifier.forgotten, len(scene.verifier.verified)) == (["a"], 1)
