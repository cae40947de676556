"""Breakers, suspicions and forgotten caches of replicas on real sockets."""

from __future__ import annotations

from typing import Any

import uvloop

from router.control.workers.messages import BreakerMoved, InstanceSuspected
from router.lab.local_stack.preflight import free_ports
from tests.fakes.engines import eventually
from tests.router.control.replicas.replica import A, Replica, address, running


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Any]:
    return {"uvloop": uvloop.new_event_loop}


async def test_breakers_suspicions_and_forgotten_caches_reach_all_and_a_router_that_starts_later() -> None:
    ports = free_ports(3)
    peers = [address(port) for port in ports]
    a, b, c = (Replica(run, port, peers) for run, port in zip("abc", ports, strict=True))
    forgotten: dict[str, list[str]] = {"b": [], "c": []}
    suspected: list[str] = []
    b.core.suspect = suspected.append
    for one in (b, c):
        one.core.apply_forgotten = forgotten[one.run].append  # type: ignore[method-assign]
    async with running(a, b):
        await eventually(lambda: a.hears("b") and b.hears("a"))
        moved = BreakerMoved(A, True, "ann", True)
        a.core.apply_breaker(moved)
        a.leader.send(moved)
        a.leader.send(InstanceSuspected("a"))
        assert a.core.forget_cache("a")
        await eventually(lambda: forgotten["b"] == ["a"])
        assert (b.core.open_breakers(), suspected) == ([moved], ["a"])
        async with running(c):
            await eventually(lambda: forgotten["c"] == ["a"] and c.core.open_breakers() == [moved])
            assert forgotten["b"] == ["a"]
            a.exchange._send_state(
                next(link for link in a.exchange._links if link.run == "b")
            )  # once more, as after a gap: it forgets once
            assert a.core.forget_cache("a")
            await eventually(lambda: len(forgotten["b"]) == len(forgotten["c"]) == 2)
            a.leader.send(BreakerMoved(A, False))
            await eventually(lambda: not b.core.open_breakers() and not c.core.open_breakers())
