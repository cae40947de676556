"""One emulated vLLM server: sockets around simulated engine cores.

`EmulatedServer` is an async context manager, so tests can run several in one event loop. The embedded fleet starts
each engine in a process of its own, with `python -m router.lab.emulator.server '{"port": 0, ...}'`
(`EngineOptions`); users call `warmroute engine`, which runs the same server.
"""

from __future__ import annotations

import os
import ssl
from contextlib import AsyncExitStack
from email.utils import formatdate
from pathlib import Path
from typing import Any, Self

from router.clock import Clock, SystemClock
from router.lab.child_process import run_from_argument, run_service
from router.lab.emulator.app import EmulatorApp
from router.lab.emulator.engine_cores import EngineCores
from router.lab.emulator.http_server import EmulatorListener
from router.lab.emulator.kv_connectors import KvConnectors
from router.lab.emulator.kv_publisher import EventSockets
from router.lab.emulator.options import EngineOptions
from router.lab.emulator.vocabulary import DATA, Vocabulary, load_vocabulary
from router.lab.simulator.engine_types import EngineShape
from router.tasks import Tasks


class EmulatedServer:
    """Emulated server that listens while entered. Creating or entering it raises OSError when a port is in use.
    `sockets` are those of its event publishers; None: real ones.
    """

    def __init__(self, options: EngineOptions, clock: Clock, sockets: EventSockets | None = None) -> None:
        vocabulary = load_vocabulary(Path(options.tokenizer) if options.tokenizer else DATA)
        self.options = options
        self._tasks = Tasks(f"engine {options.name}")
        self.connectors = KvConnectors(options, self._tasks)
        shape, store = engine_shape(options, vocabulary), self.connectors.store
        self.cores = EngineCores(options, shape, clock, store, sockets or EventSockets())
        self.app = EmulatorApp(options, vocabulary, self.cores, self.connectors, clock, self._tasks)
        headers = [(b"date", formatdate(clock.wall(), usegmt=True).encode()), (b"server", b"uvicorn")]
        tls = _tls_context(options)
        self._listener = EmulatorListener(self.app, options.host, options.port, tls=tls, headers=headers)
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opening:
            await opening.enter_async_context(self.connectors)
            await opening.enter_async_context(self._listener)
            self._open = opening.pop_all()
        self.cores.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop at once: cut all connections, so that requests end as they do when their client disconnects."""
        await self._open.aclose()
        await self._tasks.close()
        await self.cores.close()

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def url(self) -> str:
        return self._listener.url

    @property
    def announcement(self) -> dict[str, Any]:
        """Description of the server for the parent process, as JSON values."""
        return {
            "name": self.options.name,
            "url": self.url,
            "pid": os.getpid(),
            "model": self.options.model,
            "events": self.cores.sources(),
            "bootstrap_url": self.connectors.bootstrap_url,
        }


def run_engine(options: EngineOptions) -> None:
    """Serve one engine until SIGTERM or SIGINT; print one JSON line once it accepts requests.

    Raises OSError when a port is in use, FileNotFoundError when there is no tokenizer.
    """
    run_service(lambda: EmulatedServer(options, SystemClock()), options.parent_pid)


def engine_shape(options: EngineOptions, vocabulary: Vocabulary) -> EngineShape:
    """Return the size and speed of each rank of an engine with these options."""
    return EngineShape(
        block_tokens=options.block_tokens,
        blocks=options.blocks,
        sliding_windows=options.sliding_windows,
        prefill_tokens_per_s=options.prefill_tokens_per_s,
        decode_ms_per_token=options.decode_ms_per_token,
        load_tokens_per_s=options.load_tokens_per_s,
        load_base_ms=options.load_base_ms,
        saves=options.pool_url is not None and options.role != "decode",
        max_num_seqs=options.max_num_seqs,
        max_queued=options.max_queued,
        adapters=options.adapters(),
        vocabulary=vocabulary.words,
        end_token=vocabulary.end_token,
        hash_algo=options.hash_algo,
        hash_seed=options.hash_seed,
    )


def _tls_context(options: EngineOptions) -> ssl.SSLContext | None:
    if options.cert_file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(options.cert_file, options.key_file)
    return context


if __name__ == "__main__":
    run_from_argument("warmroute engine", EngineOptions, run_engine)
