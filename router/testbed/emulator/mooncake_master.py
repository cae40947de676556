"""A simulated Mooncake master: which keys exist and in which tier, told over HTTP as the real one tells it.

Of the real one's admin API (`protocol.md` 9.2) it has what a router may ask; no answer changes what is evicted, for
nothing is ever evicted by itself. Beside that it has its own paths, which no fault touches, for tests and for emulated
engines that share it as their pool:

    POST /emulate/put      {"keys": [...], "tier": "memory" | "disk"}   each key has a replica there from now on
    POST /emulate/remove   {"keys": [...]}; {} removes everything, as a restart does
    POST /emulate/faults   {"silent": bool, "slow_ms": number, "standby": bool, "error": bool}

`python -m router.testbed.emulator.mooncake_master '{"port": 0, ...}'` (`MasterOptions`) prints one line of JSON when
it takes requests.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import parse_qs

import msgspec
import uvloop

from router.testbed.emulator.http_exchange import ClientLeft, HttpExchange, Message, Receive, Send
from router.testbed.emulator.listener import EmulatorListener
from router.testbed.emulator.parent_watch import die_with_parent

Tier = Literal["memory", "disk"]
Handler = Callable[[HttpExchange], Awaitable[None]]

INACTIVE = {"success": False, "error": "service plane is not active"}
NO_KEYS = {"success": False, "error": "No keys provided. Use ?keys=key1,key2,..."}
ABSENT = {
    "ok": False,
    "error": "OBJECT_NOT_FOUND",
    "values": None,
    "disk_values": None,
    "local_disk_values": None,
    "nof_values": None,
}
IN_MEMORY = {"size_": 1, "buffer_address_": 1, "protocol_": "tcp", "transport_endpoint_": "127.0.0.1:12345"}
ON_DISK = {"client_id": "1-1", "object_size": 1, "transport_endpoint": "127.0.0.1:12345"}


class MasterOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    host: str = "127.0.0.1"
    port: int = 0
    parent_pid: int | None = None  # end when this process, our parent, does


class MasterFaults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    silent: bool = False  # takes requests and answers none
    slow_ms: float = 0.0  # every answer comes this much later
    standby: bool = False  # another one leads
    error: bool = False  # 500


class _Keys(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[str] | None = None
    tier: Tier = "memory"


class MooncakeMaster:
    """Listens between enter and exit. `keys` and `faults` may be changed directly by who shares the process."""

    def __init__(self, options: MasterOptions) -> None:
        self.keys: dict[str, set[Tier]] = {}
        self.faults = MasterFaults()
        self.queries: list[list[str]] = []  # the keys of every question, oldest first
        self._options = options
        self._listener = EmulatorListener(self._serve, options.host, options.port)
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
    def url(self) -> str:
        return self._listener.url

    @property
    def port(self) -> int:
        return self._listener.port

    async def __aenter__(self) -> Self:
        await self._listener.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._listener.__aexit__(kind, error, trace)

    async def _serve(self, scope: Message, receive: Receive, send: Send) -> None:
        call = HttpExchange(scope, receive, send)
        try:
            await call.read()
            if not call.path.startswith("/emulate/"):
                if self.faults.silent:
                    await call.gone()
                    return
                if self.faults.slow_ms:
                    await asyncio.sleep(self.faults.slow_ms / 1e3)
                if self.faults.error:
                    await call.send(b"", "text/plain", 500)
                    return
            await self._routes.get((call.method, call.path), _not_found)(call)
        except msgspec.DecodeError as wrong:
            await call.answer({"error": str(wrong)}, 400)
        except ClientLeft:
            return

    # -- the real one's

    async def _health(self, call: HttpExchange) -> None:
        standby = self.faults.standby
        state = {"role": "standby", "ha_state": "standby"} if standby else {"role": "leader", "ha_state": "serving"}
        place = {"leader_address": None, "view_version": None}
        await call.answer({"status": "ok", **state, "service_ready": not standby, **place})

    async def _role(self, call: HttpExchange) -> None:
        await call.send(b"standby" if self.faults.standby else b"leader", "text/plain; charset=utf-8")

    async def _leader(self, call: HttpExchange) -> None:
        await call.answer({"present": False, "leader_address": None, "view_version": None})

    async def _batch_query_keys(self, call: HttpExchange) -> None:
        if self.faults.standby:
            await call.answer(INACTIVE, 503)
            return
        keys = [key for key in ",".join(parse_qs(call.query).get("keys", [])).split(",") if key]
        if not keys:
            await call.answer(NO_KEYS, 400)
            return
        self.queries.append(keys)
        await call.answer({"success": True, "data": {key: self._told(key) for key in keys}})

    def _told(self, key: str) -> dict[str, Any]:
        tiers = self.keys.get(key)
        if tiers is None:
            return ABSENT
        memory = [IN_MEMORY] if "memory" in tiers else []
        disk = [ON_DISK] if "disk" in tiers else None
        none = {"disk_values": None, "nof_values": None}
        return {"ok": True, "error": None, "values": memory, "local_disk_values": disk, **none}

    async def _get_all_keys(self, call: HttpExchange) -> None:
        if self.faults.standby:
            await call.answer(INACTIVE, 503)
            return
        await call.send("".join(f"{key}\n" for key in self.keys).encode(), "text/plain; version=0.0.4")

    async def _metrics(self, call: HttpExchange) -> None:
        page = (
            "# HELP master_key_count Total number of keys managed by the master\n"
            f"# TYPE master_key_count gauge\nmaster_key_count {len(self.keys)}\n"
            "# HELP master_allocated_bytes Total memory bytes currently allocated across all segments\n"
            f"# TYPE master_allocated_bytes gauge\nmaster_allocated_bytes {len(self.keys)}\n"
        )
        await call.send(page.encode(), "text/plain; version=0.0.4")

    # -- our own

    async def _put(self, call: HttpExchange) -> None:
        asked = msgspec.json.decode(call.body, type=_Keys)
        for key in asked.keys or []:
            self.keys.setdefault(key, set()).add(asked.tier)
        await call.answer({})

    async def _remove(self, call: HttpExchange) -> None:
        asked = msgspec.json.decode(call.body, type=_Keys)
        for key in list(self.keys) if asked.keys is None else asked.keys:
            self.keys.pop(key, None)
        await call.answer({})

    async def _change_faults(self, call: HttpExchange) -> None:
        change = msgspec.json.decode(call.body, type=dict[str, Any])
        self.faults = msgspec.convert(msgspec.to_builtins(self.faults) | change, MasterFaults)
        await call.answer(self.faults)


async def _not_found(call: HttpExchange) -> None:
    await call.send(b"404 Not Found", "text/plain", 404)


async def serve_master(options: MasterOptions, announce: Callable[[dict[str, Any]], None]) -> None:
    """Serve until SIGTERM or SIGINT. `announce` is called once, when it takes requests."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with MooncakeMaster(options) as master:
        announce({"url": master.url, "pid": os.getpid()})
        await stopped.wait()


def _announce(facts: dict[str, Any]) -> None:
    """The one line on standard output."""
    sys.stdout.write(msgspec.json.encode(facts).decode() + "\n")
    sys.stdout.flush()


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        options = msgspec.json.decode(sys.argv[1] if len(sys.argv) > 1 else "{}", type=MasterOptions)
        if options.parent_pid is not None:
            die_with_parent(options.parent_pid)
        uvloop.run(serve_master(options, _announce))
    except (msgspec.DecodeError, OSError) as wrong:
        sys.exit(f"warmroute master: {wrong}")


if __name__ == "__main__":
    main()
