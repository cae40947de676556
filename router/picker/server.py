"""The picker's gRPC listeners: one for gateways (ext_proc, access logs, health) and one for probes (health).

Runs on the router's event loop. Gateways keep few connections and open a call for each HTTP request. How many requests
are served is bounded where each begins (`limits.concurrent`): one too many is answered with a refusal. A call that is
silent where something should come is ended.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping

from router.config.sections.listeners import LimitsConfig, ListenConfig, PickerConfig
from router.errors import ConfigError
from router.picker.answer_log import AnswerLog
from router.picker.calls import AccessLogCall, ExchangeContext, ExtProcCall, PickerBounds
from router.picker.credentials import server_context
from router.picker.exchange import PickerExchange
from router.picker.grpc_stream import GrpcHandler, GrpcStream
from router.picker.health import PickerHealth
from router.picker.http2 import GrpcConnection
from router.picker.names import ACCESS_LOG, EXT_PROC
from router.proxy.client_address import TrustedProxies
from router.proxy.listening_sockets import BACKLOG, ListeningSockets
from router.tasks import Tasks

log = logging.getLogger("warmroute.picker")

MESSAGE_OVERHEAD_BYTES = 1024 * 1024  # of one message beside a body
CONNECTIONS = 1024  # of gateways, which keep one for each of their threads
CHECK_S = 1.0
HANDSHAKE_S = 10.0
POLL_S = 0.02


def read_bounds(limits: LimitsConfig, listen: ListenConfig) -> PickerBounds:
    """Return the bounds of the proxy, for exchanges of a picker."""
    return PickerBounds(
        limits.body_bytes,
        limits.body_budget_bytes,
        listen.body_idle_timeout_s,
        limits.first_byte_timeout_s,
        limits.idle_timeout_s,
    )


class PickerServer:
    """Serves gateways from `start` to `stop`; `answer` answers one exchange. Raises `ConfigError` for certificate files
    that cannot be used.
    """

    def __init__(
        self,
        config: PickerConfig,
        bounds: PickerBounds,
        proxies: TrustedProxies,
        answer: Callable[[PickerExchange], Awaitable[None]],
        answer_log: AnswerLog,
        health: PickerHealth,
        wall_s: float,
        sockets: ListeningSockets | None = None,
    ) -> None:
        self._config = config
        self._listening = sockets or ListeningSockets()
        self._message_bytes = bounds.body_bytes + MESSAGE_OVERHEAD_BYTES
        self._log = answer_log
        self._health = health
        self._tls = server_context(config, wall_s)
        self._tasks = Tasks("picker")
        self._calls: set[ExtProcCall] = set()
        self._context = ExchangeContext(answer, proxies, self._tasks, self._calls, bounds)
        self._connections: set[GrpcConnection] = set()
        self._servers: list[asyncio.Server] = []
        self.port = config.port
        self.health_port = config.health_port

    async def bind(self) -> None:
        """Bind the addresses; `port` and `health_port` are the bound ones from here on. Raises `ConfigError` when one
        cannot be bound.
        """
        config, health = self._config, self._health.services()
        services: dict[bytes, Callable[[GrpcStream], GrpcHandler]] = {
            f"/{EXT_PROC}/Process".encode(): lambda stream: ExtProcCall(self._context, stream),
            f"/{ACCESS_LOG}/StreamAccessLogs".encode(): lambda stream: AccessLogCall(self._log, stream),
            **health,
        }
        self.port = await self._listen(services, config.port, self._tls, "picker.port")
        self.health_port = await self._listen(health, config.health_port, None, "picker.health_port")

    async def start(self) -> None:
        """Accept connections. Raises `ConfigError` when an address cannot be bound, unless `bind` has done that."""
        if not self._servers:
            await self.bind()
        for server in self._servers:
            await server.start_serving()
        self._tasks.supervise("check", self._check)
        log.info("picker on %s:%d, its health on port %d", self._config.host, self.port, self.health_port)

    async def _listen(
        self,
        services: Mapping[bytes, Callable[[GrpcStream], GrpcHandler]],
        port: int,
        tls: ssl.SSLContext | None,
        setting: str,
    ) -> int:
        try:
            (sockets,) = await self._listening.open(self._config.host, port)
        except ConfigError as error:
            raise ConfigError(f"{setting}: {error}") from error
        for listening in sockets:
            server = await asyncio.get_running_loop().create_server(
                lambda: GrpcConnection(
                    services, self._message_bytes, self._connections, CONNECTIONS, self._context.bounds.budget_bytes
                ),
                sock=listening,
                backlog=BACKLOG,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else HANDSHAKE_S,
                start_serving=False,
            )
            self._servers.append(server)
        return int(sockets[0].getsockname()[1])

    def stop_accepting(self) -> None:
        """Accept no new connections; those that are open go on."""
        for server in self._servers:
            server.close()

    def retire(self, idle_s: float) -> None:
        """Let gateways make their next calls on other connections than those that are open, at once."""
        for connection in self._connections:
            connection.retire()

    async def stop(self, grace_s: float) -> None:
        """Stop when the open exchanges have ended, or after `grace_s`; then they are cut off, and with them the log
        streams, which have no end.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + grace_s
        while self._calls and loop.time() < give_up_at:  # noqa: ASYNC110  they end in many places
            await asyncio.sleep(POLL_S)
        self.stop_accepting()
        for connection in list(self._connections):
            connection.drain()
            connection.close()
        await asyncio.sleep(POLL_S)  # for what was sent last
        for connection in list(self._connections):
            connection.abort()
        await self._tasks.close()

    async def _check(self) -> None:
        """End what is silent, and give up answers that are not followed."""
        while True:
            await asyncio.sleep(CHECK_S)
            now = asyncio.get_running_loop().time()
            for call in list(self._calls):
                call.check(now)
            self._log.expire()
