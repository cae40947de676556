"""Clients that send little, or slowly, or do not read: what they take from everybody else."""

from __future__ import annotations

import asyncio
import hashlib
import resource
from contextlib import suppress
from pathlib import Path

import pytest

from router.config.sections.listeners import LimitsConfig
from router.proxy.listener import connection_capacity
from tests.abuse.raw import BENIGN, CHAT, HEALTH, HOSTILE, MB, chat, cut_off, dial, dialled, post
from tests.fakes.engines import engine, eventually

ANNOUNCED = 32 * MB  # `limits.body_bytes`
ATTACKERS = 16  # of those fill `limits.body_budget_bytes`


def ways_to_announce() -> dict[str, bytes]:
    return {
        "a length": post(ANNOUNCED, b"{"),
        "expect: 100-continue": post(ANNOUNCED, b"", b"expect: 100-continue"),
        "chunks": b"POST /v1/chat/completions HTTP/1.1\r\nhost: r\r\ntransfer-encoding: chunked\r\n\r\n4000000\r\n{",
    }


# bodies


async def test_an_announced_body_takes_only_what_has_arrived(router, measured) -> None:
    async with engine() as fake, router([fake]) as r:
        for way, request in ways_to_announce().items():
            async with dialled(r.url, 2 * ATTACKERS) as clients:
                for client in clients:
                    client.send(request)
                await eventually(lambda: r.app.listener.connections >= 2 * ATTACKERS)
                statuses = [await chat(r.url, source) for _ in range(5) for source in (BENIGN, HOSTILE)]
                refused = 10 - statuses.count(200)
                measured(f"chats refused beside {ANNOUNCED // MB} MiB announced 32 times by {way}", refused, 0, "of 10")
                measured(f"memory booked for what was announced by {way}", r.limiter.held_bytes, 32 * 64, "bytes")


async def test_who_has_not_sent_its_body_takes_no_place(router, measured) -> None:
    """Five times as many as may be served at once."""
    async with (
        engine() as fake,
        router([fake], limits={"concurrent": 10}) as r,
        dialled(r.url, 50) as clients,
    ):
        for client in clients:
            client.send(post(1000, b"{"))
        await eventually(lambda: r.app.listener.connections >= 50)
        statuses = [await chat(r.url) for _ in range(10)]
        measured("chats refused beside 50 begun bodies and 10 places", 10 - statuses.count(200), 0, "of 10")


async def test_one_client_has_a_share_of_the_bytes_and_another_finds_room(router, measured) -> None:
    """An address sends 20 bodies of 60 kB, all but a byte each, for a budget of 1 MB: one in five is refused."""
    async with (
        engine() as fake,
        router([fake], limits={"body_budget_bytes": MB}) as r,
        dialled(r.url, 20) as clients,
    ):
        for client in clients:
            client.send(post(60_000, b"x" * 59_999))
        await eventually(lambda: r.limiter.held_bytes > 0.7 * MB)
        measured("share of the byte budget that one client takes", r.limiter.held_bytes / MB, 0.8, "of 1")
        reading = [asyncio.create_task(client.answer()) for client in clients]
        await eventually(lambda: any(task.done() for task in reading))
        status, body = next(task.result() for task in reading if task.done())
        assert status == 429
        assert b"your share" in body
        assert [await chat(r.url) for _ in range(3)] == [200] * 3
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


async def test_one_client_has_a_share_of_the_places(router, measured) -> None:
    async with engine(prefill_tokens_per_s=1) as slow, router([slow], limits={"concurrent": 20}) as r:
        hostile = [asyncio.create_task(chat(r.url, HOSTILE)) for _ in range(20)]
        await eventually(lambda: sum(task.done() for task in hostile) == 4)
        measured("share of the places that one client takes", r.limiter.in_flight / 20, 0.8, "of 1")
        benign = asyncio.create_task(chat(r.url))
        await eventually(lambda: r.limiter.in_flight == 17)
        for task in (*hostile, benign):
            task.cancel()
        done = await asyncio.gather(*hostile, benign, return_exceptions=True)
        assert done.count(429) == 4
        await eventually(r.idle)


