"""Top-level body fields that the four endpoints share.

One parse extracts the fields that routing needs, and detects those that clients may not set (`field_reader.py`).
Fields that may be large stay `Raw`, a view into the body, and are read only when the prompt's content is needed
(`field_values.py`): a policy that uses no cache state does not pay for reading messages.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, UnsetType

Part = Raw | UnsetType  # a field's bytes, read later; UNSET: not in the body


class BodyFields(msgspec.Struct):
    """Fields of every endpoint. A `Part` is never refused, whatever it holds: the engine may ignore it."""

    model: str | None = None
    stream: bool | None = False
    cache_salt: Part = UNSET
    session_id: Part = UNSET
    prompt_cache_key: Part = UNSET
    user: Part = UNSET
    metadata: Part = UNSET
    safety_identifier: Part = UNSET
    vllm_xargs: Part = UNSET
    priority: Part = UNSET
    max_tokens: Part = UNSET
    max_completion_tokens: Part = UNSET  # chats only; takes precedence over max_tokens
    temperature: Part = UNSET
    return_token_ids: Part = UNSET
