"""One network of peers: the workers of a host, over Unix sockets, or the routers of several hosts, over TCP.

Messages are gathered, numbered, and sent to every address of the network. The first message after a pause is sent
in the next turn of the event loop, later ones after `gather_s`: a quiet router sends at once, and the frames per
second of a busy router do not depend on its request rate.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence

from router.clock import Clock
from router.control.peers import frames
from router.control.peers.frames import FrameKind, Sender, StateAsk
from router.control.peers.links import Link, Links, OnReply
from router.control.peers.outbox import Outbox, ShareOf
from router.control.peers.parts import Message
from router.control.peers.peer_runs import BEAT_S
from router.control.peers.sockets import PeerSocket, PeerSockets
from router.tasks import Tasks

log = logging.getLogger("warmroute.peers")

NEAR_GATHER_S = 0.005  # between workers: gathering for 1 ms cost 20 us per request, for 3 ms a quarter of that
FAR_GATHER_S = 0.02
UNANSWERED_BEATS = 40  # 10 s


class PeerNetwork:
    """`scheme` is that of ZeroMQ's addresses: `ipc` or `tcp`. Create it on the running loop."""

    def __init__(
        self,
        scheme: str,
        secret: bytes,
        sender: Sender,
        gather_s: float,
        share_of: ShareOf,
        on_reply: OnReply,
        clock: Clock,
    ) -> None:
        self.near = scheme == "ipc"
        self._scheme = scheme
        self._sender = sender
        self._gather_s = gather_s
        self._clock = clock
        self.tasks = Tasks(scheme)
        """The tasks that use the sockets of this network."""
        self._sockets = PeerSockets(secret)
        self.links = Links(self._sockets, scheme, self.tasks, on_reply)
        self.inbound: PeerSocket | None = None
        """Receives what peers send to this process, or to its whole host; None: another worker has this socket."""
        self.outbox = Outbox(share_of, self._wake)
        self._direct: dict[str, list[Message]] = {}  # to be sent to one peer, by its run
        self._number = 0  # of the last news
        self._sent_at = -gather_s
        self.started = False

    def start(self) -> None:
        """Admit peers that have the secret."""
        self.started = True
        self.tasks.supervise("admit", self._sockets.admit)

    def bind(self, address: str) -> PeerSocket:
        """Listen at `address`. Raises `zmq.ZMQError`."""
        self.inbound = self._sockets.bind(f"{self._scheme}://{address}")
        return self.inbound

    def follow(self, addresses: Collection[str]) -> None:
        """Send to these addresses from now on."""
        self.links.follow(addresses)

    def find(self, run: str) -> Link | None:
        """Return the link to the peer with this run; None when none is known."""
        return next((link for link in self.links if run in link.runs and not link.own), None)

    def flush(self) -> None:
        """Send the gathered messages now."""
        gathered = self.outbox.take()
        if not gathered or not self.started:
            return
        self._number += 1
        self._sent_at = self._clock.now()
        self.send_to_all("news", gathered)

    def _wake(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = self._sent_at + self._gather_s - self._clock.now()
        if due_s <= 0:
            loop.call_soon(self.flush)
        else:
            loop.call_later(due_s, self.flush)

    def send_to(self, run: str, message: Message) -> None:
        """Send a message to one peer, together with other messages to it: in the next turn of the event loop on
        this host, otherwise within `gather_s`. The message is dropped if the peer cannot be reached.
        """
        if not self._direct:
            loop = asyncio.get_running_loop()
            if self.near:
                loop.call_soon(self._flush_direct)
            else:
                loop.call_later(self._gather_s, self._flush_direct)
        self._direct.setdefault(run, []).append(message)

    def _flush_direct(self) -> None:
        direct, self._direct = self._direct, {}
        for run, messages in direct.items():
            self.send_now(run, messages)

    def send_now(self, run: str, messages: Sequence[Message]) -> None:
        """Send messages to one peer, after all news so far."""
        self.flush()
        if (link := self.find(run)) is not None:
            link.send(self._encode("direct", messages, run))

    def send_to_all(self, kind: FrameKind, messages: Sequence[Message] = ()) -> None:
        """Send a frame to all addresses."""
        self.pass_on(self._encode(kind, messages))

    def pass_on(self, payload: bytes) -> None:
        """Send an encoded frame to all addresses."""
        for link in self.links:
            link.send(payload)

    def warn_unanswered(self) -> None:
        """Log once each address that has never answered. Call it after each beat."""
        for link in self.links:
            if link.acked_at is not None or link.own:
                continue
            link.unanswered += 1
            if link.unanswered == UNANSWERED_BEATS:
                log.warning(
                    "no router has answered at %s for %.0f s: does one run there, with this `replicas.port` and the "
                    "same secret, and can it be reached from here? Until then neither knows of the other's requests",
                    link.address,
                    UNANSWERED_BEATS * BEAT_S,
                )

    def encode_ask(self, ask: StateAsk) -> bytes:
        """Return a frame with a query."""
        return self._encode("ask", [ask])

    def encode_page(self, messages: Sequence[Message]) -> bytes:
        """Return a frame with messages for a peer that has requested them."""
        return self._encode("direct", messages)

    def _encode(self, kind: FrameKind, messages: Sequence[Message | StateAsk] = (), to: str = "") -> bytes:
        return frames.encode_frame(kind, self._sender, self._number, self._clock.now(), messages, to)

    def leave(self) -> None:
        """Publish that this process stops, and publish nothing more."""
        self.flush()
        if self.started:
            self.send_to_all("leave")
        self.started = False

    async def close(self) -> None:
        """Close all sockets; what is queued is still sent."""
        await self.tasks.close()
        if self.inbound is not None:
            self.inbound.close()
        self.links.close()
        await asyncio.to_thread(self._sockets.close)
