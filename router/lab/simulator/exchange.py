"""What several routers in virtual time tell each other: the real messages and gathering, over a link with delay, loss.

    SyncedScheduler -> Outbox, every `GATHER_S` -> frame -> each other router: `HeardReplicas`, its scheduler

This stands for `control/replicas/exchange.py`, which does the same on sockets: it sends what changed, numbered, and a
beat at a fixed interval. A frame that is lost is noticed by its number with the next one; the router that misses it
asks for all bookings when it acknowledges the next beat. Where no frame is lost, beats change nothing and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.clock import Clock
from router.control.replicas.frames import FrameKind, ReplicaFrame, Wants
from router.control.replicas.peers import BEAT_S, GATHER_S, HeardReplica, HeardReplicas
from router.control.workers import messages
from router.control.workers.loads import ReportedLoads
from router.control.workers.messages import Message
from router.control.workers.outbox import Outbox
from router.control.workers.scheduler import SyncedScheduler
from router.fleet.fleet import Fleet
from router.fleet.worker_share import NO_SHARE, WorkerShare
from router.kvcache.events import TargetId
from router.kvcache.indexer import KvIndexer
from router.lab.rng import Rng
from router.lab.simulator.event_queue import EventQueue
from router.lab.simulator.scenario import ReplicaLink
from router.scheduling.selector import Selector

TOLD = messages.SessionMessage | messages.BlocksSent | messages.PredictionChecked | messages.BreakerMoved


class SimulatedExchange:
    """One router's part. `peers`: the parts of all other routers."""

    def __init__(self, run: str, link: ReplicaLink, event_queue: EventQueue, rng: Rng) -> None:
        self.scheduler: SyncedScheduler  # see `build_scheduler`
        self.peers: Sequence[SimulatedExchange] = ()
        self._run = run
        self._link = link
        self._event_queue = event_queue
        self._rng = rng
        self._outbox = Outbox(self._share_of, self._wake)
        self._heard = HeardReplicas(run)
        self._loads = ReportedLoads[str]()
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
    ) -> SyncedScheduler:
        """Return the scheduler of this router, which tells the others what it books."""
        scheduler = self.scheduler = SyncedScheduler(
            fleet, indexer, selector, clock, responses_kept, shared_pool=shared_pool, secret=0, worker=0, broadcast=self
        )
        scheduler.sends_every_session = True
        if self._link.lost:
            self._beat()
        return scheduler

    # Broadcast

    def send(self, message: Message) -> None:
        if isinstance(message, TOLD):
            self._outbox.send(message)

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
        for run in self._heard.forget_silent(now):
            self._replace_loads(run, {})
        self._event_queue.at(now + BEAT_S, self._beat)

    def _send_to_all(self, kind: FrameKind, gathered: Sequence[Message]) -> None:
        for peer in self.peers:
            self._send_frame(peer, kind, gathered)

    def _send_frame(self, peer: SimulatedExchange, kind: FrameKind, gathered: Sequence[Message]) -> None:
        if not self._rng.happens(self._link.lost):
            now = self._event_queue.now_s
            frame = ReplicaFrame(kind, self._run, self._number, now)
            self._event_queue.at(now + self._link.delay_s, peer._on_frame, self, frame, gathered)

    def _share_of(self, target: TargetId) -> WorkerShare:
        return self.scheduler.own_share(target)

    # what others say

    def _on_frame(self, sender: SimulatedExchange, frame: ReplicaFrame, said: Sequence[Message]) -> None:
        replica = self._heard.on_frame(frame, 0, self._event_queue.now_s)
        assert replica is not None, "no router sends to itself"
        for message in said:
            self._apply(message, frame, replica)
        if frame.kind == "beat" and not self._rng.happens(self._link.lost):
            wants = self._heard.wants(replica)
            self._event_queue.at(self._event_queue.now_s + self._link.delay_s, sender._on_ack, self, wants)

    def _on_ack(self, peer: SimulatedExchange, wants: Wants) -> None:
        if wants != "nothing":
            self.flush()  # so that the state is that of the last news
            fleet = self.scheduler.fleet
            shares = {target.id: self._share_of(target.id) for member in fleet for target in member.targets.values()}
            loads = messages.AllLoads({target: share for target, share in shares.items() if share != NO_SHARE})
            self._send_frame(peer, "direct", [loads])

    def _apply(self, message: Message, frame: ReplicaFrame, replica: HeardReplica) -> None:
        match message:
            case messages.LoadMessage(target, share):
                self._loads.put(replica.run, TargetId(target), share)
                self._apply_load(TargetId(target))
            case messages.AllLoads(loads):
                self._heard.on_state(replica, frame.number)
                self._replace_loads(replica.run, loads)
            case messages.SessionMoved():
                self.scheduler.apply_sessions([message])
            case messages.SessionAnswered():
                self.scheduler.apply_progress(message)  # one clock: virtual time
            case messages.BlocksSent():
                self.scheduler.apply_sent(message)
            case messages.PredictionChecked():
                self.scheduler.apply_finding(message)
            case messages.BreakerMoved():
                self.scheduler.apply_breaker(message)

    def _replace_loads(self, run: str, loads: dict[str, WorkerShare]) -> None:
        dropped = set(self._loads.drop(run))
        for name, share in loads.items():
            self._loads.put(run, TargetId(name), share)
        for target in dropped.union(map(TargetId, loads)):
            self._apply_load(target)

    def _apply_load(self, target: TargetId) -> None:
        self.scheduler.apply_load(target, self._loads.total(target))


def connect_exchanges(routers: int, link: ReplicaLink, event_queue: EventQueue, rng: Rng) -> list[SimulatedExchange]:
    """Return the parts of so many routers; `rng` decides which frames are lost."""
    exchanges = [SimulatedExchange(f"router-{number}", link, event_queue, rng) for number in range(routers)]
    for exchange in exchanges:
        exchange.peers = [peer for peer in exchanges if peer is not exchange]
    return exchanges
