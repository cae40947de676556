"""A connection to an API server is closed however its request ends."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from router.backends.discovery.kubernetes.api import KubernetesApi
from router.config.sections.discovery import KubernetesApiConfig
from tests.fakes.kubernetes import PODS
from tests.paths import ROOT

SOON_S = 5.0


async def test_a_request_that_is_cancelled_in_the_tls_handshake_leaves_no_connection(tmp_path: Path) -> None:
    """The server takes the client's first message of the handshake and never answers."""
    greeted, ended = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read(65536)
        greeted.set()
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        writer.close()
        ended.set()

    token_file = tmp_path / "token"
    token_file.write_text("token")
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        ca_file = str(ROOT / "tests/fakes/tls/cert.pem")
        config = KubernetesApiConfig(url=f"https://127.0.0.1:{port}", token_file=str(token_file), ca_file=ca_file)
        request = asyncio.create_task(KubernetesApi(config).get(PODS, {}))
        async with asyncio.timeout(SOON_S):
            await greeted.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        async with asyncio.timeout(SOON_S):
            await ended.wait()
