"""A virtual-time event loop: the time jumps to the next timer whenever nothing is ready to run.

Nothing here waits for the machine. Connections go to the in-memory network (`network.py`), and work that the router
gives to threads runs at once and returns its result after a random virtual time. So a run is a pure function of its
seed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from router.lab.rng import Rng

if TYPE_CHECKING:
    from tests.simulation.network import Accepted, Network, SimulatedServer

THREAD_S = 0.005  # longest time of work in a thread
START_WALL_S = 1_800_000_000.0


class NothingLeft(Exception):
    """No timer, no packet and no callback is left, so the simulated world would wait forever."""


class Watchable(Protocol):
    """A simulated socket that the loop can watch."""

    def watch(self, handle: asyncio.Handle | None) -> bool:
        """Run `handle` when the socket is readable. Return whether there was another before."""


class _Timeline:
    """The place of a selector in asyncio's loop: instead of waiting for I/O it advances the time."""

    def __init__(self) -> None:
        self.now = 0.0

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise NothingLeft
        self.now += timeout
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop of one simulated world. `network` must be set before anything connects."""

    network: Network

    def __init__(self, rng: Rng) -> None:
        super().__init__()
        self._timeline = self._selector = _Timeline()
        self._rng = rng
        self._descriptors: list[Watchable] = []
        self.trouble: list[dict[str, Any]] = []  # contexts of `call_exception_handler`
        self.set_exception_handler(lambda _, context: self.trouble.append(context))

    def time(self) -> float:
        return self._timeline.now

    def _process_events(self, event_list: list[Any]) -> None:
        """There are no events besides timers and callbacks."""

    def _write_to_self(self) -> None:
        """Nothing waits, so nothing has to be woken."""

    def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run `work` at once, as a thread would. The future has its result after up to `THREAD_S`."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        try:
            result = work(*args)
        except Exception as error:  # noqa: BLE001  as a thread pool does
            self.call_later(self._thread_s(), future.set_exception, error)
        else:
            self.call_later(self._thread_s(), future.set_result, result)
        return future

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        return asyncio.wrap_future(self.submit(func, *args), loop=self)

    def _thread_s(self) -> float:
        return THREAD_S * self._rng.below(1000) / 1000

    # the network

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, *, ssl: None = None, **_: Any
    ) -> tuple[asyncio.Transport, Any]:
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_: Any
    ) -> SimulatedServer:
        return self.network.serve(protocol_factory, host, port)

    async def connect_accepted_socket(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], sock: Accepted, **_: Any
    ) -> tuple[asyncio.Transport, Any]:
        protocol = protocol_factory()
        sock.end.attach(protocol)
        await asyncio.sleep(0)  # the caller goes on in a later turn of the loop, as after a real accept
        return sock.end, protocol

    def add_descriptor(self, watched: Watchable) -> int:
        """Return a file descriptor for something that can be readable."""
        self._descriptors.append(watched)
        return len(self._descriptors) - 1

    def add_reader(self, fd: int | Watchable, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        self._find(fd).watch(asyncio.Handle(callback, args, self))

    def remove_reader(self, fd: int | Watchable) -> bool:  # type: ignore[override]
        return self._find(fd).watch(None)

    def _find(self, fd: int | Watchable) -> Watchable:
        return self._descriptors[fd] if isinstance(fd, int) else fd


class LoopClock:
    """The clock of one simulated process. `wall_offset_s`: how wrong its wall clock is; it may change at any time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.now = loop.time
        self.wall_offset_s = 0.0

    def wall(self) -> float:
        return START_WALL_S + self.wall_offset_s + self.now()
