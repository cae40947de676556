"""The picker's gRPC listeners: one for gateways (ext_proc, access logs, health) and one for probes (health).

They run on the router's event loop. Gateways keep few connections and open a call for each HTTP request. The number
of requests in progress is bounded where each request begins (`limits.concurrent`): a request beyond the bound is
answered with a refusal. A call that stays silent when a message is due is ended.
"""

from __future__ import annotations

import asyncio
from functools import partial

from router.clock import Clock
from router.config.schema import Config
from router.picker.answer_log import AnswerLog
from router.picker.calls import AccessLogCall, ExchangeContext, ExtProcCall, PickerBounds, PickerHandler
from router.picker.credentials import server_context
from router.picker.grpc_listener import GrpcListener, Services
from router.picker.health import PickerHealth
from router.picker.names import ACCESS_LOG, EXT_PROC
from router.picker.peers import GATEWAYS, PeerBounds
from router.proxy.client_address import TrustedProxies
from router.proxy.listening_sockets import SocketShare
from router.tasks import Tasks

MESSAGE_OVERHEAD_BYTES = 1024 * 1024  # of one message beside a body
CONNECTIONS = 1024  # of gateways, each of which keeps one per thread
STREAMS = 2_000  # of a connection; Envoy opens another connection beyond that
CHECK_S = 1.0
POLL_S = 0.02


def read_bounds(config: Config) -> PickerBounds:
    """Return the proxy's bounds, as bounds for a picker's exchanges."""
    limits, listen = config.limits, config.listen
    return PickerBounds(
        limits.body_bytes,
        limits.body_budget_bytes,
        listen.body_idle_timeout_s,
        limits.first_byte_timeout_s,
        limits.idle_timeout_s,
    )


class PickerServer:
    """Serves gateways as configured in `picker`, from `start` to `stop`; `handler` answers exchanges. Raises
    `ConfigError` for certificate files that cannot be used.
    """

    def __init__(
        self,
        config: Config,
        handler: PickerHandler,
        answer_log: AnswerLog,
        health: PickerHealth,
        clock: Clock,
        share: SocketShare,
    ) -> None:
        picker = config.picker
        assert picker is not None
        bounds, proxies = read_bounds(config), TrustedProxies(config.listen.trusted_proxies)
        self._log = answer_log
        self._tasks = Tasks("picker")
        self._calls: set[ExtProcCall] = set()
        context = ExchangeContext(handler, proxies, self._tasks, self._calls, bounds)
        for_probes = health.services()
        for_gateways: Services = {
            f"/{EXT_PROC}/Process".encode(): lambda stream: ExtProcCall(context, stream),
            f"/{ACCESS_LOG}/StreamAccessLogs".encode(): lambda stream: AccessLogCall(answer_log, stream),
            **for_probes,
        }
        tls = server_context(picker.tls, clock.wall())
        of_peers = PeerBounds(
            bounds.body_bytes + MESSAGE_OVERHEAD_BYTES, bounds.budget_bytes, CONNECTIONS, STREAMS, GATEWAYS
        )
        listener = partial(GrpcListener, host=picker.host, share=share, clock=clock)
        self._gateways = listener("picker.port", port=picker.port, services=for_gateways, bounds=of_peers, tls=tls)
        self._probes = listener("picker.health_port", port=picker.health_port, services=for_probes)
        self._listeners = self._gateways, self._probes

    @property
    def port(self) -> int:
        """The port for gateways; after `bind`, the bound one."""
        return self._gateways.port

    @property
    def health_port(self) -> int:
        """The port for probes; after `bind`, the bound one."""
        return self._probes.port

    async def bind(self) -> None:
        """Bind the addresses. Raises `ConfigError` when an address cannot be bound."""
        for listener in self._listeners:
            await listener.bind()

    async def start(self) -> None:
        """Accept connections. Raises `ConfigError` when an address cannot be bound, unless `bind` was called
        before.
        """
        for listener in self._listeners:
            await listener.start()
        self._tasks.supervise("check", self._check)

    def serve_for(self, process: int, on: bool) -> None:
        """Accept from the sockets of another process, which does not accept; with `on` False, no longer."""
        for listener in self._listeners:
            listener.serve_for(process, on)

    def stop_accepting(self) -> None:
        """Accept no new connections; open ones continue."""
        for listener in self._listeners:
            listener.stop_accepting()

    def retire(self, idle_s: float) -> None:
        """Make gateways open new connections for their next calls, at once."""
        for listener in self._listeners:
            listener.retire(idle_s)

    async def stop(self, grace_s: float) -> None:
        """Stop when the open exchanges have ended and the log streams carry nothing for other pickers, or after
        `grace_s`. Then log streams, which have no end, are cut off, like everything still open.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + grace_s
        while (self._calls or self._log.is_needed) and loop.time() < give_up_at:  # noqa: ASYNC110  they end in many places
            await asyncio.sleep(POLL_S)
        await asyncio.gather(*(listener.stop(0.0) for listener in self._listeners))
        await self._tasks.close()

    async def _check(self) -> None:
        """End silent calls, and give up answers whose log entries no longer arrive."""
        while True:
            await asyncio.sleep(CHECK_S)
            now = asyncio.get_running_loop().time()
            for call in list(self._calls):
                call.check(now)
            self._log.expire()
