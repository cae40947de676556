"""All listeners of a process together: those on which every worker accepts, and those of the process on duty."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Protocol


class Listener(Protocol):
    """A listener for HTTP or gRPC."""

    @property
    def port(self) -> int:
        """The port; the bound one after `bind`."""

    async def bind(self) -> None: ...

    async def start(self) -> None: ...

    def serve_for(self, process: int, on: bool) -> None: ...

    def stop_accepting(self) -> None: ...

    def retire(self, idle_s: float) -> None: ...

    async def stop(self, grace_s: float) -> None: ...


class Listeners:
    """Those in `shared` accept in every worker, those in `on_duty` where `has_duties`."""

    def __init__(self, shared: Sequence[Listener], on_duty: Sequence[Listener], has_duties: Callable[[], bool]) -> None:
        self._shared = shared
        self._on_duty = on_duty
        self._has_duties = has_duties
        self._open = False

    async def bind(self) -> None:
        """Bind all addresses. Raises `ConfigError` when one cannot be bound."""
        for listener in chain(self._shared, self._on_duty):
            await listener.bind()

    async def open(self) -> None:
        """Accept connections."""
        self._open = True
        for listener in self._accepting():
            await listener.start()

    async def take_duties(self) -> None:
        """Accept also where the process on duty does, if this process is open."""
        for listener in self._on_duty if self._open else ():
            await listener.start()

    def serve_for(self, processes: Iterable[int], on: bool) -> None:
        """Accept from the shared sockets of other processes, which do not; or no longer."""
        for process in processes:
            for listener in self._shared:
                listener.serve_for(process, on)

    def retire(self, idle_s: float) -> None:
        """Let each connection end with its next answer, or once it was idle for `idle_s`."""
        for listener in self._accepting():
            listener.retire(idle_s)

    def stop_accepting(self) -> None:
        """Accept no new connections; those that are open go on."""
        for listener in chain(self._shared, self._on_duty):
            listener.stop_accepting()

    def _accepting(self) -> Iterator[Listener]:
        return chain(self._shared, self._on_duty if self._has_duties() else ())
