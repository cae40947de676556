"""A simulated Mooncake master: reports over HTTP, as the real master does, which keys exist in which tier.

It serves the part of the real admin API (`protocol.md` 9.2) that a router may query. No query influences eviction,
because the simulated master never evicts. Faults do not affect the paths that it adds for tests, and for emulated
engines that share the master as their pool:

    POST /emulate/put      {"keys": [...], "tier": "memory" | "disk"}   each key then has a replica in the tier
    POST /emulate/remove   {"keys": [...]}; {} removes everything, as a restart does
    POST /emulate/faults   {"silent": bool, "slow_ms": number, "standby": bool, "error": bool}

`python -m router.lab.emulator.mooncake_master '{"port": 0, ...}'` (`MasterOptions`) runs one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, Literal
from urllib.parse import parse_qs

import msgspec

from router.lab.child_process import run_from_argument, run_service
from router.lab.emulator.http_server import ClientLeft, EmulatorListener, HttpExchange, Message, Receive, Send

Tier = Literal["memory", "disk"]
Handler = Callable[[HttpExchange], Awaitable[None]]

INACTIVE = {"success": False, "error": "service plane is not active"}
NO_KEYS = {"success": False, "error": "No keys provided. Use ?keys=key1,key2,..."}
REPLICAS = ("values", "disk_values", "local_disk_values", "nof_values")
ABSENT = {"ok": False, "error": "OBJECT_NOT_FOUND"} | dict.fromkeys(REPLICAS)
IN_MEMORY = {"size_": 1, "buffer_address_": 1, "protocol_": "tcp", "transport_endpoint_": "127.0.0.1:12345"}
ON_DISK = {"client_id": "1-1", "object_size": 1, "transport_endpoint": "127.0.0.1:12345"}


class MasterOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    host: str = "127.0.0.1"
    port: int = 0
    parent_pid: int | None = None  # the parent process to die with


class MasterFaults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    silent: bool = False  # accept requests and answer none
    slow_ms: float = 0.0  # every answer is this much later
    standby: bool = False  # another master leads
    error: bool = False  # 500


class _Keys(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[str] | None = None
    tier: Tier = "memory"


class MooncakeMaster(EmulatorListener):
    """Simulated master that listens while entered. Code in its process may change `keys` and `faults` directly."""

    def __init__(self, options: MasterOptions) -> None:
        super().__init__(self._handle, options.host, options.port)
        self.keys: dict[str, set[Tier]] = {}
        self.faults = MasterFaults()
        self.queries: list[list[str]] = []  # the keys of every query, oldest first
        self._routes: dict[tuple[str, str], Handler] = {
            ("GET", "/health"): self._health,
            ("GET", "/role"): self._role,
            ("GET", "/leader"): self._leader,
            ("GET", "/batch_query_keys"): self._batch_query_keys,
            ("GET", "/get_all_keys"): self._get_all_keys,
            ("GET", "/metrics"): self._metrics,
            ("POST", "/emulate/put"): self._put,
            ("POST", "/emulate/remove"): self._remove,
            ("POST", "/emulate/faults"): self._change_faults,
        }

    @property
    def announcement(self) -> dict[str, Any]:
        """Description of the master for the parent process, as JSON values."""
        return {"url": self.url, "pid": os.getpid()}

    async def _handle(self, scope: Message, receive: Receive, send: Send) -> None:
        exchange = HttpExchange(scope, receive, send)
        try:
            await exchange.read()
            if not exchange.path.startswith("/emulate/"):
                if self.faults.silent:
                    await exchange.wait_closed()
                    return
                if self.faults.slow_ms:
                    await asyncio.sleep(self.faults.slow_ms / 1e3)
                if self.faults.error:
                    await exchange.send_body(b"", "text/plain", 500)
                    return
            await self._routes.get((exchange.method, exchange.path), _not_found)(exchange)
        except msgspec.DecodeError as error:
            await exchange.send_json({"error": str(error)}, 400)
        except ClientLeft:
            return

    # -- endpoints of the real master

    async def _health(self, exchange: HttpExchange) -> None:
        standby = self.faults.standby
        state = {"role": "standby", "ha_state": "standby"} if standby else {"role": "leader", "ha_state": "serving"}
        view = {"leader_address": None, "view_version": None}
        await exchange.send_json({"status": "ok", **state, "service_ready": not standby, **view})

    async def _role(self, exchange: HttpExchange) -> None:
        await exchange.send_body(b"standby" if self.faults.standby else b"leader", "text/plain; charset=utf-8")

    async def _leader(self, exchange: HttpExchange) -> None:
        await exchange.send_json({"present": False, "leader_address": None, "view_version": None})

    async def _batch_query_keys(self, exchange: HttpExchange) -> None:
        if self.faults.standby:
            await exchange.send_json(INACTIVE, 503)
            return
        keys = [key for key in ",".join(parse_qs(exchange.query).get("keys", [])).split(",") if key]
        if not keys:
            await exchange.send_json(NO_KEYS, 400)
            return
        self.queries.append(keys)
        await exchange.send_json({"success": True, "data": {key: self._describe_key(key) for key in keys}})

    def _describe_key(self, key: str) -> dict[str, Any]:
        tiers = self.keys.get(key)
        if tiers is None:
            return ABSENT
        memory = [IN_MEMORY] if "memory" in tiers else []
        disk = [ON_DISK] if "disk" in tiers else None
        none = {"disk_values": None, "nof_values": None}
        return {"ok": True, "error": None, "values": memory, "local_disk_values": disk, **none}

    async def _get_all_keys(self, exchange: HttpExchange) -> None:
        if self.faults.standby:
            await exchange.send_json(INACTIVE, 503)
            return
        await exchange.send_body("".join(f"{key}\n" for key in self.keys).encode(), "text/plain; version=0.0.4")

    async def _metrics(self, exchange: HttpExchange) -> None:
        page = (
            "# HELP master_key_count Total number of keys managed by the master\n"
            f"# TYPE master_key_count gauge\nmaster_key_count {len(self.keys)}\n"
            "# HELP master_allocated_bytes Total memory bytes currently allocated across all segments\n"
            f"# TYPE master_allocated_bytes gauge\nmaster_allocated_bytes {len(self.keys)}\n"
        )
        await exchange.send_body(page.encode(), "text/plain; version=0.0.4")

    # -- endpoints of the emulator

    async def _put(self, exchange: HttpExchange) -> None:
        request = msgspec.json.decode(exchange.body, type=_Keys)
        for key in request.keys or []:
            self.keys.setdefault(key, set()).add(request.tier)
        await exchange.send_json({})

    async def _remove(self, exchange: HttpExchange) -> None:
        request = msgspec.json.decode(exchange.body, type=_Keys)
        for key in list(self.keys) if request.keys is None else request.keys:
            self.keys.pop(key, None)
        await exchange.send_json({})

    async def _change_faults(self, exchange: HttpExchange) -> None:
        changes = msgspec.json.decode(exchange.body, type=dict[str, Any])
        self.faults = msgspec.convert(msgspec.to_builtins(self.faults) | changes, MasterFaults)
        await exchange.send_json(self.faults)


async def _not_found(exchange: HttpExchange) -> None:
    await exchange.send_body(b"404 Not Found", "text/plain", 404)


def run_master(options: MasterOptions) -> None:
    """Serve until SIGTERM or SIGINT; print one JSON line once it accepts requests. Raises OSError for a port in
    use.
    """
    run_service(lambda: MooncakeMaster(options), options.parent_pid)


if __name__ == "__main__":
    run_from_argument("warmroute master", MasterOptions, run_master)
