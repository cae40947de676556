"""The routers of the comparison, as released, with their documented defaults, and some tuned as their users would."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from router.lab.local_stack.preflight import free_ports
from tests.bench import routers
from tests.bench.routers import Running
from tests.headtohead.engines import MODEL, Engine
from tests.headtohead.forwarder import ForwarderOptions


class Contender(NamedTuple):
    """A router with a policy. What it knows of the engines' caches is found out (`control.py`). `reads_events`: it
    needs engines that publish KV events. `tuned`: it has other settings than its defaults.
    """

    name: str
    start: Callable[[Sequence[Engine], Path], AbstractContextManager[Running]]
    reads_events: bool = False
    tuned: bool = False

    @contextmanager
    def running(self, engines: Sequence[Engine]) -> Iterator[Running]:
        """Run the router, with a folder of its own for its files."""
        with (
            tempfile.TemporaryDirectory(prefix="warmroute-headtohead-") as folder,
            self.start(engines, Path(folder)) as router,
        ):
            yield router

    def file_name(self, *words: object) -> str:
        """Return the name of a file about this router and `words`."""
        return "-".join(" ".join(map(str, (self.name, *words))).replace("`", "").replace(",", "").split())


def _at_ports(
    start: Callable[..., AbstractContextManager[Running]], engines: Sequence[Engine], folder: Path, **options: str
) -> AbstractContextManager[Running]:
    """Start a router that needs nothing but the engines' ports."""
    return start([engine.port for engine in engines], folder, **options)


def _warmroute(engines: Sequence[Engine], folder: Path) -> AbstractContextManager[Running]:
    settings = {"tokenizers": {MODEL: {"path": engines[0].tokenizer}}, "active": "warm"}
    return routers.warmroute([engine.port for engine in engines], folder, settings)


def _kv_aware(engines: Sequence[Engine], folder: Path, *, sticky: bool = False) -> AbstractContextManager[Running]:
    options = ["--kv-event-model", MODEL, "--kv-event-block-size", str(engines[0].block_tokens)]
    for engine in engines:
        options += ["--kv-event-source", f"{engine.url}={engine.events}"]
        options += ["--kv-event-replay-source", f"{engine.url}={engine.replay}"]
    options += ["--kv-aware-session-affinity-ttl-secs", STICKY_S] if sticky else []
    return routers.rust([engine.port for engine in engines], folder, "kv_aware", options)


def _dynamo(engines: Sequence[Engine], folder: Path, *, sticky: bool = False) -> AbstractContextManager[Running]:
    port, service_port = free_ports(2)
    python = str(routers.peers_venv() / "bin" / "python")
    service = [python, "-m", "dynamo.select_service", "--port", str(service_port)]
    service += ["--session-affinity-ttl-secs", STICKY_S] if sticky else []
    options = ForwarderOptions(port, service_port, tuple(service), tuple(engines), sessions=sticky)
    command = [sys.executable, "-m", "tests.headtohead.forwarder", msgspec.json.encode(options).decode()]
    return routers.served("dynamo", command, port, folder)


OURS = "Warmroute `warm`"
STICKY_S = "600"  # after its last request a session is forgotten
CONTENDERS: Sequence[Contender] = (
    Contender(OURS, _warmroute, reads_events=True),
    Contender("vllm-router `cache_aware`", partial(_at_ports, routers.rust, policy="cache_aware")),
    Contender("vllm-router `kv_aware`", _kv_aware, reads_events=True),
    Contender("vllm-router `consistent_hash`", partial(_at_ports, routers.rust, policy="consistent_hash")),
    Contender("vllm-router `power_of_two`", partial(_at_ports, routers.rust, policy="power_of_two")),
    Contender("sglang-router `cache_aware`", partial(_at_ports, routers.sglang, policy="cache_aware")),
    Contender("smg `cache_aware`", partial(_at_ports, routers.smg, policy="cache_aware")),
    Contender("Dynamo `select_service`", _dynamo, reads_events=True),
    Contender("nginx round robin", partial(_at_ports, routers.nginx, method="")),
    Contender("nginx `least_conn`", partial(_at_ports, routers.nginx, method="least_conn;")),
    Contender("Envoy `LEAST_REQUEST`", partial(_at_ports, routers.envoy, policy="LEAST_REQUEST")),
    Contender("Envoy `RING_HASH`", partial(_at_ports, routers.envoy, policy="RING_HASH")),
    Contender("vllm-router `kv_aware`, sticky", partial(_kv_aware, sticky=True), reads_events=True, tuned=True),
    Contender("Dynamo `select_service`, sticky", partial(_dynamo, sticky=True), reads_events=True, tuned=True),
)
