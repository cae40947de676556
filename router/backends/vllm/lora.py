"""vLLM's endpoints that load and unload LoRA adapters (VLLM_ALLOW_RUNTIME_LORA_UPDATING): bodies and answers.

They answer with plain text on success, and with an error object otherwise. Loading an adapter that is loaded
already is answered with 400, and unloading one that is not loaded with 404; both count as success. Without the
setting the path does not exist, which is a 404 too, with another text. Source: vLLM,
`vllm/entrypoints/openai/serving_models.py`.
"""

from __future__ import annotations

import msgspec

from router.errors import quote_name

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
LOADED_BEFORE = b"already been loaded"
NOT_THERE = b"cannot be found"


def load_body(name: str, path: str) -> bytes:
    return msgspec.json.encode({"lora_name": name, "lora_path": path})


def unload_body(name: str) -> bytes:
    return msgspec.json.encode({"lora_name": name})


def find_load_error(status: int, body: bytes) -> str | None:
    """Return why an adapter was not loaded; None if it is loaded."""
    if status == 200 or (status == 400 and LOADED_BEFORE in body):
        return None
    return _describe(status, body)


def find_unload_error(status: int, body: bytes) -> str | None:
    """Return why an adapter was not unloaded; None if it is no longer loaded."""
    if status == 200 or (status == 404 and NOT_THERE in body):
        return None
    return _describe(status, body)


def _describe(status: int, body: bytes) -> str:
    return f"{status} {quote_name(body.decode(errors='replace'))}"
