"""All listeners of a process together: some accept in every worker, others only in the process on duty."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Protocol


class Listener(Protocol):
    """A listener for HTTP or gRPC."""

    @property
    def port(self) -> int:
        """The port; after `bind`, the bound one."""

    async def bind(self) -> None: ...

    async def start(self) -> None: ...

    def serve_for(self, process: int, on: bool) -> None: ...

    def stop_accepting(self) -> None: ...

    def retire(self, idle_s: float) -> None: ...

    async def stop(self, grace_s: float) -> None: ...


class Listeners:
    """The listeners in `shared` accept in every worker, those in `on_duty` only where `has_duties` returns True."""

    def __init__(self, shared: Sequence[Listener], on_duty: Sequence[Listener], has_duties: Callable[[], bool]) -> None:
        self._shared = shared
        self._on_duty = on_duty
        self._has_duties = has_duties
        self._open = False

    async def bind(self) -> None:
        """Bind all addresses. Raises `ConfigError` when an address cannot be bound."""
        for listener in chain(self._shared, self._on_duty):
            await listener.bind()

    async def open(self) -> None:
        """Accept connections."""
        self._open = True
        for listener in self._accepting():
            await listener.start()

    async def take_duties(self) -> None:
        """Accept on the `on_duty` listeners as well, if this process is open."""
        for listener in self._on_duty if self._open else ():
            await listener.start()

    def serve_for(self, processes: Iterable[int], on: bool) -> None:
        """Accept from the shared sockets of other processes, which do not accept; with `on` False, no longer."""
        for process in processes:
            for listener in self._shared:
                listener.serve_for(process, on)

    def retire(self, idle_s: float) -> None:
        """End each connection with its next answer, or once it has been idle for `idle_s`."""
        for listener in self._accepting():
            listener.retire(idle_s)

    def stop_accepting(self) -> None:
        """Accept no new connections; open ones continue."""
        for listener in chain(self._shared, self._on_duty):
            listener.stop_accepting()

    def _accepting(self) -> Iterator[Listener]:
        return chain(self._shared, self._on_duty if self._has_duties() else ())
