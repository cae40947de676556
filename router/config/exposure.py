"""Finds what a configuration leaves open to other machines, for the warnings at start.

The defaults suit a router behind a load balancer that has TLS and checks who calls. Where nothing is in front,
these are the settings that are missing. An address of the loopback interface leaves nothing open.
"""

from __future__ import annotations

from router.config.schema import Config
from router.config.sections.listeners import is_loopback


def list_exposures(config: Config) -> list[str]:
    """Return a line for each setting that leaves something open, with what to set instead."""
    listen, admin, metrics = config.listen, config.admin, config.metrics
    found = []
    if not is_loopback(listen.host):
        if not config.clients.identifies:
            found.append(
                f"clients.keys_file: not set, and listen.host is {listen.host}: whoever reaches the port may send "
                "requests; set it, or listen.host to 127.0.0.1"
            )
        if listen.tls is None:
            found.append(
                f"listen.tls: not set, and listen.host is {listen.host}: prompts and API keys travel in clear text; "
                "set it, or put a proxy with TLS in front and listen.host to an address that only the proxy reaches"
            )
    host, where = (listen.host, "listen.host") if metrics.port is None else (metrics.host, "metrics.host")
    if metrics.token_hash is None and not is_loopback(host):
        found.append(
            f"metrics.token_hash: not set, and {where} is {host}: whoever reaches the port reads the names of "
            "models and engines in GET /metrics; set it, or metrics.port for a listener of 127.0.0.1"
        )
    if not is_loopback(admin.host):
        found.append(
            f"admin.host: {admin.host}: other machines reach the admin listener, which has no TLS: admin tokens "
            "travel in clear text; set it to 127.0.0.1, or to an address of a network that you trust"
        )
    if config.picker is not None and config.picker.testing:
        found.append(
            "picker.testing: on: clients of the gateway choose their engine, and reach every path of it, its "
            "administration too; set it to false outside of tests"
        )
    return found
