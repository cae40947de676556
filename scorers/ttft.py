"""Time to a request's first token at a target: the wait, plus the least work that the prompt needs.

Shared by the scorers that price in milliseconds (`expected_ttft`, `warm`, `least_work_left`, ...). Tokens that are
not on the GPU may be fetched from host memory, disk, the pool's memory and the pool's disks, each at its measured
speed. They are fetched only where fetching is cheaper than computing the same tokens at their context:

    tokens  0 ...... G .......... C ............. M ....... prompt
    held    GPU -----|
            host memory ----------|
            pool memory --------------------------|
    ways    G compute;   G host C compute;   G pool M compute;   G host C pool M compute

A link is used up to the end of what its source holds, or not at all. Engines load in this way: they compute nothing
before a fetched stretch. The least cost also lies there: a later token costs more to compute, so the cost of
fetching up to some point is concave in that point, and least at an end.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import NamedTuple

from scorers.blocks import tier_tokens
from scorers.contract import Measure, Overlap, PoolHit, Row, Speed, Transfer, View
from scorers.polled import fill_missing

LINKS = ("load_from_host", "load_from_disk", "load_from_pool", "load_from_pool_disk")
"""Names of the cost parts for fetching, in the order of a row's sources."""

Source = tuple[Transfer | None, int, int]
"""A link, and the range of prompt tokens that it can load, up to the second number: from the first number on in any
case, possibly from 0.
"""


class PromptTokens(NamedTuple):
    """Facts of a prompt that are the same for all targets, in tokens."""

    whole: int  # the prompt's length; if unknown, the longest run that any target holds
    in_memory: int  # leading part that the pool holds in memory
    pooled: int  # leading part that the pool holds, including its disks
    unknown: int  # GPU tokens assumed for a target of unknown overlap


def prompt_of(view: View, rows: Sequence[Row] | None = None, *, pool: bool = True) -> PromptTokens:
    """Return the prompt's facts. `unknown` is the mean of what `rows` (by default all) hold; `pool=False` ignores
    the pool.
    """
    known = [overlap for row in rows or view.rows if (overlap := row.overlap) is not None]
    return prompt_held(view.prompt_tokens, view.pool if pool else None, known)


def prompt_held(tokens: int | None, pool: PoolHit | None, known: Sequence[Overlap]) -> PromptTokens:
    """Return the facts of a prompt of `tokens` tokens, where `known` are the overlaps of the targets that have
    one.
    """
    pooled = in_memory = 0
    if pool is not None:
        pooled = in_memory = pool.tokens
        if pool.memory_tokens is not None:
            in_memory = min(pooled, pool.memory_tokens)
    whole, total = max(tokens or 0, pooled), 0
    for overlap in known:
        held, on_disk = overlap.expected_tokens, overlap.disk_tokens
        total += held
        if held > whole:
            whole = held
        if on_disk > whole:
            whole = on_disk
    return PromptTokens(whole, in_memory, pooled, round(total / len(known)) if known else 0)


def work_left(*, pool: bool) -> Measure:
    """Return the measure that settles `ttfts_ms` if no requests of other clients wait."""
    return Measure.WORK_LEFT if pool else Measure.WORK_LEFT_BUT_POOL


def ttfts_ms(rows: Sequence[Row], prompt: PromptTokens, stale_s: float) -> list[float]:
    """Return the milliseconds to the first token at each row: the wait plus the least work."""
    work = works_ms(rows, prompt)
    waits = waits_ms(rows, work, stale_s)
    return [wait + work[i] for i, wait in enumerate(waits)]


def split_ttfts_ms(rows: Sequence[Row], prompt: PromptTokens, stale_s: float) -> dict[str, list[float]]:
    """Return `ttfts_ms` split into `wait` and the parts of `split_works_ms`."""
    return {"wait": waits_ms(rows, works_ms(rows, prompt), stale_s), **split_works_ms(rows, prompt)}


