"""The end of a game day: what must be true of clients, routers and engines when all requests have ended.

books       no router has a request booked, in flight or waiting, and no engine has one
answers     every request was answered in full or failed with an error of the API; only a killed router or worker
            may cut connections
counters    clients, routers and engines count the requests and tokens of one more load alike, and the routers
            have counted the whole day's requests (`find_miscounted`)
processes   memory and open descriptors of a router's process are not above those at the age `settled_s`
logs        no traceback, and no error of asyncio
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby
from statistics import median
from typing import NamedTuple

import httpx

from router.config.sections.gameday import GamedayEnd
from router.lab.gameday.outcome import PlayedFault, end_of
from router.lab.gameday.reading import sum_samples
from router.lab.gameday.routers import ProcessSize
from router.lab.gameday.stage import Stage
from router.lab.loadgen.load import SentRequest

BOOKED = ("requests", "prefilling", "prefill_tokens")
ROUTER_GAUGES = (
    "warmroute_in_flight_requests",
    "warmroute_target_requests",
    "warmroute_target_prefilling_requests",
    "warmroute_admission_waiting_requests",
)
ENGINE_GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting")
ERROR_BODY, ERROR_EVENT = '{"error"', "the stream broke off: "
CUTS = frozenset({"kill_worker", "kill_router"})  # faults that end connections of clients
CUT_BEFORE_S, CUT_AFTER_S = 0.1, 3.0  # around such a fault: on a busy machine a killed process needs 2 s to end
# A router keeps freed memory for five minutes, so of a process's sizes the lowest of so many seconds is what it uses.
MEASURED_S, LEAST_MEASURED_S = 330.0, 30.0
ERROR_LINE = re.compile(r"Traceback| ERROR .*\basyncio: ")
TIME_FORM, TIME_CHARS = "%Y-%m-%d %H:%M:%S,%f", 23  # of a log line
PROXIED = 'endpoint="/v1/'
SIDES = ("clients", "routers", "engines")


class Violation(NamedTuple):
    """A thing that must not be. `at_s` is in seconds since the load began; None: it has no time."""

    what: str
    at_s: float | None = None


class Counts(NamedTuple):
    """Answered requests and their tokens, as one side counts them."""

    requests: float
    prompt_tokens: float
    output_tokens: float

    def since(self, before: Counts) -> Counts:
        return Counts(*(now - then for now, then in zip(self, before, strict=True)))


async def list_leftovers(stage: Stage) -> list[str]:
    """Return all that is not back at zero, such as `router-1: warmroute_in_flight_requests is 2`."""
    left = []
    for router in stage.routers:
        answer = await stage.http.get(f"{router.admin_url}/admin/instances")
        for instance in answer.json()["instances"]:
            for target in instance["targets"]:
                booked = {name: target["load"][name] for name in BOOKED}
                left += [f"{router.name}: {name} of {target['id']} is {n}" for name, n in booked.items() if n]
        left += await _list_gauges(stage.http, router.name, router.url, ROUTER_GAUGES)
    for engine in stage.engines:
        left += await _list_gauges(stage.http, engine.name, engine.url, ENGINE_GAUGES)
    return left


async def _list_gauges(http: httpx.AsyncClient, name: str, url: str, gauges: Iterable[str]) -> list[str]:
    page = (await http.get(f"{url}/metrics")).text
    found = {gauge: sum_samples(page, gauge) for gauge in gauges}
    return [f"{name}: {gauge} is {value:g}" for gauge, value in found.items() if value]


async def read_counts(stage: Stage) -> tuple[Counts, Counts]:
    """Return the counts of all routers, and those of all engines."""
    routers = [(await stage.http.get(f"{one.url}/metrics")).text for one in stage.routers]
    engines = [(await stage.http.get(f"{one.url}/metrics")).text for one in stage.engines]
    return _add(map(_count_router, routers)), _add(map(_count_engine, engines))


def count_answers(rows: Iterable[SentRequest]) -> Counts:
    """Return the counts of the clients."""
    answered = [one for one in rows if one.failure is None]
    prompts, outputs = (one.prompt_tokens or 0 for one in answered), (one.output_tokens or 0 for one in answered)
    return Counts(len(answered), sum(prompts), sum(outputs))


def find_unequal(clients: Counts, routers: Counts, engines: Counts) -> Iterator[Violation]:
    """Yield what the three sides count differently."""
    for name, *values in zip(Counts._fields, clients, routers, engines, strict=True):
        if len(set(values)) > 1:
            texts = ", ".join(f"{side} {value:g}" for side, value in zip(SIDES, values, strict=True))
            yield Violation(f"{name.replace('_', ' ')} of the last load are counted differently: {texts}")


def find_unclean(rows: Iterable[SentRequest], played: Sequence[PlayedFault]) -> Iterator[Violation]:
    """Yield the requests that have no proper end: neither the whole answer, nor an error of the API."""
    cuts = [one.began_s for one in played if one.fault in CUTS]
    for row in rows:
        at_s = end_of(row)
        if row.failure is None and row.output_tokens != row.planned_output_tokens:
            yield Violation(f"an answer has {row.output_tokens} tokens, not {row.planned_output_tokens}", at_s)
        elif row.failure is not None and not _is_error(row) and not _was_cut(row, cuts):
            yield Violation(f"a request had no proper end: {row.status or ''} {row.failure}", at_s)


def find_growth(sizes: Iterable[ProcessSize], end: GamedayEnd) -> Iterator[Violation]:
    """Yield the processes that are larger at their end than at the age `settled_s`, by the lowest memory and the median
    of descriptors of `MEASURED_S`, or of half the time in between; those that ended soon after are not judged.
    """
    for pid, found in groupby(sorted(sizes, key=lambda one: (one.pid, one.at_s)), key=lambda one: one.pid):
        series = list(found)
        settled_s, last_s = series[0].at_s + end.settled_s, series[-1].at_s
        measured_s = min(MEASURED_S, (last_s - settled_s) / 2)
        if measured_s < LEAST_MEASURED_S:
            continue
        before = [one for one in series if settled_s <= one.at_s < settled_s + measured_s]
        after = [one for one in series if one.at_s > last_s - measured_s]
        first_mb, last_mb = (min(one.rss_mb for one in some) for some in (before, after))
        first_open, last_open = (median(one.descriptors for one in some) for some in (before, after))
        name = f"{series[0].name} ({pid})"
        if last_mb > first_mb * (1 + end.memory_growth):
            yield Violation(f"{name} grew from {first_mb:.1f} to {last_mb:.1f} MB", last_s)
        if last_open > first_open + end.descriptors:
            yield Violation(f"{name} has {last_open:g} open descriptors, {first_open:g} before", last_s)


def find_errors(name: str, lines: Iterable[str], start_wall_s: float) -> Iterator[Violation]:
    """Yield the records of a router's log with a traceback, or of an error of asyncio."""
    record = ""
    for line in lines:
        record = record if line.startswith(" ") else line
        if ERROR_LINE.search(line):
            at_s, text = _split_record(record, start_wall_s)
            yield Violation(f"{name} logged: {text[:160]}", at_s)


