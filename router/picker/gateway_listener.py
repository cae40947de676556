"""What the composition root knows of an endpoint picker's listeners."""

from __future__ import annotations

from typing import Protocol


class GatewayListener(Protocol):
    """The listeners of an endpoint picker. It is known by this only, so that gRPC is loaded where a picker runs."""

    port: int
    health_port: int

    async def bind(self) -> None: ...

    async def start(self) -> None: ...

    def stop_accepting(self) -> None: ...

    def retire(self, idle_s: float) -> None: ...

    async def stop(self, grace_s: float) -> None: ...
