"""The ZeroMQ sockets between peers: a ROUTER that all others connect to, and a DEALER to each of them, with CURVE.

All peers of a network have one key pair, made from the shared secret. A client needs the public key to connect and
the private key to be admitted (ZAP), so nobody without the secret can send or receive. Nothing is queued for a peer
that is not connected (`IMMEDIATE`): the peer requests the sender's state later, which makes up for missed messages.

Hundreds of small frames arrive each second, and pyzmq's own asyncio sockets took more time for each than applying
it did: they read the socket's state, system calls included, up to four times per frame.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import zmq
from zmq.utils import z85

log = logging.getLogger("warmroute.peers")

POLLIN = int(zmq.POLLIN)  # an enum's `&` takes a microsecond
MAX_FRAME_BYTES = 64 * 1024 * 1024
QUEUED_FRAMES = 1000
SHARED_OPTIONS = {
    zmq.IPV6: 1,
    zmq.LINGER: 200,
    zmq.SNDHWM: QUEUED_FRAMES,
    zmq.RCVHWM: QUEUED_FRAMES,
    zmq.MAXMSGSIZE: MAX_FRAME_BYTES,
    zmq.HEARTBEAT_IVL: 500,
    zmq.HEARTBEAT_TIMEOUT: 2000,  # a connection through a partition is given up, or TCP would wait for minutes
    zmq.HANDSHAKE_IVL: 2000,
    zmq.ZAP_DOMAIN: b"peers",
    zmq.ZAP_ENFORCE_DOMAIN: 1,  # nobody is admitted before `admit` runs
}
LINK_OPTIONS = {zmq.IMMEDIATE: 1, zmq.CONNECT_TIMEOUT: 1000, zmq.RECONNECT_IVL: 100, zmq.RECONNECT_IVL_MAX: 1000}


class CurveKeys(NamedTuple):
    """A key pair in Z85, as ZeroMQ takes it."""

    public: bytes
    secret: bytes


def derive_curve_keys(secret: bytes) -> CurveKeys:
    """Return the key pair that belongs to a shared secret; X25519 takes any 32 bytes as a private key."""
    private: bytes = z85.encode(blake2b(secret, digest_size=32, person=b"warmroute curve").digest())
    return CurveKeys(zmq.curve_public(private), private)


class PeerSocket:
    """A ZeroMQ socket on the running loop. One task at a time may wait in `receive`."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[None] | None = None
        self._fd = int(socket.getsockopt(zmq.FD))

    @property
    def closed(self) -> bool:
        return self._socket.closed

    async def receive(self) -> list[bytes]:
        """Return the parts of the next message. A message that has already arrived is returned without yielding to
        the event loop.
        """
        while (parts := self.receive_now()) is None:
            self._waiting = self._loop.create_future()
            self._loop.add_reader(self._fd, self._on_change)
            try:
                await self._waiting
            finally:
                self._waiting = None
                self._loop.remove_reader(self._fd)
        return parts

    def receive_now(self) -> list[bytes] | None:
        """Return the parts of the next message; None when none has arrived."""
        try:
            return self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def send(self, payload: bytes) -> bool:
        """Send without waiting. Return False, with nothing sent, if there is no connection or no room."""
        return self.send_parts([payload])

    def send_parts(self, parts: Sequence[bytes]) -> bool:
        """Send a message of several parts, as `send` does."""
        try:
            self._socket.send_multipart(parts, zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        if self._waiting is not None and int(self._socket.getsockopt(zmq.EVENTS)) & POLLIN:
            self._on_change()  # sending may consume the signal of an arrived message, which the loop then misses
        return True

    def close(self, linger: int | None = None) -> None:
        """Close the socket; what is queued is still sent for `linger` ms, by default as set in `SHARED_OPTIONS`."""
        if not self._socket.closed:
            if self._waiting is not None:
                self._loop.remove_reader(self._fd)
            self._socket.close(linger)

    def _on_change(self) -> None:
        """Let `receive` check again: a message has arrived, or something else happened to the socket."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class PeerSockets:
    """Makes sockets with the keys of a network, on the running loop. Call `close` when all of them are closed."""

    def __init__(self, secret: bytes) -> None:
        self._keys = derive_curve_keys(secret)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = (
            None  # made with the first socket: an unclosed context warns
        )

    async def admit(self) -> None:
        """Decide which clients may connect to `bind`'s socket, until cancelled (ZAP,
        https://rfc.zeromq.org/spec/27).
        """
        allowed = [b"CURVE", z85.decode(self._keys.public)]
        server = self._open().socket(zmq.REP)
        gate = PeerSocket(server)
        try:
            server.bind("inproc://zeromq.zap.01")
            while True:
                version, number, _, address, _, *offered = await gate.receive()
                if offered == allowed:
                    gate.send_parts([version, number, b"200", b"", b"", b""])
                else:
                    log.warning("peers: a client at %s without the secret was refused", address.decode())
                    gate.send_parts([version, number, b"400", b"no peer of this router", b"", b""])
        finally:
            gate.close()

    def bind(self, url: str) -> PeerSocket:
        """Return the socket that all others connect to. Raises `zmq.ZMQError` when it cannot listen there."""
        socket = self._make(zmq.ROUTER, {zmq.CURVE_SERVER: 1})
        try:
            socket.bind(url)
        except zmq.ZMQError:
            socket.close(linger=0)
            raise
        return PeerSocket(socket)

    def connect(self, url: str) -> PeerSocket:
        """Return a socket that connects to the peer that listens at `url`, and connects again after each end."""
        socket = self._make(zmq.DEALER, {zmq.CURVE_SERVERKEY: self._keys.public} | LINK_OPTIONS)
        socket.connect(url)
        return PeerSocket(socket)

    def close(self) -> None:
        """Block until what is queued has been sent, 200 ms at most."""
        if self._context is not None:
            self._context.term()

    def _open(self) -> zmq.Context[zmq.Socket[bytes]]:
        if self._context is None:
            self._context = zmq.Context()
        return self._context

    def _make(self, kind: int, options: dict[Any, Any]) -> zmq.Socket[bytes]:
        socket = self._open().socket(kind)
        keys = {zmq.CURVE_PUBLICKEY: self._keys.public, zmq.CURVE_SECRETKEY: self._keys.secret}
        for option, value in (SHARED_OPTIONS | keys | options).items():
            socket.setsockopt(option, value)
        return socket
