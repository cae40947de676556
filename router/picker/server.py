"""The picker's gRPC listeners: one for gateways (ext_proc, access logs, health) and one for probes (health).

Runs on the router's event loop. Gateways keep few connections and open one stream for each HTTP request, so the limits
are those of the requests: the number of streams is bounded by `limits.concurrent` where a request begins, and a stream
beyond it is answered with a refusal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import grpc
from grpc_health.v1 import health_pb2_grpc

from router.config.sections.base import url_host
from router.config.sections.listeners import PickerConfig
from router.errors import ConfigError
from router.picker.credentials import server_credentials
from router.picker.health import PickerHealth

log = logging.getLogger("warmroute.picker")

MESSAGE_BYTES = 1024 * 1024  # of one message; Envoy sends bodies in the pieces in which it reads them, 64 KiB at most
STREAMS = 100_000  # of one connection


class PickerServer:
    """Serves gateways from `start` to `stop`. Raises `ConfigError` for certificate files that cannot be used."""

    def __init__(self, config: PickerConfig, unready_reason: Callable[[], str | None], wall_s: float) -> None:
        self._config = config
        self._health = PickerHealth(unready_reason)
        self._credentials = server_credentials(config, wall_s)
        self._server: grpc.aio.Server | None = None
        self._probed: grpc.aio.Server | None = None
        self.port = config.port
        self.health_port = config.health_port

    async def start(self) -> None:
        """Listen; `port` and `health_port` are the bound ones from here on. Raises `ConfigError` when an address cannot
        be bound.
        """
        config = self._config
        options = [
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", MESSAGE_BYTES),
            ("grpc.max_concurrent_streams", STREAMS),
        ]
        self._server, self._probed = grpc.aio.server(options=options), grpc.aio.server(options=options[:1])
        for server in (self._server, self._probed):
            health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        self.port = _bind(self._server, config.host, config.port, self._credentials, "picker.port")
        self.health_port = _bind(self._probed, config.host, config.health_port, None, "picker.health_port")
        await self._server.start()
        await self._probed.start()
        log.info("picker on %s:%d, its health on port %d", config.host, self.port, self.health_port)

    async def stop(self, grace_s: float) -> None:
        """Take no new streams; those that are open have `grace_s` to end, then they are cut off."""
        for server, time_s in ((self._server, grace_s), (self._probed, 0.0)):
            if server is not None:
                await server.stop(time_s)


def _bind(
    server: grpc.aio.Server, host: str, port: int, credentials: grpc.ServerCredentials | None, setting: str
) -> int:
    address = f"{url_host(host)}:{port}"
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise ConfigError(f"{setting}: cannot listen on {address}: it is in use, or not to be had") from error
