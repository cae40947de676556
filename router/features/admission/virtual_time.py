"""Virtual times of flows that share a server by weight: start-time fair queueing, with charges corrected
afterwards.

A flow's virtual time is its total charge, in tokens per unit of weight. The flow with the least time is next. When
one of its requests begins, the shared clock moves up to the flow's time, and the flow's time moves on by charge /
weight. A flow that had nothing waiting is lifted when it comes back: its time becomes at least what the clock was
`CREDIT_S` ago. So a flow that used less than its share may catch up on that much, and a burst within its share
passes the backlog of others. A flow whose time is later keeps its time, so a flow cannot shed a debt by pausing. A
waiting flow is never lifted: corrections may take its time behind the clock, and the difference is what the flow is
owed.

The times of two flows that both wait all the time differ by no more than the largest charge of each over its
weight, plus once what they may catch up on, before corrections: Goyal, Vin and Cheng, "Start-time Fair Queueing",
SIGCOMM 1996, theorem 1, without catching up. Charging a language model's tokens this way, corrected when the real
counts are known, is the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models", OSDI
2024.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

CREDIT_S = 10.0
MARKS = 16  # recorded clock values per `CREDIT_S`
SPARE_ENTRIES = 32  # outdated heap entries that are never worth a rebuild

Key = TypeVar("Key", bound=Hashable)


class Flow(Generic[Key]):
    """A participant with a share of the server. `open` counts its requests that wait or run."""

    __slots__ = ("charged", "key", "open", "time", "weight")

    def __init__(self, key: Key, time: float) -> None:
        self.key = key
        self.time = time  # virtual
        self.weight = 1.0
        self.open = 0
        self.charged = 0.0  # tokens, since it was made


class VirtualClock(Generic[Key]):
    """The clock of the flows, and the flows by key. A flow with nothing open is forgotten once the clock has passed
    its time. All flows are forgotten when none has anything open: a debt counts only towards other active flows.
    """

    def __init__(self, build: Callable[[Key, float], Flow[Key]] = Flow) -> None:
        self.now = 0.0
        self._build = build
        self._flows: dict[Key, Flow[Key]] = {}
        self._ahead: list[tuple[float, int, Key]] = []  # idle flows that the clock has not passed, by their times
        self._order = count()
        self._open = 0
        self._marks: deque[tuple[float, float]] = deque(maxlen=MARKS + 2)  # seconds, and the clock

    def __len__(self) -> int:
        return len(self._flows)

    def __iter__(self) -> Iterator[Flow[Key]]:
        return iter(self._flows.values())

    def open(self, key: Key) -> Flow[Key]:
        """Return the flow of a request that has arrived. Call `close` when the request has ended."""
        self._forget()
        flow = self._flows.get(key)
        if flow is None:
            flow = self._flows[key] = self._build(key, self.now)
        flow.open += 1
        self._open += 1
        return flow

    def lift(self, flow: Flow[Key], now_s: float) -> None:
        """Cancel the credit older than `CREDIT_S` of a flow that had nothing waiting."""
        marks = self._marks
        while len(marks) > 1 and marks[1][0] <= now_s - CREDIT_S:
            marks.popleft()
        if marks and marks[0][0] <= now_s - CREDIT_S:
            flow.time = max(flow.time, marks[0][1])

    def begin(self, flow: Flow[Key], tokens: float, now_s: float) -> None:
        """Charge a request that begins. Call `lift` first if the request has not waited."""
        self.now = max(flow.time, self.now)
        if not self._marks or now_s - self._marks[-1][0] >= CREDIT_S / MARKS:
            self._marks.append((now_s, self.now))
        self.charge(flow, tokens)

    def charge(self, flow: Flow[Key], tokens: float) -> None:
        """Charge a flow so many more tokens; a negative number gives tokens back."""
        flow.time += tokens / flow.weight
        flow.charged += tokens

    def close(self, flow: Flow[Key]) -> None:
        flow.open -= 1
        self._open -= 1
        if not self._open:
            self._flows.clear()
            self._marks.clear()
            self._ahead.clear()
        elif not flow.open:
            heappush(self._ahead, (flow.time, next(self._order), flow.key))
            self._forget()

    def _forget(self) -> None:
        while self._ahead and self._ahead[0][0] <= self.now:
            _, _, key = heappop(self._ahead)
            flow = self._flows.get(key)
            if flow is None or flow.open:
                continue  # it came back, or was forgotten by another entry
            if flow.time > self.now:
                heappush(self._ahead, (flow.time, next(self._order), key))
            else:
                del self._flows[key]


class FlowHeap(Generic[Key]):
    """Flows with waiting requests, by virtual time, least first; flows of equal time in the order they came. A time
    that has grown is noticed when its flow is first; call `put` when a time has become less.
    """

    def __init__(self) -> None:
        self._entries: dict[Flow[Key], tuple[float, int]] = {}
        self._heap: list[tuple[float, int, Flow[Key]]] = []
        self._order = count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, flow: Flow[Key]) -> bool:
        return flow in self._entries

    def put(self, flow: Flow[Key]) -> None:
        """Add a flow, or update its place after its time has changed."""
        known = self._entries.get(flow)
        if known is not None and known[0] == flow.time:
            return
        entry = self._entries[flow] = (flow.time, next(self._order) if known is None else known[1])
        heappush(self._heap, (*entry, flow))
        if len(self._heap) > 2 * len(self._entries) + SPARE_ENTRIES:
            self._heap = [(*entry, flow) for flow, entry in self._entries.items()]
            heapify(self._heap)

    def remove(self, flow: Flow[Key]) -> None:
        self._entries.pop(flow, None)

    def first(self) -> Flow[Key] | None:
        heap = self._heap
        while heap:
            time, number, flow = heap[0]
            if self._entries.get(flow) != (time, number):
                heappop(heap)
            elif time != flow.time:
                self.put(flow)
            else:
                return flow
        return None
