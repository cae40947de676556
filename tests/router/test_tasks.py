"""Tasks with an owner: what ends, what starts again, and that nothing is left."""

from __future__ import annotations

import asyncio
import logging

import pytest

from router import tasks
from router.tasks import Alarm, Tasks
from tests.patience import PATIENCE_S


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses asked for; none is made."""
    asked: list[float] = []
    sleep = asyncio.sleep

    async def at_once(seconds: float) -> None:
        asked.append(seconds)
        await sleep(0)

    monkeypatch.setattr(tasks.asyncio, "sleep", at_once)
    return asked


async def test_a_task_has_its_owners_name_and_hands_its_result_on() -> None:
    async def work() -> int:
        return 7

    owner = Tasks("feeds")
    task = owner.spawn("poll", work())
    assert task.get_name() == "feeds:poll"
    assert await task == 7


async def test_a_failure_is_logged_with_the_tasks_name(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        raise RuntimeError("boom")

    task = Tasks("feeds").spawn("poll", work())
    await asyncio.wait([task])
    assert "task feeds:poll failed" in caplog.text
    assert "RuntimeError: boom" in caplog.text


async def test_closing_cancels_and_awaits_everything(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # cleaning up may take a turn or two
            ended.append(name)

    owner = Tasks("feeds")
    running = [owner.spawn("one", work("one")), owner.supervise("two", lambda: work("two"))]
    await asyncio.sleep(0)
    await owner.close()
    assert sorted(ended) == ["one", "two"]
    assert all(task.cancelled() for task in running)
    await owner.close()
    assert owner.restarts == 0
    assert caplog.text == ""


async def test_tasks_are_cancelled_in_the_order_of_their_start() -> None:
    ended: list[int] = []

    async def work(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    owner = Tasks("feeds")
    for number in range(50):
        owner.spawn("work", work(number))
    await asyncio.sleep(0)
    await owner.close()
    assert ended == list(range(50))


async def test_what_should_never_end_is_started_again(pauses: list[float], caplog: pytest.LogCaptureFixture) -> None:
    runs = 0
    well = asyncio.Event()

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs <= 8:
            raise OSError("no route")
        well.set()
        await asyncio.Event().wait()

    owner = Tasks("feeds")
    with caplog.at_level(logging.ERROR, logger="warmroute.tasks"):
        task = owner.supervise("health", work)
        async with asyncio.timeout(PATIENCE_S):
            await well.wait()
    assert owner.restarts == 8
    assert pauses[:8] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert caplog.text.count("feeds:health failed; starting it again") == 8
    await owner.close()
    assert task.cancelled()


async def test_what_ends_by_itself_is_not_started_again(pauses: list[float]) -> None:
    runs = 0

    async def work() -> None:
        nonlocal runs
        runs += 1

    owner = Tasks("feeds")
    await owner.supervise("static", work)
    assert (runs, owner.restarts, pauses) == (1, 0, [])


async def test_a_task_whose_cancellation_was_lost_is_cancelled_again(caplog: pytest.LogCaptureFixture) -> None:
    waits, lost = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        waits.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            lost.set()
        await asyncio.Event().wait()

    owner = Tasks("feeds")
    task = owner.spawn("poll", work())
    await waits.wait()
    await owner.close(0.01)
    assert lost.is_set()
    assert task.cancelled()
    assert "still running: feeds:poll; cancelling again" in caplog.text


async def test_an_alarm_ends_one_sleep() -> None:
    """One that rings while nobody sleeps ends the next; the one after lasts its time."""
    alarm = Alarm()
    alarm.ring()
    async with asyncio.timeout(PATIENCE_S):
        await alarm.sleep(2 * PATIENCE_S)
        sleeper = asyncio.create_task(alarm.sleep(2 * PATIENCE_S))
        await asyncio.sleep(0)
        alarm.ring()
        await sleeper
    await alarm.sleep(0.0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await alarm.sleep(PATIENCE_S)
