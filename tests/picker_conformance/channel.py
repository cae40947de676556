"""Connections to a picker: plaintext, or TLS whose certificate is not verified, as gateways connect to llm-d's pickers.

gRPC for Python cannot leave a certificate unverified. So a channel to a TLS port goes in plaintext to a forwarder on
the loopback interface, which speaks TLS to the picker.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from router.errors import WarmrouteError
from router.tasks import Tasks

MAX_MESSAGE_BYTES = 64 << 20
PIECE_BYTES = 64 << 10
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),  # a connection of this channel's own
    ("grpc.enable_http_proxy", 0),  # no proxy of the environment
)


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[ipv6]:port`. Raises WarmrouteError for anything else."""
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
        raise WarmrouteError(f"{address}: write it as HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def unverified_tls() -> ssl.SSLContext:
    """Return a client context for HTTP/2 that takes any certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


async def speaks_tls(host: str, port: int, timeout_s: float) -> bool:
    """Return whether the port completes a TLS handshake. Raises WarmrouteError when nobody listens there."""
    address = join_address(host, port)
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError) as failure:
        raise WarmrouteError(f"{address}: cannot connect: {failure or 'timeout'}") from failure
    writer.close()
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port, ssl=unverified_tls())
    except (OSError, TimeoutError):  # ssl.SSLError is an OSError
        return False
    writer.close()
    return True


@asynccontextmanager
async def open_channel(host: str, port: int, tls: bool) -> AsyncIterator[grpc.aio.Channel]:
    """Give a channel to a port, closed with the block."""
    if not tls:
        async with grpc.aio.insecure_channel(join_address(host, port), options=OPTIONS) as channel:
            yield channel
        return
    async with forward_to_tls(host, port) as local, grpc.aio.insecure_channel(local, options=OPTIONS) as channel:
        yield channel


@asynccontextmanager
async def forward_to_tls(host: str, port: int) -> AsyncIterator[str]:
    """Give the address of a loopback port whose connections are forwarded to a TLS port."""
    context = unverified_tls()
    tasks = Tasks("picker-conformance")

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            tls_reader, tls_writer = await asyncio.open_connection(host, port, ssl=context)
        except OSError:
            writer.close()
            return
        tasks.spawn("to picker", _pump(reader, tls_writer))
        tasks.spawn("from picker", _pump(tls_reader, writer))

    server = await asyncio.start_server(forward, "127.0.0.1", 0)
    try:
        yield join_address(*server.sockets[0].getsockname()[:2])
    finally:
        server.close()
        await tasks.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until one side ends, then close the other."""
    try:
        while data := await reader.read(PIECE_BYTES):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # a connection was reset: closed below
    finally:
        writer.close()
