"""Determines the client that a connection and its requests are counted for: its address, or the address that a
trusted proxy names.

An IPv6 client has a whole /64, so the whole /64 is one client. Behind a load balancer every connection comes from
one address; `listen.trusted_proxies` lists the proxies' addresses. Each proxy appends to X-Forwarded-For the
address from which it was called, so the last address that is not itself a trusted proxy's is the client's. Whatever
a client wrote there itself, further left, is ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from router.proxy.call import Headers

FORWARDED_FOR = b"x-forwarded-for"
MAX_PROXIES = 16  # in a row; examined per request
CLIENT_PREFIX = 64  # of an IPv6 address

Network = IPv4Network | IPv6Network


def client_of(host: str) -> str:
    """Return the client for `host`, an address as the system writes it."""
    if ":" not in host:
        return host
    address = _read(host)
    return host if address is None else _name(address)


class TrustedProxies:
    """The load balancers in front of the router: `networks` are their addresses."""

    def __init__(self, networks: Sequence[Network]) -> None:
        self._networks = networks

    def trusts(self, host: str) -> bool:
        """Return whether `host` is the address of a trusted proxy."""
        address = _read(host) if self._networks else None
        return address is not None and self._includes(address)

    def find_client(self, headers: Headers) -> str | None:
        """Return the client that the trusted proxies name in a request's `headers`; None if they name none."""
        line = b",".join(value for name, value in headers if name == FORWARDED_FOR)
        for hop in reversed(line.decode("latin-1").rsplit(",", MAX_PROXIES)[-MAX_PROXIES:]):
            address = _read(hop.strip())
            if address is None:
                return None
            if not self._includes(address):
                return _name(address)
        return None

    def _includes(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self._networks)


def _read(text: str) -> IPv4Address | IPv6Address | None:
    """Return the address in `text`, which may have a port or a zone; for an IPv4 address inside IPv6, the IPv4
    address. None if it is no address.
    """
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return address if isinstance(address, IPv4Address) else address.ipv4_mapped or address


def _name(address: IPv4Address | IPv6Address) -> str:
    if isinstance(address, IPv4Address):
        return str(address)
    return str(IPv6Network((address, CLIENT_PREFIX), strict=False))
