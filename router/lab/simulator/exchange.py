"""The exchange of several routers in virtual time: the real messages and gathering, over a link with delay and
loss.

    PeerScheduler -> Outbox, every `GATHER_S` -> frame -> each other router: `PeerRuns`, its scheduler

This stands for `control/peers/exchange.py`, which does the same on sockets: it sends changes in numbered frames,
and a beat at a fixed interval. A lost frame is noticed by the number of the next frame; the router that missed it
requests all bookings with the next beat. If the link loses no frames, beats change nothing and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.clock import Clock
from router.control.peers import messages
from router.control.peers.frames import PROTOCOL, FrameKind, PeerFrame
from router.control.peers.loads import SharedLoads
from router.control.peers.network import FAR_GATHER_S as GATHER_S
from router.control.peers.outbox import Outbox
from router.control.peers.parts import Message
from router.control.peers.peer_runs import BEAT_S, PeerRun, PeerRuns
from router.control.peers.scheduler import PeerScheduler
from router.fleet.fleet import Fleet
from router.fleet.worker_share import WorkerShare
from router.kvcache.events import TargetId
from router.kvcache.indexer import KvIndexer
from router.lab.rng import Rng
from router.lab.simulator.event_queue import EventQueue
from router.lab.simulator.scenario import ReplicaLink
from router.scheduling.selector import Selector

SHARED = (
    *(messages.SessionMoved, messages.SessionAnswered, messages.ResponseStored),
    *(messages.BlocksSent, messages.PredictionChecked, messages.BreakerMoved),
)


class SimulatedExchange:
    """One router's part of the exchange. `peers`: the parts of all other routers."""

    def __init__(self, run: str, link: ReplicaLink, event_queue: EventQueue, rng: Rng) -> None:
        self.scheduler: PeerScheduler  # see `build_scheduler`
        self.peers: Sequence[SimulatedExchange] = ()
        self.run = run
        self._link = link
        self._event_queue = event_queue
        self._rng = rng
        self._outbox = Outbox(self._share_of, self._wake)
        self._peer_runs = PeerRuns(run, run)
        self._loads: SharedLoads
        self._number = 0  # of the last news
        self._sent_s = -GATHER_S
        self.report_load = self._outbox.report_load

    def build_scheduler(
        self,
        fleet: Fleet,
        indexer: KvIndexer,
        selector: Selector,
        clock: Clock,
        responses_kept: int,
        *,
        shared_pool: bool,
    ) -> PeerScheduler:
        """Return the scheduler of this router, which publishes what it books."""
        scheduler = self.scheduler = PeerScheduler(
            fleet, indexer, selector, clock, responses_kept, shared_pool=shared_pool, secret=0, broadcast=self
        )
        self._loads = SharedLoads(scheduler)
        if self._link.lost:
            self._beat()
        return scheduler

    # Broadcast

    def share(self, message: Message) -> None:
        if isinstance(message, SHARED):
            self._outbox.send(message)

    def share_near(self, message: Message) -> None:
        """Do nothing: each router is one process here."""

    def flush(self) -> None:
        """Send the gathered messages now."""
        gathered = self._outbox.take()
        if gathered:
            self._number += 1
            self._sent_s = self._event_queue.now_s
            self._send_to_all("news", gathered)

    def _wake(self) -> None:
        self._event_queue.at(self._sent_s + GATHER_S, self.flush)

    def _beat(self) -> None:
        self._send_to_all("beat", ())
        now = self._event_queue.now_s
        for run in self._peer_runs.forget_silent(now):
            self._loads.replace(run, {})
        self._loads.apply()
        self._event_queue.at(now + BEAT_S, self._beat)

    def _send_to_all(self, kind: FrameKind, gathered: Sequence[Message]) -> None:
        for peer in self.peers:
            self._send_frame(peer, kind, gathered)

    def _send_frame(self, peer: SimulatedExchange, kind: FrameKind, gathered: Sequence[Message]) -> None:
        if not self._rng.happens(self._link.lost):
            now = self._event_queue.now_s
            frame = PeerFrame(PROTOCOL, kind, self.run, self.run, self._number, now)
            self._event_queue.at(now + self._link.delay_s, peer._on_frame, self, frame, gathered)

    def _share_of(self, target: TargetId) -> WorkerShare:
        return self.scheduler.own_share(target)

    # what others send

    def _on_frame(self, sender: SimulatedExchange, frame: PeerFrame, sent: Sequence[Message]) -> None:
        peer = self._peer_runs.on_frame(frame, 0, self._event_queue.now_s)
        assert peer is not None, "no router sends to itself"
        for message in sent:
            self._apply(message, frame, peer)
        self._loads.apply()
        if frame.kind == "beat" and not self._rng.happens(self._link.lost):
            at_s = self._event_queue.now_s + self._link.delay_s
            self._event_queue.at(at_s, sender._on_beat_received, self, peer.number is None)

    def _on_beat_received(self, peer: SimulatedExchange, wants_state: bool) -> None:
        if wants_state:
            self.flush()  # so that the state is that of the last news
            self._send_frame(peer, "direct", [messages.AllLoads(self._loads.own())])

    def _apply(self, message: Message, frame: PeerFrame, peer: PeerRun) -> None:
        match message:
            case messages.LoadMessage():
                self._loads.put(peer.run, [message])
            case messages.AllLoads(loads):
                self._peer_runs.on_state(peer, frame.number)
                self._loads.replace(peer.run, loads)
            case messages.ResponseStored():
                pass  # no simulated request continues a response
            case _:
                self.scheduler.apply(message, peer.run)  # all routers have one clock


def connect_exchanges(routers: int, link: ReplicaLink, event_queue: EventQueue, rng: Rng) -> list[SimulatedExchange]:
    """Return the parts of so many routers; `rng` decides which frames are lost."""
    exchanges = [SimulatedExchange(f"router-{number}", link, event_queue, rng) for number in range(routers)]
    for exchange in exchanges:
        exchange.peers = [peer for peer in exchanges if peer is not exchange]
    return exchanges
