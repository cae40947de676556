"""DNS discovery against a real name server on loopback, and against the system's resolver."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import dns.asyncresolver
import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest
import uvloop

from router.backends.discovery.dns import DnsDiscovery, LookupFailed, NameLookup, ServiceAddress
from router.clock import ManualClock
from router.config.schema import InstanceConfig
from router.config.sections.discovery import DnsConfig
from tests.fakes.engines import eventually
from tests.patience import PATIENCE_S
from tests.suites.discovery import DEADLINE_S, next_of, watching

NAME = "_http._tcp.vllm.test"


class NameServer(asyncio.DatagramProtocol):
    """Answers every question over UDP from its zone: record texts by name and type. An unknown name does not exist."""

    def __init__(self) -> None:
        self.zone: dict[tuple[str, str], list[str]] = {}
        self.additional: dict[str, list[str]] = {}  # addresses by host, sent along with every answer
        self.silent = False
        self.queries = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.port: int = transport.get_extra_info("sockname")[1]

    def datagram_received(self, data: bytes, sender: Any) -> None:
        self.queries += 1
        if self.silent:
            return
        query = dns.message.from_wire(data)
        answer = dns.message.make_response(query, recursion_available=True)
        name, kind = query.question[0].name, query.question[0].rdtype.name
        records = self.zone.get((name.to_text(omit_final_dot=True), kind))
        if records:
            answer.answer.append(dns.rrset.from_text(name, 5, "IN", kind, *records))
            for host, addresses in self.additional.items():
                answer.additional.append(dns.rrset.from_text(f"{host}.", 5, "IN", "A", *addresses))
        else:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        self.transport.sendto(answer.to_wire(), sender)

    def put(self, *hosts: str) -> None:
        """SRV records that point at port 8000 of these addresses."""
        names = {f"pod-{address.replace('.', '-')}.vllm.test": [address] for address in hosts}
        self.zone[(NAME, "SRV")] = [f"0 10 8000 {host}." for host in names]
        self.additional = names

    def lookup(self) -> NameLookup:
        resolver = dns.asyncresolver.Resolver(configure=False)
        resolver.nameservers, resolver.port = ["127.0.0.1"], self.port
        return NameLookup(resolver)


@pytest.fixture
async def server() -> AsyncIterator[NameServer]:
    transport, protocol = await asyncio.get_running_loop().create_datagram_endpoint(NameServer, ("127.0.0.1", 0))
    yield protocol
    transport.close()


class ByName:
    """A discovery by SRV records, and the name server that has them."""

    def __init__(self, server: NameServer) -> None:
        self.server = server
        config = DnsConfig(name=NAME, interval_s=0.01)
        self.discovery = DnsDiscovery(config, ManualClock(7.0), server.lookup())

    def put(self, *addresses: str) -> None:
        self.server.put(*addresses)


@pytest.fixture
def by_name(server: NameServer) -> ByName:
    return ByName(server)


def urls(instances: list[InstanceConfig]) -> list[str]:
    return [instance.url for instance in instances]


async def test_records_come_and_go_with_the_list(by_name: ByName) -> None:
    by_name.put("10.0.0.2", "10.0.0.1")
    async with watching(by_name.discovery) as lists:
        assert urls(await next_of(lists)) == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
        by_name.put("10.0.0.3", "10.0.0.2")
        assert urls(await next_of(lists)) == ["http://10.0.0.2:8000", "http://10.0.0.3:8000"]
    assert by_name.discovery.trouble is None
    assert by_name.discovery.confirmed_at == 7.0


async def test_the_same_answer_in_another_order_is_no_news(by_name: ByName) -> None:
    by_name.put("10.0.0.1", "10.0.0.2")
    async with watching(by_name.discovery) as lists:
        await next_of(lists)
        by_name.put("10.0.0.2", "10.0.0.1")
        asked = by_name.server.queries
        await eventually(lambda: by_name.server.queries > asked + 2)
        assert lists.empty()


async def test_a_name_that_is_gone_leaves_the_list_and_is_logged_once(
    by_name: ByName, caplog: pytest.LogCaptureFixture
) -> None:
    by_name.put("10.0.0.1")
    with caplog.at_level(logging.INFO, logger="warmroute.discovery"):
        async with watching(by_name.discovery) as lists:
            await next_of(lists)
            by_name.server.zone.clear()
            asked = by_name.server.queries
            await eventually(lambda: by_name.server.queries > asked + 3)
            assert NAME in (by_name.discovery.trouble or "")
            assert lists.empty()
            by_name.put("10.0.0.2")
            assert urls(await next_of(lists)) == ["http://10.0.0.2:8000"]
    assert by_name.discovery.trouble is None
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


async def test_only_the_lowest_priority_number_counts(server: NameServer) -> None:
    server.zone[(NAME, "SRV")] = ["10 1 8000 a.test.", "5 1 8001 b.test.", "5 9 8002 b.test."]
    server.additional = {"a.test": ["10.0.0.1"], "b.test": ["10.0.0.2"]}
    assert await server.lookup().find_services(NAME) == [("10.0.0.2", 8001), ("10.0.0.2", 8002)]


async def test_targets_without_an_address_in_the_answer_are_looked_up(server: NameServer) -> None:
    server.zone[(NAME, "SRV")] = ["0 1 8000 localhost."]
    assert await server.lookup().find_services(NAME) == [("127.0.0.1", 8000)]


async def test_a_service_that_is_decidedly_not_available_has_no_instances(server: NameServer) -> None:
    server.zone[(NAME, "SRV")] = ["0 0 0 ."]  # RFC 2782: the service is not available at this domain
    with pytest.raises(LookupFailed, match="no SRV record with a target"):
        await server.lookup().find_services(NAME)


async def test_a_silent_name_server_is_trouble(server: NameServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.backends.discovery.dns.TIMEOUT_S", 0.05)
    server.silent = True
    with pytest.raises(LookupFailed):
        await server.lookup().find_services(NAME)


class SlowResolver(dns.asyncresolver.Resolver):
    """Waits for `answered` as the resolver itself does for a datagram."""

    def __init__(self) -> None:
        super().__init__(configure=False)
        self.waits = asyncio.Event()
        self.answered = asyncio.get_running_loop().create_future()

    async def resolve(self, *question: Any, **options: Any) -> Any:
        self.waits.set()
        await asyncio.wait_for(self.answered, DEADLINE_S)
        return await super().resolve(*question, **options)


async def test_a_lookup_that_is_cancelled_as_the_answer_comes_ends(server: NameServer) -> None:
    server.put("10.0.0.1")
    resolver = SlowResolver()
    resolver.nameservers, resolver.port = ["127.0.0.1"], server.port
    lookup = asyncio.create_task(NameLookup(resolver).find_services(NAME))
    await resolver.waits.wait()
    resolver.answered.set_result(None)
    lookup.cancel()
    with pytest.raises(asyncio.CancelledError):
        await lookup


async def test_addresses_of_a_host() -> None:
    discovery = DnsDiscovery(DnsConfig(name="localhost", port=8000, scheme="https"), ManualClock())
    async with watching(discovery) as lists:
        (found,) = await asyncio.wait_for(lists.get(), DEADLINE_S)
    assert found.config == InstanceConfig(url="https://127.0.0.1:8000")
    assert found.origin == "DNS name localhost"


async def test_an_ipv6_address_gets_brackets() -> None:
    discovery = DnsDiscovery(DnsConfig(name="vllm", port=8000), ManualClock())
    assert discovery._describe(ServiceAddress("fd00::2", 8000)).config.url == "http://[fd00::2]:8000"


async def test_a_host_that_does_not_exist_is_trouble() -> None:
    with pytest.raises(LookupFailed, match=r"nothing\.invalid"):
        await NameLookup().find_addresses("nothing.invalid")


def test_a_loop_closes_whatever_a_cancelled_lookup_has_left() -> None:
    """Cancelled as its socket opens, a lookup leaves that to the loop: uvloop's endpoints are not closed by it."""

    async def cancel_after(steps: int) -> None:
        transport, server = await asyncio.get_running_loop().create_datagram_endpoint(NameServer, ("127.0.0.1", 0))
        task = asyncio.create_task(server.lookup().find_services(NAME))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        transport.close()

    def run() -> None:
        for steps in range(12):
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(cancel_after(steps))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "a loop does not close"
