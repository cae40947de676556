"""A real vLLM server on the CPU, small enough that two of them run beside the tests.

Its cache holds 96 blocks of 128 tokens, so that a few long prompts force evictions. Its KV events go out at ports that
the system chose, so that whoever wants them has to ask `GET /kv_event_sources`, after each restart anew. The tests
listen to them too, only to know when an engine has said all it had to say (`Engine.said_all`).
"""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import msgspec
import zmq

from tests.stack.children import Child, free_port

MODEL, ADAPTER = "tiny", "lora"
BLOCK_TOKENS = 128
KV_BYTES = 96 * BLOCK_TOKENS * 1024  # two layers, two KV heads of 64 in bfloat16: 1 KiB per token
STARTED_S = 180.0
SUBSCRIBED_MS, HEARD_MS = 200, 10_000

EVENTS = {
    "enable_kv_cache_events": True,
    "publisher": "zmq",
    "endpoint": "tcp://*:0",
    "replay_endpoint": "tcp://*:0",
}
ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


class Engine:
    """One vLLM instance, and an ear at its events."""

    def __init__(self, name: str, venv: Path, model: Path, folder: Path) -> None:
        self.name = name
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.child = Child(name, _command(venv, model, self.port), folder, ENVIRONMENT)
        self.http = httpx.Client(base_url=self.url, timeout=60.0)
        self._zmq = zmq.Context()
        self._ear: zmq.Socket[bytes] | None = None
        self._marks = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.child.stop()
        self.http.close()
        if self._ear is not None:
            self._ear.close(0)
        self._zmq.term()

    def __enter__(self) -> Engine:
        self.child.start()
        return self

    def wait(self) -> None:
        """Until it serves and we hear its events."""
        self.child.wait(self._healthy, STARTED_S)
        if self._ear is not None:
            self._ear.close(0)
        self._ear = self._zmq.socket(zmq.SUB)
        self._ear.subscribe(b"")
        self._ear.connect(self.get("/kv_event_sources")["0"]["endpoint"])
        while self._hear(self._mark(), SUBSCRIBED_MS) is None:  # a subscription takes effect in its own time
            assert self.child.running(), self.child.tail()

    def said_all(self) -> int:
        """The number of an event batch that comes after all events of all requests so far.

        Events come a moment after the answer that caused them, and a request that found everything cached causes
        none. So a small request of our own is sent that must cause one, and its event is waited for.
        """
        seq = self._hear(self._mark(), HEARD_MS)
        assert seq is not None, f"{self.name} sent no event within {HEARD_MS} ms:\n{self.child.tail()}"
        return seq

    def _mark(self) -> list[int]:
        """Fills one block that nobody else has; its token ids."""
        self._marks += 1
        ids = [*divmod(self._marks, 1000), *[3] * (BLOCK_TOKENS - 2)]
        self.post("/v1/completions", {"model": MODEL, "prompt": ids, "max_tokens": 1})
        return ids

    def _hear(self, ids: list[int], patience_ms: int) -> int | None:
        """The number of the batch that tells of this block; None: nothing was heard for so long."""
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
        """The token ids that the engine makes of a request."""
        rendered = self.post(f"{path}/render", body)
        return list((rendered[0] if isinstance(rendered, list) else rendered)["token_ids"])

    def _healthy(self) -> bool:
        try:
            return self.http.get("/health").status_code == 200
        except httpx.TransportError:
            return False


def _command(venv: Path, model: Path, port: int) -> list[str]:
    command = [str(venv / "bin" / "vllm"), "serve", str(model / "tiny"), "--served-model-name", MODEL]
    command += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--dtype", "bfloat16"]
    command += ["--max-model-len", "8192", "--max-num-seqs", "8", "--kv-cache-memory-bytes", str(KV_BYTES)]
    command += ["--enable-prompt-tokens-details", "--kv-events-config", json.dumps(EVENTS)]
    command += ["--enable-scale-out"]  # the render endpoints, which only the tests ask
    command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    command += ["--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"{ADAPTER}={model / 'adapter'}"]
    return command
