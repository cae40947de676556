"""Log entries find their answers, and an answer whose entry does not come is given up: by a clock that is turned."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from router.clock import ManualClock
from router.picker.access_log_pb2 import StreamAccessLogsMessage
from router.picker.answer_log import LONGEST_S, UNFOLLOWED_S, AnswerLog, LoggedEnd
from router.picker.names import OWN, RECORD
from router.prompt.usage import Usage


def entry(key: str, details: str = "via_upstream", **usage: float) -> StreamAccessLogsMessage:
    message = StreamAccessLogsMessage()
    one = message.http_logs.log_entry.add()
    one.response.response_code.value = 200
    one.response.response_code_details = details
    address = one.common_properties.upstream_remote_address.socket_address
    address.address, address.port_value = "10.0.0.1", 8000
    fields = one.common_properties.metadata.filter_metadata[OWN].fields
    fields[RECORD].string_value = key
    for name, count in usage.items():
        fields[name].number_value = count
    return message


async def started(waiting: Awaitable[LoggedEnd | None]) -> asyncio.Future[LoggedEnd | None]:
    """A wait that has begun."""
    task = asyncio.ensure_future(waiting)
    await asyncio.sleep(0)
    return task


async def test_an_entry_may_come_before_it_is_waited_for() -> None:
    log = AnswerLog(ManualClock().now)
    with log.open("k", "gw") as answer:
        log.take(entry("k", prompt_tokens=7, completion_tokens=2, cached_tokens=3))
        log.take(entry("k", "another"))
        assert await answer.wait() == LoggedEnd(200, "via_upstream", "10.0.0.1:8000", Usage(7, 3, 2))
    assert len(log) == 0
    log.take(entry("k"))  # of an answer that is closed


async def test_counts_that_are_none_are_unknown() -> None:
    log = AnswerLog(ManualClock().now)
    for usage in ({}, {"prompt_tokens": -1.0}, {"prompt_tokens": 1e12}, {"prompt_tokens": float("nan")}):
        with log.open("k", "gw") as answer:
            log.take(entry("k", **usage))
            found = await answer.wait()
            assert found is not None
            assert found.usage is None


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
