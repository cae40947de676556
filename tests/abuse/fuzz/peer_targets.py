"""Fuzz target for what peers send, after ZeroMQ has decrypted it: frames, acknowledgements and answers to queries."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast
from unittest.mock import patch

from router.app import App
from router.config.schema import Config
from router.control.peers.exchange import PeerExchange
from router.control.peers.links import Link
from router.control.peers.sockets import PeerSocket
from tests.abuse.fuzz.connection_targets import Loop, running_loop

SECRET = "WARMROUTE_FUZZ_SECRET"
ACK, ANSWER = b"\1", b"\2"  # kinds of messages; any other is a frame
RUNS = ("peer", "other")  # of the senders in the corpus
ADDRESS = "192.0.2.2:9004"
CONFIG: dict[str, Any] = {
    "fleet": {"instances": [{"name": "a", "url": "http://192.0.2.1:8000"}]},
    "replicas": {"peers": [ADDRESS], "secret_env": SECRET, "host": "127.0.0.1"},
    "picker": {},
    "listen": {"trusted_proxies": ["192.0.2.4"]},
    "clients": {"tenant_header": "x-tenant"},
    "wake": {"models": {"*": {"webhook": {"url": "http://192.0.2.3/"}}}},
}


class _Socket:
    """Drops everything."""

    closed = False

    def send(self, payload: bytes) -> bool:
        return True

    def send_parts(self, parts: Sequence[bytes]) -> bool:
        return True


class _ForeignPeers(dict[str, float]):
    """Peers of other versions, each of which has been logged: an error in the log fails an input."""

    def __contains__(self, run: object) -> bool:
        return True


@contextmanager
def peers_target() -> Iterator[Callable[[bytes], None]]:
    """Yield the target for messages of a peer that has the secret."""
    with patch.dict(os.environ, {SECRET: "0123456789abcdef"}), running_loop() as running:
        exchange = running.loop.run_until_complete(_build())

        def target(data: bytes) -> None:
            """Whatever a peer sends is applied, skipped or counted, and the state of this process can be published."""
            running.loop.run_until_complete(_apply(running, exchange, data))

        yield target
        running.loop.run_until_complete(exchange.close())


async def _build() -> PeerExchange:
    """Return the exchange of a router with all shared parts. One serves all inputs: building it takes 80 ms."""
    exchange = App(Config.model_validate(CONFIG)).core.peers
    assert isinstance(exchange, PeerExchange)
    exchange._foreign = _ForeignPeers()
    return exchange


async def _apply(running: Loop, exchange: PeerExchange, data: bytes) -> None:
    """Apply a list of messages, each with its length in two bytes: the kind in one byte, and the (first) part."""
    socket, at = cast(PeerSocket, _Socket()), 0
    link = Link(ADDRESS, socket)
    while at + 2 <= len(data):
        length = int.from_bytes(data[at : at + 2], "big")
        kind, payload = data[at + 2 : at + 3], data[at + 3 : at + 2 + length]
        at += 2 + length
        if kind == ACK:
            exchange._on_reply(link, [payload])
        elif kind == ANSWER:
            exchange._on_reply(link, [payload, b"more"])
        else:
            exchange._on_far_frame(socket, [b"identity", payload])
        exchange._loads.apply()
    await running.turns()
    exchange.describe()
    for run in RUNS:
        exchange._forget(run)
        exchange._peer_runs.end(run)
    exchange._peer_runs._ended.clear()
    exchange._foreign.clear()
