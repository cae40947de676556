"""A router's exchange with the other replicas: it reports bookings, sessions and drains to them, and applies theirs.

Nothing in the data path waits for it: a choice is made with the load of other replicas as last reported, some
milliseconds old. A replica that is silent for `SILENT_S` is forgotten with all that it booked; what its requests take
of an engine is then seen in the engine's gauges, as that of any other client.

A router finds itself among the addresses by the id of its run, so all replicas can have one configuration.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from router.backends.discovery.discovery import Discovery
from router.clock import Clock
from router.config.sections.replicas import ReplicasConfig
from router.control.replicas import frames
from router.control.replicas.drains import DrainDecisions
from router.control.replicas.frames import AnyShared, BeatAck, FrameKind, ReplicaFrame, StateAsk
from router.control.replicas.learned_state import LearnedState
from router.control.replicas.links import Link, Links
from router.control.replicas.peers import BEAT_S, GATHER_S, SILENT_S, HeardReplica, HeardReplicas
from router.control.replicas.sockets import ReplicaSocket, ReplicaSockets
from router.control.replicas.state_transfer import StateDonor, StateTransfer
from router.control.workers import messages
from router.control.workers.leader import LeaderWorker
from router.control.workers.messages import Message
from router.control.workers.outbox import Outbox
from router.errors import ConfigError
from router.tasks import Tasks
from router.telemetry.metrics.snapshot import ReplicaReport

log = logging.getLogger("warmroute.replicas")

RESPONSES_FRAME = 2_000  # messages
FOR_ALL = messages.SessionMessage | messages.BlocksSent | messages.PredictionChecked
HEAR_S = 0.02  # at least, from news to the next look: those of several routers are read and applied together
FRAMES_AT_ONCE = 20  # applied without a pause for other work of the event loop


class SharedPart(Protocol):
    """One of the things that routers agree on, beside bookings, sessions and drains."""

    def start(self, tasks: Tasks) -> None:
        """Start its tasks."""

    def state(self) -> Iterable[Message]:
        """Return what a router has to know that has just started, or has missed something."""

    def report(self, message: Message) -> None:
        """Share what the leader told its workers; ignored if it concerns another part."""

    def apply(self, message: Message, run: str) -> None:
        """Apply a message of the router with this run id; ignored if it concerns another part."""


class ReplicaExchange:
    """`run` is the id of this router's run. Call `start` on the running loop."""

    def __init__(
        self,
        config: ReplicasConfig,
        secret: bytes,
        run: str,
        leader: LeaderWorker,
        learned: LearnedState,
        clock: Clock,
        discovery: Discovery | None = None,
    ) -> None:
        """`discovery` finds the others where `config` does not list them."""
        self._config = config
        self._run = run
        self._leader = leader
        self._learned = learned
        self._discovery = discovery
        self._clock = clock
        self._tasks = Tasks("replicas")
        self._sockets = ReplicaSockets(secret)
        self._router: ReplicaSocket
        self._links = Links(self._sockets, self._tasks, self._on_reply)
        self._heard = HeardReplicas(run)
        self._drains = DrainDecisions(run)
        self._parts: list[SharedPart] = []
        self.compare: Callable[[ReplicaReport], ReplicaReport] = lambda report: report
        """Adds to a report whether that replica agrees with this router; see `SharedFacts`."""
        self._direct: dict[str, list[Message]] = {}  # to be sent to one replica, by its run
        self._outbox = Outbox(leader.share_for_replicas, self._wake)
        self._transfer = StateTransfer(run, learned, self._encode_ask, self._apply_history, clock)
        self._donor = StateDonor(run, learned, self._encode_history)
        self._number = 0  # of the last news
        self._sent_at = 0.0
        self._open = False
        self.malformed = 0
        self.report_load = self._outbox.report_load

    def add(self, part: SharedPart) -> None:
        """Let `part` tell and hear what it shares. Call it before `start`."""
        self._parts.append(part)

    async def start(self) -> None:
        """Listen, connect, and take over what another one has learned. Raises ConfigError when the port is taken."""
        self._tasks.supervise("admit", self._sockets.admit)
        try:
            self._router = self._sockets.bind(self._config.host, self._config.port)
        except ConfigError:
            await self._tasks.close()
            self._sockets.close()
            raise
        self._open = True
        self._tasks.supervise("hear", self._hear)
        if self._discovery is None:
            self._links.follow(self._config.peers)
        else:
            self._tasks.supervise("peers", partial(self._follow, self._discovery))
        self._tasks.supervise("beats", self._beat)
        for part in self._parts:
            part.start(self._tasks)
        await self._transfer.run(self._links)
        self._tasks.spawn("what has not joined", self._learned.discard_absent())
        self._donor.ready = True

    async def _follow(self, discovery: Discovery) -> None:
        async for found in discovery.watch():
            self._links.follow([urlsplit(one.config.url).netloc for one in found])

    async def close(self) -> None:
        """Tell the others that this router stops."""
        if not self._open:
            return
        self.flush()
        self._send_to_all("leave")
        self._open = False
        await self._tasks.close()
        self._router.close()
        self._links.close()
        await asyncio.to_thread(self._sockets.close)

    def heard_runs(self) -> list[str]:
        """Return the runs of the replicas that are heard and acknowledge what they get."""
        reports = (self._report(link, self._heard.find(link.run)) for link in self._links)
        return [report.run for report in reports if report.up and report.run is not None]

    def describe(self) -> list[ReplicaReport]:
        """Return a report for each address, then for each replica that is heard but answers at none of them."""
        listed = {link.run for link in self._links}
        unlisted = [self._report(None, replica) for replica in self._heard if replica.run not in listed]
        reports = [self._report(link, self._heard.find(link.run)) for link in self._links] + unlisted
        return [self.compare(report) for report in reports]

    def _report(self, link: Link | None, replica: HeardReplica | None) -> ReplicaReport:
        run = replica.run if replica is not None else None if link is None else link.run
        silent_s = None if replica is None else self._clock.now() - replica.heard_at
        received = 0 if replica is None else replica.bytes
        if link is None:
            return ReplicaReport(None, run, False, False, silent_s, None, 0, received, 0)
        acked = link.acked_at is not None and self._clock.now() - link.acked_at < SILENT_S
        up = acked and replica is not None and replica.number is not None
        return ReplicaReport(link.address, run, link.own, up, silent_s, link.lag_s, link.bytes, received, link.unsent)

    # Broadcast

    def send(self, message: Message) -> None:
        if isinstance(message, messages.DrainMessage):
            self._outbox.send(self._drains.decide(message))
        elif isinstance(message, FOR_ALL):
            self._outbox.send(message)
        else:  # what no part shares is for the workers of one router alone
            for part in self._parts:
                part.report(message)

    def flush(self) -> None:
        """Send the gathered messages now."""
        gathered = self._outbox.take()
        if not gathered or not self._open:
            return
        self._number += 1
        self._sent_at = self._clock.now()
        self._send_to_all("news", gathered)

    def _wake(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = self._sent_at + GATHER_S - self._clock.now()
        if due_s <= 0:
            loop.call_soon(self.flush)
        else:
            loop.call_later(due_s, self.flush)

    def share(self, message: Message) -> None:
        """Send a message of a part to all replicas."""
        self._outbox.send(message)

    def send_to(self, run: str, message: Message) -> None:
        """Send a message to one replica, with others to it, within `GATHER_S`; dropped when it cannot be reached."""
        if not self._direct:
            asyncio.get_running_loop().call_later(GATHER_S, self._flush_direct)
        self._direct.setdefault(run, []).append(message)

    def _flush_direct(self) -> None:
        direct, self._direct = self._direct, {}
        for link in self._links:
            if link.run in direct and not link.own:
                link.send(self._encode("direct", direct[link.run]))

    def _send_to_all(self, kind: FrameKind, gathered: list[Message] | None = None) -> None:
        payload = self._encode(kind, gathered)
        for link in self._links:
            link.send(payload)

    def _encode(self, kind: FrameKind, gathered: Sequence[Message] | None = None) -> bytes:
        return frames.encode_replica_frame(kind, self._run, self._number, self._clock.now(), gathered or ())

    # beats, and what their acknowledgements ask for

    async def _beat(self) -> None:
        """Send beats and forget silent replicas, until cancelled."""
        while True:
            self._send_to_all("beat")
            began_at = self._clock.now()
            await asyncio.sleep(BEAT_S)
            now = self._clock.now()
            if now - began_at < 2 * BEAT_S:  # else this process was stopped, and their frames wait to be read
                for run in self._heard.forget_silent(now):
                    log.warning("replica %s is silent: its bookings are forgotten", run)
                    self._leader.replace_replica_loads(run, {})
                self._leader.spread_replica_loads()

    def _on_reply(self, link: Link, parts: Sequence[bytes]) -> None:
        """Handle what comes back on a link: acknowledgements, of one part, and answers to what this router asked."""
        if len(parts) > 1 and (head := frames.decode_answer(parts[0])) is not None:
            self._transfer.on_reply(head, b"".join(parts[1:]))
        elif len(parts) == 1 and (ack := frames.decode_ack(parts[0])) is not None:
            self._on_ack(link, ack)
        else:
            self.malformed += 1

    def _on_ack(self, link: Link, ack: BeatAck) -> None:
        if ack.run == self._run:
            link.run, link.own = ack.run, True
            return
        if link.run != ack.run:
            log.info("replica %s at %s answers", ack.run, link.address)
        now = self._clock.now()
        link.run, link.acked_at, link.lag_s = ack.run, now, (now - ack.stamp_s) / 2
        if ack.wants != "nothing":
            self._send_state(link)

    def _send_state(self, link: Link) -> None:
        """Send what a replica needs that has missed news: what has no next message of its own."""
        self.flush()  # so that the state is that of the last news
        loads = messages.AllLoads(self._leader.loads_for_replicas())
        link.send(self._encode("direct", [loads, *self._decisions()]))
        responses = iter(self._learned.responses())
        while page := list(islice(responses, RESPONSES_FRAME)):
            link.send(self._encode("direct", page))

    def _decisions(self) -> list[Message]:
        """Return what has no next message of its own that would make up for a lost one."""
        return [*self._drains, *(message for part in self._parts for message in part.state())]

    def _encode_ask(self, ask: StateAsk) -> bytes:
        return frames.encode_replica_frame("ask", self._run, self._number, self._clock.now(), [ask])

    async def _encode_history(self, size: int) -> AsyncIterator[bytes]:
        """Yield frames of `size` messages with operators' decisions, sessions and stored responses, with pauses."""
        gathered = self._decisions()
        async for message in self._learned.history():
            gathered.append(message)
            if len(gathered) >= size:
                yield self._encode("direct", gathered)
                gathered = []
        yield self._encode("direct", gathered)

    def _apply_history(self, page: ReplicaFrame) -> None:
        for message in frames.decode_messages(page)[0]:
            self._apply_shared(message, page)

    # what others say

    async def _hear(self) -> None:
        """Apply the frames of all other replicas, until cancelled."""
        while True:
            news = self._on_frame(await self._router.receive()) == "news"
            for _ in range(FRAMES_AT_ONCE):
                if (parts := self._router.receive_now()) is None:
                    break
                news |= self._on_frame(parts) == "news"
            else:
                news = False  # more are waiting
            self._leader.spread_replica_loads()
            await asyncio.sleep(HEAR_S if news else 0)

    def _on_frame(self, parts: Sequence[bytes]) -> str | None:
        """Apply a frame. Return its kind; None when it is malformed."""
        frame = frames.decode_replica_frame(parts[-1])
        if frame is None or len(parts) != 2:
            self.malformed += 1
            return None
        replica = self._heard.on_frame(frame, len(parts[1]), self._clock.now())
        if frame.kind == "ask":
            self._answer(parts[0], frame)
        elif replica is not None:
            self._apply_frame(frame, replica)
        if frame.kind == "beat":
            wants = "nothing" if replica is None else self._heard.wants(replica)
            ack = frames.encode_ack(BeatAck(self._run, frame.stamp_s, wants))
            self._router.send_parts([parts[0], ack])  # else the next beat is acknowledged
        return frame.kind

    def _answer(self, identity: bytes, frame: ReplicaFrame) -> None:
        if (ask := frames.decode_ask(frame)) is None:
            self.malformed += 1
            return
        send = lambda parts: self._router.send_parts([identity, *parts])  # noqa: E731
        self._tasks.spawn(f"answer to {frame.run}", self._donor.answer(ask, send))

    def _apply_frame(self, frame: ReplicaFrame, replica: HeardReplica) -> None:
        if frame.kind == "leave":
            log.info("replica %s stops", replica.run)
            self._heard.forget(replica.run)
            self._leader.replace_replica_loads(replica.run, {})
            return
        found, skipped = frames.decode_messages(frame)
        replica.skipped += skipped
        loads: list[messages.LoadMessage] = []
        moves: list[messages.SessionMoved] = []
        for message in found:  # thousands of these two kinds come in a second, a few of all others
            if isinstance(message, messages.LoadMessage):
                loads.append(message)
            elif isinstance(message, messages.SessionMoved):
                moves.append(message)
            elif isinstance(message, messages.AllLoads):
                self._heard.on_state(replica, frame.number)
                self._leader.replace_replica_loads(replica.run, message.loads)
            else:
                self._apply_shared(message, frame)
        self._leader.put_replica_loads(replica.run, loads)
        self._leader.apply_moves(moves)

    def _apply_shared(self, message: AnyShared, frame: ReplicaFrame) -> None:
        """Apply what counts whoever sends it."""
        match message:
            case (
                messages.SessionMoved()
                | messages.ResponseStored()
                | messages.BlocksSent()
                | messages.PredictionChecked()
            ):
                self._leader.apply_from_replica(message)
            case messages.SessionAnswered():
                here_s = message.answered_s + self._clock.now() - frame.stamp_s  # by the clock of this machine
                self._leader.apply_from_replica(msgspec.structs.replace(message, answered_s=here_s))
            case messages.DrainMessage():
                if self._drains.accept(message):
                    self._leader.apply_from_replica(message)
            case _:
                for part in self._parts:
                    part.apply(message, frame.run)
