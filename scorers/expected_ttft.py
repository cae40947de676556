"""When the first token would come: the wait, the fetching and the computing that a request has ahead at each target.

    cost = queued + others waiting * mean work + work
    work = least of all ways:  base + us_per_token * fetched, of every link used  +  prefill(prompt - reached, reached)

This is the Mooncake paper's Algorithm 1 (arXiv 2407.00079, section 6: T_queue + T_transfer + T_prefill), but for when
to transfer: there a ratio of prefix lengths decides, here the price. What lies beyond the GPU's part may be had from
host memory, disk, the pool's memory and the pool's disks, each at the speed that was measured of it, and is fetched
only where that is cheaper than computing the same tokens at their context (attention over a long context costs too):

    tokens  0 ...... G .......... C ............. M ....... prompt
    held    GPU -----|
            host memory ----------|
            pool memory --------------------------|
    ways    G compute;   G host C compute;   G pool M compute;   G host C pool M compute

A link is used up to the end of what it holds, or not at all. That is how engines load: nothing is computed before a
fetched stretch. It is also where the least lies: the later a token the dearer to compute, so the cost of fetching up to
some point is concave in it, and least at an end.

Below the break-even, a link slower than the prefill, fetching is never the least: such a pool changes no cost and
attracts nobody. (vLLM's connector has no such test and fetches what is there; that is no reason to go where it must.)
Loading and a queue before it may overlap; they are added up, as in the paper, which errs towards who holds the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from operator import attrgetter

from scorers.contract import Load, Needs, Row, Scorer, Speed, Transfer, Unit, View
from scorers.polled import check_stale_s, polled

LOAD = attrgetter("load")
EXPECTED = attrgetter("expected_tokens")
DISK = attrgetter("disk_tokens")

Source = tuple[Transfer | None, int, int]
"""A link, and the prompt's tokens behind it: surely from the first number on (perhaps from 0), up to the second."""


@dataclass(frozen=True)
class ExpectedTtft(Scorer):
    """Milliseconds to the first token: the queue, then the cheapest mix of fetching and computing the prompt's KV.

    What was sent there so recently that no event can have told of it yet counts as held by the GPU.
    `pool: false` prices every target as if there were no shared pool.

    Others: of the requests that waited in the engine at its last poll, the share that was not ours; each is taken for a
    request like this one on an average target. Our own that wait are `queued`, known to the instant.

    Missing: a row with unknown overlap is taken to hold on its GPU what the others hold on average; the pool counts for
    it as for all. Where the prompt's length is unknown, the longest run that anybody holds stands in for it. An engine
    that has not told of its queue, or told it more than `stale_s` ago, is taken for an average one. A link of unknown
    speed is not used, an unknown pool holds nothing.
    """

    needs = Needs.CACHE | Needs.POOL | Needs.LOAD
    unit = Unit.MS

    pool: bool = True
    stale_s: float = 15.0

    def __post_init__(self) -> None:
        check_stale_s(self.stale_s)

    def score(self, view: View) -> Sequence[float]:
        rows = view.rows
        pooled = in_memory = 0
        if self.pool and view.pool is not None:
            pooled = in_memory = view.pool.tokens
            if view.pool.memory_tokens is not None:
                in_memory = min(pooled, view.pool.memory_tokens)
        known = [row.overlap for row in rows if row.overlap is not None]
        held = list(map(EXPECTED, known)) or [0]
        typical = round(sum(held) / len(held))
        whole = max(view.prompt_tokens or 0, pooled, max(held), max(map(DISK, known), default=0))
        work = [_work(row, whole, typical, in_memory, pooled) for row in rows]
        others = polled(list(map(LOAD, rows)), _others_waiting, self.stale_s)
        each = fsum(work) / len(work) if any(others) else 0.0
        return [row.load.queued_ms + count * each + own for row, count, own in zip(rows, others, work, strict=True)]


def _others_waiting(load: Load) -> float | None:
    running, waiting, elsewhere = load.running, load.waiting, load.elsewhere
    if running is None or waiting is None or elsewhere is None:
        return None
    return waiting * min(1.0, elsewhere / (running + waiting)) if waiting else 0.0


def _work(row: Row, whole: int, typical: int, in_memory: int, pooled: int) -> float:
    """The least ms that the prompt needs at this target if it is idle."""
    overlap, speed = row.overlap, row.speed
    if overlap is None:
        held = on_host = on_disk = typical
    else:
        held, on_host, on_disk = overlap.expected_tokens, overlap.cpu_tokens, overlap.disk_tokens
    if on_disk <= held and pooled <= held:
        return speed.prefill_ms(whole - held, held)
    sources = (
        (speed.cpu, 0, on_host),
        (speed.disk, on_host, on_disk),
        (speed.pool, 0, in_memory),
        (speed.pool_disk, in_memory, pooled),
    )
    return _least(speed, whole, held, sources)


def _least(speed: Speed, whole: int, reached: int, sources: Sequence[Source]) -> float:
    """The least ms for all beyond `reached`. A source is left at its end: none is used, nor its base paid, twice."""
    least = speed.prefill_ms(whole - reached, reached)
    for link, start, end in sources:
        if start <= reached < end and link is not None:
            fetching = link.base_ms + link.us_per_token * (end - reached) / 1000
            if fetching < least:  # else nothing that follows can make up for it
                least = min(least, fetching + _least(speed, whole, end, sources))
    return least
