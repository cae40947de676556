"""The routers of the comparison, as released, each with its documented defaults."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from router.lab.emulator.vocabulary import DATA
from router.lab.local_stack.preflight import free_ports
from tests.bench import routers
from tests.bench.routers import Running
from tests.headtohead.engines import MODEL, Engine
from tests.headtohead.forwarder import ForwarderOptions


class Contender(NamedTuple):
    """A router with a policy. What it knows of the engines' caches is found out (`control.py`)."""

    name: str
    start: Callable[[Sequence[Engine], Path], AbstractContextManager[Running]]


def _ports(engines: Sequence[Engine]) -> list[int]:
    return [engine.port for engine in engines]


def _warmroute(engines: Sequence[Engine], folder: Path, **settings: object) -> AbstractContextManager[Running]:
    return routers.warmroute(_ports(engines), folder, {"tokenizers": {MODEL: {"path": str(DATA)}}} | settings)


def _vllm(engines: Sequence[Engine], folder: Path, *, policy: str) -> AbstractContextManager[Running]:
    return routers.rust(_ports(engines), folder, policy)


def _kv_aware(engines: Sequence[Engine], folder: Path) -> AbstractContextManager[Running]:
    options = ["--kv-event-model", MODEL]
    for engine in engines:
        options += ["--kv-event-source", f"{engine.url}={engine.events}"]
        options += ["--kv-event-replay-source", f"{engine.url}={engine.replay}"]
    return routers.rust(_ports(engines), folder, "kv_aware", options)


def _sglang(engines: Sequence[Engine], folder: Path, *, policy: str) -> AbstractContextManager[Running]:
    return routers.sglang(_ports(engines), folder, policy)


def _smg(engines: Sequence[Engine], folder: Path, *, policy: str) -> AbstractContextManager[Running]:
    return routers.smg(_ports(engines), folder, policy)


def _nginx(engines: Sequence[Engine], folder: Path, *, method: str) -> AbstractContextManager[Running]:
    return routers.nginx(_ports(engines), folder, method)


def _dynamo(engines: Sequence[Engine], folder: Path) -> AbstractContextManager[Running]:
    port, service_port = free_ports(2)
    options = ForwarderOptions(
        port=port,
        service_port=service_port,
        python=str(routers.peers_venv() / "bin" / "python"),
        engines=tuple(engines),
    )
    command = [sys.executable, "-m", "tests.headtohead.forwarder", msgspec.json.encode(options).decode()]
    return routers.served("dynamo", command, port, folder)


OURS = "Warmroute `warm`"
CONTENDERS: Sequence[Contender] = (
    Contender(OURS, partial(_warmroute, active="warm")),
    Contender("vllm-router `cache_aware`", partial(_vllm, policy="cache_aware")),
    Contender("vllm-router `kv_aware`", _kv_aware),
    Contender("vllm-router `consistent_hash`", partial(_vllm, policy="consistent_hash")),
    Contender("vllm-router `power_of_two`", partial(_vllm, policy="power_of_two")),
    Contender("sglang-router `cache_aware`", partial(_sglang, policy="cache_aware")),
    Contender("smg `cache_aware`", partial(_smg, policy="cache_aware")),
    Contender("Dynamo `select_service`", _dynamo),
    Contender("nginx round robin", partial(_nginx, method="")),
    Contender("nginx `least_conn`", partial(_nginx, method="least_conn;")),
)
