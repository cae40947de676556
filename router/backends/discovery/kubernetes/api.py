"""The connection to the Kubernetes API server: pages of a list, lines of a watch, and changes of an object.

The token and the CA are read for every request, because the kubelet replaces the token about hourly. Each request
has a connection of its own, so that none is sent on a connection that died unnoticed; there are a few per minute.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from router.backends.discovery.kubernetes.objects import ApiStatus
from router.config.sections.discovery import KubernetesApiConfig
from router.errors import WarmrouteError

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 15.0
MAX_PAGE_BYTES = 64 * 1024 * 1024
MAX_LINE_BYTES = 8 * 1024 * 1024  # etcd stores objects of up to 1.5 MB
MAX_RETRY_AFTER_S = 60.0
MERGE = {"content-type": "application/merge-patch+json"}
HEADERS = {"accept": "application/json", "accept-encoding": "identity", "user-agent": "warmroute"}
# A peer that vanished is noticed after 25 s without an answer to TCP's own probes.
KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]


class ApiUnavailable(WarmrouteError):
    """There is no answer, or an unusable one; the text states why."""


class ApiRefused(WarmrouteError):
    """The API server answered with an error."""

    def __init__(self, status: int, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.retry_after_s = retry_after_s  # None: not stated


class WatchLines:
    """The lines of an open watch."""

    def __init__(self, response: httpx.Response) -> None:
        self._chunks = response.aiter_bytes()
        self._rest = b""

    async def next(self, timeout_s: float) -> list[bytes] | None:
        """Return the lines that arrive next, possibly none yet; None at the end. Raises ApiUnavailable when the
        connection breaks or a line is too long, and TimeoutError when nothing arrives within `timeout_s`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                chunk = await anext(self._chunks, None)
        except httpx.HTTPError as error:
            raise ApiUnavailable(describe_failure(error)) from error
        if chunk is None:
            return None
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise ApiUnavailable(f"a line of a watch has more than {MAX_LINE_BYTES:,} bytes")
        return [line for line in lines if line]


class KubernetesApi:
    """The API server that `config` names."""

    def __init__(self, config: KubernetesApiConfig) -> None:
        self._url = config.url
        self._secure = config.url.startswith("https:")
        self._token_file = Path(config.token_file)
        self._ca_file = config.ca_file

    async def get(self, path: str, query: Mapping[str, str]) -> bytes:
        """Return the body of an answer. Raises ApiRefused or ApiUnavailable."""
        async with self._open(path, query, ANSWER_TIMEOUT_S) as response:
            return await _read(response, MAX_PAGE_BYTES)

    async def patch(self, path: str, change: Mapping[str, Any]) -> None:
        """Set the fields of `change` in an object; None removes a field (RFC 7386). Raises ApiRefused or
        ApiUnavailable.
        """
        async with self._open(path, {}, ANSWER_TIMEOUT_S, change) as response:
            await _read(response, MAX_PAGE_BYTES)

    @asynccontextmanager
    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[WatchLines]:
        """Open a watch. Raises ApiRefused or ApiUnavailable."""
        async with self._open(path, query, None) as response:
            yield WatchLines(response)

    @asynccontextmanager
    async def _open(
        self, path: str, query: Mapping[str, str], read_timeout_s: float | None, change: Mapping[str, Any] | None = None
    ) -> AsyncIterator[httpx.Response]:
        """Send a request, a PATCH if there is a `change`, and wait for the head of its answer."""
        timeout = httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S, read=read_timeout_s)
        try:
            token = (await asyncio.to_thread(self._token_file.read_text)).strip()
            tls = await asyncio.to_thread(ssl.create_default_context, cafile=self._ca_file) if self._secure else False
            headers = HEADERS | {"authorization": f"Bearer {token}"} | ({} if change is None else MERGE)
            transport = httpx.AsyncHTTPTransport(verify=tls, socket_options=KEEPALIVE, trust_env=False)
            async with (
                AsyncExitStack() as opened,
                httpx.AsyncClient(transport=transport, timeout=timeout, trust_env=False) as client,
            ):
                request = client.build_request(
                    "GET" if change is None else "PATCH",
                    f"{self._url}{path}",
                    params=dict(query),
                    content=None if change is None else msgspec.json.encode(change),
                    headers=headers,
                    extensions={"trace": _close_with(opened)},
                )
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    response = await client.send(request, stream=True)
                try:
                    if response.status_code != 200:
                        raise await _read_refusal(response)
                    yield response
                finally:
                    await response.aclose()
        except httpx.HTTPError as error:
            raise ApiUnavailable(describe_failure(error)) from error
        except (OSError, UnicodeError, ValueError) as error:  # the files, and an address or token that cannot be one
            if isinstance(error, TimeoutError):
                raise ApiUnavailable(f"no answer within {ANSWER_TIMEOUT_S:g} s") from error
            raise ApiUnavailable(str(error)) from error


def describe_failure(error: httpx.HTTPError) -> str:
    """Return a description of the failure; httpx leaves the text of most timeouts empty."""
    return str(error) or type(error).__name__


def _close_with(opened: AsyncExitStack) -> Callable[[str, Any], Awaitable[None]]:
    """Return httpx's trace extension that makes `opened` close the TCP connection of a request, however the request
    ends.

    httpcore 1.0.9 loses, still open, the connection of a request that is cancelled during the TLS handshake: its
    `start_tls` closes it only after an `Exception`. Closing a connection twice does no harm.
    """

    async def trace(event: str, info: Any) -> None:
        if event == "connection.connect_tcp.complete":
            opened.push_async_callback(info["return_value"].aclose)

    return trace


async def _read(response: httpx.Response, limit_bytes: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        async for piece in response.aiter_bytes():
            size += len(piece)
            if size > limit_bytes:
                raise ApiUnavailable(f"an answer of more than {limit_bytes:,} bytes")
            pieces.append(piece)
    return b"".join(pieces)


async def _read_refusal(response: httpx.Response) -> ApiRefused:
    """Return the error in the answer, with `Retry-After` in seconds if the answer has it."""
    body = await _read(response, MAX_PAGE_BYTES)
    try:
        message = msgspec.json.decode(body, type=ApiStatus).message
    except (msgspec.DecodeError, UnicodeDecodeError):
        message = body[:200].decode(errors="replace")
    pause = response.headers.get("retry-after", "")
    retry_after_s = min(float(pause), MAX_RETRY_AFTER_S) if pause.isdecimal() else None
    return ApiRefused(response.status_code, message or response.reason_phrase, retry_after_s)
