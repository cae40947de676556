"""Sockets around simulated engine cores: one emulated vLLM server, in this process.

`Server` is an async context manager for tests and for whoever runs several in one loop; `serve_engine` is one server's
whole life in a process of its own. The listener is uvicorn's protocol on the loop's own server, without uvicorn's
signal handling and its ten ticks a second, so that an idle engine costs nothing and a stop is immediate.
"""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from router.clock import Clock, SystemClock
from router.emulate.app import App
from router.emulate.calls import CUT
from router.emulate.cores import Cores
from router.emulate.options import EngineOptions
from router.emulate.vocabulary import DATA, Vocabulary
from router.sim.engine import EngineShape
from router.tasks import Tasks

END_TIMEOUT_S = 1.0


class Server:
    """Listens between enter and exit. Raises OSError when a given port is taken."""

    def __init__(self, options: EngineOptions, clock: Clock) -> None:
        vocabulary = Vocabulary(Path(options.tokenizer) if options.tokenizer else DATA)
        self.options = options
        self._tasks = Tasks(f"engine {options.name}")
        self._state = ServerState()
        self._state.default_headers = [
            (b"date", formatdate(clock.wall(), usegmt=True).encode()),
            (b"server", b"uvicorn"),
        ]
        self.cores = Cores(options, _shape(options, vocabulary), clock)
        self.app = App(options, vocabulary, self.cores, clock, self._tasks)
        self._config = uvicorn.Config(
            self.app,
            http=_Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
        )
        self._config.load()
        self._listener: asyncio.Server | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            self._connection, self.options.host, self.options.port, ssl=_tls(self.options), backlog=2048
        )
        self.port = self._listener.sockets[0].getsockname()[1]
        self.cores.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """At once: connections are cut, and requests end as they do when their client goes."""
        assert self._listener is not None
        self._listener.close()
        for connection in list(self._state.connections):
            connection.transport.abort()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=END_TIMEOUT_S)
        await self._tasks.close()
        await self.cores.close()

    @property
    def url(self) -> str:
        scheme = "https" if self.options.cert_file else "http"
        host = f"[{self.options.host}]" if ":" in self.options.host else self.options.host
        return f"{scheme}://{host}:{self.port}"

    @property
    def announcement(self) -> dict[str, Any]:
        """What the parent process needs to know, as JSON values."""
        return {
            "name": self.options.name,
            "url": self.url,
            "pid": os.getpid(),
            "model": self.options.model,
            "events": self.cores.sources(),
        }

    def _connection(self) -> asyncio.Protocol:
        return _Connection(self._config, self._state, {})


class _Connection(HttpToolsProtocol):
    """uvicorn's connection, with a way for the application to cut it."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {CUT: self.transport.abort}  # type: ignore[dict-item]


async def serve_engine(options: EngineOptions, announce: Callable[[dict[str, Any]], None]) -> None:
    """Serve until SIGTERM or SIGINT. `announce` is called once, when the engine takes requests."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with Server(options, SystemClock()) as server:
        announce(server.announcement)
        await stopped.wait()


def _shape(options: EngineOptions, vocabulary: Vocabulary) -> EngineShape:
    return EngineShape(
        block_tokens=options.block_tokens,
        blocks=options.blocks,
        prefill_tokens_per_s=options.prefill_tokens_per_s,
        decode_ms_per_token=options.decode_ms_per_token,
        max_num_seqs=options.max_num_seqs,
        max_queued=options.max_queued,
        adapters=options.adapters(),
        vocabulary=vocabulary.words,
        end_token=vocabulary.end_token,
    )


def _tls(options: EngineOptions) -> ssl.SSLContext | None:
    if options.cert_file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(options.cert_file, options.key_file)
    return context
