"""Probe prompts that compare rendering and tokenising with the engine; each covers one thing that is easily done wrong.

They are request bodies, so that a check covers the whole path from a body to its ids.
"""

from __future__ import annotations

import json
from typing import Any

_WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'Tells the weather <now> & later: "as is", in °C',
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string", "enum": ["Zürich", "東京"]}, "days": {"type": "integer"}},
            "required": ["town"],
        },
    },
}
_ASK = {"role": "user", "content": "How is the weather in Zürich?"}
_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"town": "Z\\u00fcrich", "days": 2, "exact": 1.0}'},
}
_ODD = "naïve 東京 🎉👩\u200d🚀 مرحبا \u00a0 e\u0301 \t\r\n <|x|> {{ y }}"
_SYSTEM = {"role": "system", "content": "You are terse.\n\n  Indent  stays. "}

CHATS: dict[str, dict[str, Any]] = {
    "plain": {"messages": [{"role": "user", "content": "Hello there, how are you?"}]},
    "multi-turn": {
        "messages": [
            _SYSTEM,
            {"role": "user", "content": "One?"},
            {"role": "assistant", "content": "Two.\n"},
            {"role": "user", "content": " three  "},
        ]
    },
    "unicode": {
        "messages": [{"role": "user", "content": "naïve 東京 🎉👩‍🚀 مرحبا \u00a0 e\u0301 \t\r\n <|x|> {{ y }}"}]
    },
    "content-parts": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "first"}, {"type": "text", "text": "second"}]},
        ]
    },
    "system-and-tools": {"messages": [_SYSTEM, _ASK], "tools": [_WEATHER]},
    "tool-results": {
        "messages": [
            _ASK,
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": '{"sky": "clear", "t": 21}'},
            {"role": "assistant", "content": "Clear, 21 °C."},
            {"role": "user", "content": "Thanks."},
        ],
        "tools": [_WEATHER],
    },
}
_ROUND = [{"role": "assistant", "content": None, "tool_calls": [_CALL]}, CHATS["tool-results"]["messages"][2]]
AGENT: list[dict[str, Any]] = [  # typical agent chats, the simpler ones for templates that refuse tools or roles
    {
        "model": "any",
        "messages": [_SYSTEM, _ASK, *_ROUND * 4, *CHATS["tool-results"]["messages"][3:]],
        "tools": [_WEATHER],
    },
    {"model": "any", "messages": CHATS["multi-turn"]["messages"]},
    {"model": "any", "messages": [_ASK, {"role": "assistant", "content": "Clear."}, _ASK]},
]
TEXTS = {"text": "The quick brown fox\n  jumps over 13 lazy dogs — naïve 東京 🎉.  "}


def probe_bodies(model: str) -> list[tuple[str, str, bytes]]:
    """Return (name, path, body) of each probe, the cheapest first."""
    texts = [(name, "/v1/completions", {"model": model, "prompt": text}) for name, text in TEXTS.items()]
    chats = [(name, "/v1/chat/completions", {"model": model, **chat}) for name, chat in CHATS.items()]
    return [(name, path, json.dumps(fields).encode()) for name, path, fields in (*texts, *chats)]
