"""The feed of the live page: one picture of the router per second, composed once for all viewers.

    while a page is open     compose -> compare with the last picture -> what changed, encoded once -> every viewer
    a new viewer             gets the whole picture first
    no page is open          no task runs, and nothing is kept

Composing is cut into pieces between which the event loop serves requests. If composing takes more than `MAX_SHARE`
of the time, pictures become rarer. A viewer that does not read is dropped: it gets the whole picture when it
reconnects.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec

from router.clock import Clock
from router.control.live.cells import Cell, describe_cell, describe_header
from router.control.status import Status
from router.control.switch import ROLLBACK
from router.errors import TooBusy
from router.tasks import Tasks
from router.telemetry.audit_log import AuditEntry
from router.telemetry.request_flow import BUCKET_S, WINDOW_S, MergedFlow, RequestFlow

log = logging.getLogger("warmroute.live")

INTERVAL_S = 1.0
LONGEST_INTERVAL_S = 10.0
MAX_SHARE = 0.03  # of the time, for composing
MAX_VIEWERS = 16
MAX_UNSENT = 5  # messages to one viewer
CELLS_PER_TURN = 50  # of the event loop: about 0.7 ms
TARGETS_EVERY = 5  # pictures: sums by target change with every request, and are looked at for minutes
MARKS = 200
LATENESS_KEPT = 60  # pictures

Picture = dict[str, Any]


class Viewer:
    """One open page. Iterate over its messages; the iteration ends when the page is gone or too slow."""

    def __init__(self) -> None:
        self.fresh = True  # no picture was sent yet
        self._unsent: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._closed = False

    def put(self, message: bytes) -> None:
        """Add a message. Close the viewer if it has too many unsent messages."""
        if len(self._unsent) >= MAX_UNSENT:
            log.info("live page: a viewer that does not read its messages was disconnected")
            self.close()
            return
        self._unsent.append(message)
        self._wake.set()

    def close(self) -> None:
        self._closed = True
        self._unsent.clear()
        self._wake.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._unsent:
                yield self._unsent.popleft()
            if self._closed:
                return


class LiveFeed:
    """Composes pictures while it has viewers."""

    def __init__(self, status: Status, tasks: Tasks) -> None:
        self.status = status
        self.pictures = 0  # composed since the start
        self._tasks = tasks
        self._viewers: set[Viewer] = set()
        self._wake = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def composing(self) -> bool:
        return self._running is not None

    def join(self) -> Viewer:
        """Add a viewer, to be removed with `leave`. Raises `TooBusy` when there are too many."""
        if len(self._viewers) >= MAX_VIEWERS or self._closed:
            raise TooBusy(f"{MAX_VIEWERS} pages are open already", code="too_many_viewers", retry_after_s=5)
        viewer = Viewer()
        self._viewers.add(viewer)
        self._wake.set()
        if self._running is None:
            self._running = self._tasks.spawn("live page", self._run())
        return viewer

    def leave(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)
        self._wake.set()

    def close(self) -> None:
        """End all viewers' streams, and accept no more."""
        self._closed = True
        self._close_viewers()

    async def _run(self) -> None:
        composer = _Composer(self.status)
        try:
            while self._viewers:
                self._wake.clear()
                await self._send(composer)
                await self._pause(composer)
        finally:
            self._running = None
            self._close_viewers()  # they joined while this ended, or composing failed: their pages reconnect
            if self.status.host_records is not None:
                await self.status.host_records.end_flow()

    def _close_viewers(self) -> None:
        for viewer in self._viewers:
            viewer.close()

    async def _send(self, composer: _Composer) -> None:
        changes = await composer.compose()
        self.pictures += 1
        delta = full = None
        for viewer in list(self._viewers):
            if viewer.fresh:
                viewer.fresh = False
                full = full or encode_event("full", composer.full())
                viewer.put(full)
            else:
                delta = delta or encode_event("delta", changes)
                viewer.put(delta)

    async def _pause(self, composer: _Composer) -> None:
        """Wait until the next picture is due, or until a viewer joins or leaves."""
        loop = asyncio.get_running_loop()
        interval_s = composer.interval_s
        due = loop.time() + interval_s
        try:
            async with asyncio.timeout_at(due):
                await self._wake.wait()
        except TimeoutError:
            composer.on_wake(loop.time() - due)


