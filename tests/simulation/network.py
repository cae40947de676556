"""An in-memory network between named hosts, with latency, segments of random size, and links that fail.

    host -- HostLink -- host       up; stalled: packets wait until it heals; refused: what is open is reset, and
                                   connections are refused
    End ==== Pipe ==== End         one connection: an asyncio transport on each host, a pipe for each direction

`Network.trace` is a digest of every packet with its time: two runs are equal if their traces are.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, Literal, NamedTuple, TypeVar

import xxhash

from router.lab.rng import Rng
from tests.simulation.loop import VirtualLoop
from tests.simulation.transport import End, Packet

CLIENTS = "10.0.0.1"  # the host of all clients
HOST: ContextVar[str] = ContextVar("HOST", default=CLIENTS)
"""The simulated host that the running code belongs to; tasks and callbacks inherit it."""

T = TypeVar("T")

LinkState = Literal["up", "stalled", "refused"]
FIRST_PORT = 40_000  # of the ports that the system chooses
MOST_LATENCY_S = 0.002
SEGMENT_BYTES = (64, *3 * (1448, 16_384, 65_536))  # of a connection, one of these at most


async def run_on_host(host: str, work: Coroutine[Any, Any, T]) -> T:
    """Run `work`, and everything that it starts, on `host`."""
    context = copy_context()
    context.run(HOST.set, host)
    return await asyncio.get_running_loop().create_task(work, context=context)


class HostLink:
    """The way between two hosts. `slow` stretches its latency."""

    def __init__(self) -> None:
        self.state: LinkState = "up"
        self.slow = 1.0
        self.waiting: list[Callable[[], None]] = []  # called when the link is no longer stalled


class Pipe:
    """One direction of a connection: packets arrive in order, each after the link's latency."""

    def __init__(self, network: Network, link: HostLink, name: str, segment_bytes: int) -> None:
        self._network = network
        self._link = link
        self._name = name
        self._segment_bytes = segment_bytes
        self._packets: deque[tuple[float, Packet]] = deque()
        self._last_s = 0.0
        self._due = False  # a delivery is scheduled, or waits for the link
        self.target: End

    def send(self, data: bytes) -> None:
        """Send `data` in segments of random size."""
        at = 0
        while at < len(data):
            size = 1 + self._network.rng.below(self._segment_bytes)
            self.put(Packet("data", data[at : at + size]))
            at += size

    def put(self, packet: Packet) -> None:
        """Send one packet."""
        network = self._network
        self._last_s = max(self._last_s, network.loop.time() + network.latency_s(self._link))
        self._packets.append((self._last_s, packet))
        if not self._due:
            self._schedule()

    def _schedule(self) -> None:
        self._due = True
        self._network.loop.call_at(self._packets[0][0], self._deliver)

    def _deliver(self) -> None:
        if self._link.state == "stalled":
            self._link.waiting.append(self._deliver)
            return
        _, packet = self._packets.popleft()
        self._network.record(self._name, packet)
        self.target.receive(packet)
        if self._packets:
            self._schedule()
        else:
            self._due = False


class Accepted(NamedTuple):
    """The server's end of a connection that waits in a listener's backlog, in the place of its socket."""

    end: End

    def close(self) -> None:
        self.end.abort()


class SimulatedListener:
    """A listening socket: `accept` as of a real one, `watch` instead of a selector."""

    def __init__(self, network: Network, host: str, port: int) -> None:
        self._network = network
        self.address = host, port
        self._backlog: deque[Accepted] = deque()
        self._handle: asyncio.Handle | None = None
        self.closed = False

    def push(self, accepted: Accepted) -> None:
        """Add a connection to the backlog."""
        self._backlog.append(accepted)
        self._wake()

    def watch(self, handle: asyncio.Handle | None) -> bool:
        """Run `handle` while connections wait. Return whether there was another before."""
        before, self._handle = self._handle, handle
        self._wake()
        return before is not None

    def accept(self) -> tuple[Accepted, tuple[str, int]]:
        """Return the next connection and its client's address. Raises BlockingIOError if none waits."""
        if not self._backlog:
            raise BlockingIOError
        accepted = self._backlog.popleft()
        return accepted, accepted.end.get_extra_info("peername")

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def fileno(self) -> int:
        return -1 if self.closed else 0

    def close(self) -> None:
        """Listen no more, and reset the connections that wait."""
        if not self.closed:
            self.closed = True
            self._network.forget(self)
            for accepted in self._backlog:
                accepted.end.reset()

    def _wake(self) -> None:
        if self._backlog and self._handle is not None:
            self._network.loop.call_soon(self._run)

    def _run(self) -> None:
        if self._backlog and self._handle is not None:
            self._handle._run()
            self._wake()