def find_miscounted(
    rows: Iterable[SentRequest], abandoned: int, counted: float, played: Sequence[PlayedFault], lost_s: float
) -> Iterator[Violation]:
    """Yield a Violation if the routers' count of the day's requests cannot be right. An abandoned request, and one
    whose connection was cut, may have been counted or not; what a killed process counted in its last `lost_s` seconds
    is lost.
    """
    cuts = [one.began_s for one in played if one.fault in CUTS]
    ended = list(rows)
    certain = sum(
        (one.failure is None or one.status is not None)
        and not any(cut - lost_s <= end_of(one) <= cut + lost_s for cut in cuts)
        for one in ended
    )
    if not certain <= counted <= len(ended) + abandoned:
        yield Violation(f"the routers counted {counted:g} requests, not {certain} to {len(ended) + abandoned}")


class CounterSum:
    """Sum of a counter of several processes, each of which may start again at zero."""

    def __init__(self) -> None:
        self.total = 0.0
        self._last: dict[str, float] = {}

    def add(self, name: str, value: float) -> None:
        """Take the value that the counter of process `name` has now."""
        last = self._last.get(name, 0.0)
        self.total += value - last if value >= last else value
        self._last[name] = value


def count_requests(page: str) -> float:
    """Return the requests that a router has counted, however they ended."""
    return sum_samples(page, "warmroute_requests_total", PROXIED)


def _count_router(page: str) -> Counts:
    requests = sum_samples(page, "warmroute_requests_total", PROXIED, 'status="2xx"')
    tokens = (sum_samples(page, f"warmroute_{kind}_tokens_total") for kind in ("prompt", "output"))
    return Counts(requests, *tokens)


def _count_engine(page: str) -> Counts:
    names = ("request_success_total", "prompt_tokens_total", "generation_tokens_total")
    return Counts(*(sum_samples(page, f"vllm:{name}") for name in names))


def _add(counts: Iterable[Counts]) -> Counts:
    return Counts(*map(sum, zip(*counts, strict=True)))


def _is_error(row: SentRequest) -> bool:
    """Return whether the failure is an error of the API: a JSON body, or an event of the stream."""
    return row.failure is not None and row.status is not None and row.failure.startswith((ERROR_BODY, ERROR_EVENT))


def _was_cut(row: SentRequest, cuts: Iterable[float]) -> bool:
    at_s = end_of(row)
    return any(-CUT_BEFORE_S <= at_s - cut <= CUT_AFTER_S for cut in cuts)


def _split_record(record: str, start_wall_s: float) -> tuple[float | None, str]:
    """Return when a log record was written and the rest of it; a line that is no record has no time."""
    try:
        return datetime.strptime(record[:TIME_CHARS], TIME_FORM).timestamp() - start_wall_s, record[TIME_CHARS + 1 :]
    except ValueError:
        return None, record
