"""A real vLLM server of the stack for tests: its API, and a subscriber of its KV events.

Its cache holds 96 blocks of 128 tokens, so that a few long prompts force evictions. Its KV events are published at
ports that the system chose and `GET /kv_event_sources` reports, new after each restart. The tests subscribe to them
too, only to know when an engine has published all events so far (`Engine.said_all`).
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import msgspec
import zmq

from router.config.sections.local_stack import LocalStackConfig
from router.lab.local_stack.install import Models
from router.lab.local_stack.supervisor import RunningStack

MODEL, ADAPTER = "tiny", "lora"
BLOCK_TOKENS = 128
BLOCK_BYTES = BLOCK_TOKENS * 1024  # two layers, two KV heads of 64 in bfloat16: 1 KiB per token
KV_BYTES = 96 * BLOCK_BYTES
SUBSCRIBED_MS, HEARD_MS = 200, 10_000


def small_stack(models: Models, logs: Path, **other: Any) -> LocalStackConfig:
    """Two engines, each with a small cache, an adapter, tools and the render endpoints. `other` settings may add a
    store.
    """
    arguments = ["--enable-scale-out", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    arguments += ["--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"{ADAPTER}={models.adapter}"]
    settings = {
        "engines": 2,
        "first_port": 0,
        "model": str(models.tiny),
        "served_name": MODEL,
        "kv_cache_bytes": KV_BYTES,
        "max_model_len": 8192,
        "engine_args": arguments,
        "store": False,
        "logs_dir": str(logs),
    }
    return LocalStackConfig.model_validate(settings | other)


class Engine:
    """One vLLM instance of a running stack, and a subscriber of its events. `block_tokens`: at least a block."""

    def __init__(self, stack: RunningStack, name: str, block_tokens: int = BLOCK_TOKENS) -> None:
        self.stack = stack
        self.name = name
        self._block_tokens = block_tokens
        self.url = stack.server(name).url
        self.http = httpx.Client(base_url=self.url, timeout=180.0)
        self._zmq = zmq.Context()
        self._ear: zmq.Socket[bytes] | None = None
        self._marks = 0

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()
        if self._ear is not None:
            self._ear.close(0)
        self._zmq.term()

    def instance(self) -> dict[str, Any]:
        """The engine as an instance in a router's configuration."""
        (mine,) = [instance for instance in self.stack.instances() if instance.name == self.name]
        return mine.model_dump(mode="json", exclude_defaults=True)

    def wait(self) -> None:
        """Wait until it serves and its events are received."""
        self.stack.wait(self.name)
        if self._ear is not None:
            self._ear.close(0)
        self._ear = self._zmq.socket(zmq.SUB)
        self._ear.subscribe(b"")
        self._ear.connect(self.get("/kv_event_sources")["0"]["endpoint"])
        while self._hear(self._mark(), SUBSCRIBED_MS) is None:  # a subscription takes effect in its own time
            assert self.stack.describe_failure() is None

    def said_all(self) -> int:
        """The number of an event batch that comes after all events of all requests so far.

        Events come a moment after the answer that caused them, and a request that found everything cached causes
        none. So a small request of our own is sent that must cause one, and its event is waited for.
        """
        seq = self._hear(self._mark(), HEARD_MS)
        assert seq is not None, (
            f"{self.name} sent no event within {HEARD_MS} ms; see {self.stack.server(self.name).log}"
        )
        return seq

    def _mark(self) -> list[int]:
        """Fill one block that no other prompt has; return its token ids."""
        self._marks += 1
        ids = [*divmod(self._marks, 1000), *[3] * (self._block_tokens - 2)]
        self.post("/v1/completions", {"model": MODEL, "prompt": ids, "max_tokens": 1})
        return ids

    def _hear(self, ids: list[int], patience_ms: int) -> int | None:
        """Return the number of the batch that announces this block, `None` after `patience_ms` without any."""
        assert self._ear is not None
        while self._ear.poll(patience_ms):
            _, seq, payload = self._ear.recv_multipart()
            events = msgspec.msgpack.decode(payload)[1]
            if any(event.get("token_ids") == ids for event in events):
                return int.from_bytes(seq, "big")
        return None

    def get(self, path: str) -> Any:
        return self.http.get(path).raise_for_status().json()

    def post(self, path: str, body: dict[str, Any]) -> Any:
        answer = self.http.post(path, content=msgspec.json.encode(body), headers={"content-type": "application/json"})
        assert answer.status_code == 200, f"{self.name}{path}: {answer.status_code} {answer.text}"
        return answer.json()

    def render(self, path: str, body: dict[str, Any]) -> list[int]:
        """Return the token ids that the engine renders for a request."""
        rendered = self.post(f"{path}/render", body)
        return list((rendered[0] if isinstance(rendered, list) else rendered)["token_ids"])
