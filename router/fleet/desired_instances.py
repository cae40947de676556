"""Computes how many instances a model should have, with the reason, from the facts of decisions.

Per model and role, the largest of what each of these asks for:

    prefill   work that arrives, ms of prefill per second, over what one instance may be loaded with (`LOAD_SHARE`).
              It is the share of time in which the targets have prefill pending, plus what their queues grow by. As
              queues are priced by learned speed and overlap, these are tokens to compute, not tokens of prompts.
    queue     prefill work that is booked, over what one instance computes in `QUEUE_MS`, where it does not shrink
    memory    KV memory of live requests, over that of one instance (`MEMORY_SHARE`)
    hits      KV that requests came back for within a minute and a half, over that memory (`working_set.py`): with fewer
              instances it would be evicted before its next use, and one more saves the tokens that are computed again

What is queued at an instance stays there: another one takes its share of what arrives, and `prefill` counts that.
So an instance's queue counts up to `MOST_QUEUES`, its memory up to what it has, and queues that shrink ask for no
more than there are; else a backlog would ask for instances that are ready when it is gone.

There is no reason for decoding: engines do not report how many requests they run at once at most.

Up by the mean of `UP_S`, and not before half of that was seen, so never from one reading; down to the largest count
of the last `DOWN_S`, the stabilisation window of Kubernetes' HPA. Pure: readings and times are arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Literal, NamedTuple

LOAD_SHARE = 0.7  # of an instance's time: beyond it the wait behind other prefills grows steeply (M/D/1: 1.2 services)
QUEUE_MS = 2000.0
MOST_QUEUES = 2.0  # of `QUEUE_MS`, at one instance: it and one beside it
MEMORY_SHARE = 0.85  # of KV memory: beyond it engines evict what sessions come back for
UP_S = 15.0
DOWN_S = 300.0
FEWEST_READINGS = 10  # in `UP_S`

Reason = Literal["prefill", "queue", "memory", "hits", "minimum"]
"""What asks for most instances; minimum: nothing asks for as many as there are to be."""


class RoleReading(NamedTuple):
    """One reading of all instances of a model in a role."""

    instances: int  # that get requests
    busy: float  # sum over instances: share of its targets that have prefill pending
    queued_ms: float  # prefill work booked there
    queues: float  # the same in `QUEUE_MS`, up to `MOST_QUEUES` of each
    live_tokens: int  # of KV memory, up to what each has
    reused_tokens: int | None  # that requests come back for; None: unknown, or a shared pool keeps them
    capacity_tokens: int | None  # of KV memory, of all of them; None: some is unknown


class DesiredCount(NamedTuple):
    """The count that is wanted. `needs`: instances that each reason asks for, a fraction; missing where unknown."""

    instances: int
    reason: Reason  # the largest need
    needs: Mapping[Reason, float]
    held_from: int | None  # the count that is wanted now, where a larger one of the last `DOWN_S` holds; else None


class DesiredInstances:
    """The readings of one model and role, and what follows from them. `sleeps`: none is needed without requests."""

    def __init__(self, *, sleeps: bool = False) -> None:
        self._sleeps = sleeps
        self._readings: deque[tuple[float, RoleReading]] = deque()
        self._counts: deque[tuple[float, int, Reason]] = deque()  # falling: a later larger one replaces all before it

    def observe(self, reading: RoleReading, now: float) -> DesiredCount | None:
        """Add a reading, and return what is wanted; None while too few were made to tell."""
        readings = self._readings
        readings.append((now, reading))
        while readings[0][0] < now - UP_S:
            readings.popleft()
        seen_s = now - readings[0][0]
        if len(readings) < FEWEST_READINGS or seen_s < UP_S / 2:
            return None
        needs = find_needs([each for _, each in readings], seen_s)
        reason = max(needs, key=lambda name: needs[name])
        count = ceil(needs[reason] - 1e-9)
        used = any(each.busy or each.live_tokens for _, each in readings)
        least = 1 if used or not self._sleeps else 0
        return self._hold(max(least, count), reason if count >= max(1, least) else "minimum", needs, now)

    def _hold(self, count: int, reason: Reason, needs: Mapping[Reason, float], now: float) -> DesiredCount:
        counts = self._counts
        while counts and counts[0][0] < now - DOWN_S:
            counts.popleft()
        while counts and counts[-1][1] <= count:
            counts.pop()
        counts.append((now, count, reason))
        _, held, held_reason = counts[0]
        return DesiredCount(held, held_reason, needs, count if held > count else None)


def find_needs(readings: Sequence[RoleReading], seen_s: float) -> dict[Reason, float]:
    """Return how many instances each reason asks for, by the mean of `readings`, made over `seen_s`."""
    number = len(readings)
    first, last = readings[0], readings[-1]
    busy = sum(each.busy for each in readings) / number
    growth = (last.queued_ms - first.queued_ms) / 1e3 / seen_s if seen_s > 0 else 0.0  # instances that it would take
    queues = sum(each.queues for each in readings) / number
    needs: dict[Reason, float] = {
        "prefill": max(0.0, busy + growth) / LOAD_SHARE,
        "queue": queues if growth >= 0 else min(queues, last.instances),
    }
    if last.capacity_tokens and last.instances:
        usable_tokens = last.capacity_tokens / last.instances * MEMORY_SHARE
        needs["memory"] = sum(each.live_tokens for each in readings) / number / usable_tokens
        reused = [each.reused_tokens for each in readings if each.reused_tokens is not None]
        if reused:
            needs["hits"] = sum(reused) / len(reused) / usable_tokens
    return needs