class SimulatedServer:
    """What `create_server` returns: it accepts every connection at once."""

    def __init__(self, listener: SimulatedListener, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self.sockets = (listener,)
        self._factory = factory
        listener.watch(asyncio.Handle(self._accept, (), asyncio.get_running_loop()))

    def _accept(self) -> None:
        self.sockets[0].accept()[0].end.attach(self._factory())

    def close(self) -> None:
        self.sockets[0].close()


class Network:
    """All hosts of a simulated world, and what is open between them."""

    def __init__(self, loop: VirtualLoop, rng: Rng) -> None:
        self.loop = loop
        self.rng = rng
        self.trace = xxhash.xxh3_128()
        self.packets = 0
        self._links: dict[tuple[str, str], HostLink] = {}
        self._listeners: dict[tuple[str, int], SimulatedListener] = {}
        self._ends: dict[End, HostLink] = {}
        self._down: set[str] = set()
        self._next_port = FIRST_PORT

    def link(self, one: str, other: str) -> HostLink:
        """Return the link between two hosts."""
        return self._links.setdefault((min(one, other), max(one, other)), HostLink())

    def latency_s(self, link: HostLink) -> float:
        return MOST_LATENCY_S * link.slow * self.rng.below(1000) / 1000

    def record(self, name: str, packet: Packet) -> None:
        """Add a delivered packet to the trace."""
        self.packets += 1
        self.trace.update(f"{self.loop.time()!r} {name} {packet.kind} {packet.credit} ".encode() + packet.data)

    # faults

    def set_link(self, one: str, other: str, state: LinkState) -> None:
        """Change the state of the link between two hosts."""
        link = self.link(one, other)
        link.state = state
        if state == "refused":
            for end in self._ends_of(link):
                end.fail(ConnectionResetError(errno.ECONNRESET, "the link was cut"))
        if state != "stalled":
            waiting, link.waiting = link.waiting, []
            for deliver in waiting:
                self.loop.call_later(self.latency_s(link), deliver)

    def crash(self, host: str, *, silently: bool) -> None:
        """End all connections and listeners of a host. `silently`: without a packet, as when it loses its power; the
        other ends find out when they send. Nothing leaves the host before `boot`.
        """
        self._down.add(host)
        for listener in [one for one in self._listeners.values() if one.address[0] == host]:
            listener.close()
        for end in [one for one in self._ends if one.host == host]:
            (end.vanish if silently else end.reset)()

    def end_process(self, host: str, ports: Collection[int]) -> None:
        """Reset the connections of a process that listens at these ports of a host, and starts again at once."""
        for end in [one for one in self._ends if one.host == host and one.local[1] in ports]:
            end.reset()

    def boot(self, host: str) -> None:
        """Connect the host to the network again."""
        self._down.discard(host)

    def _ends_of(self, link: HostLink) -> list[End]:
        return [end for end, its in self._ends.items() if its is link]

    @property
    def open_ends(self) -> int:
        return len(self._ends)

    # what the loop calls

    def listen(self, host: str, port: int) -> SimulatedListener:
        """Return a listener; port 0: the network chooses one. Raises OSError if the port is in use."""
        port = port or self._take_port()
        if (host, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, f"{host}:{port} is in use")
        listener = self._listeners[host, port] = SimulatedListener(self, host, port)
        return listener

    def serve(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> SimulatedServer:
        """Accept all connections to `host` and `port`."""
        return SimulatedServer(self.listen(host, port), factory)

    def forget(self, gone: SimulatedListener | End) -> None:
        """Forget a listener or an end that is closed."""
        if isinstance(gone, SimulatedListener):
            del self._listeners[gone.address]
        else:
            self._ends.pop(gone, None)

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[End, asyncio.BaseProtocol]:
        """Connect from the current host. Raises ConnectionRefusedError if nothing listens there."""
        if HOST.get() in self._down:
            raise OSError(errno.ENETUNREACH, "the network is unreachable")
        link = self.link(HOST.get(), host)
        await self._cross(link)
        listener = self._listeners.get((host, port))
        if link.state == "refused" or listener is None:
            await self._cross(link)
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"{host}:{port} refused the connection")
        client, server = self._pair(link, (HOST.get(), self._take_port()), (host, port))
        listener.push(Accepted(server))
        try:
            await self._cross(link)
        except asyncio.CancelledError:
            client.abort()
            raise
        if client.error is not None:
            client.vanish()
            raise client.error
        protocol = factory()
        client.attach(protocol)
        return client, protocol

    async def _cross(self, link: HostLink) -> None:
        """Wait as long as a packet takes."""
        await asyncio.sleep(self.latency_s(link))
        while link.state == "stalled":
            healed = asyncio.Event()
            link.waiting.append(healed.set)
            await healed.wait()

    def _pair(self, link: HostLink, near: tuple[str, int], far: tuple[str, int]) -> tuple[End, End]:
        segment_bytes = SEGMENT_BYTES[self.rng.below(len(SEGMENT_BYTES))]
        pipes = [
            Pipe(self, link, f"{source[0]}:{source[1]}>{target[0]}:{target[1]}", segment_bytes)
            for source, target in ((near, far), (far, near))
        ]
        client, server = End(self, pipes[0], near, far), End(self, pipes[1], far, near)
        pipes[0].target, pipes[1].target = server, client
        self._ends[client] = self._ends[server] = link
        return client, server

    def _take_port(self) -> int:
        self._next_port += 1
        return self._next_port
