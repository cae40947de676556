"""What the composition root knows of listeners for gRPC. They are known by this only, so that gRPC is loaded where it
is used.
"""

from __future__ import annotations

from typing import Protocol


class RpcListener(Protocol):
    """A listener for gRPC calls."""

    @property
    def port(self) -> int:
        """The port; the bound one after `bind`."""

    async def bind(self) -> None: ...

    async def start(self) -> None: ...

    def serve_for(self, process: int, on: bool) -> None: ...

    def stop_accepting(self) -> None: ...

    def retire(self, idle_s: float) -> None: ...

    async def stop(self, grace_s: float) -> None: ...