async def test_where_keys_are_needed_the_share_is_each_keys_own(router, tmp_path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{hashlib.sha256(name).hexdigest()} {name.decode()}\n" for name in (b"a", b"b")))
    config = {"limits": {"concurrent": 20}, "clients": {"keys_file": str(keys)}}
    async with (
        engine(prefill_tokens_per_s=1) as slow,
        router([slow], **config) as r,
        dialled(r.url, 21) as clients,
    ):
        held = r.limiter.requests.held
        for client in clients[:20]:
            client.send(post(len(CHAT), CHAT, b"authorization: Bearer a"))
        await eventually(lambda: held("a") == 16)
        clients[20].send(post(len(CHAT), CHAT, b"x-api-key: b"))
        await eventually(lambda: held("b") == 1)
        assert held(HOSTILE) == 0


async def test_behind_a_trusted_proxy_the_share_is_each_clients_own(router) -> None:
    """One address for all: the load balancer's. What a client itself puts into the header does not count."""
    async with engine(prefill_tokens_per_s=1) as slow:
        listen = {"trusted_proxies": ["127.0.0.2/32"]}
        async with router([slow], limits={"concurrent": 20}, listen=listen) as r, dialled(r.url, 21) as clients:
            held = r.limiter.requests.held
            for number, client in enumerate(clients[:20]):
                client.send(post(len(CHAT), CHAT, b"x-forwarded-for: 10.9.9.%d, 10.0.0.1" % number))
            await eventually(lambda: held("10.0.0.1") == 16)
            clients[20].send(post(len(CHAT), CHAT, b"x-forwarded-for: 10.0.0.1, 10.0.0.2"))
            await eventually(lambda: held("10.0.0.2") == 1)
            assert (r.limiter.in_flight, held("127.0.0.2")) == (17, 0)


@pytest.mark.abuse
async def test_a_trickling_body_is_cut(router_process, fleet_config, measured) -> None:
    """At default limits: a byte every 5 s, at once or after 200 kB sent quickly, whole or in chunks."""
    chunked = b"POST /v1/chat/completions HTTP/1.1\r\nhost: r\r\ntransfer-encoding: chunked\r\n\r\n"
    begins = [post(ANNOUNCED, b"{"), post(ANNOUNCED, b"x" * 200_000), chunked]
    loop = asyncio.get_running_loop()

    async def trickle(begin: bytes) -> tuple[float, bytes]:
        client = await dial(r.url)
        client.send(begin)
        started = loop.time()
        reading = asyncio.create_task(client.rest(100))
        while not reading.done() and loop.time() - started < 60:
            await asyncio.wait([reading], timeout=5)
            client.send(b"1\r\nx\r\n" if begin is chunked else b"x")
        client.writer.close()
        reading.cancel()
        return loop.time() - started, reading.result() if reading.done() and not reading.cancelled() else b""

    async with engine() as fake, router_process(fleet_config([fake])) as r:
        for lasted, said in await asyncio.gather(*map(trickle, begins)):
            measured("a body of a byte per 5 s is cut after", lasted, 36, "s")
            assert said.startswith(b"HTTP/1.1 408"), said


# clients that do not read


PADDED = b"x-padding: " + b"x" * 10_000  # no read has many requests then
METRICS = b"GET /metrics HTTP/1.1\r\nhost: r\r\n\r\n"
UNREAD = {
    "pages": METRICS,
    "pages, long requests": METRICS.replace(b"host: r", b"host: r\r\n" + PADDED),
    "errors": post(2, b"{}", PADDED),
    "chats": post(len(CHAT), CHAT),
}


async def test_nobody_is_served_who_does_not_read(router_process, fleet_config, measured) -> None:
    """Four clients send requests without reading an answer, for as long as the router takes them."""
    few = {"keep": 20}  # records: those of thousands of chats are no memory for a client
    config = {"limits": {"idle_timeout_s": 0.5}, "records": few}
    async with engine() as fake, router_process(fleet_config([fake], **config)) as r:
        for what, request in UNREAD.items():
            async with dialled(r.url, 1) as (warm,):
                for _ in range(20):
                    warm.send(request)
                    assert (await warm.answer())[0] in (200, 400)
            before = most = r.rss_bytes
            async with dialled(r.url, 4, buffered=False) as clients:
                for client in clients:
                    client.stop_reading()
                with suppress(TimeoutError):
                    async with asyncio.timeout(30):
                        while open_ := [client for client in clients if not client.closed]:
                            for client in open_:
                                if client.writer.transport.get_write_buffer_size() < 100_000:
                                    client.send(request * 20)
                            most = max(most, r.rss_bytes)
                            await asyncio.sleep(0.001)
                measured(f"memory for a client that does not read its {what}", (most - before) / 4 / MB, 1.0, "MiB")
                measured(
                    f"clients that do not read their {what}, and still are served after 30 s", len(open_), 0, "of 4"
                )
        assert await chat(r.url) == 200


# connections


def cpu_s(pid: int) -> float:
    """The CPU time that the process has used, of its main thread."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


async def test_connections_of_one_address_leave_room_for_others(router, measured) -> None:
    async with engine() as fake, router([fake], limits={"concurrent": 25}) as r:  # 200 connections
        async with dialled(r.url, 300) as clients:
            await eventually(lambda: r.app.listener.refused["share"] > 100)
            reading = [asyncio.create_task(client.reader.read()) for client in clients]
            await eventually(lambda: sum(task.done() for task in reading) > 100)
            measured("connections of one address, of 200", r.app.listener.connections, 165, "connections")
            assert [await chat(r.url) for _ in range(10)] == [200] * 10
            assert await chat(r.url, "127.0.0.4") == 200
            page = (await r.http.get("/metrics")).text
            assert 'warmroute_client_connections_refused_total{reason="share"}' in page
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
        await eventually(lambda: r.app.listener.connections < 5)


async def test_connections_wait_while_there_is_no_descriptor(router_process, fleet_config, measured) -> None:
    """The process has none left: nothing spins, the listener stays, and who waited is served when there are some."""
    async with engine() as fake, router_process(fleet_config([fake])) as r, dialled(r.url, 1, BENIGN) as (warm,):
        warm.send(HEALTH)
        assert (await warm.answer())[0] == 200
        whole = resource.prlimit(r.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(r.pid, resource.RLIMIT_NOFILE, (3, whole[1]))
        async with dialled(r.url, 20) as clients:
            for client in clients:
                client.send(HEALTH)
            loop, used_s = asyncio.get_running_loop(), cpu_s(r.pid)
            until = loop.time() + 1
            while loop.time() < until:
                warm.send(HEALTH)
                assert (await warm.answer())[0] == 200
                await asyncio.sleep(0.05)
            measured("CPU time in a second without a descriptor", cpu_s(r.pid) - used_s, 0.5, "s")
            resource.prlimit(r.pid, resource.RLIMIT_NOFILE, whole)
            answers = await asyncio.gather(*(client.answer() for client in clients), return_exceptions=True)
            lost = sum(isinstance(answer, BaseException) for answer in answers)
            measured("connections lost while there was no descriptor", lost, 0, "of 20")
        assert await chat(r.url) == 200


@pytest.mark.abuse
async def test_a_flood_of_connections(router_process, fleet_config, measured) -> None:
    """At default limits: one address opens connections as fast as it can and keeps them; another one chats."""
    async with engine() as fake, router_process(fleet_config([fake])) as r, cut_off() as held:
        before = r.rss_bytes

        async def flood() -> None:
            while len(held) < 8000:
                with suppress(OSError):
                    held.append(await dial(r.url))

        floods = [asyncio.create_task(flood()) for _ in range(4)]
        statuses = []
        while not all(task.done() for task in floods):
            statuses.append(await chat(r.url))
        lost = len(statuses) - statuses.count(200)
        open_ = await r.metric("warmroute_client_connections")
        files = resource.prlimit(r.pid, resource.RLIMIT_NOFILE)[0]
        most = 0.8 * connection_capacity(LimitsConfig().concurrent, files)
        measured(f"chats lost during a flood of 8,000 connections, of {len(statuses)}", lost, 0, "")
        measured("connections that one address keeps", open_, most + 2, "connections")
        measured("memory of an idle connection", (r.rss_bytes - before) / open_ / 1024, 20, "KiB")


@pytest.mark.abuse
async def test_connections_that_come_and_go(router_process, fleet_config, measured) -> None:
    """One address connects and resets at once, as fast as it can; another one chats."""
    async with engine() as fake, router_process(fleet_config([fake])) as r:
        going = True

        async def churn() -> int:
            done = 0
            while going:
                async with dialled(r.url, 5):
                    done += 5
            return done

        churns = [asyncio.create_task(churn()) for _ in range(8)]
        statuses = [await chat(r.url) for _ in range(50)]
        going = False
        done = sum(await asyncio.gather(*churns))
        measured(f"chats lost beside {done:,} short connections, of 50", 50 - statuses.count(200), 0, "")
        async with asyncio.timeout(5):
            while await r.metric("warmroute_client_connections") > 5:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