class _Composer:
    """The current picture while there are viewers, and its changes."""

    def __init__(self, status: Status) -> None:
        self._status = status
        self._clock = status.clock
        self._cells: dict[str, Cell] = {}
        self._header: dict[str, Any] = {}
        self._own_flow = RequestFlow(status.recent_records, status.clock)
        self._flow = MergedFlow()
        self._states: dict[str, str] | None = None  # of instances; None: first picture
        self._marks: deque[dict[str, Any]] = deque(maxlen=MARKS)
        self._last_entry: AuditEntry | None = None
        self._late_ms: deque[float] = deque(maxlen=LATENESS_KEPT)
        self._pictures = 0
        self.interval_s = INTERVAL_S

    def on_wake(self, late_s: float) -> None:
        """Note how late the event loop was."""
        self._late_ms.append(max(0.0, late_s * 1e3))

    def full(self) -> Picture:
        """Return the whole picture."""
        return {
            "now": self._clock.wall(),
            "bucket_s": BUCKET_S,
            "window_s": WINDOW_S,
            "router": self._header,
            "targets": self._cells,
            "flow": self._describe_flow(self._flow.buckets.values(), targets=True),
            "marks": list(self._marks),
        }

    async def compose(self) -> Picture:
        """Make the next picture and return its changes."""
        work = _Work(self._clock)
        cells = await self._compose_cells(work)
        changed: Picture = {"now": self._clock.wall()}
        if differences := _compare_cells(self._cells, cells):
            changed["targets"] = differences
        self._cells = cells
        await work.pause()
        header = describe_header(self._status, max(self._late_ms, default=0.0), self.interval_s)
        if different := _compare(self._header, header):
            changed["router"] = different
        self._header = header
        marks = self._find_marks()
        if marks:
            changed["marks"] = marks
        await work.pause()
        updates = {self._status.run_id: await self._own_flow.update()}
        if self._status.host_records is not None:
            updates |= await self._status.host_records.update_flow()
        work.begin()
        buckets = self._flow.apply(updates, self._clock.wall() - WINDOW_S)
        changed["flow"] = self._describe_flow(buckets, targets=self._pictures % TARGETS_EVERY == 0)
        self._pictures += 1
        self.interval_s = min(LONGEST_INTERVAL_S, max(INTERVAL_S, work.end() / MAX_SHARE))
        return changed

    async def _compose_cells(self, work: _Work) -> dict[str, Cell]:
        scheduler, health, now = self._status.scheduler, self._status.health, self._clock.now()
        cells: dict[str, Cell] = {}
        for instance in list(scheduler.fleet):
            trouble, faults = health.trouble(instance.id), self._status.faults.describe(instance.id)
            for target in instance.targets.values():
                cells[target.id] = describe_cell(scheduler, target, trouble, faults, now)
            if not instance.targets:  # it has not joined, so its ranks are not known yet
                cells[f"{instance.id}/"] = {"instance": instance.id, "state": instance.state.value, "trouble": trouble}
            if len(cells) % CELLS_PER_TURN == 0:
                await work.pause()
        return cells

    def _describe_flow(self, buckets: Iterable[Any], *, targets: bool) -> dict[str, Any]:
        described = {"since": self._flow.since_s, "buckets": list(buckets)}
        return {**described, "targets": self._flow.targets} if targets else described

    def _find_marks(self) -> list[dict[str, Any]]:
        """Return the events since the last picture: switches from the audit log, and instances whose states
        changed.
        """
        marks = list(self._find_switches())
        states = {cell["instance"]: cell["state"] for cell in self._cells.values()}
        if self._states is not None:
            marks += _find_moves(self._states, states, self._clock.wall())
        self._states = states
        self._marks.extend(marks)
        return marks

    def _find_switches(self) -> Iterable[dict[str, Any]]:
        entries = self._status.control.audit.latest(MARKS)
        known = next((n for n, entry in enumerate(entries) if entry is self._last_entry), len(entries))
        self._last_entry = entries[0] if entries else None
        for entry in reversed(entries[:known]):
            yield describe_mark(entry)


class _Work:
    """Adds up the time that composing takes, without its pauses."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._spent_s = 0.0
        self.begin()

    def begin(self) -> None:
        self._since = self._clock.now()

    def end(self) -> float:
        """Return the seconds spent so far."""
        self._spent_s += self._clock.now() - self._since
        return self._spent_s

    async def pause(self) -> None:
        """Let the event loop run its waiting callbacks."""
        self.end()
        await asyncio.sleep(0)
        self.begin()


def describe_mark(entry: AuditEntry) -> dict[str, Any]:
    """Describe a switch of policies as a mark: `kind` is start, switch, rollback or alarm."""
    kind = "start" if entry.before is None else entry.what if entry.what in (ROLLBACK, "alarm") else "switch"
    return {
        "at": entry.at_wall_s,
        "kind": kind,
        "who": entry.who,
        "what": entry.what,
        "why": entry.why,
        "arm": entry.arm,
        "active": entry.after.active,
    }


def _find_moves(before: dict[str, str], after: dict[str, str], now: float) -> Iterable[dict[str, Any]]:
    for instance in after.keys() - before.keys():
        yield {"at": now, "kind": "join", "instance": instance, "state": after[instance]}
    for instance in before.keys() - after.keys():
        yield {"at": now, "kind": "leave", "instance": instance, "state": before[instance]}
    for instance in after.keys() & before.keys():
        if before[instance] != after[instance]:
            yield {"at": now, "kind": "state", "instance": instance, "state": after[instance]}


def _compare_cells(before: dict[str, Cell], after: dict[str, Cell]) -> dict[str, Cell | None]:
    """Return the changed fields by target; None for a target that left."""
    differences: dict[str, Cell | None] = dict.fromkeys(before.keys() - after.keys())
    for id, cell in after.items():
        old = before.get(id)
        if old is None or old.keys() != cell.keys():
            differences[id] = cell
        elif old != cell:
            differences[id] = _compare(old, cell)
    return differences


def _compare(before: Cell, after: Cell) -> Cell:
    return {name: value for name, value in after.items() if name not in before or before[name] != value}


def encode_event(name: str, data: Any) -> bytes:
    """Encode a server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data))
