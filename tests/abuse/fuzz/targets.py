"""Everything that parses bytes from outside, as functions of bytes. An exception, and nothing else, is a finding."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from tests.abuse.fuzz import (
    connection_targets,
    event_targets,
    gateway_target,
    identity_targets,
    peer_targets,
    text_targets,
)

Target = Callable[[bytes], None]

TARGETS: dict[str, Callable[[], AbstractContextManager[Target]]] = {
    "client": connection_targets.client_target,
    "engine": connection_targets.engine_target,
    "gateway": gateway_target.gateway_target,
    "zmtp": connection_targets.zmtp_target,
    "peers": peer_targets.peers_target,
    "token": lambda: nullcontext(identity_targets.token_target()),
    "keys": lambda: nullcontext(identity_targets.read_keys),
    "events": lambda: nullcontext(event_targets.apply_events),
    "snapshot": lambda: nullcontext(event_targets.read_snapshot),
    "body": lambda: nullcontext(text_targets.read_body),
    "answer": lambda: nullcontext(text_targets.read_answer),
    "metrics": lambda: nullcontext(text_targets.read_metrics_page),
    "engine_json": lambda: nullcontext(text_targets.read_engine_json),
    "config": lambda: nullcontext(text_targets.read_configuration),
}
"""Targets by name, each opened with `with`: some have an event loop."""

CORPUS = Path(__file__).parent / "corpus"
"""A folder per target: inputs worth starting from, and every input that once was a finding."""


def read_corpus(name: str) -> dict[str, bytes]:
    """Return the stored inputs of a target by file name."""
    return {file.name: file.read_bytes() for file in sorted((CORPUS / name).iterdir())}
