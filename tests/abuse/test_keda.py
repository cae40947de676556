"""Strangers at KEDA's port: what clients of the router notice of streams about models that nobody has."""

from __future__ import annotations

import asyncio
from math import inf

import pytest

from router.features.autoscaling.keda.external_scaler import MOST_STREAMS, SERVICE
from router.lab.local_stack.preflight import free_ports
from tests.abuse.conftest import Measured
from tests.abuse.raw import MB, RawClient, chat, cut_off, dial
from tests.abuse.watch import TRIES, loop_probe
from tests.e2e.conftest import LOCAL
from tests.fakes.engines import engine
from tests.fakes.http2 import PREFACE, ids, question, settings
from tests.fakes.keda import trigger
from tests.patience import PATIENCE_S

WATCH_ACTIVITY = f"/{SERVICE}/StreamIsActive".encode()
CONNECTIONS, CALLS = 11, 100  # as many calls as the port allows a connection
READINGS_S = 1.2  # two readings of the fleet, after each of which all streams are visited
STANDSTILL_MS = 150.0
KEPT_MB = 16.0


def streams(first: int) -> bytes:
    """Return the bytes of a connection with `CALLS` streams, each about a model of its own from `first` on."""
    calls = [question(id, WATCH_ACTIVITY, about(first + n)) for n, id in enumerate(ids(CALLS))]
    return PREFACE + settings() + b"".join(calls)


def about(number: int) -> bytes:
    return trigger(model=f"invented-{number}").SerializeToString()


@pytest.mark.abuse
async def test_streams_about_invented_models_hold_up_nobody(router_process, fleet_config, measured: Measured) -> None:
    """In a fleet of 300 engines, any of which may have the model."""
    (port,) = free_ports(1)
    absent = [{"name": f"e{n}", "url": f"http://127.0.1{n // 250}.{n % 250}:1"} for n in range(300)]
    async with engine() as fake:
        config = fleet_config([fake, *absent], keda=LOCAL | {"port": port})
        async with router_process(config) as r, loop_probe(r.url) as probe, cut_off() as clients:
            before = r.rss_bytes
            for number in range(CONNECTIONS):
                clients.append(client := await dial(f"http://127.0.0.1:{port}"))
                client.send(streams(number * CALLS))
            await settle(clients)
            least_ms = inf
            for _ in range(TRIES):
                await probe.longest_ms()
                await asyncio.sleep(READINGS_S)
                least_ms = min(least_ms, await probe.longest_ms())
            what = f"{CONNECTIONS * CALLS:,} streams to KEDA's port, {MOST_STREAMS:,} of which are kept"
            measured(f"{what}: longest wait", least_ms, STANDSTILL_MS, "ms")
            measured(f"{what}: memory", (r.rss_bytes - before) / MB, KEPT_MB, "MB")
            assert await chat(r.url) == 200


async def settle(clients: list[RawClient]) -> None:
    """Return when a stream on one of the connections is refused: all that are kept are open."""
    refused = [asyncio.create_task(client.reader.readuntil(b"streams are open already")) for client in clients]
    done, others = await asyncio.wait(refused, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    assert done
