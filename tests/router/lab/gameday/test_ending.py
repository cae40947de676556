"""What must hold at the end of a game day: each rule by cases that keep it, and by cases that break it."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import pytest

from router.config.sections.gameday import FaultKind, GamedayBounds, GamedayEnd
from router.lab.gameday.ending import (
    CounterSum,
    Counts,
    count_answers,
    count_requests,
    find_errors,
    find_growth,
    find_miscounted,
    find_unclean,
    find_unequal,
)
from router.lab.gameday.outcome import PlayedFault
from router.lab.gameday.routers import ProcessSize
from router.lab.loadgen.load import SentRequest

END = GamedayEnd(settled_s=100, memory_growth=0.1, descriptors=4)


def row(end_s: float = 50.0, failure: str | None = None, status: int | None = None, tokens: int = 8) -> SentRequest:
    """A request that took a second."""
    sizes: dict[str, Any] = {} if failure else {"ttft_s": 0.1, "prompt_tokens": 100, "output_tokens": tokens}
    return SentRequest(
        session=0, turn=0, sent_s=end_s - 1, late_s=0.0, duration_s=1.0, planned_tokens=100, planned_output_tokens=8,
        failure=failure, status=status, **sizes,
    )  # fmt: skip


def played(fault: FaultKind, at_s: float) -> PlayedFault:
    return PlayedFault(fault, "router-1", at_s, at_s, GamedayBounds(), 8)


REFUSED = row(failure='{"error":{"message":"the limit is reached"}}', status=429)
ENDED = row(failure="the stream broke off: {'code': 'engine_failed'}", status=200)
CUT = row(failure="ReadError: ", status=None)
HALF = row(failure="the stream ended without a token or without usage", status=200)


def test_answers_and_errors_of_the_api_are_proper_ends() -> None:
    assert list(find_unclean([row(), REFUSED, ENDED], [])) == []


@pytest.mark.parametrize("bad", [CUT, HALF, row(failure="<html>", status=502), row(tokens=7), row(tokens=9)])
def test_a_cut_a_foreign_page_and_a_wrong_length_are_not(bad: SentRequest) -> None:
    (found,) = find_unclean([row(), bad], [played("kill", 49.9)])
    assert found.at_s == 50.0


@pytest.mark.parametrize(("killed_s", "excused"), [(46.9, False), (47.1, True), (50.05, True), (50.2, False)])
def test_a_killed_router_may_cut_what_it_had(killed_s: float, excused: bool) -> None:
    assert (list(find_unclean([CUT], [played("kill_router", killed_s)])) == []) is excused
    assert len(list(find_unclean([row(tokens=9)], [played("kill_worker", killed_s)]))) == 1


def test_counts_that_differ_are_named() -> None:
    clients = count_answers([row(), row(), REFUSED])
    assert clients == Counts(2, 200, 16)
    assert list(find_unequal(clients, clients, clients)) == []
    (found,) = find_unequal(clients, clients._replace(output_tokens=17), clients)
    expected = "output tokens of the last load are counted differently: clients 16, routers 17, engines 16"
    assert found.what == expected
    assert Counts(5, 4, 3).since(Counts(1, 1, 1)) == Counts(4, 3, 2)


def series(first_mb: float, last_mb: float, lasts_s: float = 400.0, more: int = 0) -> list[ProcessSize]:
    """A process that begins small, and has one size after its start and another one in its last 200 s."""
    found = []
    for number in range(int(lasts_s / 5)):
        at_s, late = 10.0 + number * 5, number * 5 >= lasts_s - 200
        mb = first_mb / 2 if number == 0 else last_mb if late else first_mb
        found.append(ProcessSize(at_s, "router-0 worker", 7, mb, 30 + more * late))
    return found


def test_a_process_that_keeps_its_size() -> None:
    assert list(find_growth(series(100, 109, more=4), END)) == []


def test_a_process_that_grows() -> None:
    (memory,) = find_growth(series(100, 111), END)
    assert memory.what == "router-0 worker (7) grew from 100.0 to 111.0 MB"
    (descriptors,) = find_growth(series(100, 100, more=5), END)
    assert descriptors.what == "router-0 worker (7) has 35 open descriptors, 30 before"


def test_freed_memory_that_was_kept_for_minutes_is_no_growth() -> None:
    kept, given_back = series(100, 150), series(100, 105)
    assert list(find_growth([*kept[:60], given_back[60], *kept[61:]], END)) == []


def test_a_young_process_is_not_judged() -> None:
    assert list(find_growth(series(100, 200, lasts_s=150.0), END)) == []


def test_errors_in_a_log() -> None:
    wall_s = time.time()
    stamp = datetime.fromtimestamp(wall_s + 12.5).strftime("%Y-%m-%d %H:%M:%S,%f")[:23]
    log = [
        f"{stamp} WARNING worker 0: warmroute.members: instance engine-2 is down: asyncio",
        f"{stamp} ERROR   worker 1: warmroute.decisions: cannot write: File too large",
        f"{stamp} ERROR   worker 1: warmroute.tasks: task x failed",
        "    Traceback (most recent call last):",
        "    ValueError: x",
        f"{stamp} ERROR   asyncio: Task exception was never retrieved",
        "Traceback (most recent call last):",
    ]
    found = list(find_errors("router-0", log, wall_s))
    assert [one.what for one in found] == [
        "router-0 logged: ERROR   worker 1: warmroute.tasks: task x failed",
        "router-0 logged: ERROR   asyncio: Task exception was never retrieved",
        "router-0 logged: Traceback (most recent call last):",
    ]
    assert [one.at_s for one in found] == [pytest.approx(12.5, abs=0.01)] * 2 + [None]


def test_the_routers_count_each_request_once() -> None:
    rows = [row(), row(), REFUSED, CUT]
    for counted in (3, 6):  # the cut one and two abandoned ones may have been counted or not
        assert list(find_miscounted(rows, 2, counted, [], 2.0)) == []
    for counted in (2, 7):
        (found,) = find_miscounted(rows, 2, counted, [], 2.0)
        assert found.what == f"the routers counted {counted} requests, not 3 to 6"
    assert list(find_miscounted(rows, 2, 0, [played("kill_worker", 51.0)], 2.0)) == []


def test_a_counter_that_starts_again() -> None:
    counted = CounterSum()
    for name, value in (("a", 5.0), ("b", 1.0), ("a", 7.0), ("a", 2.0), ("b", 1.0)):
        counted.add(name, value)
    assert counted.total == 7 + 2 + 1


def test_only_requests_to_engines_are_counted() -> None:
    page = (
        'warmroute_requests_total{endpoint="/v1/completions",model="m",status="2xx"} 3.0\n'
        'warmroute_requests_total{endpoint="/v1/completions",model="m",status="none"} 1.0\n'
        'warmroute_requests_total{endpoint="/health",model="other",status="2xx"} 9.0\n'
        "warmroute_requests_total_x 9.0\n"
    )
    assert count_requests(page) == 4
