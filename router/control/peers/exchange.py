"""The exchange of a process with its peers: publishes its bookings and its parts' state, and applies theirs.

    workers of this host    every worker has a link to each other worker (`ipc`)
    other hosts             every worker has a link to each host (`tcp`), whose worker on duty receives frames,
                            applies them, and forwards them unchanged to the other workers

Nothing in the data path waits for the exchange: a choice is made with the load of peers as last reported, some
milliseconds old. A peer that is silent for `SILENT_S` is forgotten with all its bookings; the load of its requests
then shows in the engines' gauges, as that of any other client. A worker that ends is forgotten as soon as its host
is notified.

A host recognises its own address by its id, so all routers can have the same configuration.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
import zmq

from router.backends.discovery.discovery import Discovery
from router.clock import Clock
from router.config.sections.replicas import ReplicasConfig
from router.control.peers import frames
from router.control.peers.frames import PROTOCOL, BeatAck, MessageCodec, PeerFrame, Sender
from router.control.peers.learned_state import LearnedState
from router.control.peers.links import Link
from router.control.peers.loads import SharedLoads
from router.control.peers.messages import AllLoads, LoadMessage, SessionAnswered, SessionMoved, StateWanted
from router.control.peers.network import FAR_GATHER_S, NEAR_GATHER_S, PeerNetwork
from router.control.peers.parts import Message, SharedPart
from router.control.peers.peer_runs import BEAT_S, SILENT_S, PeerRun, PeerRuns
from router.control.peers.scheduler import PeerScheduler
from router.control.peers.sockets import PeerSocket
from router.control.peers.state_transfer import StateDonor, StateTransfer
from router.errors import ConfigError
from router.fleet.worker_share import NO_SHARE, WorkerShare
from router.kvcache.events import TargetId
from router.tasks import Tasks
from router.telemetry.metrics.snapshot import ReplicaReport

log = logging.getLogger("warmroute.peers")

STATE_FRAME = 2_000  # messages
NEAR_PAUSE_S, FAR_PAUSE_S = 0.002, 0.02  # from news to the next read, to collect the news of several peers
FRAMES_AT_ONCE = 20  # applied without a pause for other work of the event loop
FIRST_BEAT_S = 0.05  # while workers of this host connect
BIND_RETRY_S = 0.1  # for the port that another worker of this host had


class HostNetwork(NamedTuple):
    """The workers of this host: they listen at `name`-0 to `name`-(workers - 1), this one at `name`-`number`."""

    name: str
    secret: bytes
    number: int
    workers: int


class FleetNetwork(NamedTuple):
    """The routers of other hosts. `discovery` finds them if the configuration does not list them."""

    config: ReplicasConfig
    secret: bytes
    discovery: Discovery | None = None


class PeerExchange:
    """`sender` has the ids of this host and of this process's run."""

    def __init__(self, sender: Sender, host: HostNetwork | None, fleet: FleetNetwork | None, clock: Clock) -> None:
        self.run = sender.run
        self._host = sender.host
        self._clock = clock
        self._tasks = Tasks("peers")
        self._scheduler: PeerScheduler
        self._loads: SharedLoads
        self._learned: LearnedState
        self._transfer: StateTransfer
        self._donor: StateDonor
        self._codec: MessageCodec
        self._peer_runs = PeerRuns(sender.host, self.run)
        self._foreign: dict[str, float] = {}  # time of the last frame from each peer of another version, by run
        self.members: frozenset[str] = frozenset()  # runs of the other workers of this host that live
        self._parts: list[SharedPart] = []
        self._appliers: dict[type[Message], Callable[[Any, str], None]] = {}
        self.compare: Callable[[ReplicaReport], ReplicaReport] = lambda report: report
        """Adds to a report whether its router agrees with this one; see `SharedFacts`."""
        self._runs: Sequence[str] = ()
        self._near_runs: Sequence[str] = ()
        self.malformed = 0
        build = partial(PeerNetwork, sender=sender, share_of=self._own_share, on_reply=self._on_reply, clock=clock)
        self._host_settings, self._fleet_settings = host, fleet
        self._near = None if host is None else build("ipc", host.secret, gather_s=NEAR_GATHER_S)
        self._far = None if fleet is None else build("tcp", fleet.secret, gather_s=FAR_GATHER_S)
        self._networks = [network for network in (self._near, self._far) if network is not None]
        if len(self._networks) == 1:  # the usual case, without a loop in the data path
            self.report_load = self._networks[0].outbox.report_load  # type: ignore[method-assign]
            self.share = self._networks[0].outbox.send  # type: ignore[method-assign]

    def attach(self, scheduler: PeerScheduler, learned: LearnedState, parts: Iterable[SharedPart]) -> None:
        """Share `scheduler` as a part, its load and its learned state, and `parts`. Call it before `start`."""
        self._scheduler = scheduler
        self._loads = SharedLoads(scheduler)
        self._learned = learned
        self._parts = [scheduler, *parts]
        self._appliers = {kind: part.apply for part in self._parts for kind in part.messages}
        self._appliers[StateWanted] = self._send_state
        self._codec = MessageCodec([LoadMessage, AllLoads, *self._appliers])
        self._transfer = StateTransfer(self.run, learned, self._apply_history, self._clock)
        self._donor = StateDonor(self.run, learned, self._encode_history)

    # start and end

    async def start(self, *, learn: bool = False) -> None:
        """Connect to the other workers of this host; with `learn`, take over what one of them has learned."""
        self._tasks.supervise("beats", self._beat)
        for part in self._parts:
            part.start(self._tasks)
        if self._near is not None and (host := self._host_settings) is not None:
            self._near.start()
            inbound = self._near.bind(f"{host.name}-{host.number}")
            self._near.tasks.supervise("host", partial(self._receive, inbound, NEAR_PAUSE_S, self._on_near_frame))
            self._near.follow([f"{host.name}-{n}" for n in range(host.workers) if n != host.number])
            if learn:
                await self._learn(self._near)
        if self._far is None:
            self._donor.ready = True

    async def join(self, *, listen: bool) -> None:
        """Connect to the routers of other hosts, if there are any, and take over what one of them has learned; with
        `listen` also receive from them, for all workers of this host. Raises ConfigError when the port is taken.
        """
        if self._far is None or (fleet := self._fleet_settings) is None:
            return
        self._far.start()
        if listen:
            self._listen(self._far, fleet.config)
        if fleet.discovery is None:
            self._far.follow(fleet.config.peers)
        else:
            self._far.tasks.supervise("peers", partial(self._follow, self._far, fleet.discovery))
        if not self._donor.ready and not self._transfer.done:
            await self._learn(self._far)
        self._tasks.spawn("what has not joined", self._learned.discard_absent())
        self._donor.ready = True

    async def _learn(self, network: PeerNetwork) -> None:
        """Take over what a peer in `network` has learned, and what it shares. Newer messages may have overtaken the
        answers that carried its state, so the peer's state is requested once more.
        """
        if (donor := await self._transfer.run(network)) is not None:
            self._peer_runs.doubt(donor)

    async def listen(self) -> None:
        """Start receiving from other hosts: the worker that did so has ended, and its port becomes free."""
        if self._fleet_settings is None:
            return
        while self._far is not None and self._far.started and self._far.inbound is None:
            try:
                self._listen(self._far, self._fleet_settings.config)
            except ConfigError as error:
                log.warning("%s; trying again", error)
                await asyncio.sleep(BIND_RETRY_S)

    def _listen(self, network: PeerNetwork, config: ReplicasConfig) -> None:
        host = f"[{config.host}]" if ":" in config.host else config.host
        try:
            inbound = network.bind(f"{host}:{config.port}")
        except zmq.ZMQError as error:
            advice = "" if error.errno != zmq.EADDRINUSE else "; a second router on this host needs a port of its own"
            text = f"replicas.port: cannot listen on {config.host}:{config.port}: {error.strerror}{advice}"
            raise ConfigError(text) from error
        network.tasks.supervise("fleet", partial(self._receive, inbound, FAR_PAUSE_S, self._on_far_frame))

    async def _follow(self, network: PeerNetwork, discovery: Discovery) -> None:
        async for found in discovery.watch():
            network.follow([urlsplit(one.config.url).netloc for one in found])

    async def leave(self) -> None:
        """Disconnect from the routers of other hosts, and free the port."""
        if self._far is not None and self._far.started:
            self._far.leave()
            await self._far.close()

    async def close(self) -> None:
        """Publish that this process ends, and close all sockets."""
        for network in self._networks:
            network.leave()
        await self._tasks.close()
        for network in self._networks:
            await network.close()

    # Peers and Broadcast

    def report_load(self, target: TargetId) -> None:
        for network in self._networks:
            network.outbox.report_load(target)

    def share(self, message: Message) -> None:
        for network in self._networks:
            network.outbox.send(message)

    def share_near(self, message: Message) -> None:
        if self._near is not None:
            self._near.outbox.send(message)

    def send_to(self, run: str, message: Message) -> None:
        if (network := self._find_network(run)) is not None:
            network.send_to(run, message)

    def flush(self) -> None:
        for network in self._networks:
            network.flush()

    def runs(self) -> Sequence[str]:
        return self._runs

    def near_runs(self) -> Sequence[str]:
        return self._near_runs

    def _find_network(self, run: str) -> PeerNetwork | None:
        """Return the network in which a peer can be reached; None if the peer cannot be reached."""
        return next((network for network in self._networks if network.find(run) is not None), None)

    def _own_share(self, target: TargetId) -> WorkerShare:
        return self._scheduler.own_share(target)

    # which peers there are

    def follow_members(self, runs: Collection[str]) -> None:
        """Note that these other workers of this host live, and forget those that have ended."""
        gone, self.members = self.members.difference(runs), frozenset(runs)
        for run in gone:
            self._peer_runs.end(run)
            self._forget(run)

    def is_first_host(self) -> bool:
        """Return whether the id of this host is the first among all hosts with connected peers."""
        return all(self._host <= peer.host for peer in self._peer_runs if peer.run in self._runs)

    def share_of_far(self, target: TargetId) -> WorkerShare:
        """Return the bookings of `target` by the routers of other hosts."""
        near = {peer.run for peer in self._peer_runs if peer.host == self._host}
        return NO_SHARE if self._far is None else self._loads.total(target, excluding=near)

    def describe(self) -> list[ReplicaReport]:
        """Return a report for each address of another router, then for each router that sends frames but has no
        address here.
        """
        if self._far is None:
            return []
        listed = {run for link in self._far.links for run in link.runs}
        far = [peer for peer in self._peer_runs if peer.host != self._host and peer.run not in listed]
        reports = [self._report(link, self._peer_runs.find(link.run)) for link in self._far.links]
        reports += [self._report(None, peer) for peer in far]
        reports += [ReplicaReport(None, run, False, False, None, None, 0, 0, 0) for run in self._foreign]
        return [self.compare(report) for report in reports]

    def _report(self, link: Link | None, peer: PeerRun | None) -> ReplicaReport:
        run = peer.run if peer is not None else None if link is None else link.run
        silent_s = None if peer is None else self._clock.now() - peer.received_at
        if link is None:
            return ReplicaReport(None, run, False, False, silent_s, None, 0, 0 if peer is None else peer.bytes, 0)
        received = sum(one.bytes for one in self._peer_runs if one.run in link.runs)
        up = peer is not None and self._is_up(link, peer)
        return ReplicaReport(link.address, run, link.own, up, silent_s, link.lag_s, link.bytes, received, link.unsent)

    def _is_up(self, link: Link, peer: PeerRun) -> bool:
        acked = link.acked_at is not None and self._clock.now() - link.acked_at < SILENT_S
        return acked and peer.number is not None

    def _refresh(self) -> None:
        """Update the runs of the peers that send frames to this process and acknowledge its beats."""
        links = (link for network in self._networks for link in network.links if not link.own)
        ways = {run: link for link in links for run in link.runs}
        up = [peer for peer in self._peer_runs if (link := ways.get(peer.run)) is not None and self._is_up(link, peer)]
        self._runs = sorted(peer.run for peer in up)
        self._near_runs = sorted(peer.run for peer in up if peer.host == self._host)

    def _forget(self, run: str) -> None:
        """Forget the bookings of a peer, and let the parts forget what they have of the peer."""
        self._loads.replace(run, {})
        self._loads.apply()
        self._refresh()
        for part in self._parts:
            part.forget(run)

    async def _beat(self) -> None:
        """Send beats and forget silent peers, until cancelled."""
        while True:
            for network in self._networks:
                if network.started:
                    network.send_to_all("beat")
            if self._far is not None and self._far.inbound is not None:  # one worker of the host logs for all
                self._far.warn_unanswered()
            began_at = self._clock.now()
            await asyncio.sleep(BEAT_S if self.members.issubset(self._near_runs) else FIRST_BEAT_S)
            now = self._clock.now()
            if now - began_at < 2 * BEAT_S:  # else this process was stopped, and frames of peers wait to be read
                for run in self._peer_runs.forget_silent(now):
                    log.warning("peer %s is silent: its bookings are forgotten", run)
                    self._forget(run)
                self._foreign = {run: at for run, at in self._foreign.items() if now - at < SILENT_S}
            self._refresh()

    def _on_reply(self, link: Link, parts: Sequence[bytes]) -> None:
        """Handle a message that comes back on a link: an acknowledgement, of one part, or an answer to a query of
        this process, of several parts.
        """
        if len(parts) > 1 and (head := frames.decode_answer(parts[0])) is not None:
            self._transfer.on_reply(head, b"".join(parts[1:]))
        elif len(parts) == 1 and (ack := frames.decode_ack(parts[0])) is not None:
            self._on_ack(link, ack)
        else:
            self.malformed += 1

    def _on_ack(self, link: Link, ack: BeatAck) -> None:
        link.run, link.runs = ack.run, ack.runs
        if ack.host == self._host and self._far is not None and link in self._far.links:
            link.own = True
            return
        if link.acked_at is None:
            log.info("peer %s at %s answers", ack.run, link.address)
        now = self._clock.now()
        link.acked_at, link.lag_s = now, (now - ack.stamp_s) / 2

    # state

    def _send_state(self, message: StateWanted, run: str) -> None:
        """Send the state to a peer that has missed news, or has just started."""
        if (network := self._find_network(run)) is None:
            return
        network.flush()  # so that the state is that of the last news
        messages = chain([AllLoads(self._loads.own())], self._state())
        while page := list(islice(messages, STATE_FRAME)):
            network.send_now(run, page)

    def _state(self) -> Iterator[Message]:
        return (message for part in self._parts for message in part.state())

    async def _encode_history(self, network: PeerNetwork, size: int) -> AsyncIterator[bytes]:
        """Yield frames of `size` messages with operators' decisions, sessions and stored responses, with pauses."""
        gathered = list(self._state())
        async for message in self._learned.history():
            gathered.append(message)
            if len(gathered) >= size:
                yield network.encode_page(gathered)
                gathered = []
        yield network.encode_page(gathered)

    def _apply_history(self, page: PeerFrame) -> None:
        offset_s = 0.0 if page.host == self._host else self._clock.now() - page.stamp_s
        for message in self._codec.decode(page)[0]:
            self._apply(message, page.run, offset_s)

    def _apply(self, message: Message, run: str, offset_s: float) -> None:
        """Let the part for this kind of message apply it, with times converted to the clock of this machine."""
        if offset_s and isinstance(message, SessionMoved):
            message = msgspec.structs.replace(message, at_s=message.at_s + offset_s)
        elif offset_s and isinstance(message, SessionAnswered):
            message = msgspec.structs.replace(message, answered_s=message.answered_s + offset_s)
        self._appliers[type(message)](message, run)

    # frames of peers

    async def _receive(self, inbound: PeerSocket, pause_s: float, on_frame: OnFrame) -> None:
        """Apply the frames of peers, until cancelled."""
        while True:
            news = on_frame(inbound, await inbound.receive()) == "news"
            for _ in range(FRAMES_AT_ONCE):
                if (parts := inbound.receive_now()) is None:
                    break
                news |= on_frame(inbound, parts) == "news"
            else:
                news = False  # more are waiting
            self._loads.apply()
            await asyncio.sleep(pause_s if news else 0)

    def _on_near_frame(self, inbound: PeerSocket, parts: Sequence[bytes]) -> str | None:
        """Apply a frame of another worker of this host, or a frame of another host that the worker forwards. Return
        the frame's kind; None if it is malformed.
        """
        if (frame := self._decode(parts)) is None:
            return None
        if frame.kind == "ask":
            self._answer(self._near, inbound, parts[0], frame)
            return frame.kind
        self._apply_frame(frame, len(parts[1]))
        if frame.kind == "beat" and frame.host == self._host:
            self._acknowledge(inbound, parts[0], frame, [self.run])
        return frame.kind

    def _on_far_frame(self, inbound: PeerSocket, parts: Sequence[bytes]) -> str | None:
        """Apply a frame of another host, and forward it to those workers of this host that it is for. Return the
        frame's kind; None if it is malformed.
        """
        if (frame := self._decode(parts)) is None:
            return None
        if frame.kind == "ask":
            self._answer(self._far, inbound, parts[0], frame)
            return frame.kind
        if frame.kind == "beat":
            self._acknowledge(inbound, parts[0], frame, [self.run, *self._near_runs])
        if frame.host == self._host:  # this host is among its own peers
            return frame.kind
        if self._near is not None and frame.to != self.run:
            if not frame.to:
                self._near.pass_on(parts[1])
            elif (link := self._near.find(frame.to)) is not None:
                link.send(parts[1])
        if frame.to in ("", self.run):
            self._apply_frame(frame, len(parts[1]))
        return frame.kind

    def _decode(self, parts: Sequence[bytes]) -> PeerFrame | None:
        frame = frames.decode_frame(parts[-1]) if len(parts) == 2 else None
        if isinstance(frame, PeerFrame):
            return frame
        if frame is None:
            self.malformed += 1
            return None
        if frame.run not in self._foreign:
            log.error(
                "router %s is ignored: it has version %d of the peers' protocol, this router version %d; they do not "
                "share their load until both versions are equal",
                *(frame.run, frame.version, PROTOCOL),
            )
        self._foreign[frame.run] = self._clock.now()
        return None

    def _acknowledge(self, inbound: PeerSocket, identity: bytes, beat: PeerFrame, runs: list[str]) -> None:
        ack = BeatAck(PROTOCOL, self._host, self.run, beat.stamp_s, runs)
        inbound.send_parts([identity, frames.encode_ack(ack)])  # if this fails, the next beat is acknowledged

    def _answer(self, network: PeerNetwork | None, inbound: PeerSocket, identity: bytes, frame: PeerFrame) -> None:
        ask = frames.decode_ask(frame)
        if ask is None or network is None:
            self.malformed += 1
            return
        send = lambda parts: inbound.send_parts([identity, *parts])  # noqa: E731
        self._tasks.spawn(f"answer to {frame.run}", self._donor.answer(ask, network, send))

    def _apply_frame(self, frame: PeerFrame, size: int) -> None:
        peer = self._peer_runs.on_frame(frame, size, self._clock.now())
        if peer is None:
            return
        if frame.kind == "leave":
            log.info("peer %s stops", peer.run)
            self._peer_runs.end(peer.run)
            self._forget(peer.run)
            return
        if frame.kind == "beat":
            if peer.number is None:
                self.send_to(peer.run, StateWanted())
            return
        found, skipped = self._codec.decode(frame)
        peer.skipped += skipped
        loads: list[LoadMessage] = []
        for message in found:  # thousands per second
            if isinstance(message, LoadMessage):
                loads.append(message)
            elif isinstance(message, AllLoads):
                self._peer_runs.on_state(peer, frame.number)
                self._loads.replace(peer.run, message.loads)
                self._refresh()
            else:
                self._apply(message, peer.run, peer.offset_s)
        self._loads.put(peer.run, loads)


OnFrame = Callable[[PeerSocket, Sequence[bytes]], str | None]
