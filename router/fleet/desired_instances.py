"""Computes the desired number of instances of a model, with the reason, from the facts of decisions.

Per model and role, the desired number is the largest of these needs:

    prefill   arriving work, in ms of prefill per second, over the allowed load of one instance (`LOAD_SHARE`).
              The arriving work is the share of time in which the targets have prefill pending, plus the growth of
              their queues. Queues are priced by learned speed and overlap, so cached tokens do not count.
    queue     booked prefill work, divided by what one instance computes in `QUEUE_MS`, unless queues shrink
    memory    KV memory of live requests, divided by the memory of one instance (`MEMORY_SHARE`)
    hits      KV that requests re-used within a minute and a half, divided by the memory of one instance
              (`working_set.py`): with fewer instances this KV would be evicted before its next use, and one more
              instance avoids computing it again

Work that is queued at an instance stays at that instance; a new instance only takes a share of the arriving work,
which `prefill` counts. So an instance's queue counts up to `MOST_QUEUES`, its memory up to its capacity, and
shrinking queues need no more instances than there are; otherwise a backlog would request instances that are ready
only when the backlog is gone.

No need is computed for decoding, because engines do not report how many requests they can run at once.

The count rises by the mean over `UP_S`, and only after half of that time was observed, so never after a single
reading; it falls to the largest count of the last `DOWN_S`, the stabilisation window of Kubernetes' HPA. This
module does no I/O: readings and times are arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Literal, NamedTuple

LOAD_SHARE = 0.7  # of an instance's time: above it the wait behind prefills grows steeply (M/D/1: 1.2 services)
QUEUE_MS = 2000.0
MOST_QUEUES = 2.0  # of `QUEUE_MS`, at one instance: the instance and one beside it
MEMORY_SHARE = 0.85  # of KV memory: above it engines evict KV that sessions re-use
UP_S = 15.0
DOWN_S = 300.0
FEWEST_READINGS = 10  # in `UP_S`

Reason = Literal["prefill", "queue", "memory", "hits", "minimum"]
"""The need with the largest number of instances; `minimum` if all needs are below the minimum number."""


class RoleReading(NamedTuple):
    """One reading of all instances of a model in a role."""

    instances: int  # number of instances that get requests
    busy: float  # sum over instances: share of the instance's targets that have prefill pending
    queued_ms: float  # prefill work booked at these instances
    queues: float  # `queued_ms` in units of `QUEUE_MS`, up to `MOST_QUEUES` of each instance
    live_tokens: int  # tokens of KV memory in use, up to the capacity of each instance
    reused_tokens: int | None  # tokens that requests re-use; None: unknown, or a shared pool retains them
    capacity_tokens: int | None  # tokens of KV memory of all instances; None: unknown for some instance


class DesiredCount(NamedTuple):
    """The desired number of instances. `needs` has the number of instances (a fraction) that each known reason
    requires.
    """

    instances: int
    reason: Reason  # the largest need
    needs: Mapping[Reason, float]
    held_from: int | None  # the present count, if a larger count of the last `DOWN_S` applies instead; else None


class DesiredInstances:
    """The readings of one model and role, and the desired number of instances. `sleeps` is whether no instance is
    needed without requests.
    """

    def __init__(self, *, sleeps: bool = False) -> None:
        self._sleeps = sleeps
        self._readings: deque[tuple[float, RoleReading]] = deque()
        self._counts: deque[tuple[float, int, Reason]] = deque()  # falling: a new count removes those not above it

    def observe(self, reading: RoleReading, now: float) -> DesiredCount | None:
        """Add a reading, and return the desired number of instances; None while there are too few readings."""
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
    """Return how many instances each reason requires, by the mean of `readings`, which cover `seen_s`."""
    number = len(readings)
    first, last = readings[0], readings[-1]
    busy = sum(each.busy for each in readings) / number
    growth = (last.queued_ms - first.queued_ms) / 1e3 / seen_s if seen_s > 0 else 0.0  # in instances
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