def waits_ms(rows: Sequence[Row], work: list[float], stale_s: float) -> list[float]:
    """Return the milliseconds of work ahead of the request at each row: our own queue, and requests of others that
    wait in the engine.

    Requests of others are those that waited in the engine at its last poll, times the share that was not ours. Each
    is assumed to cost the mean of `work`. An engine that has not reported its queue, or reported it longer than
    `stale_s` ago, is assumed to have an average queue.
    """
    queued = [row.load.queued_ms for row in rows]
    others = others_waiting(rows, stale_s)
    if not any(others):
        return queued
    each = fsum(work) / len(work)
    return [ours + others[i] * each for i, ours in enumerate(queued)]


def others_waiting(rows: Sequence[Row], stale_s: float) -> list[float]:
    """Return the number of requests of other clients that wait in each row's engine."""
    others: list[float | None] = []
    silent = False
    for row in rows:  # as `read_gauge` does, in one pass: this runs for every candidate of every request
        load = row.load
        running, waiting, elsewhere, age_s = load.running, load.waiting, load.elsewhere, load.metrics_age_s
        if running is None or waiting is None or elsewhere is None or age_s is None or age_s > stale_s:
            others.append(None)
            silent = True
        else:
            others.append(waiting * min(1.0, elsewhere / (running + waiting)) if waiting else 0.0)
    return fill_missing(others) if silent else others  # type: ignore[return-value]  # contains no None


def prefill_ms(speed: Speed, new: int, context: int) -> float:
    """Return `speed.prefill_ms(new, context)`: compiled code calls a function faster than that method."""
    attended = new * (context + new / 2)
    return speed.base_ms + (speed.us_per_token * new + speed.ns_per_token_context * attended / 1000) / 1000


def works_ms(rows: Sequence[Row], prompt: PromptTokens, on: Speed | None = None) -> list[float]:
    """Return `least_ms` of every row, at its own speed or all at the speed `on`. The rows are priced in one pass:
    most hold nothing beyond their GPU and need no search, and at one speed rows that hold the same cost the same.
    """
    whole, _, pooled, unknown = prompt
    works: list[float] = []
    before, at, ms = -1, None, 0.0
    for row in rows:
        overlap, speed = row.overlap, on or row.speed
        if overlap is None:
            held = on_disk = unknown
        else:
            held, on_disk = overlap.expected_tokens, tier_tokens(overlap)
        if on_disk > held or pooled > held:
            works.append(least_ms(overlap, speed, prompt))
            continue
        if held != before or speed is not at:
            before, at, ms = held, speed, prefill_ms(speed, whole - held, held)
        works.append(ms)
    return works


def split_works_ms(rows: Sequence[Row], prompt: PromptTokens) -> dict[str, list[float]]:
    """Return `works_ms` split by how the time is spent: `compute`, and each link of `LINKS` that any row uses."""
    ways = [_least_way(row.overlap, row.speed, prompt) for row in rows]
    links = [link for link in LINKS if any(link in way for way in ways)]
    return {part: [way.get(part, 0.0) for way in ways] for part in ("compute", *links)}


class WorkAhead(NamedTuple):
    """Columns of the values that `alike_ms` needs, with one number per target."""

    fixed_ms: list[float]  # the queue, and the prefill's base
    ms_per_token: list[float]
    ms_per_pair: list[float]
    ms_per_step: list[float]  # per decode step of an answer
    pool_ms: list[float]  # the base of a load from the pool's memory; infinite without a link
    pool_ms_per_token: list[float]


def alike_ms(
    targets: WorkAhead, slots: Sequence[int], overlap: Overlap, prompt: PromptTokens, steps: float
) -> list[float] | None:
    """Return the sum of queue, `least_ms` and `steps` decode steps (equal but for rounding) for the targets in
    `slots`, which all hold `overlap`. None if there are other ways than computing and the pool's memory. In a large
    fleet this runs for all targets, so it is one plain loop, which is fastest once compiled.
    """
    whole, in_memory, pooled, _ = prompt
    held = overlap.expected_tokens
    new, reached = float(whole - held), max(held, pooled)
    pairs = new * (held + new / 2)
    if tier_tokens(overlap) > held or (reached > held and in_memory < pooled):
        return None
    fixed, per_token, per_pair, per_step, pool, pool_per_token = targets
    if reached == held:
        if isinstance(slots, range):  # all slots: looking each up by its number takes half as long again
            return [ms + per_token[i] * new + per_pair[i] * pairs + per_step[i] * steps for i, ms in enumerate(fixed)]
        return [fixed[i] + per_token[i] * new + per_pair[i] * pairs + per_step[i] * steps for i in slots]
    fetched, rest = float(reached - held), float(whole - reached)
    rest_pairs = rest * (reached + rest / 2)
    least: list[float] = []
    for i in slots:
        own = per_step[i] * steps
        computing = fixed[i] + per_token[i] * new + per_pair[i] * pairs + own
        fetching = (
            fixed[i] + per_token[i] * rest + per_pair[i] * rest_pairs + own + pool[i] + pool_per_token[i] * fetched
        )
        least.append(fetching if fetching < computing else computing)
    return least


