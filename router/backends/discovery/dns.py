"""Instances by DNS: the addresses of a host name, or its SRV records.

The name is looked up at an interval, because the system's resolver does not report how long an answer is valid. A
lookup that fails, or finds no address, leaves the last list in force: an empty headless Service and a broken
resolver cannot be distinguished here, and engines that are gone fail their health probes. If another engine takes
over an address between two lookups, DNS does not show it; the probes and the engine's events do.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator, Iterable
from typing import NamedTuple

import dns.asyncresolver
import dns.exception
import dns.message
import dns.rdatatype
import dns.rdtypes.IN.SRV

from router.backends.discovery.discovery import DiscoveredInstance, configure_engine
from router.clock import Clock
from router.config.sections.discovery import DnsConfig
from router.errors import WarmrouteError

log = logging.getLogger("warmroute.discovery")

TIMEOUT_S = 5.0


class LookupFailed(WarmrouteError):
    """The name has no address now; the text states why."""


class ServiceAddress(NamedTuple):
    """Address at which one engine listens."""

    host: str  # an IP address
    port: int


class NameLookup:
    """Looks names up. Addresses are queried from the system's resolver, so /etc/hosts counts; SRV records, which
    the system's resolver does not support, are queried from `srv`.
    """

    def __init__(self, srv: dns.asyncresolver.Resolver | None = None) -> None:
        self._srv = srv

    async def find_addresses(self, host: str) -> list[str]:
        """Return the IPv4 addresses of `host`, else its IPv6 addresses, sorted. Raises LookupFailed."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except TimeoutError:
            raise LookupFailed(f"{host}: no answer within {TIMEOUT_S:g} s") from None
        except (OSError, UnicodeError) as error:
            raise LookupFailed(f"{host}: {error}") from error
        return _prefer_ipv4(str(entry[4][0]) for entry in found)

    async def find_services(self, name: str) -> list[ServiceAddress]:
        """Return the targets of the SRV records with the lowest priority number, sorted; weights are ignored,
        because the policy chooses. Raises LookupFailed, and CancelledError when it was cancelled.
        """
        try:
            resolver = self._srv or dns.asyncresolver.Resolver()
            answer = await resolver.resolve(name, "SRV", lifetime=TIMEOUT_S, search=True)
        except (dns.exception.DNSException, OSError) as error:
            raise LookupFailed(f"{name}: {error}") from error
        # The resolver uses asyncio.wait_for, which in Python 3.11 loses a cancellation that comes with the answer.
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise asyncio.CancelledError
        records = [record for record in answer if isinstance(record, dns.rdtypes.IN.SRV.SRV)]
        first = min((record.priority for record in records), default=0)
        glue = _read_additional(answer.response)
        found = set[ServiceAddress]()
        for record in records:
            if record.priority == first and record.port:
                host = record.target.to_text(omit_final_dot=True)
                addresses = glue.get(host.lower()) or await self.find_addresses(host)
                found.update(ServiceAddress(address, record.port) for address in addresses)
        if not found:
            raise LookupFailed(f"{name}: no SRV record with a target")
        return sorted(found)


def _read_additional(response: dns.message.Message) -> dict[str, list[str]]:
    """Return the addresses that a name server included in its answer, by lower-case host; they save lookups."""
    sent: dict[str, list[str]] = {}
    for records in response.additional:
        if records.rdtype in (dns.rdatatype.A, dns.rdatatype.AAAA):
            host = records.name.to_text(omit_final_dot=True).lower()
            sent.setdefault(host, []).extend(record.to_text() for record in records)
    return {host: _prefer_ipv4(addresses) for host, addresses in sent.items()}


def _prefer_ipv4(addresses: Iterable[str]) -> list[str]:
    """Return the addresses of one family, sorted: both families of a dual-stack host would be one engine twice."""
    found = {ipaddress.ip_address(address.partition("%")[0]) for address in addresses}
    ipv4 = [address for address in found if address.version == 4]
    return [str(address) for address in sorted(ipv4 or found, key=int)]


class DnsDiscovery:
    """The engines behind one name."""

    def __init__(self, config: DnsConfig, clock: Clock, lookup: NameLookup | None = None) -> None:
        self._config = config
        self._clock = clock
        self._lookup = lookup or NameLookup()
        self.trouble: str | None = None
        self.confirmed_at: float | None = None

    async def watch(self) -> AsyncIterator[list[DiscoveredInstance]]:
        """Yield the list after every change."""
        last: list[ServiceAddress] | None = None
        while True:
            found = await self._find()
            if found is not None and found != last:
                last = found
                yield [self._describe(address) for address in found]
            await asyncio.sleep(self._config.interval_s)

    async def _find(self) -> list[ServiceAddress] | None:
        """Look the name up; None if that failed."""
        name, port = self._config.name, self._config.port
        try:
            if port is None:
                found = await self._lookup.find_services(name)
            else:
                found = [ServiceAddress(address, port) for address in await self._lookup.find_addresses(name)]
        except LookupFailed as error:
            if self.trouble is None:
                log.warning("discovery.dns: lookup failed, the previous list stays in force: %s", error)
            self.trouble = str(error)
            return None
        if self.trouble is not None:
            log.info("discovery.dns: %s is found again", name)
        self.trouble = None
        self.confirmed_at = self._clock.now()
        return found

    def _describe(self, address: ServiceAddress) -> DiscoveredInstance:
        config = configure_engine(self._config, address.host, address.port)
        return DiscoveredInstance(config, f"DNS name {self._config.name}", lags=True)
