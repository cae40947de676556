"""Log entries find their answers, and an answer whose entry does not come is given up: by a clock that is turned."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from router.clock import ManualClock
from router.picker.answer_log import LONGEST_S, UNFOLLOWED_S, AnswerLog, LoggedEnd
from router.prompt.usage import Usage

END = LoggedEnd(200, "via_upstream", "10.0.0.1:8000", Usage(7, 3, 2))


async def started(waiting: Awaitable[LoggedEnd | None]) -> asyncio.Future[LoggedEnd | None]:
    """A wait that has begun."""
    task = asyncio.ensure_future(waiting)
    await asyncio.sleep(0)
    return task


async def test_an_entry_may_come_before_it_is_waited_for() -> None:
    log = AnswerLog(ManualClock().now)
    with log.open("k", "gw") as answer:
        log.take("k", END)
        log.take("k", END._replace(status=500))
        assert await answer.wait() == END
    assert len(log) == 0
    log.take("k", END)  # of an answer that is closed


class Others:
    """Notes what other pickers would get."""

    def __init__(self, log: AnswerLog) -> None:
        self.log = log
        self.passed_on: list[str] = []
        self.followed: list[list[str]] = []
        self.opened: list[int] = []
        self.waits = False

    def pass_on(self, key: str, end: LoggedEnd) -> None:
        self.passed_on.append(key)

    def on_follow(self) -> None:
        self.followed.append(sorted(self.log.gateways))

    def on_open(self) -> None:
        self.opened.append(len(self.log))

    def wait_here(self) -> bool:
        return self.waits


async def test_entries_of_answers_that_are_not_open_here_are_passed_on() -> None:
    log = AnswerLog(ManualClock().now)
    log.others = others = Others(log)
    with log.open("k", "gw"):
        for key in ("k", "k", "another"):
            log.take(key, END)
        assert not log.join("third", END), "what was passed on is not passed on again"
    assert others.passed_on == ["another"]


def test_others_are_told_of_a_gateways_first_stream_and_of_the_end_of_its_last_one() -> None:
    log = AnswerLog(ManualClock().now)
    log.others = others = Others(log)
    for gateway in ("a", "a", "b"):
        log.on_stream_begin(gateway)
    for gateway in ("a", "b", "a"):
        log.on_stream_end(gateway)
    assert others.followed == [["a"], ["a", "b"], ["a"], []]


async def test_an_answer_is_given_up_when_its_gateway_sends_no_logs_for_a_while() -> None:
    clock = ManualClock()
    log = AnswerLog(clock.now)
    log.on_stream_begin("other")
    with log.open("k", "gw") as answer:
        clock.advance(1000)
        log.expire()  # before the answer is left alone its gateway tells what happens
        waiting = await started(answer.wait())
        clock.advance(UNFOLLOWED_S - 1)
        log.expire()
        assert not waiting.done()
        log.on_stream_begin("gw")
        clock.advance(1000)
        log.expire()
        assert not answer.end.done(), "its entry may still come"
        log.on_stream_end("gw")
        clock.advance(UNFOLLOWED_S - 1)
        log.expire()
        assert not answer.end.done()
        clock.advance(2)
        log.expire()
        assert await waiting is None


async def test_and_after_a_bound_in_any_case() -> None:
    clock = ManualClock()
    log = AnswerLog(clock.now)
    log.on_stream_begin("gw")
    with log.open("k", "gw") as answer:
        waiting = await started(answer.wait())
        clock.advance(LONGEST_S + 1)
        log.expire()
        assert await waiting is None


async def test_others_are_told_of_the_first_open_answer_and_of_the_end_of_the_last_one() -> None:
    log = AnswerLog(ManualClock().now)
    log.others = others = Others(log)
    with log.open("k", "gw"), log.open("l", "gw"):
        pass
    assert others.opened == [1, 0]


def test_log_streams_are_needed_while_answers_wait_for_them_elsewhere() -> None:
    log = AnswerLog(ManualClock().now)
    log.on_stream_begin("gw")
    assert not log.is_needed
    log.others = others = Others(log)
    assert not log.is_needed
    others.waits = True
    assert log.is_needed
    log.on_stream_end("gw")
    assert not log.is_needed


async def test_a_log_stream_at_another_picker_counts_as_one_here() -> None:
    clock = ManualClock()
    log = AnswerLog(clock.now)
    log.follow_elsewhere("first", ["gw", "other"])
    log.follow_elsewhere("second", ["gw"])
    with log.open("k", "gw") as answer:
        waiting = await started(answer.wait())
        clock.advance(1000)
        log.follow_elsewhere("first", ["other"])
        assert log.follows("gw")
        clock.advance(1000)
        log.expire()
        assert not answer.end.done()
        log.follow_elsewhere("second", [])
        assert not log.follows("gw")
        clock.advance(UNFOLLOWED_S - 1)
        log.expire()
        assert not answer.end.done(), "its last stream has ended just now"
        clock.advance(2)
        log.expire()
        assert await waiting is None
