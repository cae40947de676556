"""The links of a process: a socket to each address where a peer is expected, followed as the addresses change.

    this process  DEALER ---- news, direct, beat, ask ---->  ROUTER  a peer; on another host, its worker on duty
                         <---- ack of a beat, answers -----

A link whose other end turns out to be this host itself is kept, closed, so that its address is not retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from router.control.peers.sockets import PeerSocket, PeerSockets
from router.tasks import Tasks


class Link:
    """The connection to one address. `run` is the run id of the process that replies, `runs` are the run ids of all
    processes that receive what is sent to the address; None and empty before the first reply.
    """

    def __init__(self, address: str, socket: PeerSocket) -> None:
        self.address = address
        self.socket = socket
        self.run: str | None = None
        self.runs: Sequence[str] = ()
        self.own = False
        self.lag_s: float | None = None
        self.acked_at: float | None = None
        self.bytes = 0
        self.unsent = 0
        self.unanswered = 0  # beats before the first reply

    def send(self, payload: bytes) -> None:
        """Send without waiting. A payload that cannot be sent is dropped and counted; the peer then notices the
        gap.
        """
        if not self.own and not self.try_send(payload):
            self.unsent += 1

    def try_send(self, payload: bytes) -> bool:
        """Send without waiting. Return False, with nothing sent, if there is no connection or no room."""
        if self.socket.closed or not self.socket.send(payload):
            return False
        self.bytes += len(payload)
        return True


OnReply = Callable[[Link, Sequence[bytes]], None]


class Links:
    """Links to the addresses of the last `follow`; `on_reply` gets each message that comes back on a link."""

    def __init__(self, sockets: PeerSockets, scheme: str, tasks: Tasks, on_reply: OnReply) -> None:
        self._sockets = sockets
        self._scheme = scheme
        self._tasks = tasks
        self._on_reply = on_reply
        self._links: dict[str, Link] = {}
        self._readers: dict[str, asyncio.Task[None]] = {}

    def __iter__(self) -> Iterator[Link]:
        return iter(self._links.values())

    def __len__(self) -> int:
        return len(self._links)

    def follow(self, addresses: Collection[str]) -> None:
        """Connect to the addresses that are new, and close the links to those that are no longer among them."""
        for address in self._links.keys() - set(addresses):
            self._readers.pop(address).cancel()
            self._links.pop(address).socket.close(linger=0)
        for address in addresses:
            if address not in self._links:
                link = self._links[address] = Link(address, self._sockets.connect(f"{self._scheme}://{address}"))
                self._readers[address] = self._tasks.supervise(f"replies of {address}", partial(self._read, link))

    async def _read(self, link: Link) -> None:
        """Pass replies to `on_reply` until cancelled, or until the address turns out to be this host's own."""
        while not link.own:
            self._on_reply(link, await link.socket.receive())
        link.socket.close(linger=0)

    def close(self) -> None:
        """Close all sockets; what is queued is still sent. Call it when the tasks have ended."""
        for link in self._links.values():
            link.socket.close()
