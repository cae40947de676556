"""Checks before a local stack starts, and the choice of its ports.

Where the configuration has port 0, a free port is chosen. A port in use or insufficient memory ends the start with
one line that names the setting to change.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain, repeat
from pathlib import Path

from router.config.sections.local_stack import LocalStackConfig
from router.errors import WarmrouteError

GIB = 1024**3
ENGINE_BYTES = int(1.6 * GIB)  # Python, torch and vLLM in three processes, without weights, cache and buffers
LOWEST_PORT = 20_000  # lower bound of chosen ports, above the well-known ones
EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
OTHER_BYTES = GIB // 2  # master, client and router, before they hold anything


class PortTaken(WarmrouteError):
    """Another process listens on a port of the stack."""


class TooLittleMemory(WarmrouteError):
    """The stack would not fit into the available memory."""


def free_ports(count: int) -> list[int]:
    """Return `count` different ports that are free now and stay so until their servers start. An engine binds its port
    only half a minute later, so each port lies below the range that Linux uses for connections and for binding to
    port 0, and a connection left in TIME_WAIT reserves it for a minute: a server, which sets SO_REUSEADDR, may bind
    the port and this function does not return it again, in any process. If the range is unknown or no port below it
    is free, Linux chooses.
    """
    try:
        first_ephemeral = int(EPHEMERAL_PORTS.read_text().split()[0])
    except OSError:
        first_ephemeral = 0
    candidates = range(LOWEST_PORT, max(first_ephemeral, LOWEST_PORT))
    shuffled = secrets.SystemRandom().sample(candidates, len(candidates))
    ports: list[int] = []
    for port in chain(shuffled, repeat(0)):
        if len(ports) == count:
            break
        with suppress(OSError):  # in use
            ports.append(_reserve(port))
    return ports


def _reserve(port: int) -> int:
    """Return the port that was bound, which a connection in TIME_WAIT now reserves. Raises OSError if it is in use."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", port))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # inherited by what is left in TIME_WAIT
        listening.listen()
        with socket.create_connection(listening.getsockname()):
            listening.accept()[0].close()  # whose side closes first waits
        return int(listening.getsockname()[1])


def choose_ports(config: LocalStackConfig) -> tuple[LocalStackConfig, list[int]]:
    """Return the section with every 0 replaced, and the ports of the engines: `first_port` and up, or free ones."""
    names = ("master_port", "master_http_port", "client_port")
    missing = [name for name in names if getattr(config, name) == 0]
    free = free_ports(len(missing) + config.engines)
    chosen = config.model_copy(update=dict(zip(missing, free, strict=False)))
    if config.first_port == 0:
        return chosen, free[len(missing) :]
    return chosen, [config.first_port + i for i in range(config.engines)]


def check_ports(ports: Mapping[str, int]) -> None:
    """Raise PortTaken for the first port that cannot be bound. Keys are the settings; port 0 always passes."""
    for setting, port in ports.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                raise PortTaken(f"port {port} is in use: stop what listens there, or change {setting}") from error


def estimate_bytes(config: LocalStackConfig, model: Path) -> int:
    """Estimate the memory of the whole stack, in bytes, when caches and pool are full."""
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    engine = ENGINE_BYTES + weights + config.kv_cache_bytes + (config.buffer_bytes if config.store else 0)
    return config.engines * engine + OTHER_BYTES + (config.pool_bytes if config.store else 0)


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the bytes of memory available without swapping, from Linux' /proc."""
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def check_memory(config: LocalStackConfig, model: Path) -> None:
    """Check that the stack fits into memory. Raises TooLittleMemory if not."""
    needed, available = estimate_bytes(config, model), available_bytes()
    if needed > available:
        raise TooLittleMemory(
            f"too little memory: {config.engines} engines need about {needed / GIB:.1f} GiB and "
            f"{available / GIB:.1f} GiB are available: reduce stack.engines, stack.kv_cache_bytes or stack.pool_bytes"
        )
