"""Answers of the benchmark's backend: vLLM's small pages, and completions that report when the engine had the request.

Every answer carries the time of CLOCK_MONOTONIC in nanoseconds, which all processes of a machine share: a whole answer
when the last byte of its request had arrived (`system_fingerprint`), a chunk when it was written (as its text). The
client knows when it sent and received, so the difference is the router's. The prompt's token count is what the request
has in `seed`: the router checks it against its own count, and counting costs a real engine nothing here either.
"""

from __future__ import annotations

import json
import re
from typing import Any

MODEL = "bench"
CONTEXT_TOKENS = 131072
PROMPT_TOKENS = 40
_SEED = re.compile(rb'"seed": ?(\d+)')
_STAMP = re.compile(rb'"system_fingerprint": ?"fp_(\d+)"')
_CHUNK_STAMP = b'"content":" '
_ANSWER = (
    b'{"id":"chatcmpl-0123456789abcdef","object":"chat.completion","created":1795233405,"model":"bench","choices":'
    b'[{"index":0,"message":{"role":"assistant","content":"yes"},"finish_reason":"stop"}],"system_fingerprint":"fp_%d",'
    b'"usage":{"prompt_tokens":%d,"completion_tokens":1,"total_tokens":%d}}'
)
_CHUNK = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1795233405,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"content":" %016d"},"logprobs":null,"finish_reason":null%b}]}\n\n'
)
_IDS, _NO_IDS = b',"token_ids":[17]', b',"token_ids":null'
_OPENING = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1795233405,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"role":"assistant"},"logprobs":null,"finish_reason":null}],'
    b'"prompt_token_ids":[%b]}\n\n'
)
_USAGE = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1795233405,"model":"bench",'
    b'"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":9,"total_tokens":%d}}\n\n'
)
_DONE = b"data: [DONE]\n\n"


def answer(prompt_tokens: int, seen_ns: int) -> bytes:
    return _ANSWER % (seen_ns, prompt_tokens, prompt_tokens + 1)


def seen_ns(answer: bytes) -> int:
    """Return when the backend had the whole request. Raises ValueError for an answer that is not the backend's."""
    if (found := _STAMP.search(answer)) is None:
        raise ValueError(f"no stamp in {answer[:200]!r}")
    return int(found[1])


def opening(prompt_tokens: int) -> bytes:
    """The first event of a stream with token ids: those of the prompt."""
    return _OPENING % b",".join([b"17"] * prompt_tokens)


def chunk(written_ns: int, *, with_ids: bool = False) -> bytes:
    return _CHUNK % (written_ns, _IDS if with_ids else _NO_IDS)


def chunk_ns(data: bytes) -> int | None:
    """Return when the last chunk that begins in these bytes was written, `None` without a complete time."""
    at = data.rfind(_CHUNK_STAMP)
    begin = at + len(_CHUNK_STAMP)
    stamp = data[begin : begin + 16]
    return int(stamp) if at >= 0 and len(stamp) == 16 and stamp.isdigit() else None


def ending(prompt_tokens: int, with_usage: bool) -> bytes:
    return (_USAGE % (prompt_tokens, prompt_tokens + 9) if with_usage else b"") + _DONE


def prompt_tokens(body: bytes) -> int:
    """Return the number of token ids in the request, as vLLM counts, or else the count that the request reports."""
    if len(body) < 4096 and b"prompt_token_ids" in body:
        parameters = json.loads(body).get("kv_transfer_params") or {}
        if (ids := parameters.get("prompt_token_ids")) is not None:
            return len(ids)
    said = _SEED.search(body, 0, 256) or _SEED.search(body, max(0, len(body) - 256))
    return int(said[1]) if said else PROMPT_TOKENS


def pages() -> dict[bytes, bytes]:
    """The pages that routers request from an engine beside answers."""
    card: dict[str, Any] = {"id": MODEL, "object": "model", "created": 0, "owned_by": "bench", "root": MODEL}
    card |= {"parent": None, "max_model_len": CONTEXT_TOKENS}
    return {
        b"/health": b"",
        b"/version": b'{"version":"0.32.0"}',
        b"/v1/models": json.dumps({"object": "list", "data": [card]}).encode(),
        b"/metrics": metrics_page(),
    }


def metrics_page() -> bytes:
    """Return a page of the size of vLLM's (66 kB): three gauges that matter among some 700 lines that do not."""
    labels = f'{{engine="0",model_name="{MODEL}"}}'
    lines = [
        f"vllm:{gauge}{labels} 0.0" for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    ]
    for histogram in range(35):
        name = f"vllm:time_of_kind_{histogram}_seconds_bucket"
        lines += [f'{name}{{engine="0",le="{edge}.0",model_name="{MODEL}"}} 0.0' for edge in range(20)]
    return "\n".join(lines).encode() + b"\n"
