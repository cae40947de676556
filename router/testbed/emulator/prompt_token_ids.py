"""Token ids that a chat brings along, as vLLM takes them (renderers/online_renderer.py: `_reused_prompt_token_ids`).

Engines before 0.32 do not look at them. They are not looked at either, whatever they are, where the messages must be
rendered: to be echoed, or for what in them is not text.
"""

from __future__ import annotations

from typing import Any

from router.errors import BadRequest
from router.prompt.api.messages import has_media, normalise
from router.testbed.emulator.options import EngineFaults, EngineOptions

FIRST_VERSION = (0, 32)
PARAMETER = "kv_transfer_params.prompt_token_ids"


def read_prompt_token_ids(options: EngineOptions, faults: EngineFaults, body: dict[str, Any]) -> list[int] | None:
    """The prompt's ids; None: the messages are to be rendered. Raises BadRequest for ids that are none."""
    params = body.get("kv_transfer_params")
    ids = params.get("prompt_token_ids") if isinstance(params, dict) else None
    if ids is None or faults.ignore_ids or _version(options.version) < FIRST_VERSION:
        return None
    if body.get("echo") or has_media(normalise(body["messages"]) or []):
        return None
    if faults.refuse_ids:
        raise BadRequest(f"Token id {ids[0]} is out of vocabulary (parameter={PARAMETER})", param=PARAMETER)
    if not isinstance(ids, list) or not ids or any(type(id) is not int or id < 0 for id in ids):
        what = "`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative integers."
        raise BadRequest(f"{what} (parameter={PARAMETER})", param=PARAMETER)
    return ids


def _version(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