def least_ms(overlap: Overlap | None, speed: Speed, prompt: PromptTokens) -> float:
    """Return the least milliseconds that the prompt needs at an idle target with this overlap and speed."""
    whole, in_memory, pooled, unknown = prompt
    if overlap is None:
        held = on_host = on_disk = unknown
    else:
        held, on_host, on_disk = _tiers(overlap)
    if on_disk <= held:  # most rows of most fleets, which need no search
        if pooled <= held:
            return prefill_ms(speed, whole - held, held)
        if pooled == in_memory:
            return _with_pool(speed, whole, held, pooled)
    sources = (
        (speed.cpu, 0, on_host),
        (speed.disk, on_host, on_disk),
        (speed.pool, 0, in_memory),
        (speed.pool_disk, in_memory, pooled),
    )
    return _least(speed, whole, held, sources)


def _tiers(overlap: Overlap) -> tuple[int, int, int]:
    """Return the tokens that the GPU, its host's memory and any tier are expected to hold when the request begins. A
    tier that holds no more than the GPU now may hold nothing, and have nothing that the GPU evicts.
    """
    on_host = overlap.cpu_tokens if overlap.cpu_tokens > overlap.gpu_tokens else 0
    return overlap.expected_tokens, on_host, tier_tokens(overlap)


def _with_pool(speed: Speed, whole: int, held: int, pooled: int) -> float:
    """Return `_least` for the case that the pool's memory is the only source."""
    computing, link = prefill_ms(speed, whole - held, held), speed.pool
    if link is None:
        return computing
    fetching = link.base_ms + link.us_per_token * (pooled - held) / 1000
    return min(computing, fetching + prefill_ms(speed, whole - pooled, pooled)) if fetching < computing else computing


def _least(speed: Speed, whole: int, reached: int, sources: Sequence[Source]) -> float:
    """Return the least milliseconds for all tokens beyond `reached`. No source is used, nor its base paid,
    twice.
    """
    least = prefill_ms(speed, whole - reached, reached)
    for link, start, end in sources:
        if start <= reached < end and link is not None:
            fetching = link.base_ms + link.us_per_token * (end - reached) / 1000
            if fetching < least:  # else nothing that follows can compensate
                least = min(least, fetching + _least(speed, whole, end, sources))
    return least


def _least_way(overlap: Overlap | None, speed: Speed, prompt: PromptTokens) -> dict[str, float]:
    """Return the parts of `least_ms`, which is a separate function because it runs for every request."""
    whole, in_memory, pooled, unknown = prompt
    if overlap is None:
        held = on_host = on_disk = unknown
    else:
        held, on_host, on_disk = _tiers(overlap)
    links = (speed.cpu, speed.disk, speed.pool, speed.pool_disk)
    ranges = ((0, on_host), (on_host, on_disk), (0, in_memory), (in_memory, pooled))
    sources = [(name, link, *span) for name, link, span in zip(LINKS, links, ranges, strict=True)]

    def find_least(reached: int) -> dict[str, float]:
        ways = [{"compute": speed.prefill_ms(whole - reached, reached)}]
        for name, link, start, end in sources:
            if start <= reached < end and link is not None:
                fetching = link.base_ms + link.us_per_token * (end - reached) / 1000
                ways.append({name: fetching, **find_least(end)})
        return min(ways, key=lambda way: sum(way.values()))

    return find_least(held)
