"""Vocabularies of Mistral's tokenizers."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from mistral_common.tokens.tokenizers.base import SpecialTokens


def tekken(version: str) -> dict[str, Any]:
    """Return a tokenizer of this version, with the vocabulary that the library has as an example."""
    vocabulary: dict[str, Any] = json.loads(files("mistral_common").joinpath("data/tekken_240911.json").read_text())
    vocabulary["config"]["version"] = version
    if version in ("v11", "v13", "v15"):
        special = [{"rank": n, "token_str": token.value, "is_control": True} for n, token in enumerate(SpecialTokens)]
        vocabulary["special_tokens"] = special
    if version == "v15":
        efforts = {"type": "enum", "values": ["none", "high"], "accepts_none": True, "default": "none"}
        vocabulary["model_settings_builder"] = {"reasoning_effort": efforts}
    return vocabulary
